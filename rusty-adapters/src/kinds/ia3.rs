//! IA3 (arXiv 2205.05638): a factor on each output of a layer, or on each input of a feed-forward layer.

use super::Module;
use crate::Result;
use crate::base_model::Base;
use crate::draft::Draft;
use rusty_loader::Format;

pub(super) fn draft(module: &Module<'_>, base: &Base<'_>) -> Result<Draft> {
    let mut draft = Draft::empty(Format::F32);
    if module.config.is_feed_forward(module.name) {
        draft.gain_in = Some(module.vector("ia3_l", module.k())?);
        return Ok(draft);
    }
    let gain = module.vector("ia3_l", module.n())?;
    let mut biases = vec![];
    for &id in module.ids {
        let n = base.graph.site(id).n as usize;
        biases.extend(match base.site_bias(id) {
            None => vec![0.0; n],
            Some(name) => {
                // PEFT scales the layer's bias too, which the graph adds behind the site: `new` is in the order of
                // checkpoints, so the stored order is undone where they differ.
                let mut bias = base.weight(module.path, name)?;
                if let Some(head_dim) = base.interleaved_heads(id) {
                    crate::draft::split_halves(&mut bias, 1, head_dim);
                }
                bias
            }
        });
    }
    if module.ids.iter().any(|id| base.site_bias(*id).is_some()) {
        draft.new_bias = Some(biases.iter().zip(&gain).map(|(b, g)| b * g).collect());
    }
    draft.gain_out = Some(gain);
    Ok(draft)
}
