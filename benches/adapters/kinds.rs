//! Kinds whose files are small: what they take in memory as they are held and multiplied out, and what a token costs with them.

use crate::{FORMAT, RANK, SHAPE, engine};
use rusty_adapters::{Base, Container, Precision, export, load, random};
use rusty_benches::middle;
use rusty_compiler::SlotData;
use rusty_engine::{AdapterSet, Engine, Prompt, Request};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

/// Ranks that PEFT gives these kinds where nothing is stated.
const LOKR_RANK: usize = 8;
const VERA_RANK: usize = 256;
const TOKENS: usize = 32;
const ROUNDS: usize = 9;

/// A linear layer, by PEFT's name.
struct Layer {
    name: String,
    k: usize,
    n: usize,
}

/// Names, shapes and values.
type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

/// The layers of a LoRA in a PEFT folder.
fn layers(lora: &Path) -> Vec<Layer> {
    let bytes = std::fs::read(lora.join("adapter_model.safetensors")).expect("factors");
    let tensors = SafeTensors::deserialize(&bytes).expect("factors");
    let layer = |(name, b): (String, TensorView<'_>)| {
        let module = name.strip_suffix(".lora_B.weight")?;
        let a = tensors.tensor(&format!("{module}.lora_A.weight"));
        Some(Layer {
            name: module.into(),
            k: a.expect("a factor").shape()[1],
            n: b.shape()[0],
        })
    };
    tensors.tensors().into_iter().filter_map(layer).collect()
}

/// Numbers of which adapters are made that change a model by much more than what its products round.
fn numbers(seed: usize, count: usize, spread: f32) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 1021) as f32 / 510.0 - 1.0;
    (0..count).map(|i| number(i) * spread).collect()
}

/// The two factors of a width that are nearest to each other, the smaller one first.
fn nearest_factors(width: usize) -> (usize, usize) {
    let fits = |m: &usize| m * m <= width && width.is_multiple_of(*m);
    let small = (1..=width)
        .take_while(|m| m * m <= width)
        .filter(fits)
        .last();
    small.map_or((1, width), |m| (m, width / m))
}

/// LoKr (KronA, arXiv 2212.10650): a whole first factor, a second one of low rank.
fn lokr(layers: &[Layer]) -> Tensors {
    let mut tensors = vec![];
    for (seed, layer) in layers.iter().enumerate() {
        let ((a, c), (b, d)) = (nearest_factors(layer.n), nearest_factors(layer.k));
        for (part, shape) in [
            ("w1", [a, b]),
            ("w2_a", [c, LOKR_RANK]),
            ("w2_b", [LOKR_RANK, d]),
        ] {
            let values = numbers(seed, shape[0] * shape[1], 0.2);
            let name = format!("{}.lokr_{part}", layer.name);
            tensors.push((name, shape.to_vec(), values));
        }
    }
    tensors
}

/// VeRA (arXiv 2310.11454): factors for all layers, and two vectors of each.
fn vera(layers: &[Layer]) -> Tensors {
    let widest = layers.iter().map(|l| l.k).max().expect("layers");
    let tallest = layers.iter().map(|l| l.n).max().expect("layers");
    let factor = |name: &str, shape: [usize; 2]| {
        let values = numbers(shape[0], shape[0] * shape[1], 0.05);
        (format!("base_model.{name}"), shape.to_vec(), values)
    };
    let mut tensors = vec![
        factor("vera_A", [VERA_RANK, widest]),
        factor("vera_B", [tallest, VERA_RANK]),
    ];
    for (seed, layer) in layers.iter().enumerate() {
        for (part, length) in [("b", layer.n), ("d", VERA_RANK)] {
            let name = format!("{}.vera_lambda_{part}", layer.name);
            tensors.push((name, vec![length], numbers(seed, length, 0.7)));
        }
    }
    tensors
}

fn config(kind: &str, rank: usize, layers: &[Layer]) -> Value {
    let mut leaves: Vec<&str> = layers
        .iter()
        .filter_map(|l| l.name.rsplit('.').next())
        .collect();
    leaves.sort_unstable();
    leaves.dedup();
    json!({ "peft_type": kind, "r": rank, "alpha": rank, "target_modules": leaves, "save_projection": true })
}

