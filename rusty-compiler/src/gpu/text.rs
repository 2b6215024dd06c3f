//! From a kernel to device text: the few inner calls of CubeCL, in one place.
//!
//! A kernel is defined for hand-made device properties, no device needed, and compiled to WGSL or CUDA C++.
//! Texts expect the buffers of [`Buffers`](super::kernels::env::Buffers) in order, then one block of *info*:
//! the launch's scalars and the buffers' lengths ([`info`]).

use super::device_properties::device_properties;
use super::kernels::attention::{self, AttentionConfig};
use super::kernels::choose::{self, ChooseConfig};
use super::kernels::contract::ContractConfig;
use super::kernels::env::BINDINGS;
use super::kernels::expert_products;
use super::kernels::expert_results::{self, ExpertResultsConfig};
use super::kernels::experts::FewExpertsConfig;
use super::kernels::gemm::{self, GemmConfig};
use super::kernels::grouped::{self, GroupedConfig};
use super::kernels::matrix::{self, MatrixConfig};
use super::kernels::matrix_attention::{self, MatrixAttentionConfig};
use super::kernels::matrix_product;
use super::kernels::packed_inputs::{self, PackConfig};
use super::kernels::random::{self, RandomConfig};
use super::kernels::route::{self, RouteConfig};
use super::kernels::row_attention::{self, RowAttentionConfig};
use super::kernels::rows::{self, RowsConfig};
use super::kernels::shrink::{self, ShrinkConfig};
use super::kernels::{gemv, tile};
use super::{cuda_text, wgsl_text};
use crate::package::BUILD;
use crate::{Error, Result};
use cubecl::ir::{AddressType, TargetProperties};
use cubecl::prelude::*;
use cubecl_core::InfoBuilder;
use rusty_backend::{BindingAccess, KernelText, Language, Target};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// What a kernel is specialised for, by kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Maps, gathers, row selection.
    Rows(RowsConfig),
    /// Contraction for few rows.
    Gemv(ContractConfig),
    /// Contraction for many rows.
    Gemm(GemmConfig),
    /// Contraction for many rows on matrix units.
    Matrix(MatrixConfig),
    /// The inputs of such a contraction.
    Pack(PackConfig),
    /// Adapters' first factor.
    Shrink(ShrinkConfig),
    /// Attention of tiles of rows.
    Attention(AttentionConfig),
    /// Attention of tiles of rows on matrix units.
    MatrixAttention(MatrixAttentionConfig),
    /// Attention of rows alone.
    RowAttention(RowAttentionConfig),
    /// Sums of what splits of rows left.
    MeetSplits(RowAttentionConfig),
    /// Argmax.
    Choose(ChooseConfig),
    /// The choice of experts.
    Route(RouteConfig),
    /// Products with chosen experts, for few rows.
    Experts(FewExpertsConfig),
    /// Products with chosen experts, for many rows.
    Grouped(GroupedConfig),
    /// What becomes of such products that are left as they are, with adapters or without.
    ExpertResults(ExpertResultsConfig),
    /// Random weights.
    Random(RandomConfig),
}

/// A kernel without the values of a launch: equal specs share one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSpec {
    /// What it does.
    pub kind: Kind,
    /// Scalars of a launch.
    pub scalars: usize,
}

impl KernelSpec {
    /// Units of a cube.
    pub fn units(&self) -> u32 {
        match &self.kind {
            Kind::Rows(c) => c.units,
            Kind::Gemv(c) => c.team.units,
            Kind::Gemm(_) | Kind::Grouped(_) => tile::UNITS,
            Kind::ExpertResults(_) => expert_results::UNITS,
            Kind::Matrix(_) | Kind::MatrixAttention(_) => matrix_product::UNITS,
            Kind::Pack(c) => c.team.units,
            Kind::Shrink(c) => c.team.units,
            Kind::Attention(c) => c.units,
            Kind::RowAttention(c) | Kind::MeetSplits(c) => c.team.units,
            Kind::Choose(c) => c.units,
            Kind::Route(c) => c.units(),
            Kind::Experts(c) => c.product.team.units,
            Kind::Random(c) => c.units,
        }
    }

