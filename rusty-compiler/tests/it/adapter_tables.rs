//! Whole models with adapters whose tables are in every format, on every instruction set of the machine's CPU.

use crate::adapted_rows::{PAGES, TOKENS, adapter, ids, logits, low_ranks, oracle, stored};
use crate::golden_paths::golden;
use crate::reference::{
    adapted_logits, assert_close, bound_with, distance, instruction_sets, mean_kl,
};
use rusty_compiler::{BindOptions, DeltaTable, KvFormat, SlotData, SlotId};
use rusty_loader::quantize::{Target, quantize};
use rusty_loader::{Format, ModelFile};

const MODEL: &str = "models/qwen3-tied";
const OPTIONS: BindOptions = BindOptions {
    pages: PAGES,
    kv: KvFormat::F32,
    slots: 1,
};
/// More than a quartet of ranks, and than the 32 that bytes are multiplied at once; no whole number of either.
const RANK: usize = 37;
/// Rows of a step: tiles, and the kernels of one row.
const CHUNKS: [usize; 2] = [62, 1];

fn model() -> Box<dyn ModelFile> {
    rusty_loader::open(golden(MODEL)).expect(MODEL)
}

/// Checks the logits of every instruction set with tables of these formats, by tiles and row by row, against the oracle's.
fn compare(file: &dyn ModelFile, formats: &[Format], check: impl Fn(&str, &[f32], &[f32])) {
    let graph = rusty_graph::arch::build(file).expect("graph");
    let pages: Vec<u32> = (0..PAGES).collect();
    let base = oracle(&graph, file, &SlotData::default());
    for format in formats.iter().copied() {
        let adapter = stored(low_ranks(&graph, RANK), format);
        let want = oracle(&graph, file, &adapter);
        let (change, _) = distance(&want, &base);
        assert!(change > 0.05, "adapters change logits by {change}");
        for on in instruction_sets() {
            let mut exe = bound_with(file, &on, 2, OPTIONS);
            exe.attach(SlotId(1), adapter.clone()).expect("attached");
            for chunk in CHUNKS {
                let have = adapted_logits(&mut *exe, SlotId(1), &ids(), chunk, &pages);
                let name = format!("tables in {} on {on:?}, by {chunk}", format.name());
                check(&name, &have.concat(), &want);
            }
        }
    }
}

/// Behind weights in single precision nothing is rounded but the products of tables of bytes, to fifteen bits.
#[test]
fn adapters_in_every_format_match_the_oracle() {
    compare(&*model(), &DeltaTable::FORMATS, |name, have, want| {
        assert_close(name, &[have.to_vec()], want, 2e-3);
    });
}

/// Tables of bytes take the inputs that were rounded for the weights.
#[test]
fn adapters_of_weights_in_bytes_are_near_the_oracle() {
    let file = quantize(model(), Target::Int8, &|_, _| {}).expect("quantized");
    compare(&*file, &DeltaTable::FORMATS, near);
}

/// As near as rounded inputs allow.
fn near(name: &str, have: &[f32], want: &[f32]) {
    let (rms, apart) = distance(have, want);
    let kl = mean_kl(have, want, TOKENS as usize);
    let said = format!("{name}: rms {rms}, 1 - cosine {apart}, mean KL {kl}");
    println!("{said}");
    assert!(apart < 2e-3 && kl < 0.03, "{said}");
}

/// Weights that are repacked, shortened or read as they lie; beside each, floats and bytes.
#[test]
fn adapters_of_weights_in_many_formats_are_near_the_oracle() {
    let bytes = Format::by_name("q8_0").expect("a format");
    for name in [
        "qwen3-float/F16",
        "qwen3-float/BF16",
        "qwen3/Q4_0",
        "qwen3/Q4_K",
        "qwen3/Q6_K",
        "qwen3/IQ4_NL",
        "llama/mix-Q4_K_M",
    ] {
        let path = golden(&format!("gguf/{name}.gguf"));
        let file = rusty_loader::open(path).expect(name);
        let check = |what: &str, have: &[f32], want: &[f32]| {
            near(&format!("{name}, {what}"), have, want);
        };
        compare(&*file, &[Format::F16, bytes], check);
    }
}

/// Rows that take turns with an adapter, which has factors on inputs and outputs too: what the best instruction set gives.
#[test]
fn rows_take_turns_with_adapters_on_every_instruction_set() {
    let file = model();
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    for format in DeltaTable::FORMATS {
        let adapter = stored(adapter(&graph, RANK, 0), format);
        let mut first = None;
        for on in instruction_sets() {
            let mut exe = bound_with(&*file, &on, 2, OPTIONS);
            exe.attach(SlotId(1), adapter.clone()).expect("attached");
            for chunk in CHUNKS {
                let have = logits(&mut *exe, chunk, 1);
                let want = first.get_or_insert_with(|| have.clone());
                let name = format!("tables in {} on {on:?}, by {chunk}", format.name());
                assert_close(&name, &[have], want, 2e-3);
            }
        }
    }
}
