//! What a plan kernel gives, by the arithmetic of the oracle ([`ops`]): of some rows, and of contractions and experts of some lanes.

mod bodies;
mod products;

use super::attention;
use super::inputs::Inputs;
use super::rows::TrialRows;
use crate::declared::declared;
use crate::gpu::kernels::page_words::PageWords;
use crate::gpu::pages::kept_lanes;
use crate::gpu::stage::Template;
use crate::plan::{Anchor, Kernel, Operand, Plan, PlanValueId, Sink, Tail};
use crate::slots::SlotData;
use crate::{Error, Result};
use bodies::{Given, Rows, some_rows};
use rusty_graph::interpret::{Matrix, ops};
use rusty_graph::{AttentionSpec, AttentionValues, L, WeightId};
use rusty_loader::ModelFile;
use std::sync::Arc;

/// Rows from each end of those that there are, and between.
const ROWS: u32 = 2;

/// Where a result is found.
pub(super) enum Found {
    /// Some lanes of a row of a value.
    Value {
        value: PlanValueId,
        row: usize,
        lanes: Vec<u32>,
    },
    /// Keys (`half` 0) or values of the token of a step's row.
    Page { half: u32, of_step: usize },
    /// The token that a row chose.
    Pick { row: usize },
}

/// A result.
pub(super) struct Expected {
    pub found: Found,
    pub want: Vec<f32>,
    /// Whether it is a number of something: no other is near.
    pub counts: bool,
}

/// What a kernel's results are made of.
pub(super) struct Reference<'a> {
    pub plan: &'a Plan,
    pub kernel: &'a Kernel,
    pub file: &'a dyn ModelFile,
    pub rows: &'a TrialRows,
    pub inputs: &'a Inputs,
    /// By slot, from 1 on.
    pub adapters: &'a [Arc<SlotData>],
    pub pages: PageWords,
}

