//! The text of every kernel variant in every language, and NVRTC's word on the CUDA ones.

use crate::gpu_contractions::in_all_tiles;
use crate::gpu_specs::{in_further_formats, specs};
use naga::back::hlsl::ShaderModel;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use rusty_backend::{DescribedDevice, Family, KernelText, Language, Target, WgpuApi};
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::gpu::kernels::attention_shape::AttentionShape;
use rusty_compiler::gpu::kernels::contract::ContractConfig;
use rusty_compiler::gpu::kernels::experts::{ExpertsConfig, Summing};
use rusty_compiler::gpu::kernels::grouped::Tiles;
use rusty_compiler::gpu::kernels::matrix_attention::MatrixAttentionCut;
use rusty_compiler::gpu::kernels::rows::Origin;
use rusty_compiler::gpu::kernels::sink::{Store, Target as Sink};
use rusty_compiler::gpu::text::{KernelSpec, Kind};
use rusty_compiler::{BindOptions, KvFormat, compile};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Direct3D 12's facts, with planes and half precision and without both. Texts for Vulkan, rdna3's too, are the same.
fn dx12(with_all: bool) -> Target {
    let least = Target::named("dx12").expect("dx12");
    match with_all {
        true => Target {
            name: "dx12 with halves and planes".into(),
            f16: true,
            plane_size: 32,
            plane_ops: true,
            ..least
        },
        false => least,
    }
}

/// Targets that stand for the languages: with plane operations and without, which for WGSL is without half precision, too, and which no
/// CUDA device is.
fn targets() -> [Target; 3] {
    let cuda = Target::named("h200").expect("h200");
    [dx12(true), dx12(false), cuda]
}

/// Kernels of each kind and shape; weights lie in half precision where WGSL has it.
fn listed(target: &Target) -> Vec<KernelSpec> {
    let halves = target.f16 && target.language == Language::Wgsl;
    let takes = |spec: &KernelSpec| match &spec.kind {
        Kind::Gemm(c) => halves || !c.halves,
        _ => true,
    };
    let all = specs(target.plane(), target.language == Language::CudaC);
    all.into_iter().filter(takes).collect()
}

/// Those, and, once for a language, all formats, which change no shape.
fn all(target: &Target) -> Vec<KernelSpec> {
    let mut all = listed(target);
    if target.plane_ops {
        let wide = target.language == Language::CudaC;
        all.extend(in_further_formats(target.plane(), wide));
    }
    all
}

fn texts(specs: Vec<KernelSpec>, target: &Target) -> Vec<(KernelSpec, Arc<KernelText>)> {
    let texts = specs.into_iter().map(|spec| {
        let text = text(&spec, target);
        (spec, text)
    });
    texts.collect()
}

/// The text of a kernel. To make one takes long, so those that have one key are made once for all tests and targets.
fn text(spec: &KernelSpec, target: &Target) -> Arc<KernelText> {
    static MADE: Mutex<BTreeMap<String, Arc<OnceLock<Arc<KernelText>>>>> =
        Mutex::new(BTreeMap::new());
    let place = {
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        made.entry(spec.key(target)).or_default().clone()
    };
    let make = || Arc::new(spec.text(target).expect("text"));
    place.get_or_init(make).clone()
}

fn label(spec: &KernelSpec) -> String {
    let contract = |c: &ContractConfig| {
        let adapters = if c.adapters.is_some() {
            " adapters"
        } else {
            ""
        };
        let bytes = if c.bytes { " bytes" } else { "" };
        let rows = match c.cube_rows {
            1 => String::new(),
            rows => format!(" {rows} rows"),
        };
        let ahead = if c.ahead { " ahead" } else { "" };
        let shrinks = if c.shrinks { " from the first" } else { "" };
        let residual = if c.first.is_some() { " residual" } else { "" };
        format!(
            " {}{bytes}{rows}{adapters}{residual}{shrinks}{ahead}",
            c.parts[0].format.name()
        )
    };
    let of_kind = match &spec.kind {
        Kind::Rows(c) => match c.origin {
            Origin::Map => pieces(c.tails.iter().any(of_piece)).into(),
            Origin::Gather {
                format, changed, ..
            } => format!(
                " of {}{}",
                format.name(),
                if changed { " changed" } else { "" }
            ),
            Origin::Select { .. } => " selected".into(),
        },
        Kind::Gemv(c) => contract(c),
        Kind::Gemm(c) => {
            let halves = if c.halves { " halves" } else { "" };
            format!("{} {}{halves}", contract(&c.contract), c.tile.rows)
        }
        Kind::Matrix(c) => format!("{} {}", contract(&c.contract), c.tile.rows),
        Kind::Pack(c) => contract(&c.contract),
        Kind::Attention(c) => of_shape(&c.shape),
        Kind::MatrixAttention(c) => {
            let MatrixAttentionCut {
                below,
                across,
                keys,
            } = c.cut;
            format!("{} {below}x{across}x{keys}", of_shape(&c.shape))
        }
        Kind::RowAttention(c) => {
            let apart = if c.meets { "" } else { " apart" };
            format!("{}{apart}", of_shape(&c.shape))
        }
        Kind::MeetSplits(c) => of_shape(&c.shape),
        Kind::Route(c) => format!(" {:?}", c.score),
        Kind::Experts(c) => {
            let format = c.product.parts[0].format.name();
            let left = if c.tails.is_empty() { " left" } else { "" };
            let how = match c.sums {
                Summing::Nothing => "",
                Summing::InTurn => " in turn",
                Summing::SideBySide => " side by side",
            };
            format!("{}{how} {format}{left}", of_experts(&c.experts))
        }
        Kind::Grouped(c) => {
            let tiles = match &c.tiles {
                Tiles::Single { format, .. } => format.name(),
                Tiles::Matrix(m) => &format!("{} on units", m.contract.parts[0].format.name()),
            };
            format!("{} {tiles}", of_experts(&c.experts))
        }
        Kind::ExpertResults(c) => {
            let adapted = if c.adapted.is_some() { " adapters" } else { "" };
            format!("{}{adapted}", of_experts(&c.experts))
        }
        _ => String::new(),
    };
    format!("{}{of_kind}", spec.name())
}

