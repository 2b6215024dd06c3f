//! A model whose metadata and tensors are at hand: what every reader ends in.

use std::collections::HashMap;

use crate::{Meta, ModelFile, WeightView};

/// Canonical metadata and tensors of an opened (or generated) model.
#[derive(Debug)]
pub struct LoadedModel {
    label: String,
    arch: &'static str,
    meta: HashMap<String, Meta>,
    names: Vec<String>,
    tensors: HashMap<String, WeightView>,
}

impl LoadedModel {
    /// A model of canonical parts; of tensors with one name the last counts.
    pub fn new(
        label: impl Into<String>,
        arch: &'static str,
        meta: HashMap<String, Meta>,
        tensors: Vec<(String, WeightView)>,
    ) -> Self {
        Self {
            label: label.into(),
            arch,
            meta,
            names: tensors.iter().map(|(name, _)| name.clone()).collect(),
            tensors: tensors.into_iter().collect(),
        }
    }
}

impl ModelFile for LoadedModel {
    fn arch(&self) -> &str {
        self.arch
    }

    fn meta(&self, key: &str) -> Option<&Meta> {
        self.meta.get(key)
    }

    fn tensor(&self, name: &str) -> Option<WeightView> {
        self.tensors.get(name).cloned()
    }

    fn tensor_names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn label(&self) -> &str {
        &self.label
    }
}
