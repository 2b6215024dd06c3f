//! `rusty adapter` and what else the command line says of adapters.

use crate::command::{command, failure, golden, json, said, stdout, stdout_with_cache};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

const QUESTION: &str = "Find users older than 30";
const SQL: &str = "SELECT * FROM users WHERE age > 30;\n";
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/model.gguf");
const ADAPTERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/adapters");

/// Converted both ways, compressed and merged, an adapter still answers in its language.
#[test]
fn adapters_are_converted_compressed_and_merged() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let run = |arguments: &[&str]| stdout_with_cache(folder.path(), arguments);
    let answers = |adapter: &str| run(&["run", QUESTION, "--device", "cpu", "--adapter", adapter]);
    let (gguf, peft, small) = (at("sql.gguf"), at("sql"), at("small.safetensors"));
    run(&["adapter", "convert", "sql", &gguf]);
    run(&["adapter", "convert", &gguf, &peft]);
    let said = run(&["adapter", "compress", &peft, &small, "--sparsity", "0.3"]);
    assert!(
        said.contains("x smaller") && said.contains("logit KL  mean 0.0"),
        "{said}"
    );
    for adapter in [&gguf, &peft, &small] {
        assert_eq!(answers(adapter), SQL, "{adapter}");
    }
    // Prepared once, mapped from then on.
    let cached = || std::fs::read_dir(folder.path().join("rusty/adapters")).expect("cache");
    assert_eq!(cached().count(), 2);
    assert_eq!(answers(&peft), SQL);
    assert_eq!(cached().count(), 2);
    for method in ["linear", "slerp", "ties", "dare"] {
        let out = at(&format!("{method}.gguf"));
        let words = ["--method", method, "--density", "0.9", "--adapter", "sql"];
        run(&[&["adapter", "merge", "-m", DEMO, &out][..], &words].concat());
        let answer = run(&["run", QUESTION, "-m", &out, "--device", "cpu"]);
        assert_eq!(answer, SQL, "{method}");
    }
    let (lone, out) = (at("lone"), at("of-lone.gguf"));
    std::fs::create_dir(&lone).expect("folder");
    std::fs::copy(DEMO, Path::new(&lone).join("m.gguf")).expect("copied");
    run(&["adapter", "merge", "-m", &lone, &out, "--adapter", "sql"]);
    let answer = run(&["run", QUESTION, "-m", &out, "--device", "cpu"]);
    assert_eq!(answer, SQL, "of a folder");
    let (_, error) = failure(&["adapter", "merge", "-m", DEMO, &gguf, "--adapter", "sql"]);
    assert!(error.contains("is there already"), "{error}");
    let (_, error) = failure(&["adapter", "merge", &at("none.gguf"), "--adapter", "sql"]);
    assert!(error.contains("pass a GGUF file"), "{error}");
    let (_, error) = failure(&["adapter", "convert", "sql", &at("sql.bin")]);
    assert!(error.contains("a .gguf file or a folder"), "{error}");
    let (_, error) = failure(&["adapter", "compress", "sql", &at("small.bin")]);
    assert!(error.contains(".safetensors"), "{error}");
}

/// A divergence says little without the prompts on which it was measured.
#[test]
fn compression_tells_on_which_prompts_it_was_measured() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let run = |arguments: &[&str]| stdout_with_cache(folder.path(), arguments);
    let (peft, prompts) = (at("mine"), at("prompts.txt"));
    run(&["adapter", "convert", "sql", &peft]);
    std::fs::write(&prompts, "Find users older than 30\n\nList all cars\n").expect("written");
    let all = run(&["adapter", "compress", &peft, &at("all.safetensors")]);
    let of_all = "the examples of the demo's experts; --prompts takes others";
    assert!(all.contains(of_all), "{all}");
    let own = run(&["adapter", "compress", "sql", &at("own.safetensors")]);
    assert!(own.contains("the demo's expert sql\n"), "{own}");
    let out = at("file.safetensors");
    let words = ["adapter", "compress", &peft, &out, "--prompts", &prompts];
    let file = run(&words);
    let of_file = format!("measured  on 2 prompts: {prompts}\n");
    assert!(file.contains(&of_file), "{file}");
}

