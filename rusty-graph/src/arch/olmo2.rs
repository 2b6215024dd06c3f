//! OLMo 2 (arXiv 2501.00656): norms behind attention and feed-forward instead of in front, and over all heads of queries and
//! keys.

use rusty_loader::ModelFile;

use super::Arch;
use super::decoder::{Decoder, QkNorm};
use crate::{Graph, Result};

pub(super) const ARCH: Arch = Arch { id: "olmo2", build };

fn build(file: &dyn ModelFile) -> Result<Graph> {
    let decoder = Decoder {
        pre_norms: false,
        post_norms: true,
        qk_norm: QkNorm::Row,
        ..Decoder::read(file)?
    };
    decoder.refuse_window(file)?.build(file)
}
