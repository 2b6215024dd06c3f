//! Writing packed adapters.

use super::{Header, KEY, SUMS, SiteEntry, TableEntry, VERSION, checksum, interleaved, weights};
use crate::base_model::Base;
use crate::owned_tensor::OwnedTensor;
use crate::{Error, Result};
use rusty_compiler::{DeltaTable, SiteDelta, SlotData};
use rusty_loader::output_file::write_whole;
use safetensors::Dtype;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Writes an adapter that was prepared for `base`; with `deflate`, each table that becomes smaller is deflated.
///
/// # Errors
/// The file cannot be written.
pub fn pack(adapter: &SlotData, base: &Base<'_>, out: &Path, deflate: bool) -> Result<()> {
    let mut file = Writer::new(adapter, base, deflate);
    for (id, delta) in &adapter.sites {
        file.site(&base.graph.site(*id).name, delta);
    }
    if let Some(embedding) = &adapter.embedding {
        file.optional("embedding.table", embedding.table.as_ref());
        file.optional("embedding.prompt", embedding.prompt.as_ref());
        for (i, low) in embedding.low_ranks.iter().enumerate() {
            file.table(format!("embedding.{i}.a"), &low.a);
            file.table(format!("embedding.{i}.b"), &low.b);
            file.header.embedding_scales.push(low.scale);
        }
    }
    if let Some(prefix) = &adapter.prefix {
        file.header.prefix_tokens = prefix.tokens;
        for (i, layer) in prefix.layers.iter().enumerate() {
            file.floats(format!("prefix.{i}.keys"), &layer.keys);
            file.floats(format!("prefix.{i}.values"), &layer.values);
        }
    }
    file.save(out)
}

struct Writer {
    header: Header,
    tensors: BTreeMap<String, OwnedTensor>,
    /// Tensors by address and length of what they were made of, and whether they are deflated.
    stored: HashMap<(usize, usize), (String, bool)>,
    deflate: bool,
}

impl Writer {
    fn new(adapter: &SlotData, base: &Base<'_>, deflate: bool) -> Self {
        Self {
            header: Header {
                version: VERSION,
                name: adapter.name.clone(),
                interleaved: interleaved(base),
                relative_to: is_relative(adapter).then(|| weights(base)).flatten(),
                tables: BTreeMap::new(),
                sites: BTreeMap::new(),
                embedding_scales: vec![],
                prefix_tokens: 0,
            },
            tensors: BTreeMap::new(),
            stored: HashMap::new(),
            deflate,
        }
    }

    fn site(&mut self, name: &str, delta: &SiteDelta) {
        let identity = delta.rank > 0 && delta.a.is_none();
        let kron = delta.kron.as_ref();
        let entry = SiteEntry {
            rank: delta.rank,
            identity,
            blocks: kron.map(|kron| (kron.rows, kron.columns)),
        };
        self.header.sites.insert(name.into(), entry);
        self.optional(&format!("{name}.a"), delta.a.as_ref());
        self.optional(&format!("{name}.b"), delta.b.as_ref());
        self.floats(format!("{name}.scale"), &delta.scale);
        for (end, vector) in [
            ("mix", &kron.map(|kron| kron.mix.clone())),
            ("gain_low", &delta.gain_low),
            ("gain_in", &delta.gain_in),
            ("gain_out", &delta.gain_out),
            ("bias", &delta.bias),
        ] {
            if let Some(vector) = vector {
                self.floats(format!("{name}.{end}"), vector);
            }
        }
    }

    fn optional(&mut self, name: &str, table: Option<&DeltaTable>) {
        if let Some(table) = table {
            self.table(name.into(), table);
        }
    }

    fn table(&mut self, name: String, table: &DeltaTable) {
        let stored = table.bytes();
        let place = (stored.as_ptr().addr(), stored.len());
        let mut entry = TableEntry {
            format: table.format().name().into(),
            rows: table.rows(),
            columns: table.columns(),
            deflated: false,
            tensor: None,
        };
        if let Some((tensor, deflated)) = self.stored.get(&place) {
            (entry.tensor, entry.deflated) = (Some(tensor.clone()), *deflated);
            self.header.tables.insert(name, entry);
            return;
        }
        let packed = self
            .deflate
            .then(|| miniz_oxide::deflate::compress_to_vec(stored, 9))
            .filter(|packed| packed.len() < stored.len());
        entry.deflated = packed.is_some();
        self.stored.insert(place, (name.clone(), entry.deflated));
        self.header.tables.insert(name.clone(), entry);
        let bytes = packed.unwrap_or_else(|| stored.to_vec());
        let tensor = OwnedTensor {
            dtype: Dtype::U8,
            shape: vec![bytes.len()],
            bytes,
        };
        self.tensors.insert(name, tensor);
    }

    fn floats(&mut self, name: String, values: &[f32]) {
        self.tensors.insert(name, OwnedTensor::floats(values));
    }

    fn save(mut self, out: &Path) -> Result<()> {
        let wrong = |e: String| Error::malformed(out, e);
        let header = serde_json::to_string(&self.header).map_err(|e| wrong(e.to_string()))?;
        let sums = self.sums(&header);
        self.tensors.insert(SUMS.into(), sums);
        let metadata = [(KEY.to_string(), header)].into();
        write_whole(out, |part| {
            safetensors::serialize_to_file(&self.tensors, Some(metadata), part)
                .map_err(|e| wrong(e.to_string()))
        })
    }

    /// Checksums of the header's text and of all tensors.
    fn sums(&self, header: &str) -> OwnedTensor {
        let tensors = self.tensors.iter();
        let tensors = tensors.map(|(name, tensor)| checksum(name, &tensor.bytes));
        let sums = [checksum(KEY, header.as_bytes())]
            .into_iter()
            .chain(tensors);
        let bytes: Vec<u8> = sums.flat_map(u64::to_le_bytes).collect();
        OwnedTensor {
            dtype: Dtype::U64,
            shape: vec![bytes.len() / 8],
            bytes,
        }
    }
}

/// Whether an adapter may hold what was computed from the model's weights: gains and biases of sites, and whole embeddings, which DoRA makes of
/// the model's.
fn is_relative(adapter: &SlotData) -> bool {
    let embedding = adapter.embedding.as_ref();
    let mut sites = adapter.sites.iter();
    sites.any(|(_, d)| d.gain_in.is_some() || d.gain_out.is_some() || d.bias.is_some())
        || embedding.is_some_and(|embedding| embedding.table.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusty_compiler::EmbeddingDelta;
    use rusty_loader::Format;
    use std::sync::Arc;

    /// DoRA of an embedding is made of the model's; a soft prompt and low ranks are not.
    #[test]
    fn whole_embeddings_belong_to_the_models_weights() {
        let table = DeltaTable::encode(Format::F32, None, 2, 4, &[1.0; 8]);
        let with = |embedding| SlotData {
            embedding: Some(Arc::new(embedding)),
            ..SlotData::default()
        };
        let prompt = EmbeddingDelta {
            prompt: table.clone(),
            ..EmbeddingDelta::default()
        };
        let whole = EmbeddingDelta {
            table,
            ..EmbeddingDelta::default()
        };
        assert!(is_relative(&with(whole)) && !is_relative(&with(prompt)));
    }
}