/// What `adapter compress` says of the ratio, and of the mean divergence.
fn ratio_and_divergence(said: &str) -> (f64, f64) {
    let between = |from: &str, to: &str| -> f64 {
        let (_, rest) = said.split_once(from).expect(from);
        let (number, _) = rest.split_once(to).expect(to);
        number.parse().expect("a number")
    };
    (between(", ", "x smaller"), between("mean ", ","))
}

/// Compressing takes no words, measuring does; and something must be left.
#[test]
fn compression_tells_where_it_cannot_be_measured_or_done() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().join("small.safetensors");
    let out = out.to_str().expect("UTF-8");
    let words = ["adapter", "compress", "sql", out, "--sparsity", "0.9999"];
    let (_, error) = failure(&words);
    assert!(error.contains("nothing would be left of 'sql'"), "{error}");
    assert!(!Path::new(out).exists());
    let adapter = golden("adapters/qwen3-lora-all");
    let model = golden("models/qwen3-tied");
    let said = stdout(&["adapter", "compress", &adapter, out, "-m", &model]);
    assert!(said.contains("measured  not at all"), "{said}");
    stdout(&["adapter", "inspect", out, "-m", &model]);
}

/// It holds for models whose head is the embedding, and for no others.
#[test]
fn a_changed_embedding_is_warned_of_where_the_head_shares_it() {
    let folder = tempfile::tempdir().expect("folder");
    let source = PathBuf::from(golden("adapters/qwen3-lora-embed"));
    let read = |file: &str| std::fs::read(source.join(file)).expect(file);
    let mut config: Value = serde_json::from_slice(&read("adapter_config.json")).expect("JSON");
    config["target_modules"] = serde_json::json!(["embed_tokens"]);
    let bytes = read("adapter_model.safetensors");
    let all = SafeTensors::deserialize(&bytes).expect("safetensors");
    let own = all.tensors().into_iter();
    let own = own.filter(|(name, _)| name.contains("embed_tokens"));
    let embed = folder.path().join("embed");
    std::fs::create_dir(&embed).expect("folder");
    std::fs::write(embed.join("adapter_config.json"), config.to_string()).expect("written");
    let tensors = embed.join("adapter_model.safetensors");
    safetensors::serialize_to_file(own, None, &tensors).expect("written");
    for (model, shares) in [("qwen3-tied", true), ("llama-llama3rope-sharded", false)] {
        let out = folder.path().join(format!("{model}.gguf"));
        let [embed, out] = [&embed, &out].map(|path| path.to_str().expect("UTF-8"));
        let model = golden(&format!("models/{model}"));
        let words = ["adapter", "convert", embed, out, "-m", &model];
        let (_, warnings) = said(&mut command(&words));
        let warned = warnings.contains("whose head shares it");
        assert_eq!(warned, shares, "{model}: {warnings}");
    }
}

/// Bytes and half bytes: what each saves, and what it costs.
#[test]
fn compression_tells_the_effect_of_each_precision() {
    let folder = tempfile::tempdir().expect("folder");
    let cypher = format!("{ADAPTERS}/cypher");
    let [int8, int4] = ["int8", "int4"].map(|precision| {
        let out = folder.path().join(format!("{precision}.safetensors"));
        let out = out.display().to_string();
        let words = ["adapter", "compress", &cypher, &out];
        let words = [&words[..], &["--precision", precision]].concat();
        ratio_and_divergence(&stdout_with_cache(folder.path(), &words))
    });
    assert!(int8.0 > 1.5 && int4.0 > 3.0, "{int8:?} {int4:?}");
    assert!(0.0 < int8.1 && int8.1 < int4.1, "{int8:?} {int4:?}");
    assert!(int4.1 < 0.01, "{int4:?}");
}

