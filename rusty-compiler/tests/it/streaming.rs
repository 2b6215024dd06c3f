//! Models larger than the memory that a GPU may use: layers stream from the file, and nothing else changes.

use crate::reference::{On, SELECTED, all_logits, try_bound};
use crate::test_gpu;
use rusty_backend::{Device, Error as DeviceError};
use rusty_compiler::{BindOptions, Error, Executable, KvFormat, MemoryUse, Upload};
use rusty_loader::{ModelFile, SharedBytes};
use std::path::{Path, PathBuf};

const OPTIONS: BindOptions = BindOptions {
    pages: 8,
    kv: KvFormat::F16,
    slots: 1,
};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo/model.gguf")
}

fn bound(
    file: &dyn ModelFile,
    memory: Option<u64>,
) -> (Device, rusty_compiler::Result<Box<dyn Executable>>) {
    let device = Device::open_within(&test_gpu::choice(), None, memory).expect("a GPU");
    let exe = try_bound(file, &On::Gpu(device.clone()), 1, OPTIONS);
    (device, exe)
}

/// Logits of a prompt and of single rows behind it, twice.
fn logits(exe: &mut dyn Executable) -> Vec<Vec<f32>> {
    let pages: Vec<u32> = (0..8).collect();
    let ids: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 250).collect();
    let chunks = [SELECTED, 7, 1, SELECTED];
    let each = chunks.map(|chunk| all_logits(exe, &ids, chunk, &pages));
    each.concat()
}

/// What a model takes on a device with room for all of it, and its logits.
fn whole(file: &dyn ModelFile) -> (u64, MemoryUse, Vec<Vec<f32>>) {
    let (device, exe) = bound(file, None);
    let mut exe = exe.expect("all memory is enough");
    let logits = logits(&mut *exe);
    let usage = device.gpu().expect("a GPU").usage();
    (usage.peak, exe.memory(), logits)
}

#[test]
fn weights_that_do_not_fit_stream_and_change_nothing() {
    let bytes = SharedBytes::from_vec(std::fs::read(demo()).expect("the demo"));
    let unmapped = rusty_loader::open_gguf_bytes("bytes", bytes);
    // Its streamed matrices are large enough for the upload ring, those of the demo are not.
    let large = rusty_loader::random::model("qwen3-tiny", "f32");
    for file in [rusty_loader::open(demo()), unmapped, large] {
        let file = file.expect("a model");
        let (needed, all, want) = whole(&*file);
        assert_eq!(all.mapped_weights, 0);
        let limit = needed - all.resident_weights / 5;
        let (_, exe) = bound(&*file, Some(limit));
        let mut exe = exe.expect("streams");
        let memory = exe.memory();
        assert!(memory.mapped_weights > all.resident_weights / 5);
        assert!(memory.resident_weights < all.resident_weights);
        // A step ahead would hold up the one before it.
        assert!(exe.queue().is_none(), "{}", file.label());
        assert!(logits(&mut *exe) == want, "{}", file.label());
    }
}

#[test]
fn too_little_memory_is_said_and_leaves_the_device_usable() {
    let file = rusty_loader::open(demo()).expect("the demo");
    let (needed, all, want) = whole(&*file);
    let enough_for_all_else = needed - all.resident_weights / 10 * 9;
    let (device, exe) = bound(&*file, Some(enough_for_all_else));
    match exe.err() {
        Some(Error::Device(DeviceError::OutOfMemory { owner, limit, .. })) => {
            assert_eq!((owner.as_str(), limit), ("weights", enough_for_all_else));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(device.gpu().expect("a GPU").usage().total, 0);
    let (_, exe) = bound(&*file, None);
    assert!(logits(&mut *exe.expect("fits")) == want);
}

#[test]
fn what_is_uploaded_is_told() {
    let file = rusty_loader::open(demo()).expect("the demo");
    let (_, exe) = bound(&*file, None);
    let mut exe = exe.expect("fits");
    assert_eq!(exe.uploaded(), Upload::default(), "they follow the steps");
    logits(&mut *exe);
    let (upload, held) = (exe.uploaded(), exe.memory().resident_weights);
    assert!(
        (held / 2..=held).contains(&upload.bytes),
        "{upload:?} of {held}"
    );
    assert!(upload.gb_per_s().is_some_and(|rate| rate > 0.0));
    logits(&mut *exe);
    assert_eq!(exe.uploaded(), upload, "once");
}
