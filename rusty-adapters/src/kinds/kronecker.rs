//! LoKr (KronA, arXiv 2212.10650; LyCORIS, 2309.14859): `W + s kron(w1, w2)`, where a factor may itself be a product.
//! `w1` mixes blocks in which the factors of `w2` act, where kernels read such blocks. Else, with `w1 = u1 v1` and `w2 = u2 v2`, it
//! is `kron(u1, u2) kron(v1, v2)`. A factor that is no product is split as itself times an identity on its smaller side.

use super::Module;
use crate::draft::Draft;
use crate::factors::product;
use crate::{Error, Result};
use rusty_compiler::{Kron, kron};
use rusty_loader::Format;

/// `u [rows, rank] v [rank, columns]`.
struct Factor {
    rows: usize,
    rank: usize,
    columns: usize,
    u: Vec<f32>,
    v: Vec<f32>,
    format: Format,
}

impl Factor {
    fn read(module: &Module<'_>, name: &str) -> Result<Self> {
        let (first, second) = (format!("{name}_a"), format!("{name}_b"));
        if module.parts.contains_key(first.as_str()) {
            let (a, b) = (module.part(&first)?, module.part(&second)?);
            let (rows, rank) = module.matrix(&first, "[rows, rank]")?;
            let columns = module.matrix(&second, "[rank, columns]")?.1;
            let (u, v) = (
                a.values(module.path)?,
                module.values(&second, &[rank, columns])?,
            );
            module.check_rank(a, rank, |rank| [rows, rank])?;
            let format = super::lora::wider(a.format, b.format);
            if rank > rows.min(columns) {
                return Ok(Self::whole(product(&u, &v, rank, columns), columns, format));
            }
            return Ok(Self {
                rows,
                rank,
                columns,
                u,
                v,
                format,
            });
        }
        let whole = module.part(name)?;
        let (_, columns) = module.matrix(name, "[rows, columns]")?;
        let values = whole.values(module.path)?;
        Ok(Self::whole(values, columns, whole.format))
    }

    /// A factor that is no product, or one of more ranks than it has rows or columns.
    fn whole(values: Vec<f32>, columns: usize, format: Format) -> Self {
        let rows = values.len() / columns.max(1);
        let rank = rows.min(columns);
        let identity = || {
            let mut values = vec![0.0; rank * rank];
            (0..rank).for_each(|i| values[i * rank + i] = 1.0);
            values
        };
        let (u, v) = match columns <= rows {
            true => (values, identity()),
            false => (identity(), values),
        };
        Self {
            rows,
            rank,
            columns,
            u,
            v,
            format,
        }
    }
}

pub(super) fn draft(module: &Module<'_>) -> Result<Draft> {
    let first = Factor::read(module, "lokr_w1")?;
    let second = Factor::read(module, "lokr_w2")?;
    let (n, k) = (first.rows * second.rows, first.columns * second.columns);
    if (n, k) != (module.n(), module.k()) {
        let parts = module.parts.iter();
        let parts = parts.filter(|(part, _)| part.starts_with("lokr_"));
        let parts = parts.map(|(_, tensor)| format!("'{}' {:?}", tensor.name, tensor.shape));
        let needed = [module.n(), module.k()];
        return Err(Error::Product {
            path: module.path.into(),
            tensors: parts.collect::<Vec<_>>().join(", "),
            shape: vec![n, k],
            reason: format!("the model's {} needs {needed:?}", module.place()),
        });
    }
    // The stated rank sets the scale even where no factor has it.
    let scale = module.config.scale(module.name, first.rank * second.rank);
    let format = super::lora::wider(first.format, second.format);
    if Kron::fits((first.rows, first.columns), (k, n)) {
        let mix = product(&first.u, &first.v, first.rank, first.columns);
        let kron = Kron {
            rows: first.rows as u32,
            columns: first.columns as u32,
            mix: mix.into(),
        };
        return Ok(Draft {
            kron: Some(kron),
            ..Draft::low_rank(second.rank, second.v, second.u, scale, format)
        });
    }
    let b = kron((&first.u, first.rank), (&second.u, second.rank));
    let a = kron((&first.v, first.columns), (&second.v, second.columns));
    let rank = first.rank * second.rank;
    Ok(Draft::low_rank(rank, a, b, scale, format))
}
