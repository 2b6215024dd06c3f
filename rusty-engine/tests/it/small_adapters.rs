//! Adapters whose files are small stay small: LoKr's factors act in blocks, VeRA's are shared, on a CPU as they are and on a GPU
//! multiplied out.

use super::adapter_oddities::Adapter;
use super::adapters::{BASES, assert_close};
use super::gguf_twin::twin;
use super::{devices, golden, logits, open, open_on};
use rusty_adapters::{Base, Precision, Pruning, compress, load, packed};
use rusty_backend::DeviceChoice;
use rusty_compiler::{DeltaTable, KvFormat, SlotData};
use rusty_engine::{AdapterSet, Engine};
use std::path::{Path, PathBuf};

const RANK: usize = 4;
/// Outputs and inputs of a block.
const BLOCK: usize = 32;

/// Numbers between -0.2 and 0.2, others for each seed.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    let number = |i| ((i * 37 + seed * 101) % 64) as f32 / 160.0 - 0.2;
    (0..count).map(number).collect()
}

/// A LoKr of blocks that kernels read, on every layer of a base that has as many outputs.
fn write(base: &Base<'_>, folder: &Path) -> PathBuf {
    let mut adapter = Adapter::golden("qwen3-lokr");
    let names: Vec<String> = adapter.tensors.keys().cloned().collect();
    let modules = names.iter().filter_map(|n| n.strip_suffix(".lokr_w1"));
    adapter.tensors.clear();
    for (seed, module) in modules.enumerate() {
        let site = base.graph.site_named(&canonical(module)).expect(module);
        let site = base.graph.site(site);
        let (n, k) = (site.n as usize, site.k as usize);
        // Not all are whole blocks.
        let height = BLOCK.min(n);
        for (part, shape) in [
            ("w1", [n / height, k / BLOCK]),
            ("w2_a", [height, RANK]),
            ("w2_b", [RANK, BLOCK]),
        ] {
            let values = numbers(seed * 3 + part.len(), shape[0] * shape[1]);
            let name = format!("{module}.lokr_{part}");
            adapter.tensors.insert(name, (shape.to_vec(), values));
        }
    }
    adapter.write(folder)
}

/// The site of one of PEFT's modules.
fn canonical(module: &str) -> String {
    let parts: Vec<&str> = module.split('.').collect();
    let layer = parts[parts.len() - 3];
    let leaf = match parts[parts.len() - 1] {
        "q_proj" => "attn_q",
        "k_proj" => "attn_k",
        "v_proj" => "attn_v",
        "o_proj" => "attn_output",
        "gate_proj" => "ffn_gate",
        "up_proj" => "ffn_up",
        "down_proj" => "ffn_down",
        other => panic!("{other}"),
    };
    format!("blk.{layer}.{leaf}")
}

/// What factors amount to at a site, `[n, k]`.
fn matrix(adapter: &SlotData, base: &Base<'_>, site: &str) -> Vec<f32> {
    let id = base.graph.site_named(site).expect(site);
    let (k, n) = (
        base.graph.site(id).k as usize,
        base.graph.site(id).n as usize,
    );
    let delta = adapter.site(id).expect(site).plain().expect("tables");
    let rank = delta.rank as usize;
    let a = delta.a.as_ref().map(DeltaTable::values).expect("factors");
    let mut b = vec![0.0; rank];
    let mut out = vec![0.0; n * k];
    for (c, row) in out.chunks_exact_mut(k).enumerate() {
        delta.b_row(c, &mut b);
        for (r, a) in a.chunks_exact(k).enumerate() {
            let by = delta.scale[r] * b[r];
            row.iter_mut().zip(a).for_each(|(v, a)| *v += by * a);
        }
    }
    out
}

/// `alpha / rank` of the golden's configuration.
const SCALE: f32 = 2.0;

/// LoKr's own formula, of the first site that is written.
fn assert_is_kron(adapter: &SlotData, base: &Base<'_>) {
    let id = base.graph.site_named("blk.0.ffn_down").expect("a site");
    let (k, n) = (
        base.graph.site(id).k as usize,
        base.graph.site(id).n as usize,
    );
    let (w1, w2_a, w2_b) = (
        numbers(2, n * k / BLOCK / BLOCK),
        numbers(4, BLOCK * RANK),
        numbers(4, RANK * BLOCK),
    );
    let want = (0..n * k).map(|i| {
        let (row, column) = (i / k, i % k);
        let terms =
            (0..RANK).map(|r| w2_a[row % BLOCK * RANK + r] * w2_b[r * BLOCK + column % BLOCK]);
        SCALE * w1[row / BLOCK * (k / BLOCK) + column / BLOCK] * terms.sum::<f32>()
    });
    let want: Vec<f32> = want.collect();
    assert_close(
        "kron(w1, w2)",
        &matrix(adapter, base, "blk.0.ffn_down"),
        &want,
    );
}