fn of_shape(shape: &AttentionShape) -> String {
    format!(" {:?}{}", shape.kv, pieces(shape.piece.is_some()))
}

fn of_piece(store: &Store) -> bool {
    matches!(store.target, Sink::Page { piece: Some(_), .. })
}

fn pieces(cut: bool) -> &'static str {
    if cut { " in pieces" } else { "" }
}

fn of_experts(config: &ExpertsConfig) -> String {
    let summed = if config.combine { " summed" } else { "" };
    let routed = if config.routed { "" } else { " heads" };
    format!(" x{}{summed}{routed}", config.parts)
}

/// What a launch relies on in a text: its entry, its bindings in order, shared memory, plane operations,
/// barriers and loads of more than one word.
fn shape(text: &KernelText) -> String {
    let source = &text.source;
    let count = |words: &[&str]| {
        words
            .iter()
            .map(|w| source.matches(w).count())
            .sum::<usize>()
    };
    let (entry, bindings) = match text.language {
        Language::Wgsl => (
            source.contains(&format!("fn {}(", text.entry)),
            count(&["var<storage,"]),
        ),
        _ => (
            source.contains(&format!(" {}(", text.entry)),
            count(&["__restrict__", "__grid_constant__"]),
        ),
    };
    assert!(entry, "no entry {} in\n{source}", text.entry);
    let planes = count(&["subgroup", "__shfl"]);
    let barriers = count(&["workgroupBarrier", "__syncthreads"]);
    let shared = count(&["var<workgroup>", "extern __shared__"]);
    let wide = count(&[
        "vec4<",
        "vec2<",
        "float4",
        "float2",
        "uint4",
        "uint2",
        "uint32_t_4 const*",
        // Of weights in texts whose assembly may write.
        "uint32_t_4 *>(v0)",
    ]);
    format!(
        "bindings {bindings}, shared {}, shared bytes {}, planes {}, barriers {}, wide {}{}",
        shared > 0,
        text.shared_bytes,
        planes > 0,
        barriers > 0,
        wide > 0,
        if source.contains("mma.sync") {
            ", matrices"
        } else {
            ""
        }
    )
}

#[test]
fn every_variant_has_text_of_its_shape() {
    let mut lines = String::new();
    for target in targets() {
        lines.push_str(&format!("== {:?}, {}\n", target.language, target.name));
        for (at, (spec, text)) in texts(listed(&target), &target).into_iter().enumerate() {
            lines.push_str(&format!("{}: {}\n", label(&spec), shape(&text)));
            // Caches find a text by its very letters.
            if at % 16 == 0 {
                let again = spec.text(&target).expect("text");
                assert_eq!(*text, again, "{}", label(&spec));
            }
        }
    }
    insta::assert_snapshot!(lines);
}

/// Facts that WGSL is planned for: Direct3D 12's, and Metal's, of Apple's own GPUs and with planes of whose size nothing is known.
fn wgsl_targets() -> [Target; 4] {
    let metal = Target::named("metal").expect("metal");
    let least = Target {
        f16: false,
        plane_size: dx12(false).plane_size,
        plane_ops: false,
        ..metal.clone()
    };
    [dx12(true), dx12(false), metal, least]
}

/// Kernels that may be planned for a target: those of bytes where it has their product.
fn planned(target: &Target) -> Vec<KernelSpec> {
    let takes = |spec: &KernelSpec| match &spec.kind {
        Kind::Gemv(c) => target.packed_dot || !c.bytes,
        Kind::Experts(c) => target.packed_dot || !c.product.bytes,
        _ => true,
    };
    all(target).into_iter().filter(takes).collect()
}

/// What wgpu lets a target's texts have: features that devices are opened with, and conversions of halves, which all of its APIs have.
fn capabilities(target: &Target) -> Capabilities {
    let mut has = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    has.set(Capabilities::SUBGROUP, target.plane_ops);
    has.set(Capabilities::SHADER_FLOAT16, target.f16);
    has.set(
        Capabilities::MEMORY_DECORATION_COHERENT,
        target.orders_groups,
    );
    has
}

