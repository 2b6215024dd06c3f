//! What opening and quantizing allocate, counted by an allocator of this test's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rusty_loader::gguf::write::GgufWriter;
use rusty_loader::meta::keys;
use rusty_loader::quantize::{Target, quantize};
use rusty_loader::{Format, Meta, open};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: allocation is the system's; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak of live heap bytes while `work` runs, beyond what lived before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    (result, PEAK.load(Relaxed) - before)
}

/// A Qwen3 of the given sizes whose data is a hole in the file.
fn sparse_model(path: &Path, layers: usize, width: usize, vocab: usize) {
    let mut writer = GgufWriter::new("qwen3");
    let inner = width * 4;
    let sizes = [
        (keys::BLOCK_COUNT, layers),
        (keys::CONTEXT_LENGTH, 4096),
        (keys::EMBEDDING_LENGTH, width),
        (keys::FEED_FORWARD_LENGTH, inner),
        (keys::HEAD_COUNT, width / 64),
        (keys::KEY_LENGTH, 64),
        (keys::VALUE_LENGTH, 64),
    ];
    for (key, size) in sizes {
        writer.meta(&format!("qwen3.{key}"), size as u64);
    }
    let tokens: Meta = (0..vocab)
        .map(|i| Meta::from(&*format!("token {i}")))
        .collect();
    writer.meta("tokenizer.ggml.tokens", tokens);
    writer.tensor("token_embd.weight", Format::F16, &[vocab, width]);
    for layer in 0..layers {
        let mut matrix = |role: &str, rows, columns| {
            writer.tensor(
                &format!("blk.{layer}.{role}.weight"),
                Format::F16,
                &[rows, columns],
            );
        };
        for role in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            matrix(role, width, width);
        }
        for role in ["ffn_gate", "ffn_up"] {
            matrix(role, inner, width);
        }
        matrix("ffn_down", width, inner);
        for norm in ["attn_norm", "ffn_norm"] {
            writer.tensor(&format!("blk.{layer}.{norm}.weight"), Format::F32, &[width]);
        }
    }
    let mut file = File::create(path).unwrap();
    let header = writer.header();
    file.write_all(&header).unwrap();
    file.set_len(header.len() as u64 + writer.data_len())
        .unwrap();
}

#[test]
fn memory_beyond_metadata_and_vocabulary_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large.gguf");
    sparse_model(&large, 80, 8192, 1000);
    assert!(
        std::fs::metadata(&large).unwrap().len() > 100 << 30,
        "larger than memory"
    );
    let (model, peak) = peak_of(|| open(&large).unwrap());
    assert_eq!(model.tensor_names().len(), 80 * 9 + 1);
    assert!(peak < 1 << 20, "opening allocated {peak} bytes");

    let small = folder.path().join("small.gguf");
    sparse_model(&small, 4, 512, 1000);
    let layer = 2 * (4 * 512 * 512 + 3 * 512 * 2048);
    let source = open(&small).unwrap();
    let (result, peak) = peak_of(|| quantize(source, Target::Int4, &|_, _| {}).unwrap());
    assert_eq!(
        result.tensor("blk.3.ffn_up.weight").unwrap().format.name(),
        "q4_0"
    );
    assert!(
        peak < 2 * layer,
        "quantizing allocated {peak} bytes beside its result"
    );
}
