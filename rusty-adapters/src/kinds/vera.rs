//! VeRA (arXiv 2310.11454): `W + diag(lambda_b) B diag(lambda_d) A`, with one `A` and one `B` for all layers, cut to
//! each layer's shape. They must be stored in the file: what a random generator of PyTorch would give again is not
//! made here.

use super::Module;
use crate::draft::Draft;
use crate::tensors::Tensor;
use crate::{Error, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The factors that all layers share.
#[derive(Default)]
pub(super) struct Shared {
    a: Option<Tensor>,
    b: Option<Tensor>,
    /// Of each width, the first columns of `A`; of each height, the first rows of `B`.
    cut_a: Cuts,
    cut_b: Cuts,
}

/// What is cut from a factor, by size.
type Cuts = RefCell<BTreeMap<usize, Arc<Vec<f32>>>>;

/// What a factor is cut to, made once.
fn cut(cuts: &Cuts, size: usize, make: impl FnOnce() -> Result<Vec<f32>>) -> Result<Arc<Vec<f32>>> {
    if let Some(made) = cuts.borrow().get(&size) {
        return Ok(made.clone());
    }
    let made = Arc::new(make()?);
    cuts.borrow_mut().insert(size, made.clone());
    Ok(made)
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
            ..Self::default()
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
    module.check_rank(a, rank, |rank| [rank, widest])?;
    let a_cut = cut(&shared.cut_a, k, || {
        let values = a.values(path)?;
        let rows = values.chunks_exact(widest);
        Ok(rows.flat_map(|row| &row[..k]).copied().collect())
    })?;
    let b_cut = cut(&shared.cut_b, n, || {
        let mut values = b.values(path)?;
        values.truncate(n * rank);
        Ok(values)
    })?;
    Ok(Draft {
        rank,
        a: Some(a_cut),
        b: b_cut,
        scale: module.vector("vera_lambda_d", rank)?,
        gain_low: Some(module.vector("vera_lambda_b", n)?),
        ..Draft::empty(a.format)
    })
}
