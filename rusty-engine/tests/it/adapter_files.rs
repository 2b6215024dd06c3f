//! Adapters from file to file, and on models from either kind of file: the same logits everywhere.

use super::adapters::{BASES, Golden, check_prompts, names};
use super::gguf_twin::twin;
use super::{engine, golden};
use rusty_adapters::{Container, Error, Precision, export, load};
use rusty_backend::DeviceChoice;
use rusty_compiler::KvFormat;
use rusty_engine::{Engine, EngineOptions};
use rusty_loader::{ModelFile, SharedBytes};
use std::sync::Arc;

/// The same network from a checkpoint and from a GGUF.
pub fn both(base: &str) -> [Engine; 2] {
    let checkpoint = engine(base, DeviceChoice::Cpu, KvFormat::F32);
    let file = rusty_loader::open(golden(base)).expect(base);
    let bytes = SharedBytes::from_vec(twin(&*file));
    let file: Arc<dyn ModelFile> =
        Arc::from(rusty_loader::open_gguf_bytes(base, bytes).expect(base));
    let options = EngineOptions {
        // References are single precision.
        single_precision: true,
        device: DeviceChoice::Cpu,
        kv: KvFormat::F32,
        ..EngineOptions::default()
    };
    let gguf = Engine::load(&*file, &options).expect(base);
    gguf.keep_base(file);
    [checkpoint, gguf]
}

/// Those that golden files can state: everything but gains, whole weights and soft prompts.
fn is_lora(name: &str) -> bool {
    let others = ["dora", "ia3", "saved", "biasall", "prompt", "prefix"];
    !others.iter().any(|o| name.contains(o))
}

#[test]
fn adapters_act_alike_on_models_of_either_file_and_from_either_file() {
    let folder = tempfile::tempdir().expect("folder");
    let (mut acted, mut written) = (0, 0);
    for base in BASES {
        let engines = both(base);
        for name in names() {
            let golden_data = Golden::read(&format!("adapters/{name}"));
            if golden_data.base() != base {
                continue;
            }
            let path = golden(&format!("adapters/{name}"));
            for (i, engine) in engines.iter().enumerate() {
                let id = engine.attach_file(&path, Precision::Stored).expect(&name);
                check_prompts(engine, id, &golden_data, &format!("{name} on engine {i}"));
                engine.detach(id).expect("detach");
                acted += 1;
                let adapter = load(&path, &engine.adapter_base(), Precision::Stored);
                let adapter = adapter.expect(&name);
                for out in [format!("{name}-{i}.gguf"), format!("{name}-{i}")] {
                    let out = folder.path().join(out);
                    let container = Container::of(&out);
                    let done = export(&adapter, &engine.adapter_base(), &out, container);
                    let stated =
                        is_lora(&name) && !(name.contains("bias") && container == Container::Gguf);
                    if !stated {
                        let error = done.expect_err(&name);
                        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
                        continue;
                    }
                    done.expect(&name);
                    for (j, engine) in engines.iter().enumerate() {
                        let id = engine.attach_file(&out, Precision::Stored).expect(&name);
                        let what = format!("{} on engine {j}", out.display());
                        check_prompts(engine, id, &golden_data, &what);
                        engine.detach(id).expect("detach");
                    }
                    written += 1;
                }
            }
        }
    }
    assert_eq!(acted, 2 * names().len());
    assert!(written >= 40, "{written} files");
}