fn attached(engine: &Engine, adapter: SlotData, what: &str) -> Vec<f32> {
    let id = engine.attach(adapter).expect(what);
    let have = logits(engine, id);
    engine.detach(id).expect(what);
    have
}

/// Blocks as they are, multiplied out, by another weight, beside others, and packed: all say the same.
fn check_lokr(engine: &Engine, folder: &Path, what: &str) {
    let base = engine.adapter_base();
    let read = |precision| load(&write(&base, folder), &base, precision).expect(what);
    let adapter = read(Precision::Stored);
    let blocks = adapter.sites.iter().filter(|(_, d)| d.kron.is_some());
    assert!(blocks.count() >= 15, "{what}: few sites act in blocks");
    let plain = adapter.plain().expect(what).into_owned();
    assert!(adapter.bytes() * 2 < plain.bytes(), "{what}");
    assert_is_kron(&adapter, &base);
    let want = attached(engine, plain.clone(), what);
    let unchanged = logits(engine, None);
    let apart = want.iter().zip(&unchanged).map(|(a, b)| (a - b).abs());
    assert!(apart.fold(0.0, f32::max) > 0.05, "{what}: nothing changes");
    assert_close(what, &attached(engine, adapter.clone(), what), &want);
    // Bytes are no floats, which blocks are made of.
    let bytes = read(Precision::Int8);
    let applied = Precision::Int8.applied(adapter.clone());
    let compressed = compress(&adapter, &base, Pruning::Nothing, Precision::Int8);
    for other in [bytes, applied, compressed] {
        let apart = attached(engine, other, what);
        let apart = apart.iter().zip(&want).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f32::max) < 0.05, "{what}");
    }
    let packed_at = folder.join("packed.safetensors");
    packed::pack(&adapter, &base, &packed_at, true).expect(what);
    let again = load(&packed_at, &base, Precision::Stored).expect(what);
    assert_eq!(again.bytes(), adapter.bytes());
    assert_close(what, &attached(engine, again, what), &want);
    let [own, other] = [adapter, plain].map(|a| engine.attach(a).expect(what));
    let lora = golden("adapters/qwen3-lora-qv");
    let lora = engine.attach_file(&lora, Precision::Stored).ok();
    for weights in [vec![(own, 0.5)], vec![(own, 0.25), (other, 0.25)]] {
        let want = logits(engine, AdapterSet::sum([(other, 0.5)]));
        assert_close(what, &logits(engine, AdapterSet::sum(weights)), &want);
    }
    if let Some(lora) = lora {
        let of = |id| logits(engine, AdapterSet::sum([(id, 1.0), (lora, 1.0)]));
        assert_close(what, &of(own), &of(other));
    }
}

#[test]
fn factors_of_blocks_act_as_what_they_amount_to() {
    let temporary = tempfile::tempdir().expect("folder");
    for (at, base) in BASES[..2].iter().enumerate() {
        let file = rusty_loader::open(golden(base)).expect(base);
        // Its rotary pairs lie side by side where the folder's do not.
        let gguf = temporary.path().join(format!("{at}.gguf"));
        std::fs::write(&gguf, twin(&*file)).expect("written");
        for source in [golden(base), gguf] {
            for device in devices() {
                if at > 0 && device != DeviceChoice::Cpu {
                    continue;
                }
                let engine = open_on(&source, device, KvFormat::F32);
                let what = format!("{} on {device}", source.display());
                check_lokr(&engine, temporary.path(), &what);
            }
        }
    }
}

/// One `A` and one `B` of each width, in memory as in files.
#[test]
fn factors_that_layers_share_are_held_once() {
    let temporary = tempfile::tempdir().expect("folder");
    let engine = open(&golden(BASES[1]));
    let base = engine.adapter_base();
    let path = golden("adapters/llama-vera");
    for precision in [Precision::Stored, Precision::F16, Precision::Int8] {
        let adapter = load(&path, &base, precision).expect("adapter");
        let factors = || {
            let sites = adapter.sites.iter();
            sites.flat_map(|(_, delta)| delta.tables())
        };
        let mut places: Vec<_> = factors().map(|t| t.bytes().as_ptr()).collect();
        let tables = places.len();
        places.sort_unstable();
        places.dedup();
        assert!(places.len() * 2 < tables, "{} of {tables}", places.len());
        assert!(adapter.sites.iter().all(|(_, d)| d.gain_low.is_some()));
        let alone: usize = factors().map(DeltaTable::len_bytes).sum();
        assert!(adapter.bytes() < alone, "{precision:?}");
        assert!(adapter.plain_bytes() > adapter.bytes());
        for deflate in [false, true] {
            let packed_at = temporary.path().join("packed.safetensors");
            packed::pack(&adapter, &base, &packed_at, deflate).expect("packed");
            let again = load(&packed_at, &base, Precision::Stored).expect("adapter");
            assert_eq!(again.bytes(), adapter.bytes(), "{precision:?} {deflate}");
            let want = attached(&engine, adapter.clone(), "vera");
            assert!(attached(&engine, again, "packed") == want);
        }
    }
}
