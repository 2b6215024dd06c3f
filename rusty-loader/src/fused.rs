//! Products that files store as one tensor: the rows of queries, keys and values, of gate and up, or of all experts. Their
//! parts are rows of the same bytes, so taking them apart copies nothing.

use std::collections::HashMap;

use crate::meta::keys;
use crate::{Meta, WeightView};

/// Replaces fused tensors by their parts. A tensor whose rows are not those of its parts stays as it is; the graph then
/// misses the parts by name.
pub(crate) fn split(
    meta: &HashMap<String, Meta>,
    tensors: Vec<(String, WeightView)>,
) -> Vec<(String, WeightView)> {
    let size = |key: &str| Some(meta.get(key)?.as_u64()? as usize);
    let sizes = || {
        let heads = size(keys::HEAD_COUNT)?;
        let head =
            size(keys::KEY_LENGTH).or_else(|| size(keys::EMBEDDING_LENGTH)?.checked_div(heads))?;
        let keys = size(keys::HEAD_COUNT_KV)
            .unwrap_or(heads)
            .checked_mul(head)?;
        Some([heads.checked_mul(head)?, keys, keys])
    };
    let (qkv, inner) = (sizes(), size(keys::FEED_FORWARD_LENGTH));
    let mut out = Vec::with_capacity(tensors.len());
    for (name, view) in tensors {
        let Some((block, leaf)) = name.rsplit_once('.') else {
            out.push((name, view));
            continue;
        };
        let (parts, rows): (&[&str], Vec<usize>) = match (block.rsplit('.').next(), qkv, inner) {
            (Some("attn_qkv"), Some(rows), _) => (&["attn_q", "attn_k", "attn_v"], rows.to_vec()),
            // GGUF calls the fused product by the name of its second part.
            (Some("ffn_gate_up" | "ffn_up"), _, Some(inner)) => {
                (&["ffn_gate", "ffn_up"], vec![inner, inner])
            }
            _ => (&[], vec![]),
        };
        if let Some(name) = lone_expert(block) {
            out.push((format!("{name}.{leaf}"), view));
            continue;
        }
        if let [experts, rows, _] = view.shape[..]
            && block.ends_with("_exps")
            && size(keys::EXPERT_COUNT) == Some(experts)
            && view.bytes.len() >= experts
            && let Some(views) = cut(&view, &vec![rows; experts])
        {
            let named = views.into_iter().enumerate();
            out.extend(named.map(|(e, v)| (format!("{block}.{e}.{leaf}"), v)));
            continue;
        }
        let stem = block.rsplit_once('.').map_or("", |(stem, _)| stem);
        match cut(&view, &rows) {
            Some(views) => {
                let named = parts.iter().zip(views);
                out.extend(named.map(|(part, v)| (format!("{stem}.{part}.{leaf}"), v)));
            }
            None => out.push((name, view)),
        }
    }
    out
}

/// The name of an expert's matrix in files from before experts were stored together: `blk.0.ffn_up.3` is
/// `blk.0.ffn_up_exps.3`.
fn lone_expert(block: &str) -> Option<String> {
    let (stem, expert) = block.rsplit_once('.')?;
    let known = ["ffn_gate", "ffn_up", "ffn_down"]
        .iter()
        .any(|role| stem.ends_with(role));
    let number = expert.parse::<u32>().is_ok();
    (known && number).then(|| format!("{stem}_exps.{expert}"))
}

/// Parts of these rows, where they make up the whole.
fn cut(view: &WeightView, rows: &[usize]) -> Option<Vec<WeightView>> {
    // Only of a tensor that has bytes is it known that its sizes do not overflow.
    if rows.is_empty() || view.bytes.is_empty() {
        return None;
    }
    let (count, per_row) = match view.shape[..] {
        [count, _] => (count, view.row_bytes()),
        [parts, count, _] => (parts.checked_mul(count)?, view.row_bytes()),
        // A bias: its elements are the rows.
        [count] if view.format.block_len() == 1 => (count, view.format.block_bytes()),
        _ => return None,
    };
    let total = rows.iter().try_fold(0usize, |sum, r| sum.checked_add(*r))?;
    if total != count || view.bytes.len() != count * per_row {
        return None;
    }
    let mut first = 0;
    let mut parts = Vec::with_capacity(rows.len());
    for &rows in rows {
        let mut shape = view.shape.clone();
        if shape.len() == 3 {
            shape.remove(0);
        }
        shape[0] = rows;
        parts.push(WeightView {
            bytes: view
                .bytes
                .slice(first * per_row..(first + rows) * per_row)?,
            format: view.format,
            shape,
        });
        first += rows;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::split;
    use crate::meta::keys;
    use crate::{Format, Meta, SharedBytes, WeightView};

    fn names(experts: u64, name: &str, shape: &[usize]) -> Vec<(String, Vec<usize>)> {
        let elements: usize = match shape.contains(&0) {
            true => 0,
            false => shape.iter().product(),
        };
        let view = WeightView {
            bytes: SharedBytes::from_vec(vec![0; elements * 4]),
            format: Format::F32,
            shape: shape.to_vec(),
        };
        let meta = [(keys::EXPERT_COUNT.to_owned(), Meta::U64(experts))].into();
        let parts = split(&meta, vec![(name.to_owned(), view)]);
        parts
            .into_iter()
            .map(|(name, view)| (name, view.shape))
            .collect()
    }

    #[test]
    fn experts_are_taken_apart() {
        let parts = names(2, "blk.1.ffn_up_exps.weight", &[2, 3, 4]);
        let want = |e: usize| (format!("blk.1.ffn_up_exps.{e}.weight"), vec![3, 4]);
        assert_eq!(parts, [want(0), want(1)]);
        // As files had them before.
        assert_eq!(names(8, "blk.1.ffn_up.7.weight", &[3, 4]), [want(7)]);
    }

    /// A stack that is not one of the stated number of experts stays whole, whatever its first extent claims.
    #[test]
    fn absurd_stacks_stay_whole() {
        let absurd = [
            (5, [5, 0, 4]),
            (5, [5, 0, usize::MAX]),
            (1 << 40, [1 << 40, 0, 32]),
        ];
        for (experts, shape) in [(4, [2, 3, 4])].into_iter().chain(absurd) {
            let name = "blk.0.ffn_down_exps.weight";
            assert_eq!(
                names(experts, name, &shape),
                [(name.to_owned(), shape.to_vec())]
            );
        }
    }
}
