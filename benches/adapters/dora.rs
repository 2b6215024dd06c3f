//! A DoRA (arXiv 2402.09353) of random factors: preparing one takes the norms of all weights.

use rusty_adapters::Base;
use rusty_compiler::{DeltaTable, SlotData};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::path::Path;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// The norm that each row of an adapted weight is to have.
const MAGNITUDE: f32 = 1.0;
/// Where norms are checked, and of how many rows.
const SITE: &str = "blk.0.ffn_down";
const CHECKED: usize = 8;

/// Writes the LoRA of a PEFT folder to another folder, as a DoRA.
pub fn write(lora: &Path, dora: &Path) {
    std::fs::create_dir_all(dora).expect("a folder");
    let config = std::fs::read(lora.join(CONFIG)).expect("a configuration");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["use_dora"] = true.into();
    std::fs::write(dora.join(CONFIG), config.to_string()).expect("written");
    let bytes = std::fs::read(lora.join(TENSORS)).expect("factors");
    let factors = SafeTensors::deserialize(&bytes).expect("factors").tensors();
    let outputs = factors.iter().filter_map(|(name, b)| {
        let module = name.strip_suffix(".lora_B.weight")?;
        Some((format!("{module}.lora_magnitude_vector"), b.shape()[0]))
    });
    let outputs: Vec<(String, usize)> = outputs.collect();
    let most = outputs.iter().map(|(_, n)| *n).max().expect("modules");
    let magnitudes = MAGNITUDE.to_le_bytes().repeat(most);
    let vectors = outputs.into_iter().map(|(name, n)| {
        let view = TensorView::new(Dtype::F32, vec![n], &magnitudes[..n * 4]);
        (name, view.expect("a vector"))
    });
    let all = factors.into_iter().chain(vectors);
    safetensors::serialize_to_file(all, None, &dora.join(TENSORS)).expect("written");
}

/// Checks that rows of an adapted weight have the norm that the adapter states.
pub fn check(adapter: &SlotData, base: &Base<'_>) {
    let id = base.graph.site_named(SITE).expect("a site");
    let delta = adapter.site(id).expect("a change");
    let gain = delta.gain_out.as_ref().expect("a gain");
    let a = delta.a.as_ref().expect("a factor").values();
    let view = base.file.and_then(|f| f.tensor(&format!("{SITE}.weight")));
    let view = view.expect("a weight");
    let mut weight = vec![0.0; view.elements()];
    view.format.decode_row(&view.bytes, &mut weight);
    let k = base.graph.site(id).k as usize;
    for (row, weight) in weight.chunks_exact(k).take(CHECKED).enumerate() {
        let mut sum: Vec<f32> = weight.iter().map(|w| gain[row] * w).collect();
        let mut b = vec![0.0; delta.rank as usize];
        delta.b_row(row, &mut b);
        for ((b, scale), a) in b.iter().zip(delta.scale.iter()).zip(a.chunks_exact(k)) {
            let terms = sum.iter_mut().zip(a);
            terms.for_each(|(sum, a)| *sum += scale * b * a);
        }
        let norm = sum.iter().map(|s| s * s).sum::<f32>().sqrt();
        assert!(
            (norm - MAGNITUDE).abs() < 0.01 * MAGNITUDE,
            "row {row} of {SITE} has norm {norm}"
        );
    }
}

/// Whether two adapters hold the same tables and gains.
pub fn same(a: &SlotData, b: &SlotData) -> bool {
    let mut sites = a.sites.iter().zip(&b.sites);
    a.sites.len() == b.sites.len()
        && sites.all(|((i, a), (j, b))| {
            i == j
                && stored(&a.a) == stored(&b.a)
                && stored(&a.b) == stored(&b.b)
                && a.gain_out == b.gain_out
        })
}

fn stored(table: &Option<DeltaTable>) -> Option<&[u8]> {
    table.as_ref().map(|table| &**table.bytes())
}