impl Reference<'_> {
    /// What launches leave.
    pub fn expected(&self, launched: &[Template]) -> Result<Vec<Expected>> {
        let mut rows = self.rows()?;
        let mut out = Vec::new();
        match &self.kernel.anchor {
            Anchor::Map => self.tails(&rows, &[], &mut out),
            Anchor::Gather { table, .. } => {
                let of_step = rows.numbers.iter().map(|r| self.rows.of_step(*r));
                let tokens: Vec<u32> = of_step.map(|r| self.rows.row(r).0).collect();
                let result = self.weight_rows(*table, &tokens)?;
                self.tails(&rows, &[result], &mut out);
            }
            Anchor::SelectRows { x } => {
                let result = rows.lanes(*x).clone();
                self.tails(&rows, &[result], &mut out);
            }
            Anchor::Contract { .. } => {
                self.made_first(&mut rows, &mut out);
                self.contraction(&rows, launched, &mut out)?;
            }
            Anchor::Experts { .. } => self.experts(&rows, launched, &mut out)?,
            Anchor::Route { x, bias, spec } => {
                let bias = bias.map(|b| rows.lanes(b).row(0));
                let made = ops::routes(rows.lanes(*x), bias, spec);
                self.store_routes(&rows, &made, spec.used, &mut out);
            }
            Anchor::Attention { q, spec } => {
                let attends = launched.iter().any(attention);
                self.attention(&rows, *q, (spec, attends), &mut out);
            }
            Anchor::ArgMax { x } => {
                let logits = rows.lanes(*x);
                out.extend((0..).zip(&rows.numbers).map(|(i, row)| Expected {
                    found: Found::Pick { row: *row },
                    want: vec![first_largest(logits.row(i)) as f32],
                    counts: true,
                }));
            }
        }
        Ok(out)
    }

    /// The rows that are computed. Of attention all, which see each other's keys.
    fn rows(&self) -> Result<Rows> {
        let all = self.rows.compared() as u32;
        let compared: Vec<usize> = picks(0, all, ROWS).map(|r| r as usize).collect();
        let numbers = match self.kernel.anchor {
            Anchor::Attention { .. } => (0..self.rows.count()).collect(),
            _ => compared.clone(),
        };
        let operands = self.kernel.operands.iter();
        let operands = operands.map(|o| self.given(o, &numbers));
        Ok(Rows {
            operands: operands.collect::<Result<_>>()?,
            numbers,
            compared,
        })
    }

    fn given(&self, operand: &Operand, numbers: &[usize]) -> Result<Given> {
        let of_step: Vec<usize> = numbers.iter().map(|r| self.rows.of_step(*r)).collect();
        Ok(match operand {
            Operand::Value(id) => {
                let numbers = match self.plan.value(*id).rows == L {
                    true => numbers,
                    false => &of_step[..],
                };
                // Some are made first.
                let all = self.inputs.values.get(id);
                Given {
                    lanes: all.map_or(Matrix::default(), |all| some_rows(all, numbers)),
                    ..Given::default()
                }
            }
            Operand::Vector(weight) => Given {
                lanes: self.weight_rows(*weight, &[0])?,
                ..Given::default()
            },
            Operand::Rope(rope) => Given {
                turns: self.rows.turns(&self.plan.ropes[rope.index()], &of_step),
                ..Given::default()
            },
        })
    }

    /// Decoded rows of a weight.
    fn weight_rows(&self, weight: WeightId, rows: &[u32]) -> Result<Matrix> {
        let decl = &self.plan.weights[weight.index()];
        let view = declared(self.file, decl)?;
        let mut out = Matrix::zeros(rows.len(), view.row_len());
        for (i, row) in rows.iter().enumerate() {
            let first = *row as usize * view.row_bytes();
            let bytes = view.bytes.part(first..first + view.row_bytes());
            let bytes = bytes.ok_or_else(|| Error::Weight {
                model: self.file.label().into(),
                tensor: decl.name.clone(),
                reason: format!("has no row {row}"),
            })?;
            view.format.decode_row(&bytes, out.row_mut(i));
        }
        Ok(out)
    }

    /// What a contraction makes first, which takes its place among the operands.
    fn made_first(&self, rows: &mut Rows, out: &mut Vec<Expected>) {
        for tail in &self.kernel.first {
            let made = rows.body(&tail.body, &[], None);
            self.store(rows, tail, &made, None, out);
            let Sink::Value(value) = tail.sink else {
                continue;
            };
            let operands = self.kernel.operands.iter().zip(&mut rows.operands);
            for (_, given) in operands.filter(|(o, _)| **o == Operand::Value(value)) {
                given.lanes = made.clone();
            }
        }
    }

    /// All lanes of all tails.
    fn tails(&self, rows: &Rows, results: &[Matrix], out: &mut Vec<Expected>) {
        for tail in &self.kernel.tails {
            let made = rows.body(&tail.body, results, None);
            self.store(rows, tail, &made, None, out);
        }
    }

    /// What a tail stores: `lanes` of it, or all.
    fn store(
        &self,
        rows: &Rows,
        tail: &Tail,
        made: &Matrix,
        lanes: Option<&[u32]>,
        out: &mut Vec<Expected>,
    ) {
        let all = || (0..tail.width).collect();
        let computed = rows.numbers.iter().enumerate();
        for (i, row) in computed.filter(|(_, row)| rows.compared.contains(row)) {
            let page = |half| Found::Page {
                half,
                of_step: self.rows.of_step(*row),
            };
            let kept = || kept_lanes(made.row(i), self.pages);
            let (found, want) = match tail.sink {
                Sink::Value(value) => {
                    let lanes = lanes.map_or_else(all, <[u32]>::to_vec);
                    let row = *row;
                    (Found::Value { value, row, lanes }, made.row(i).to_vec())
                }
                Sink::Key { .. } => (page(0), kept()),
                Sink::Val { .. } => (page(1), kept()),
            };
            out.push(Expected {
                found,
                want,
                counts: false,
            });
        }
    }

    /// Experts' numbers, and their weights.
    fn store_routes(&self, rows: &Rows, made: &Matrix, used: u32, out: &mut Vec<Expected>) {
        let Some(Sink::Value(value)) = self.kernel.tails.first().map(|t| t.sink) else {
            return;
        };
        for (i, row) in rows.numbers.iter().enumerate() {
            let (chosen, weights) = made.row(i).split_at(used as usize);
            for (first, want, counts) in [(0, chosen, true), (used, weights, false)] {
                let lanes = (first..first + used).collect();
                let row = *row;
                out.push(Expected {
                    found: Found::Value { value, row, lanes },
                    want: want.to_vec(),
                    counts,
                });
            }
        }
    }

    /// Attention over the cache, in which heads that the kernel makes take their places first; of a launch that only makes heads
    /// these, queries too.
    fn attention(
        &self,
        rows: &Rows,
        q: u16,
        (spec, attends): (&AttentionSpec, bool),
        out: &mut Vec<Expected>,
    ) {
        let mut queries = rows.lanes(q).clone();
        let mut cache = self.inputs.cache.clone();
        let place = |row: usize| {
            let (_, sequence, position) = self.rows.row(self.rows.of_step(row));
            (sequence, position as usize)
        };
        for tail in &self.kernel.first {
            let made = rows.body(&tail.body, &[], None);
            let half = match tail.sink {
                Sink::Value(_) => {
                    if !attends {
                        self.store(rows, tail, &made, None, out);
                    }
                    queries = made;
                    continue;
                }
                Sink::Key { .. } => 0,
                Sink::Val { .. } => 1,
            };
            for row in &rows.numbers {
                let (sequence, position) = place(*row);
                let kept = kept_lanes(made.row(*row), self.pages);
                let own = cache[sequence][half].row_mut(position);
                own.copy_from_slice(&kept);
            }
            self.store(rows, tail, &made, None, out);
        }
        if !attends {
            return;
        }
        let width = spec.heads * spec.value_dim();
        let mut result = Matrix::zeros(rows.numbers.len(), width as usize);
        for row in &rows.compared {
            let (sequence, position) = place(*row);
            let [keys, values] = &cache[sequence];
            let values = match spec.values {
                AttentionValues::Own => values,
                AttentionValues::OfKeys(_) => keys,
            };
            let query = some_rows(&queries, &[*row]);
            let made = ops::attention(spec, &query, keys, values, position);
            result.row_mut(*row).copy_from_slice(made.row(0));
        }
        self.tails(rows, &[result], out);
    }
}

