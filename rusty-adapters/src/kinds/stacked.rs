//! LoRA of modules that hold a matrix for each expert or head: each matrix gets its part of the module's factors.
//!
//! PEFT's `target_parameters` make one pair of factors for a parameter `[E, n, k]` of all experts (`ParamWrapper` of
//! `peft/tuners/lora/layer.py`): `A` is `[E r, in]` with an expert's rows together, `B` is `[out, r E]` with the columns of one rank
//! together. Before version 0.19.1 `in` is the parameter's second axis, which is a product's outputs where experts are stored as
//! linear layers are. `gate_up_proj` has the rows of gates before those of ups. What PEFT saves does not name the parameter; the widths
//! of its factors tell.

use super::Assembly;
use super::lora::wider;
use crate::base_model::{DOWN, GATE, KEYS, UP, VALUES};
use crate::config::Kind;
use crate::draft::Draft;
use crate::factors::transposed;
use crate::modules::Parts;
use crate::tensors::Tensor;
use crate::{Error, Result};
use rusty_graph::SiteId;
use rusty_loader::Format;
use std::sync::Arc;

/// A parameter of experts.
struct Parameter {
    name: &'static str,
    /// The products whose rows it holds.
    products: &'static [&'static str],
}

const PARAMETERS: [Parameter; 2] = [
    Parameter {
        name: "gate_up_proj",
        products: &[GATE, UP],
    },
    Parameter {
        name: "down_proj",
        products: &[DOWN],
    },
];

/// What factors of some widths change.
#[derive(Clone, Copy)]
struct Way {
    parameter: &'static Parameter,
    /// Whether the columns of `A` are a product's outputs.
    swapped: bool,
    /// Of `A`.
    columns: usize,
    /// Of `B`.
    rows: usize,
}

/// A module's factors, as they are stored.
struct Factors {
    a: Vec<f32>,
    b: Vec<f32>,
    /// Columns of `A` and rows of `B`.
    columns: usize,
    rows: usize,
    /// Rows of `A`, and columns of `B`.
    ranks: usize,
    format: Format,
}

impl Factors {
    /// Rows `first ..` of `A`, as many as an expert has ranks.
    fn rows_of_a(&self, first: usize, rank: usize) -> Vec<f32> {
        let width = self.columns;
        self.a[first * width..(first + rank) * width].to_vec()
    }

    /// Each `step`th column of `B`, from one on.
    fn columns_of_b(&self, first: usize, step: usize) -> Vec<f32> {
        let rows = self.b.chunks_exact(self.ranks);
        let columns = rows.flat_map(|row| row[first..].iter().step_by(step));
        columns.copied().collect()
    }
}