    /// Whether its cubes tell each other, by counters, what they have left in the arena.
    pub(super) fn counts_cubes(&self) -> bool {
        match &self.kind {
            Kind::RowAttention(c) => c.meets,
            Kind::Choose(c) => c.cubes > 1,
            Kind::Matrix(c) => c.shares.is_some(),
            Kind::Gemv(c) => c.shrinks,
            _ => false,
        }
    }

    /// Whether its cubes may begin while those of the launch before end. Cubes that fill a processor may not: those that come first
    /// would crowd on the processors that are idle first, and wait there for each other.
    fn begins_early(&self) -> bool {
        match &self.kind {
            Kind::Matrix(_) | Kind::MatrixAttention(_) => false,
            Kind::Grouped(config) => matches!(config.tiles, grouped::Tiles::Single { .. }),
            _ => true,
        }
    }

    /// Whether it applies adapters to products with experts.
    pub(super) fn adapts_experts(&self) -> bool {
        matches!(&self.kind, Kind::ExpertResults(c) if c.adapted.is_some())
    }

    /// Whether it multiplies bytes.
    fn multiplies_bytes(&self) -> bool {
        match &self.kind {
            Kind::Gemv(c) => c.bytes,
            Kind::Experts(c) => c.product.bytes,
            _ => false,
        }
    }

    /// Short name.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Rows(_) => "rows",
            Kind::Gemv(_) => "gemv",
            Kind::Gemm(_) => "gemm",
            Kind::Matrix(_) => "matrix",
            Kind::Pack(_) => "pack",
            Kind::Shrink(_) => "shrink",
            Kind::Attention(_) => "attention",
            Kind::MatrixAttention(_) => "matrix_attention",
            Kind::RowAttention(_) => "row_attention",
            Kind::MeetSplits(_) => "meet_splits",
            Kind::Choose(_) => "choose",
            Kind::Route(_) => "route",
            Kind::Experts(_) => "experts",
            Kind::Grouped(_) => "grouped",
            Kind::ExpertResults(_) => "expert_results",
            Kind::Random(_) => "random",
        }
    }

    /// A name for caches and packages: the same in every build that makes the same texts.
    pub fn key(&self, target: &Target) -> String {
        let mut low = Fnv(0xcbf2_9ce4_8422_2325);
        let mut high = Fnv(0x6c62_272e_07bb_0142);
        for hasher in [&mut low, &mut high] {
            let facts = (
                target.language,
                target.plane_size,
                target.plane_ops,
                target.shared_bytes,
                target.orders_groups && self.counts_cubes(),
                target.f16 && target.language == Language::Wgsl,
            );
            (BUILD, self, facts).hash(hasher);
        }
        format!("{}-{:016x}{:016x}", self.name(), high.0, low.0)
    }

    /// The text for a target.
    ///
    /// # Errors
    /// [`Error::Target`] with the compiler's message.
    pub fn text(&self, target: &Target) -> Result<KernelText> {
        let compiled = self.define(target).and_then(|d| match target.language {
            Language::Wgsl => wgsl_text::compiled(d),
            Language::CudaC => cuda_text::compiled(d, target),
            Language::Native => Err("kernels are native code there".into()),
        });
        let refuse = |reason| Error::Target {
            target: target.name.clone(),
            kernel: self.name().into(),
            reason,
        };
        let mut text = compiled.map_err(refuse)?;
        if target.language == Language::Wgsl {
            text.source = wgsl_text::with_halves(&text.source);
            if target.orders_groups && self.counts_cubes() {
                text.source = wgsl_text::coherent(&text.source);
            }
            if self.multiplies_bytes() {
                text.source = wgsl_text::bytewise(&text.source);
            }
        }
        // CubeCL's name of an entry point differs between builds; texts that do not are found again in caches.
        let entry = format!("rusty_{}", self.name());
        text.source = renumbered(&text.source.replace(&text.entry, &entry));
        if target.language == Language::CudaC && self.begins_early() {
            text.source = cuda_text::overlapping(&text.source, &entry).map_err(refuse)?;
        }
        text.entry = entry;
        text.unit_dim = [self.units(), 1, 1];
        text.key = self.key(target);
        Ok(text)
    }

    fn define(&self, target: &Target) -> Result<KernelDefinition, String> {
        let settings = KernelSettings::new(
            CubeDim::new_1d(self.units()).into(),
            ExecutionMode::Unchecked,
            AddressType::U32,
        );
        let device = Arc::new(device_properties(target));
        let properties = Arc::new(TargetProperties {
            mma: Default::default(),
        });
        let b = || BufferCompilationArg { inplace: None };
        let args: SequenceCompilationArg<u32> = (0..self.scalars).map(|_| ()).collect();
        macro_rules! define {
            ($kernel:path, $config:expr) => {{
                use $kernel as Kernel;
                let kernel = Kernel::new(
                    settings,
                    device,
                    properties,
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    args,
                    $config.clone(),
                );
                cubecl_core::define_kernel(&kernel).map_err(|e| format!("{e:?}"))
            }};
        }
        match &self.kind {
            Kind::Rows(c) => define!(rows::rows::Rows, c),
            Kind::Gemv(c) if c.shrinks => define!(gemv::gemv_shrinking::GemvShrinking, c),
            Kind::Gemv(c) => define!(gemv::gemv::Gemv, c),
            Kind::Gemm(c) if c.halves => define!(gemm::gemm_halves::GemmHalves, c),
            Kind::Gemm(c) => define!(gemm::gemm::Gemm, c),
            Kind::Matrix(c) if c.shares.is_some() => {
                define!(matrix::matrix_sharing::MatrixSharing, c)
            }
            Kind::Matrix(c) => define!(matrix::matrix::Matrix, c),
            Kind::Pack(c) => define!(packed_inputs::pack::Pack, c),
            Kind::Shrink(c) => define!(shrink::shrink::Shrink, c),
            Kind::Attention(c) => define!(attention::attention::Attention, c),
            Kind::MatrixAttention(c) => {
                define!(matrix_attention::matrix_attention::MatrixAttention, c)
            }
            Kind::RowAttention(c) => define!(row_attention::row_attention::RowAttention, c),
            Kind::MeetSplits(c) => define!(row_attention::meet_splits::MeetSplits, c),
            Kind::Choose(c) => define!(choose::choose::Choose, c),
            Kind::Route(c) => define!(route::route::Route, c),
            Kind::Experts(c) => define!(expert_products::experts::Experts, c),
            Kind::Grouped(c) => define!(grouped::grouped::Grouped, c),
            Kind::ExpertResults(c) => define!(expert_results::expert_results::ExpertResults, c),
            Kind::Random(c) => define!(random::random::Random, c),
        }
    }
}

