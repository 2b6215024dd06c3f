//! The matrix that expands the latent of a block's attention, where files store it whole: rows of each head's keys and values in turn.
//! The model has a matrix for each of them, and that of keys transposed (`rusty_loader::latent`).

use crate::base_model::{Base, KEYS, VALUES};
use crate::factors::transposed;
use rusty_loader::fused::Part;

/// The parts of a tensor that is such a matrix; none of any other.
pub(super) fn parts(base: &Base<'_>, name: &str) -> Option<Vec<Part>> {
    let block = name.strip_suffix(".attn_kv_b.weight")?;
    let sites = |product: &str| base.sites_of(&format!("{block}.{product}"));
    let (keys, values) = (sites(KEYS)?, sites(VALUES)?);
    let heads = keys.into_iter().zip(values);
    let parts = heads.flat_map(|(key, value)| {
        let (key, value) = (base.graph.site(key), base.graph.site(value));
        let part = |name: &str, rows: u32| Part {
            name: format!("{name}.weight"),
            rows: rows as usize,
        };
        [part(&key.name, key.k), part(&value.name, value.n)]
    });
    Some(parts.collect())
}

/// A part's values as its tensor, of all these parts, stores them.
pub(super) fn stored(part: &Part, parts: &[Part], values: Vec<f32>) -> Vec<f32> {
    let is = |part: &Part, product: &str| part.name.contains(&format!(".{product}."));
    let whole = parts.iter().any(|part| is(part, VALUES));
    if !whole || !is(part, KEYS) {
        return values;
    }
    transposed(&values, values.len() / part.rows, part.rows)
}
