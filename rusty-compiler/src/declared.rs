//! What a plan declares of a weight, found in a file and checked, for all devices.

use crate::{Error, Result};
use rusty_graph::WeightDecl;
use rusty_loader::{ModelFile, WeightView};

/// An error about a declaration's tensor.
pub(crate) fn failure(file: &dyn ModelFile, decl: &WeightDecl, reason: String) -> Error {
    Error::Weight {
        model: file.label().into(),
        tensor: decl.name.clone(),
        reason,
    }
}

/// The tensor of a declaration.
///
/// # Errors
/// [`Error::Weight`] where it is missing, or its shape, format or length is another.
pub(crate) fn declared(file: &dyn ModelFile, decl: &WeightDecl) -> Result<WeightView> {
    let fail = |reason: String| Err(failure(file, decl, reason));
    let Some(view) = file.tensor(&decl.name) else {
        return fail("is missing".into());
    };
    let same = view.shape.len() == decl.shape.len()
        && view
            .shape
            .iter()
            .zip(&decl.shape)
            .all(|(a, b)| *a == *b as usize);
    if !same {
        return fail(format!("has shape {:?}, not {:?}", view.shape, decl.shape));
    }
    if view.format != decl.format {
        let (have, want) = (view.format.name(), decl.format.name());
        return fail(format!("is {have}, not {want} as planned"));
    }
    if !view.row_len().is_multiple_of(view.format.block_len()) {
        return fail(format!(
            "has rows of {}, not a multiple of {}'s {}",
            view.row_len(),
            view.format.name(),
            view.format.block_len()
        ));
    }
    if view.bytes.len() != view.rows() * view.row_bytes() {
        let (have, want) = (view.bytes.len(), view.rows() * view.row_bytes());
        return fail(format!("has {have} bytes, not {want}"));
    }
    Ok(view)
}
