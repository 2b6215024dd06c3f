//! What a plan's weights take on a CPU, told without loading them.

use super::float::RowKind;
use super::kind::Kind;
use super::panel::PanelLayout;
use crate::plan::{Anchor, Operand, Plan};
use rusty_graph::WeightId;
use std::collections::BTreeMap;

/// Bytes of a plan's weights as a CPU holds them from the second step on, experts once they were taken: block formats in
/// panels, vectors in single precision, everything else as in the file. Of BF16 a quarter less is held where its values
/// let it be shortened.
pub fn weight_bytes(plan: &Plan) -> u64 {
    let mut bytes: BTreeMap<WeightId, u64> = BTreeMap::new();
    for kernel in &plan.kernels {
        let matrices: Vec<WeightId> = match &kernel.anchor {
            Anchor::Contract { parts, .. } => parts.iter().map(|p| p.weight).collect(),
            Anchor::Experts { parts, .. } => {
                parts.iter().flat_map(|part| part.weights.clone()).collect()
            }
            Anchor::Gather { table, .. } => vec![*table],
            _ => vec![],
        };
        let multiplied = !matches!(kernel.anchor, Anchor::Gather { .. });
        for id in matrices {
            let decl = &plan.weights[id.index()];
            let [n, k] = decl.shape[..] else { continue };
            let (n, k) = (n as usize, k as usize);
            let panels = match RowKind::of(decl.format) {
                Err(codec) if multiplied => {
                    Kind::of(codec).map(|kind| PanelLayout { codec, kind, k, n }.bytes())
                }
                _ => None,
            };
            let held = panels.map_or(decl.bytes(), |b| b as u64);
            // A table that is multiplied, too, is read from its panels.
            if multiplied || !bytes.contains_key(&id) {
                bytes.insert(id, held);
            }
        }
        for operand in &kernel.operands {
            if let Operand::Vector(id) = operand {
                let elements: u32 = plan.weights[id.index()].shape.iter().product();
                bytes.insert(*id, u64::from(elements) * 4);
            }
        }
    }
    bytes.values().sum()
}
