//! Weights in BF16 times inputs that are rounded to BF16, as CPUs with AVX-512 BF16 multiply them, those with AMX, too, and portable code elsewhere: near
//! what single precision gives, and the same to the bit whatever stands beside a row.

use crate::adapted_rows::{TOKENS, attach, logits};
use crate::reference::{On, distance, mean_kl, try_bound};
use rusty_backend::{CpuDevice, Isa};
use rusty_compiler::{BindOptions, Executable, KvFormat};
use rusty_loader::ModelFile;

/// Mean KL divergence in nats, and one less the cosine: a tenth of what [bytes](crate::reference::BYTES_KL) are allowed.
const MOST: (f64, f64) = (1e-3, 1e-4);

/// AVX-512 with and without products of brain floats, and with tile registers or without.
fn avx512(bf16: bool, amx: bool) -> Isa {
    let vnni = true;
    Isa::Avx512 { vnni, bf16, amx }
}

fn bound(file: &dyn ModelFile, isa: Isa, threads: usize, slots: u32) -> Box<dyn Executable> {
    let options = BindOptions {
        pages: 24,
        kv: KvFormat::F32,
        slots,
    };
    let mut exe = try_bound(file, &On::Cpu(isa), threads, options).expect("bound");
    let graph = rusty_graph::arch::build(file).expect("graph");
    attach(&mut *exe, &graph, slots);
    exe
}

/// Whether this machine runs AVX-512, which stands before portable code, without multiplying brain floats: such a machine has only
/// the kernels' own tests.
fn lacks_them() -> bool {
    let has = |wanted: bool| {
        let mut sets = CpuDevice::runnable().into_iter();
        sets.any(|isa| matches!(isa, Isa::Avx512 { bf16, .. } if bf16 == wanted))
    };
    has(false) && !has(true)
}

/// Whether there are tile registers. What needs them is not tested without.
fn has_tiles() -> bool {
    let mut sets = CpuDevice::runnable().into_iter();
    sets.any(|isa| matches!(isa, Isa::Avx512 { amx: true, .. }))
}

#[test]
fn rounded_inputs_stay_near_single_precision() {
    if lacks_them() {
        return;
    }
    for shape in ["qwen3-tiny", "llama-tiny", "qwen3moe-tiny", "deepseek-tiny"] {
        let file = rusty_loader::random::model(shape, "bf16").expect(shape);
        for slots in [0, 1] {
            let want = logits(
                &mut *bound(&*file, avx512(false, false), 1, slots),
                64,
                slots,
            );
            for amx in [false].into_iter().chain(has_tiles().then_some(true)) {
                near(&*file, avx512(true, amx), slots, &want);
            }
        }
    }
}

/// Whether an instruction set's logits are near the ones of single precision, and the same however a prompt is cut and shared.
fn near(file: &dyn ModelFile, isa: Isa, slots: u32, want: &[f32]) {
    let mut exe = bound(file, isa, 2, slots);
    let have = logits(&mut *exe, 64, slots);
    let (rms, apart) = distance(&have, want);
    let kl = mean_kl(&have, want, TOKENS as usize);
    let name = file.label();
    let said = format!("{name}, {isa:?}, {slots}: rms {rms}, 1 - cosine {apart}, mean KL {kl}");
    println!("{said}");
    assert!(rms > 0.0, "{said}: nothing was rounded");
    assert!(kl < MOST.0 && apart < MOST.1, "{said}");
    // Rows are shortened between steps.
    for chunk in [1, 5, 64] {
        assert_eq!(logits(&mut *exe, chunk, slots), have, "{said}, by {chunk}");
    }
    let mut alone = bound(file, isa, 1, slots);
    let alone = logits(&mut *alone, 64, slots);
    assert_eq!(alone, have, "{said}, on one thread");
}
