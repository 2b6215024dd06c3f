//! Whole models against other implementations' logits, on every instruction set of the machine's CPU and on a GPU.

use crate::expected::Expected;
use crate::golden_models::MODELS;
use crate::golden_paths::{golden, root};
use crate::reference::*;
use rusty_backend::CpuDevice;
use rusty_compiler::cpu::{self, CpuExecutable};
use rusty_compiler::{
    BindOptions, Executable, KvFormat, PAGE_TOKENS, RowResult, Sequence, SlotId, Step, Want,
    compile,
};
use rusty_loader::quantize::{Target, quantize};
use rusty_loader::{Format, ModelFile};
use std::collections::HashSet;

/// GGUF files in block formats and in mixtures of them: folder and stem.
fn quantized() -> Vec<(String, String)> {
    let mut files = vec![];
    for folder in ["gguf/llama", "gguf/qwen3", "gguf/qwen3-zoo"] {
        for entry in std::fs::read_dir(golden(folder)).expect(folder) {
            let path = entry.expect(folder).path();
            if path.extension().is_some_and(|e| e == "gguf") {
                let stem = path.file_stem().expect("a name").to_string_lossy();
                files.push((folder.to_owned(), stem.into_owned()));
            }
        }
    }
    assert!(files.len() >= 26, "{files:?}");
    files
}

/// Those of them with a format that none before has, mixtures first: a GPU's kernel is of one format, and software devices take long to
/// compile it.
pub(crate) fn quantized_once() -> Vec<(String, String)> {
    let mut all = quantized();
    all.sort_by_key(|(folder, _)| folder == "gguf/qwen3");
    let mut seen = HashSet::new();
    all.retain(|(folder, stem)| {
        let file = rusty_loader::open(golden(&format!("{folder}/{stem}.gguf"))).expect(stem);
        let views = file.tensor_names().into_iter();
        let views = views.filter_map(|name| file.tensor(&name));
        let fresh = views.filter(|view| seen.insert(view.format)).count();
        fresh > 0
    });
    all
}

#[test]
fn float_models_match_the_reference() {
    for model in MODELS {
        let folder = format!("models/{model}");
        let file = rusty_loader::open(golden(&folder)).expect(model);
        let expected = Expected::read(&folder);
        for on in everywhere() {
            let mut exe = bound(&*file, &on, KvFormat::F32, 2);
            for prompt in 0..3 {
                let Some(ids) = expected.ids(&format!("ids.{prompt}")) else {
                    continue;
                };
                let pages: Vec<u32> = (0..24).rev().collect();
                let logits = all_logits(&mut *exe, &ids, SELECTED - prompt, &pages);
                let want = expected.floats(&format!("logits.{prompt}"));
                assert_close(&format!("{model} {on:?} {prompt}"), &logits, &want, 1e-3);
            }
        }
    }
}

/// A model whose repacked weights would not fit into memory is multiplied from the file: the same bits.
#[test]
fn models_larger_than_memory_run_from_the_file() {
    let path = golden("gguf/llama/mix-Q4_K_M.gguf");
    let file = rusty_loader::open(path).expect("opens");
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let ids: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 250).collect();
    let pages: Vec<u32> = (0..24).collect();
    let logits = |limit: u64| {
        let device = CpuDevice::new(Some(2)).within(limit);
        let plan = compile(&graph, device.target()).expect("plan");
        let kv = KvFormat::F16;
        let held = plan.arena_bytes + 4 * PAGE_TOKENS as u64 * plan.kv_bytes_per_token(kv);
        let options = BindOptions {
            pages: 4,
            kv,
            slots: 0,
        };
        let mut exe =
            CpuExecutable::bind(plan, &*file, &device, &options).map_err(|e| e.to_string())?;
        let first = all_logits(&mut exe, &ids, SELECTED, &pages);
        let later = all_logits(&mut exe, &ids, SELECTED, &pages);
        assert_eq!(first, later, "repacking between them changes nothing");
        Ok::<_, String>((later, exe.memory().resident_weights, held))
    };
    let (plenty, repacked, held) = logits(u64::MAX).expect("bind");
    let (scarce, kept, _) = logits(held + repacked / 2).expect("bind");
    assert!(kept < repacked / 4, "{kept} of {repacked} bytes are copies");
    assert_eq!(plenty, scarce);
    let refused = logits(held - 1).expect_err("nowhere to keep keys and values");
    assert!(
        refused.contains("f16 keys and values of 64 tokens"),
        "{refused}"
    );
}

