//! Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786), text: embeddings scaled by the root of the width, norms
//! before and after each half, a tanh-GELU gate, layers that slide between layers that see everything.
//!
//! Gemma 2 caps scores and logits and slides in every other layer. Gemma 3 norms queries and keys instead, slides in
//! five of six layers and rotates those by another base.

use rusty_loader::ModelFile;
use rusty_loader::meta::keys;

use super::decoder::{Decoder, QkNorm};
use super::{Arch, Checkpoint};
use crate::{Graph, Result, UnaryOp};

pub(super) const GEMMA2: Arch = Arch {
    id: "gemma2",
    build: gemma2,
};

pub(super) const GEMMA3: Arch = Arch {
    id: "gemma3",
    build: gemma3,
};

fn gemma2(file: &dyn ModelFile) -> Result<Graph> {
    let model = Checkpoint::new(file);
    let cap = |key| -> Result<Option<f32>> { Ok(model.float(key)?.map(|c| c as f32)) };
    let decoder = Decoder {
        score_cap: cap(keys::SCORE_CAP)?,
        logit_cap: cap(keys::LOGIT_CAP)?,
        // Of all sizes only 27B (46 layers) scales by the width that heads would have without one of their own.
        ..common(file, 46)?
    };
    decoder.with_window(file, |l| l % 2 == 0)?.build(file)
}

fn gemma3(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = Decoder {
        qk_norm: QkNorm::Heads,
        // 27B, as above.
        ..common(file, 62)?
    };
    decoder.with_window(file, |l| l % 6 != 5)?.build(file)
}

/// What both share. GGUF does not state how queries are scaled; `largest` is the number of layers of the size that
/// scales them in its own way.
fn common(file: &dyn ModelFile, largest: u32) -> Result<Decoder> {
    let decoder = Decoder::read(file)?;
    let lanes = match Checkpoint::new(file).float(keys::QUERY_SCALAR)? {
        Some(lanes) => lanes,
        None if decoder.layers == largest => f64::from(decoder.width) / f64::from(decoder.heads),
        None => f64::from(decoder.head_dim),
    };
    Ok(Decoder {
        embedding_scale: f64::from(decoder.width).sqrt() as f32,
        query_scale: (1.0 / lanes.sqrt()) as f32,
        act: UnaryOp::GeluTanh,
        post_norms: true,
        ..decoder
    })
}