impl Assembly<'_> {
    /// LoRA of a parameter of all experts of a block.
    pub(super) fn experts(&mut self, name: &str, parts: &Parts, block: &str) -> Result<()> {
        let (a, b) = self.factors(name, parts)?;
        let sites = |product: &str| self.base.sites_of(&format!("{block}.{product}"));
        let all = |product: &&str| sites(product);
        let ids: Option<Vec<Vec<SiteId>>> = [GATE, UP, DOWN].iter().map(all).collect();
        let Some([gates, ups, downs]) = ids.as_deref() else {
            return Err(Error::unsupported(
                self.path,
                format!("experts at '{name}'"),
            ));
        };
        let way = self.way(a, b, [gates[0], downs[0]])?;
        let name = name.trim_end_matches(".base_layer");
        let name = format!("{name}.{}", way.parameter.name);
        if !self.config.changes_parameter(&name) {
            let reason = format!(
                "tensor '{}' changes {name}, which the configuration's target_parameters leave out",
                a.name
            );
            return Err(Error::malformed(self.path, reason));
        }
        let count = gates.len();
        let rank = self.rank_of_each(&name, a, count, way.columns)?;
        let factors = self.values(a, b)?;
        let scale = self.config.scale(&name, rank);
        for expert in 0..count {
            let (mut a, mut b) = (
                factors.rows_of_a(expert * rank, rank),
                factors.columns_of_b(expert, count),
            );
            if way.swapped {
                (a, b) = (
                    transposed(&b, factors.rows, rank),
                    transposed(&a, rank, factors.columns),
                );
            }
            let draft = Draft::low_rank(rank, a, b, scale, factors.format);
            let ids = match way.parameter.products.len() {
                2 => vec![gates[expert], ups[expert]],
                _ => vec![downs[expert]],
            };
            self.place(&name, &ids, draft)?;
        }
        Ok(())
    }

    /// What factors of these shapes change.
    fn way(&self, a: &Tensor, b: &Tensor, [gate, down]: [SiteId; 2]) -> Result<Way> {
        let (gate, down) = (self.base.graph.site(gate), self.base.graph.site(down));
        let widths = [(gate.k, 2 * gate.n), (down.k, down.n)];
        let ways = PARAMETERS
            .iter()
            .zip(widths)
            .flat_map(|(parameter, (k, n))| {
                let way = |swapped, columns: u32, rows: u32| Way {
                    parameter,
                    swapped,
                    columns: columns as usize,
                    rows: rows as usize,
                };
                [way(false, k, n), way(true, n, k)]
            });
        let ways: Vec<Way> = ways.collect();
        let (ranks, columns) = a.matrix(self.path, "experts", "[ranks, inputs]")?;
        let rows = b.matrix(self.path, "experts", "[outputs, ranks]")?.0;
        let mut fits = ways
            .iter()
            .filter(|w| (w.columns, w.rows) == (columns, rows));
        let own = |way: &&Way| way.swapped == self.config.swaps_parameters;
        // As wide as it is high it fits either way: only who wrote it can tell.
        if let Some(way) = fits.clone().find(own).or(fits.next()) {
            return Ok(*way);
        }
        if let Some(way) = ways.iter().find(|way| way.columns == columns) {
            let needed = format!("{} needs {:?}", way.parameter.name, [way.rows, ranks]);
            return Err(b.misfit(self.path, format!("of the model's experts {needed}")));
        }
        let needed = ways.iter().filter(own);
        let needed = needed.map(|w| format!("{} needs {:?}", w.parameter.name, [ranks, w.columns]));
        let needed = needed.collect::<Vec<_>>().join(", ");
        Err(a.misfit(self.path, format!("of the model's experts {needed}")))
    }

    /// Ranks of each of several matrices, whose rows of `A` are one above the other.
    fn rank_of_each(&self, name: &str, a: &Tensor, count: usize, columns: usize) -> Result<usize> {
        let rows = a.shape.first().copied().unwrap_or(0);
        // Stated ranks are below 2^16.
        let rank = self.config.rank(name).unwrap_or(rows / count);
        if rank == 0 || rows != rank * count {
            let needed = [rank.max(1) * count, columns];
            return Err(a.misfit(
                self.path,
                format!(
                    "the model's '{name}' needs {needed:?} for the rank that adapter_config.json states"
                ),
            ));
        }
        Ok(rank)
    }

    /// LoRA of what expands a block's latent: each head's keys and values are rows of it, and keys are what queries are multiplied
    /// by here, transposed.
    pub(super) fn latent(&mut self, name: &str, parts: &Parts, block: &str) -> Result<()> {
        let (a, b) = self.factors(name, parts)?;
        if !self.config.changes(name) {
            let reason = format!(
                "tensor '{}' changes {name}, which the configuration's target_modules or layers_to_transform leave out",
                a.name
            );
            return Err(Error::malformed(self.path, reason));
        }
        let heads = |product: &str| self.base.sites_of(&format!("{block}.{product}"));
        let (keys, values) = (heads(KEYS), heads(VALUES));
        let (Some(keys), Some(values)) = (keys, values) else {
            return Err(Error::unsupported(self.path, format!("heads at '{name}'")));
        };
        let (key, value) = (
            self.base.graph.site(keys[0]),
            self.base.graph.site(values[0]),
        );
        let (of_key, of_value) = (key.k as usize, value.n as usize);
        let latent = value.k as usize;
        let rank = self.rank_of_each(name, a, 1, latent)?;
        let rows = keys.len() * (of_key + of_value);
        for (tensor, needed) in [(a, [rank, latent]), (b, [rows, rank])] {
            if tensor.shape != needed {
                let reason = format!("the model's '{block}.attn_kv_b' needs {needed:?}");
                return Err(tensor.misfit(self.path, reason));
            }
        }
        let scale = self.config.scale(name, rank);
        let factors = self.values(a, b)?;
        let down = Arc::new(factors.a);
        let up = Arc::new(transposed(&down, rank, latent));
        let heads = factors.b.chunks_exact((of_key + of_value) * rank);
        for ((key, value), rows) in keys.into_iter().zip(values).zip(heads) {
            let (of_keys, of_values) = rows.split_at(of_key * rank);
            let draft = |a: Arc<Vec<f32>>, b: Arc<Vec<f32>>| Draft {
                rank,
                a: Some(a),
                b,
                scale: vec![scale; rank],
                ..Draft::empty(factors.format)
            };
            let of_keys = transposed(of_keys, of_key, rank).into();
            self.place(name, &[key], draft(of_keys, up.clone()))?;
            let of_values = of_values.to_vec().into();
            self.place(name, &[value], draft(down.clone(), of_values))?;
        }
        Ok(())
    }

    /// The two factors of a module that has nothing else.
    fn factors<'p>(&self, name: &str, parts: &'p Parts) -> Result<(&'p Tensor, &'p Tensor)> {
        let only = |part: &&&str| !["lora_A.weight", "lora_B.weight"].contains(part);
        let other = parts.keys().find(only);
        if self.config.kind != Kind::Lora || self.config.dora || other.is_some() {
            let what = format!("anything but a plain LoRA of '{name}'");
            return Err(Error::unsupported(self.path, what));
        }
        match (parts.get("lora_A.weight"), parts.get("lora_B.weight")) {
            (Some(a), Some(b)) => Ok((a, b)),
            _ => {
                let reason = format!("module '{name}' has one factor without the other");
                Err(Error::malformed(self.path, reason))
            }
        }
    }

    /// Their values, where they are matrices of the same ranks.
    fn values(&self, a: &Tensor, b: &Tensor) -> Result<Factors> {
        let (ranks, columns) = a.matrix(self.path, "experts", "[ranks, inputs]")?;
        let (rows, _) = b.matrix(self.path, "experts", "[outputs, ranks]")?;
        Ok(Factors {
            a: a.values(self.path)?,
            b: b.shaped(self.path, &[rows, ranks], "experts")?,
            columns,
            rows,
            ranks,
            format: wider(a.format, b.format),
        })
    }
}