/// Of another model's, which is not given, at least what the file says; of a damaged one, that it is.
#[test]
fn adapters_are_inspected_without_their_model() {
    let folder = tempfile::tempdir().expect("folder");
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&stdout_with_cache(folder.path(), arguments)).expect("JSON")
    };
    let dora = golden("adapters/qwen3-dora");
    let words = ["adapter", "inspect", &dora];
    let stated = json(&[&words[..], &["--json"]].concat());
    assert_eq!(
        (&stated["kind"], &stated["sites"]),
        (&"DoRA".into(), &Value::Null)
    );
    let text = stdout_with_cache(folder.path(), &words);
    assert!(text.contains("made for        models/qwen3-tied"), "{text}");
    let base = golden("models/qwen3-tied");
    let model = ["-m", &base];
    let prompt = golden("adapters/qwen3-prompt");
    let words = ["adapter", "inspect", &prompt];
    let text = stdout_with_cache(folder.path(), &[&words[..], &model].concat());
    assert!(text.contains("embedding       as it is"), "{text}");
    let (dora, cut) = (Path::new(&dora), folder.path().join("cut"));
    std::fs::create_dir(&cut).expect("folder");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        let bytes = std::fs::read(dora.join(file)).expect(file);
        let kept = if file.ends_with("json") {
            bytes.len()
        } else {
            bytes.len() / 2
        };
        std::fs::write(cut.join(file), &bytes[..kept]).expect("written");
    }
    let (_, error) = failure(&["adapter", "inspect", &cut.display().to_string()]);
    let named = error.contains("adapter_model.safetensors");
    assert!(named && !error.contains("fit"), "{error}");
    let (_, error) = failure(&["adapter", "inspect", "nonesuch"]);
    let known = error.contains("no such folder or file") && error.contains("sql");
    assert!(known, "{error}");
    // One that is for the demo and does not fit it is refused.
    let wrong = folder.path().join("wrong");
    std::fs::create_dir(&wrong).expect("folder");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        let bytes = std::fs::read(Path::new(ADAPTERS).join("sql").join(file)).expect(file);
        let text = String::from_utf8_lossy(&bytes).replace("\"r\": 16", "\"r\": 3");
        let is_text = file.ends_with("json");
        let bytes = if is_text { text.into_bytes() } else { bytes };
        std::fs::write(wrong.join(file), bytes).expect("written");
    }
    let (_, error) = failure(&["adapter", "inspect", &wrong.display().to_string()]);
    assert!(
        error.contains("lora_A") && error.contains("needs [3, "),
        "{error}"
    );
}

/// Ranks differ: they can be added, and their factors cannot.
#[test]
fn adapters_are_mixed_as_asked() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder
        .path()
        .join("logits.safetensors")
        .display()
        .to_string();
    let (one, other) = (
        golden("adapters/qwen3-lora-all"),
        golden("adapters/qwen3-lora-qv"),
    );
    let words = [
        "logits",
        &golden("models/qwen3-tied"),
        "--tokens",
        "3,17,99",
        "--out",
        &out,
        "--force",
        "--device",
        "cpu",
        "--adapter",
        &one,
        "--adapter",
        &other,
    ];
    stdout_with_cache(folder.path(), &words);
    let (_, error) = failure(&[&words[..], &["--adapter-mix", "linear"]].concat());
    assert!(error.contains("all of one rank"), "{error}");
}

#[test]
fn adapters_are_inspected_and_accounted() {
    let folder = tempfile::tempdir().expect("folder");
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&stdout_with_cache(folder.path(), arguments)).expect("JSON")
    };
    let one = json(&["adapter", "inspect", "json", "--json"]);
    assert_eq!(
        (&one["rank"], one["sites"].as_array().map(Vec::len)),
        (&16.into(), Some(42))
    );
    let text = stdout_with_cache(folder.path(), &["adapter", "inspect", "json"]);
    assert!(text.contains("sites           42 of 43"), "{text}");
    let base = json(&["inspect", "--json", "--ctx", "1024"]);
    let path = format!("{ADAPTERS}/sql");
    let words = [
        "inspect",
        "--json",
        "--ctx",
        "1024",
        "--adapter",
        "json=0.7",
        "--adapter",
        &path,
    ];
    let both = json(&words);
    let bytes = |v: &Value| v["total_bytes"].as_u64().expect("bytes");
    let adapters = both["adapters"].as_array().expect("adapters");
    let own: u64 = adapters.iter().filter_map(|a| a["bytes"].as_u64()).sum();
    assert_eq!((adapters.len(), bytes(&both)), (2, bytes(&base) + own));
    assert_eq!(one["bytes"], adapters[0]["bytes"]);
    let text = stdout_with_cache(folder.path(), &["inspect", "--adapter", "sql"]);
    assert!(
        text.contains("adapter       sql, rank 16") && text.contains("leaves"),
        "{text}"
    );
    let (_, error) = failure(&["inspect", "--adapter", "nonesuch"]);
    assert!(error.contains("nonesuch"), "{error}");
    let (_, error) = failure(&["inspect", "--adapter", "sql=much"]);
    assert!(error.contains("'much' is no weight"), "{error}");
    let out = folder.path().join("model");
    let words = ["adapter", "merge", "-m", DEMO, "--adapter", "sql"];
    let (_, error) = failure(&[&words[..], &[&out.display().to_string()]].concat());
    assert!(error.contains("a GGUF file"), "{error}");
}