/// Of NVFP4 there is no golden file: the oracle's word on random blocks.
#[test]
fn nvfp4_agrees_with_the_oracle() {
    let file = rusty_loader::random::model("qwen3-tiny", "nvfp4").expect("shape");
    let ids: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 250).collect();
    let want = oracle(&*file, 20);
    let pages: Vec<u32> = (0..24).collect();
    let mut exe = plain(&*file, &gpu());
    assert_close(
        "on a GPU",
        &all_logits(&mut *exe, &ids, SELECTED, &pages),
        &want,
        1e-3,
    );
    for on in instruction_sets() {
        let mut exe = plain(&*file, &on);
        let have = all_logits(&mut *exe, &ids, SELECTED, &pages).concat();
        near_the_oracle(&format!("nvfp4 {on:?}"), &have, &want, (ids.len(), 1e-3));
    }
}

/// Checkpoints that others quantized: the oracle's word on the same weights (their decoding is checked where they are
/// read). On a CPU, and on a GPU that multiplies bytes, 4-bit codes are multiplied with rounded inputs, small
/// floats with exact ones.
#[test]
fn quantized_checkpoints_agree_with_the_oracle() {
    let mut formats = vec![];
    for name in [
        "awq",
        "awq-g128",
        "gptq",
        "gptq-g128",
        "fp8",
        "fp8-32",
        "fp8-channel",
        "nf4-nested",
    ] {
        let path = root().join("tests/checkpoints").join(name);
        let file = rusty_loader::open(path).expect(name);
        let format = file.tensor("blk.0.attn_q.weight").expect(name).format;
        formats.push(format.name());
        let want = oracle(&*file, 20);
        let ids: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 250).collect();
        let pages: Vec<u32> = (0..24).collect();
        let exact = |on: &On| !format.name().starts_with("int4") || matches!(on, On::Gpu(_));
        for on in everywhere().into_iter().chain([gpu_by_bytes(true)]) {
            let mut exe = plain(&*file, &on);
            for chunk in [SELECTED, 1] {
                let have = all_logits(&mut *exe, &ids, chunk, &pages);
                match exact(&on) {
                    true => assert_close(&format!("{name} {on:?}"), &have, &want, 1e-3),
                    // Logits are about four times as wide as the goldens', for which `BYTES_KL` is.
                    false => {
                        let name = format!("{name} {on:?}");
                        near_the_oracle(&name, &have.concat(), &want, (ids.len(), 1e-3));
                    }
                }
            }
        }
    }
    assert_eq!(
        formats,
        [
            "int4_g32",
            "int4_g128",
            "int4_g64",
            "int4_g128",
            "fp8_g64",
            "fp8_g32",
            "fp8_g128",
            "nf4_g64"
        ]
    );
}

/// The oracle's logits of every position of a prompt.
fn oracle(file: &dyn ModelFile, tokens: u32) -> Vec<f32> {
    let graph = rusty_graph::arch::build(file).expect("graph");
    let ids: Vec<u32> = (0..tokens).map(|i| (i * 37 + 11) % 250).collect();
    let oracle = rusty_graph::Interpreter::new(&graph, file).expect("oracle");
    let values = oracle.run(&ids, &[]).expect("values");
    let rows = (0..ids.len()).flat_map(|r| values.logits().row(r).to_vec());
    rows.collect()
}

/// Checks logits of so many rows by cosine and by mean KL divergence, whose bound is given.
fn near_the_oracle(name: &str, have: &[f32], want: &[f32], (rows, most): (usize, f64)) {
    let (_, apart) = distance(have, want);
    let kl = mean_kl(have, want, rows);
    let said = format!("{name}: 1 - cosine {apart}, mean KL {kl}");
    println!("{said}");
    assert!(apart < 1e-3 && kl < most, "{said}");
}