/// A text as naga takes it with what its target has.
fn validated(text: &KernelText, target: &Target, said: &str) -> (naga::Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(&text.source);
    let module = module.unwrap_or_else(|e| panic!("{said}: {e}"));
    let mut validator = Validator::new(ValidationFlags::all(), capabilities(target));
    let info = validator.validate(&module);
    let info = info.unwrap_or_else(|e| panic!("{said}: {e:?}"));
    (module, info)
}

/// The least shader model for a text, and the one with an instruction for products of bytes, which older ones write out.
fn models(text: &KernelText) -> Vec<ShaderModel> {
    let least = match text.source.contains("enable f16;") {
        true => ShaderModel::V6_2,
        false => ShaderModel::V6_0,
    };
    let native = text.source.contains("dot4I8Packed");
    let native = native.then_some(ShaderModel::V6_4);
    [least].into_iter().chain(native).collect()
}

/// What Metal and DX12 get from wgpu: naga takes every WGSL text with what its target has and writes it. Whether their drivers take
/// it is not known: none is at hand.
#[test]
fn naga_writes_every_wgsl_text_for_metal_and_dx12() {
    for target in wgsl_targets() {
        for (spec, text) in texts(planned(&target), &target) {
            let said = format!("{}, {}", target.name, label(&spec));
            let (module, info) = validated(&text, &target, &said);
            if let Kind::Gemm(c) = &spec.kind {
                assert_eq!(text.source.contains("enable f16;"), c.halves, "{said}");
            }
            assert!(!text.source.contains("reverseBits"), "{said}");
            let written = match target.family {
                Family::Wgpu(WgpuApi::Metal) => vec![msl(&module, &info)],
                _ => {
                    let models = models(&text).into_iter();
                    models.map(|model| hlsl(&module, &info, model)).collect()
                }
            };
            let mut multiplies_bytes = false;
            for written in written {
                let written = written.unwrap_or_else(|e| panic!("{said}: {e}"));
                assert!(written.contains(&text.entry), "{said}: no {}", text.entry);
                multiplies_bytes |= written.contains("dot4add_i8packed");
            }
            let bytes = text.source.contains("dot4I8Packed");
            assert_eq!(multiplies_bytes, bytes, "{said}");
        }
    }
}

/// Planes of 64 units, as older GPUs of AMD have, and of 128, as on phones; those of 8 and 32 have other tests.
#[test]
fn wide_planes_have_kernels() {
    let file = rusty_loader::random::outline("qwen3-tiny", "q4_k_m").expect("shapes");
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    for plane_size in [64, 128] {
        let target = Target {
            plane_size,
            plane_size_max: 128,
            ..Target::named("vulkan").expect("vulkan")
        };
        let plan = compile(&graph, &target).expect("plan");
        let device = Arc::new(DescribedDevice::new(target.clone()));
        let options = BindOptions {
            pages: 1,
            kv: KvFormat::F16,
            slots: 1,
        };
        GpuExecutable::bind(plan, &*file, device.clone(), options).expect("bound");
        let texts = device.texts();
        let rows = "rusty_row_attention";
        assert!(texts.iter().any(|t| t.entry == rows), "{plane_size}");
        for text in texts {
            let said = format!("{}, planes of {plane_size}", text.entry);
            validated(&text, &target, &said);
        }
    }
}

fn msl(module: &naga::Module, info: &ModuleInfo) -> Result<String, String> {
    use naga::back::msl;
    let options = msl::Options {
        lang_version: (3, 2),
        fake_missing_bindings: true,
        ..Default::default()
    };
    let written = msl::write_string(module, info, &options, &msl::PipelineOptions::default());
    written.map(|(text, _)| text).map_err(|e| e.to_string())
}

fn hlsl(
    module: &naga::Module,
    info: &ModuleInfo,
    shader_model: ShaderModel,
) -> Result<String, String> {
    use naga::back::hlsl;
    let options = hlsl::Options {
        shader_model,
        ..Default::default()
    };
    let mut text = String::new();
    let pipeline = hlsl::PipelineOptions::default();
    let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
    writer
        .write(module, info, None)
        .map_err(|e| e.to_string())?;
    Ok(text)
}

/// Compiles every CUDA text to machine code of the newest kind, and some of those that multiply on matrix units, of which older ones have
/// fewer, to that of the oldest that has them. Where PyPI has NVRTC, `cargo xtask setup` installs it.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn nvrtc_takes_every_cuda_text() {
    let target = Target::named("h200").expect("h200");
    for (spec, text) in texts(all(&target), &target) {
        // Formats differ in what they decode, which is plain code.
        let older = match &spec.kind {
            Kind::Matrix(c) => in_all_tiles(c.contract.parts[0].format),
            Kind::MatrixAttention(_) => true,
            _ => false,
        };
        for arch in [90].into_iter().chain(older.then_some(80)) {
            let code = rusty_backend::cuda::nvrtc::machine_code(&text.source, arch);
            let code = code.unwrap_or_else(|e| panic!("sm_{arch}, {}: {e}", label(&spec)));
            assert!(code.len() > 500);
        }
    }
}
