//! LoHa (FedPara, arXiv 2108.06098): `W + s (w1_a w1_b) * (w2_a w2_b)`, the product taken elementwise. That is a low
//! rank product again: row `(p, q)` of `A` is `w1_b[p] * w2_b[q]`, column `(p, q)` of `B` is `w1_a[p] * w2_a[q]`. Where
//! that takes more than the delta itself, the delta stands for it.

use super::Module;
use super::lora::wider;
use crate::Result;
use crate::draft::Draft;
use crate::factors::product;

pub(super) fn draft(module: &Module<'_>) -> Result<Draft> {
    let (n, k) = (module.n(), module.k());
    let needed = format!("[rank, {k}]");
    let rank = |part: &str| -> Result<usize> { Ok(module.matrix(part, &needed)?.0) };
    let (first, second) = (rank("hada_w1_b")?, rank("hada_w2_b")?);
    let w1_a = module.values("hada_w1_a", &[n, first])?;
    let w1_b = module.values("hada_w1_b", &[first, k])?;
    let w2_a = module.values("hada_w2_a", &[n, second])?;
    let w2_b = module.values("hada_w2_b", &[second, k])?;
    module.check_rank(module.part("hada_w1_b")?, first, |rank| [rank, k])?;
    module.check_rank(module.part("hada_w2_b")?, second, |rank| [rank, k])?;
    let format = wider(
        module.part("hada_w1_a")?.format,
        module.part("hada_w2_a")?.format,
    );
    let scale = module.config.scale(module.name, first);
    let all = first.saturating_mul(second);
    if all.saturating_mul(n + k) > n * k {
        let mut delta = product(&w1_a, &w1_b, first, k);
        let other = product(&w2_a, &w2_b, second, k);
        delta.iter_mut().zip(other).for_each(|(x, y)| *x *= y);
        return Ok(Draft::dense(delta, k, scale, format));
    }
    let mut a = Vec::with_capacity(all * k);
    for p in 0..first {
        for q in 0..second {
            let rows = w1_b[p * k..(p + 1) * k].iter().zip(&w2_b[q * k..]);
            a.extend(rows.map(|(x, y)| x * y));
        }
    }
    let mut b = Vec::with_capacity(n * all);
    for row in 0..n {
        for p in 0..first {
            b.extend((0..second).map(|q| w1_a[row * first + p] * w2_a[row * second + q]));
        }
    }
    Ok(Draft::low_rank(all, a, b, scale, format))
}
