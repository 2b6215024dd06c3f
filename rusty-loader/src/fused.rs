//! Products that files store as one tensor: the rows of queries, keys and values, of gate and up, of all experts or heads. Their
//! parts are rows of the same bytes, so taking them apart copies nothing.

use std::collections::HashMap;

use crate::meta::keys;
use crate::{Meta, WeightView};

/// A part of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Canonical name.
    pub name: String,
    /// Its rows; the elements of a bias. Parts follow each other.
    pub rows: usize,
}

/// What a stored tensor of a canonical name consists of: itself, where it is not a fused one or its rows are not those
/// of the parts. `size` gives the model's sizes by canonical key.
pub fn parts(size: impl Fn(&str) -> Option<usize>, name: &str, shape: &[usize]) -> Vec<Part> {
    let rows = match shape {
        [parts, count, _] => parts.saturating_mul(*count),
        shape => shape.first().copied().unwrap_or(1),
    };
    let whole = |name: &str| {
        vec![Part {
            name: name.to_owned(),
            rows,
        }]
    };
    let Some((block, leaf)) = name.rsplit_once('.') else {
        return whole(name);
    };
    if let Some(block) = lone_expert(block) {
        return whole(&format!("{block}.{leaf}"));
    }
    let count = match block.rsplit('.').next() {
        Some("attn_k_b" | "attn_v_b") => size(keys::HEAD_COUNT),
        Some(module) if module.ends_with("_exps") => size(keys::EXPERT_COUNT),
        _ => None,
    };
    if let [stacked, rows, _] = *shape
        && count == Some(stacked)
        // Whatever a file claims: no list of names longer than what it could hold.
        && stacked <= MOST_STACKED
    {
        let part = |i| Part {
            name: format!("{block}.{i}.{leaf}"),
            rows,
        };
        return (0..stacked).map(part).collect();
    }
    let (stem, module) = block.rsplit_once('.').unwrap_or(("", block));
    let named: Vec<Part> = siblings(&size, module)
        .into_iter()
        .map(|(part, rows)| Part {
            name: format!("{stem}.{part}.{leaf}"),
            rows,
        })
        .collect();
    let sum = named
        .iter()
        .try_fold(0usize, |sum, p| sum.checked_add(p.rows));
    match !named.is_empty() && sum == Some(rows) {
        true => named,
        false => whole(name),
    }
}

/// More experts, or heads, than any model has.
const MOST_STACKED: usize = 1 << 16;

/// Fused modules of a block, and the modules whose rows they hold.
const FUSED: [(&str, &[&str]); 3] = [
    ("attn_kv_a_mqa", &["attn_kv_a", "attn_k_pe"]),
    ("attn_qkv", &["attn_q", "attn_k", "attn_v"]),
    ("ffn_gate_up", &["ffn_gate", "ffn_up"]),
];

/// The modules that a fused one of a canonical name consists of: `blk.0.attn_qkv` of `blk.0.attn_q` and so on. Empty for
/// any other.
pub fn modules(name: &str) -> Vec<String> {
    let (stem, module) = name.rsplit_once('.').unwrap_or(("", name));
    let found = FUSED.iter().find(|(fused, _)| *fused == module);
    let parts = found.map_or(&[][..], |(_, parts)| parts);
    parts.iter().map(|part| format!("{stem}.{part}")).collect()
}

/// The products that a fused module of a block consists of, and the rows of each.
fn siblings(size: &impl Fn(&str) -> Option<usize>, module: &str) -> Vec<(&'static str, usize)> {
    let attention = || {
        let heads = size(keys::HEAD_COUNT)?;
        let head =
            size(keys::KEY_LENGTH).or_else(|| size(keys::EMBEDDING_LENGTH)?.checked_div(heads))?;
        let queries = heads.checked_mul(head)?;
        let keys = size(keys::HEAD_COUNT_KV)
            .unwrap_or(heads)
            .checked_mul(head)?;
        Some(vec![queries, keys, keys])
    };
    // GGUF calls the fused product by the name of its second part.
    let module = if module == "ffn_up" {
        "ffn_gate_up"
    } else {
        module
    };
    let rows = match module {
        "attn_qkv" => attention(),
        "attn_kv_a_mqa" => size(keys::KV_LORA_RANK)
            .zip(size(keys::ROPE_DIMENSION_COUNT))
            .map(|(rank, rotated)| vec![rank, rotated]),
        _ => size(keys::FEED_FORWARD_LENGTH).map(|inner| vec![inner, inner]),
    };
    let names = FUSED.iter().find(|(fused, _)| *fused == module);
    match (names, rows) {
        (Some((_, names)), Some(rows)) => names.iter().copied().zip(rows).collect(),
        _ => vec![],
    }
}

/// Replaces fused tensors by their parts. A tensor whose rows are not those of its parts stays as it is; the graph then
/// misses the parts by name.
pub(crate) fn split(
    meta: &HashMap<String, Meta>,
    tensors: Vec<(String, WeightView)>,
) -> Vec<(String, WeightView)> {
    let size = |key: &str| Some(meta.get(key)?.as_u64()? as usize);
    let mut out = Vec::with_capacity(tensors.len());
    for (name, view) in tensors {
        let parts = parts(size, &name, &view.shape);
        if let [one] = &parts[..]
            && view.shape.len() != 3
        {
            out.push((one.name.clone(), view));
            continue;
        }
        let rows: Vec<usize> = parts.iter().map(|p| p.rows).collect();
        match cut(&view, &rows) {
            Some(views) if parts[0].name != name => {
                let named = parts.into_iter().zip(views);
                out.extend(named.map(|(part, v)| (part.name, v)));
            }
            _ => out.push((name, view)),
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
    if view.bytes.len() != count.checked_mul(per_row)? {
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