/// The info block of a launch: scalars in order, then the buffers' lengths in elements (of four bytes).
pub fn info(scalars: &[u32], lengths: [u64; BINDINGS]) -> Vec<u64> {
    let mut builder = InfoBuilder::default();
    for scalar in scalars {
        builder.scalars.push(*scalar);
    }
    for length in lengths {
        builder.metadata.register_buffer(length, AddressType::U32);
    }
    builder.finish(AddressType::U32).data
}

/// A text whose buffers are all written to.
pub(super) fn plain(entry: String, source: String, language: Language) -> KernelText {
    KernelText {
        entry,
        source,
        language,
        bindings: vec![BindingAccess::ReadWrite; BINDINGS],
        info: true,
        unit_dim: [1, 1, 1],
        shared_bytes: 0,
        key: String::new(),
    }
}

/// The text with variables (`v` and a number) numbered as they come: CubeCL's numbers differ from time to time.
fn renumbered(source: &str) -> String {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut in_word = false;
    while let Some(first) = rest.chars().next() {
        let digits = match first == 'v' && !in_word {
            true => rest[1..].bytes().take_while(u8::is_ascii_digit).count(),
            false => 0,
        };
        if digits > 0 {
            let (variable, behind) = rest.split_at(1 + digits);
            let next = numbers.len();
            let number = *numbers.entry(variable).or_insert(next);
            out.push_str(&format!("v{number}"));
            rest = behind;
            in_word = true;
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            // `.v4` is no variable.
            in_word = first.is_alphanumeric() || first == '_' || first == '.';
        }
    }
    out
}

/// FNV-1a, whose results do not change between builds.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