/// Experts in blocks: as far from the floats as blocks alone make dense models.
#[test]
fn experts_in_blocks_stay_near_the_floats() {
    let folder = "models/mixtral";
    let expected = Expected::read(folder);
    let ids = expected.ids("ids.1").expect("ids");
    let want = expected.floats("logits.1");
    let file = rusty_loader::open(golden(folder)).expect(folder);
    let file = quantize(file, Target::Int8, &|_, _| {}).expect("quantized");
    let pages: Vec<u32> = (0..24).collect();
    for on in instruction_sets() {
        let mut exe = bound(&*file, &on, KvFormat::F32, 2);
        let have = all_logits(&mut *exe, &ids, SELECTED, &pages).concat();
        let (rms, _) = distance(&have, &want);
        let kl = mean_kl(&have, &want, ids.len());
        let said = format!("{on:?}: rms {rms}, mean KL {kl}");
        println!("{said}");
        assert!(rms > 0.0 && rms < 0.2 && kl < 0.012, "{said}");
    }
}

#[test]
fn float_gguf_matches_the_reference() {
    let expected = Expected::read("gguf/qwen3-float");
    let ids = expected.ids("ids").expect("ids");
    for format in ["F32", "F16", "BF16"] {
        let path = golden(&format!("gguf/qwen3-float/{format}.gguf"));
        let file = rusty_loader::open(path).expect(format);
        let want = expected.floats(&format!("{format}.logits_dequant"));
        let pages: Vec<u32> = (0..24).collect();
        for on in [instruction_sets().remove(0), gpu()] {
            let mut exe = bound(&*file, &on, KvFormat::F32, 1);
            let logits = all_logits(&mut *exe, &ids, SELECTED, &pages);
            assert_close(&format!("{format} {on:?}"), &logits, &want, 1e-3);
        }
    }
}

/// GPU kernels without products of bytes multiply decoded weights with unrounded inputs.
#[test]
fn quantized_gguf_on_a_gpu_matches_decoded_weights() {
    let on = gpu();
    for (folder, stem) in quantized_once() {
        let expected = Expected::read(&folder);
        let ids = expected.ids("ids").expect("ids");
        let file = rusty_loader::open(golden(&format!("{folder}/{stem}.gguf"))).expect(&stem);
        let want = expected.floats(&format!("{stem}.logits_dequant"));
        let pages: Vec<u32> = (0..24).collect();
        let mut exe = plain(&*file, &on);
        let logits = all_logits(&mut *exe, &ids, SELECTED, &pages);
        assert_close(&stem, &logits, &want, 1e-3);
        // One row at a time takes the decode kernels.
        let logits = all_logits(&mut *exe, &ids, 1, &pages);
        assert_close(&stem, &logits, &want, 1e-3);
    }
}

/// What is stated before anything is loaded is what is held once blocks were repacked.
#[test]
fn memory_is_stated_as_it_is_held() {
    let on = instruction_sets().remove(0);
    let models = quantized().into_iter();
    let models = models.map(|(folder, stem)| golden(&format!("{folder}/{stem}.gguf")));
    let folders = ["models/mixtral", "models/gemma2", "models/deepseek-v3"].map(golden);
    for path in models.chain(folders) {
        let file = rusty_loader::open(&path).expect("opens");
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let plan = compile(&graph, CpuDevice::new(Some(1)).target()).expect("plan");
        let mut exe = plain(&*file, &on);
        let pages: Vec<u32> = (0..24).collect();
        all_logits(&mut *exe, &[1, 2, 3], 1, &pages);
        let memory = exe.memory();
        let held = memory.mapped_weights + memory.resident_weights;
        let stated = cpu::weight_bytes(&plan);
        match plan.weights.iter().any(|w| w.format == Format::Bf16) {
            // What BF16 takes is for its values to say.
            true => assert!(held <= stated && held * 4 >= stated * 3, "{held} {stated}"),
            false => assert_eq!(stated, held, "{}", path.display()),
        }
        let worked_in = cpu::working_bytes(&plan, &*file, 1, &PLAIN).expect("fits");
        assert_eq!(worked_in, memory.arena, "{}", path.display());
    }
}