/// Some of `first..end`: `each` from both ends, and as many between.
fn picks(first: u32, end: u32, each: u32) -> impl Iterator<Item = u32> {
    let count = end.saturating_sub(first);
    let step = count / (each + 1);
    let mut all: Vec<u32> = match count <= 3 * each {
        true => (first..end).collect(),
        false => {
            // Not all of them at even distances.
            let between = (1..=each).map(|i| (first + i * step + i).min(end - 1));
            let ends = (first..first + each).chain(end - each..end);
            ends.chain(between).collect()
        }
    };
    all.sort_unstable();
    all.dedup();
    all.into_iter()
}

/// The first of the largest lanes.
fn first_largest(row: &[f32]) -> usize {
    let mut best = 0;
    for (lane, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = lane;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_are_inside_and_at_the_ends() {
        for (first, count) in [
            (0, 1),
            (3, 5),
            (0, 6),
            (7, 7),
            (64, 51),
            (0, 4096),
            (9, 128_000),
        ] {
            for each in [1, 2, 16] {
                let all: Vec<u32> = picks(first, first + count, each).collect();
                assert_eq!(all[0], first);
                assert_eq!(all[all.len() - 1], first + count - 1);
                assert!(all.is_sorted_by(|a, b| a < b) && all.len() <= 3 * each as usize);
            }
        }
        assert_eq!(picks(5, 5, 2).count(), 0);
    }
}