/// Writes a folder as PEFT does, in single precision; gives the bytes of its tensors.
fn write(folder: &Path, config: &Value, tensors: &Tensors) -> u64 {
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).expect("written");
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, _, values)| values.iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
        (name, view.expect("a tensor"))
    });
    let file = folder.join("adapter_model.safetensors");
    safetensors::serialize_to_file(views, None, &file).expect("written");
    bytes.iter().map(|b| b.len() as u64).sum()
}

/// Tokens of an answer and the seconds of one.
fn answer(engine: &Engine, set: impl Into<AdapterSet>) -> (Vec<u32>, f64) {
    let mut session = engine.session();
    session.set_adapter(set).expect("attached");
    let request = Request {
        max_tokens: TOKENS,
        stop_at_end: false,
        ..Request::new(Prompt::Tokens(vec![7, 77, 777]))
    };
    let mut answer = session.generate(&request).expect("an answer");
    let mut said = vec![answer.next().expect("a token").expect("a token")];
    let start = Instant::now();
    said.extend(answer.map(|token| token.expect("a token")));
    let seconds = start.elapsed().as_secs_f64() / (TOKENS - 1) as f64;
    (
        said.into_iter().filter_map(|token| token.id).collect(),
        seconds,
    )
}

/// As it is held and multiplied out, an adapter makes the same logits but for what their precision rounds.
fn check(engine: &Engine, name: &str, adapter: &SlotData) {
    let tokens: Vec<u32> = (0..8).map(|i| i * 101 + 5).collect();
    let logits = |adapter: SlotData| {
        let id = engine.attach(adapter).expect("attached");
        let logits = engine.logits(&tokens, id).expect("logits");
        engine.detach(id).expect("detached");
        logits
    };
    let base = engine.logits(&tokens, AdapterSet::BASE).expect("logits");
    let own = logits(adapter.clone());
    let plain = logits(adapter.plain().expect("tables").into_owned());
    let square = |a: &[f32], b: &[f32]| {
        let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
        squares.sum::<f64>()
    };
    let (apart, change) = (square(&own, &plain), square(&own, &base));
    assert!(change > 0.0, "{name} changes nothing");
    assert!(apart < 1e-2 * change, "{name}: {apart} of {change}");
}

/// The table.
pub fn print() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine();
    let base: Base<'_> = engine.adapter_base();
    let lora = random("random", &engine.graph().sites, RANK, 1, Precision::F16);
    let peft = folder.path().join("lora");
    export(&lora, &base, &peft, Container::Peft).expect("exported");
    let layers = layers(&peft);
    let mut kinds = vec![(format!("LoRA of rank {RANK}"), lora.bytes() as u64, lora)];
    for (name, kind, rank, tensors) in [
        ("LoKr", "LOKR", LOKR_RANK, lokr(&layers)),
        ("VeRA", "VERA", VERA_RANK, vera(&layers)),
    ] {
        let at = folder.path().join(name);
        let stored = write(&at, &config(kind, rank, &layers), &tensors);
        let adapter = load(&at, &base, Precision::F16).expect(name);
        check(&engine, name, &adapter);
        let plain = adapter.plain().expect("tables").into_owned();
        kinds.push((format!("{name} of rank {rank}"), stored, adapter));
        kinds.push((
            format!("{name} of rank {rank}, multiplied out"),
            stored,
            plain,
        ));
    }
    println!("{}", table(&engine, kinds));
}

fn table(engine: &Engine, kinds: Vec<(String, u64, SlotData)>) -> String {
    let mut out = format!(
        "\nkinds: {SHAPE} in {FORMAT}, F16 tables, middle of {ROUNDS} rounds of {TOKENS} tokens\n\n\
         | adapter | file, MB | held, MB | ms a token | of the base's speed |\n|---|---|---|---|---|\n"
    );
    for (name, stored, adapter) in kinds {
        let held = adapter.bytes() as u64;
        let id = engine.attach(adapter).expect("attached");
        let want = answer(engine, id).0;
        let rounds = (0..ROUNDS).map(|_| {
            let base = answer(engine, AdapterSet::BASE).1;
            let (said, own) = answer(engine, id);
            assert!(said == want, "{name}: something else is said");
            (own, base / own)
        });
        let (own, share): (Vec<f64>, Vec<f64>) = rounds.unzip();
        engine.detach(id).expect("detached");
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let _ = writeln!(
            out,
            "| {name} | {:.1} | {:.1} | {:.2} | {:.2} |",
            mb(stored),
            mb(held),
            1e3 * middle(own),
            middle(share)
        );
    }
    out
}
