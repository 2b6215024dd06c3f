//! LoRA files that llama.cpp's own converter wrote, with the logits that llama.cpp gives (`tests/gguf_adapters`): read
//! as they are meant, and what Rusty writes of the same PEFT folders is the same file.
//!
//! References are llama.cpp's in F32 throughout, factors and cache too, and within 2e-5 of PEFT's where a file says what
//! PEFT does: the bound is that of all float references. Half the scale changes logits by 0.4 and more on average.

use super::adapter_files::both;
use super::adapter_misfits::gguf_tensors;
use super::adapters::{Golden, assert_close, check_prompts};
use super::golden;
use rusty_adapters::{Container, Precision, export, load};
use rusty_engine::AdapterSet;
use rusty_loader::gguf::Gguf;
use std::path::PathBuf;

/// Every product of Llama's layers with rotary pairs in its order, its head and embedding, Qwen's layers, and factors
/// in Q8_0 and F16 whose ranks differ.
const CASES: [&str; 4] = [
    "llama-lora-all",
    "llama-lora-head",
    "qwen3-lora-all",
    "qwen3-lora-patterns",
];

/// Keys by which llama.cpp takes a file for an adapter of a model, and scales it.
const KEYS: [&str; 4] = [
    "general.architecture",
    "general.type",
    "adapter.type",
    "adapter.lora.alpha",
];

/// A file and what llama.cpp makes of it.
struct Case {
    golden: Golden,
    file: PathBuf,
    /// The folder that the file was made of.
    peft: String,
    /// Whether the file says all that the folder does: llama.cpp's converter leaves `alpha_pattern` out.
    as_peft: bool,
}

impl Case {
    fn read(name: &str) -> Self {
        // Beside the goldens.
        let folder = format!("../gguf_adapters/{name}");
        let about = Golden::read(&folder);
        let text = |key: &str| about.manifest[key].as_str().expect(key).to_string();
        Self {
            file: golden(&folder).join(text("file")),
            peft: text("adapter"),
            as_peft: about.manifest["as_peft"].as_bool().expect("as_peft"),
            golden: about,
        }
    }
}

#[test]
fn files_of_llama_cpp_act_as_in_llama_cpp_and_as_in_peft() {
    let mut compared = 0;
    for name in CASES {
        let case = Case::read(name);
        let ids = case.golden.expected.ids("ids").expect("ids");
        for (i, engine) in both(case.golden.base()).iter().enumerate() {
            let attached = engine.attach_file(&case.file, Precision::Stored);
            let id = attached.expect(name);
            for row in case.golden.manifest["scales"].as_array().expect("scales") {
                let scale = row["scale"].as_f64().expect("scale") as f32;
                let set = AdapterSet::sum([(id, scale)]);
                let have = engine.logits(&ids, set).expect(name);
                let logits = row["logits"].as_str().expect("logits");
                let want = case.golden.expected.floats(logits);
                let what = format!("{name} at {scale} on engine {i}");
                assert_close(&what, &have, &want);
                compared += 1;
            }
            if case.as_peft {
                let what = format!("{name} as PEFT on engine {i}");
                check_prompts(engine, id, &Golden::read(&case.peft), &what);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 4 * 2 * 2 + 3 * 2);
}

/// Names, shapes and values, and the stored types and values of keys, whichever file the model is from.
#[test]
fn converted_adapters_are_those_of_llama_cpps_converter() {
    let folder = tempfile::tempdir().expect("folder");
    let mut compared = 0;
    for name in CASES {
        let case = Case::read(name);
        if !case.as_peft {
            continue;
        }
        let theirs = Gguf::open(&case.file).expect(name);
        let wanted = gguf_tensors(&theirs);
        for (i, engine) in both(case.golden.base()).iter().enumerate() {
            let base = engine.adapter_base();
            let adapter = load(&golden(&case.peft), &base, Precision::Stored).expect(name);
            let out = folder.path().join(format!("{name}-{i}.gguf"));
            export(&adapter, &base, &out, Container::Gguf).expect(name);
            let own = Gguf::open(&out).expect(name);
            let written = gguf_tensors(&own);
            let names = written.keys();
            assert!(names.clone().eq(wanted.keys()), "{name}: {names:?}");
            for (tensor, stored) in &wanted {
                assert!(written[tensor] == *stored, "'{tensor}' of {name}");
                compared += 1;
            }
            for key in KEYS {
                let stored = |file: &Gguf| {
                    let mut keys = file.stored_keys();
                    keys.find(|(k, _)| *k == key).map(|(_, v)| v.to_vec())
                };
                let want = stored(&theirs);
                assert!(want.is_some(), "'{key}' of {name}");
                assert_eq!(stored(&own), want, "'{key}' of {name}");
            }
        }
    }
    assert_eq!(compared, 2 * (42 + 10 + 42));
}