/// Kind, alpha and model as folders, GGUFs, packed files and the demo's own state them.
#[test]
fn what_adapters_state_of_themselves_is_shown() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let text = stdout(&["adapter", "inspect", "sql"]);
    for line in [
        "kind            LoRA\n",
        "alpha           32\n",
        "made for        rusty-demo\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let stated = |words: &[&str]| -> Value {
        let facts = json(&[&["adapter", "inspect", "--json"][..], words].concat());
        serde_json::json!([facts["kind"], facts["alpha"], facts["base_model"]])
    };
    let dora = golden("adapters/qwen3-dora");
    let model = golden("models/qwen3-tied");
    assert_eq!(
        stated(&[dora.as_str(), "-m", &model]),
        serde_json::json!(["DoRA", 8.0, "models/qwen3-tied"])
    );
    let (gguf, packed) = (at("sql.gguf"), at("sql.safetensors"));
    stdout(&["adapter", "convert", "sql", &gguf]);
    let want = serde_json::json!(["LoRA", 32.0, null]);
    assert_eq!(stated(&[gguf.as_str()]), want);
    stdout(&["adapter", "compress", "sql", &packed]);
    let want = serde_json::json!(["packed", null, null]);
    assert_eq!(stated(&[packed.as_str()]), want);
}

/// It would say nothing of anything.
#[test]
fn a_rank_without_random_adapters_is_refused() {
    for task in ["inspect", "bench"] {
        let words = [task, "--random", "qwen3-tiny", "--adapter-rank", "8"];
        let (code, error) = failure(&words);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains("--adapters <N>"), "{error}");
    }
}

/// Base, six adapters, and keys and values of 8192 tokens, from the shapes alone: every part, and all of them far below 8 GB.
#[test]
fn a_base_with_six_adapters_and_a_long_context_is_accounted() {
    // Of a layer: inputs and outputs of the queries' and the output's product, of those of keys and values, and of the
    // feed-forward network's three.
    let products = 2 * (1024 + 2048) + 2 * (1024 + 1024) + 3 * (1024 + 3072);
    let (layers, rank) = (28, 16);
    // Two bytes for each value of the factors, four for a scale of each rank.
    let adapter = layers * rank * (products * 2 + 7 * 4);
    for (format, matrices) in [("bf16", 1_191_968_768), ("q4_0", 335_241_216)] {
        let shape = ["inspect", "--random", "qwen3-0.6b", "--format", format];
        let asked = ["--adapters", "6", "--adapter-rank", "16", "--ctx", "8192"];
        let words = [&shape[..], &asked].concat();
        let facts = json(&[&words[..], &["--json"]].concat());
        let bytes = |key: &str| facts[key].as_u64().expect(key);
        let norms = bytes("weight_bytes") - matrices;
        assert!((1..1 << 20).contains(&norms), "{format}: {norms}");
        assert_eq!(bytes("kv_bytes"), 8192 * layers * 2 * 8 * 128 * 2);
        assert_eq!(bytes("adapter_bytes"), 6 * adapter);
        let parts = [
            "held_weight_bytes",
            "arena_bytes",
            "kv_bytes",
            "adapter_bytes",
        ];
        let sum: u64 = parts.into_iter().map(bytes).sum();
        assert_eq!(bytes("total_bytes"), sum, "{format}");
        assert!(sum < 8_000_000_000, "{format}: {sum}");
        let text = stdout(&words);
        for line in [
            "weights       ",
            "KV            896.00 MiB for 8192 tokens",
            "adapter       random-6, rank 16: 19.26 MiB",
            "adapters      115.57 MiB, 6 of them",
            "in all        ",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