/// Eight query heads on one key/value head leave attention's tiles room for fewer rows.
#[test]
fn many_query_heads_per_key_head_agree_across_devices() {
    let file = rusty_loader::random::model("llama-tiny", "f32").expect("shape");
    let ids: Vec<u32> = (0..45).map(|i| (i * 37 + 11) % 500).collect();
    let pages: Vec<u32> = (0..24).collect();
    let logits = |on: &On| {
        let mut exe = bound(&*file, on, KvFormat::F32, 2);
        all_logits(&mut *exe, &ids, SELECTED, &pages)
    };
    let want = logits(&instruction_sets().remove(0)).concat();
    assert_close("on a GPU", &logits(&gpu()), &want, 1e-3);
}

/// The executable's own choice of token follows the reference's greedy run.
#[test]
fn greedy_tokens_match_the_reference() {
    for model in MODELS {
        let folder = format!("models/{model}");
        let file = rusty_loader::open(golden(&folder)).expect(model);
        let expected = Expected::read(&folder);
        let prompt = expected.ids("ids.0").expect("ids");
        let want = expected.ids("greedy.0").expect("greedy");
        let pages: Vec<u32> = (0..24).collect();
        for on in [instruction_sets().remove(0), gpu()] {
            let mut exe = bound(&*file, &on, KvFormat::F32, 2);
            let mut all = prompt.clone();
            let mut done = 0;
            while all.len() < prompt.len() + want.len() {
                let next = greedy(&mut *exe, &all[done..], done, prompt.len(), &pages);
                done = all.len();
                all.push(next);
            }
            assert_eq!(all[prompt.len()..], want, "{model} {on:?}");
        }
    }
}

fn greedy(
    exe: &mut dyn Executable,
    tokens: &[u32],
    at: usize,
    prompt: usize,
    pages: &[u32],
) -> u32 {
    let rows = tokens.len();
    let positions: Vec<u32> = (at..at + rows).map(|p| p as u32).collect();
    let mut wants = vec![Want::Nothing; rows];
    wants[rows - 1] = Want::ArgMax;
    let step = Step {
        tokens,
        positions: &positions,
        sequence_of: &vec![0; rows],
        sequences: &[Sequence {
            pages,
            rope_length: prompt as u32,
        }],
        slots: &vec![SlotId::BASE; rows],
        wants: &wants,
    };
    match exe.run(&step).expect("step").results[..] {
        [(_, RowResult::Token(token))] => token,
        ref other => panic!("asked for a token, got {other:?}"),
    }
}

/// Root mean square of the difference over that of the reference's own rounding is about 1: inputs are
/// rounded to bytes in both.
#[test]
fn quantized_gguf_is_as_close_as_an_honest_integer_path() {
    for (folder, stem) in quantized() {
        let expected = Expected::read(&folder);
        let ids = expected.ids("ids").expect("ids");
        let file = rusty_loader::open(golden(&format!("{folder}/{stem}.gguf"))).expect(&stem);
        let exact = expected.floats(&format!("{stem}.logits_dequant"));
        let other = expected.floats(&format!("{stem}.logits_llamacpp"));
        let rms = |v: &[f32]| {
            let squares = v.iter().zip(&exact).map(|(a, b)| (a - b) * (a - b));
            (squares.sum::<f32>() / exact.len() as f32).sqrt()
        };
        let pages: Vec<u32> = (0..24).collect();
        let mut first: Option<Vec<f32>> = None;
        for isa in instruction_sets() {
            let mut exe = bound(&*file, &isa, KvFormat::F32, 2);
            let logits = all_logits(&mut *exe, &ids, SELECTED, &pages).concat();
            let (have, peer) = (rms(&logits), rms(&other));
            let kl = mean_kl(&logits, &exact, ids.len());
            let said = format!("{stem} {isa:?}: {have}, another's {peer}; mean KL {kl}");
            println!("{said}");
            assert!(have < 1.5 * peer + 0.01 && kl < BYTES_KL, "{said}");
            // All instruction sets round inputs alike and add integers exactly; only float sums differ, which turns
            // a rounding around now and then.
            let first = first.get_or_insert_with(|| logits.clone());
            let squares = logits.iter().zip(&*first).map(|(a, b)| (a - b) * (a - b));
            let apart = (squares.sum::<f32>() / exact.len() as f32).sqrt();
            assert!(
                apart < 0.3 * peer + 0.01,
                "{stem} {isa:?}: {apart} from the best set, another's rounding {peer}"
            );
        }
    }
}
