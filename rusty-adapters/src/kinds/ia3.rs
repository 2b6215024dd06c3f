//! IA3 (arXiv 2205.05638): a factor on each output of a layer, or on each input of a feed-forward layer.

use super::Module;
use crate::base_model::Base;
use crate::draft::Draft;
use crate::{Error, Result};
use rusty_loader::Format;

pub(super) fn draft(module: &Module<'_>, base: &Base<'_>) -> Result<Draft> {
    let mut draft = Draft::empty(Format::F32);
    let of_inputs = module.config.is_feed_forward(module.name);
    // The shape of a matrix says itself which side it is for.
    let shape = match of_inputs {
        true => [1, module.k()],
        false => [module.n(), 1],
    };
    let gain = match module.part("ia3_l")?.shape.len() {
        2 => module.values("ia3_l", &shape)?,
        _ => module.vector("ia3_l", shape[0].max(shape[1]))?,
    };
    if of_inputs && module.site.grouped {
        let what = format!("factors on the inputs of '{}'", module.name);
        return Err(Error::unsupported(module.path, what));
    }
    if of_inputs {
        draft.gain_in = Some(gain);
        return Ok(draft);
    }
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
