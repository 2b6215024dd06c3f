//! VeRA (arXiv 2310.11454): `W + diag(lambda_b) B diag(lambda_d) A`, with one `A` and one `B` for all layers, cut to
//! each layer's shape. They must be stored in the file: what a random generator of PyTorch would give again is not
//! made here.

use super::Module;
use crate::draft::Draft;
use crate::tensors::Tensor;
use crate::{Error, Result};
use std::collections::BTreeMap;

/// The factors that all layers share.
#[derive(Default)]
pub(super) struct Shared {
    a: Option<Tensor>,
    b: Option<Tensor>,
}

impl Shared {
    /// Takes them out of the tensors that belong to no module.
    pub fn take(others: &mut BTreeMap<String, Tensor>) -> Self {
        let mut named = |end: &str| {
            let name = others.keys().find(|name| name.ends_with(end)).cloned();
            name.and_then(|name| others.remove(&name))
        };
        Self {
            a: named("vera_A"),
            b: named("vera_B"),
        }
    }
}

pub(super) fn draft(module: &Module<'_>, shared: &Shared) -> Result<Draft> {
    let (Some(a), Some(b)) = (&shared.a, &shared.b) else {
        let what = "VeRA without its projections (save it with save_projection=True)";
        return Err(Error::unsupported(module.path, what));
    };
    let (n, k) = (module.n(), module.k());
    let (path, place) = (module.path, module.place());
    let (rank, widest) = a.matrix(path, &place, &format!("[rank, {k}]"))?;
    let (tallest, columns) = b.matrix(path, &place, &format!("[{n}, rank]"))?;
    let needed = |shape: [usize; 2]| format!("the model's {place} needs {shape:?}");
    if widest < k {
        let reason = needed([rank, k]) + " or more columns";
        return Err(a.misfit(path, reason));
    }
    if columns != rank || tallest < n {
        let reason = needed([n, rank]) + " or more rows";
        return Err(b.misfit(path, reason));
    }
    let a_values = a.values(module.path)?;
    let rows = a_values.chunks_exact(widest);
    let a_cut = rows.flat_map(|row| &row[..k]).copied().collect();
    let lambda_b = module.vector("vera_lambda_b", n)?;
    let mut b_cut = b.values(module.path)?;
    b_cut.truncate(n * rank);
    for (row, factor) in b_cut.chunks_exact_mut(rank).zip(lambda_b) {
        row.iter_mut().for_each(|v| *v *= factor);
    }
    let mut draft = Draft::low_rank(rank, a_cut, b_cut, 1.0, a.format);
    draft.scale = module.vector("vera_lambda_d", rank)?;
    Ok(draft)
}
