//! One row on cores that read ahead on their own and on such that are asked ahead: weights are read in another order, in pieces that
//! threads take of each other's shares, and each result is the same to the bit.

use crate::adapted_rows::{attach, logits, low_ranks};
use rusty_backend::{CpuDevice, Isa};
use rusty_compiler::cpu::CpuExecutable;
use rusty_compiler::{BindOptions, Executable, KvFormat, SlotId, compile};
use std::sync::Arc;

/// What is attached.
#[derive(Clone, Copy, Debug)]
enum Adapters {
    None,
    /// Which add low ranks.
    Plain,
    /// Which scale inputs and outputs, too.
    Scaling,
}

#[test]
fn results_do_not_depend_on_it() {
    let kv = [KvFormat::F16, KvFormat::Q8_0, KvFormat::Q4_0];
    // Its gate and up are wider than the widest strip of many rows.
    let formats = ["q4_0", "q4_k_m", "q8_0", "bf16", "f32"];
    for (format, kv) in formats.into_iter().zip(kv.into_iter().cycle()) {
        let file = rusty_loader::random::model("qwen3-tiny", format).expect(format);
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        for adapters in [Adapters::None, Adapters::Plain, Adapters::Scaling] {
            let slots = u32::from(!matches!(adapters, Adapters::None));
            // What adapters add does not know how weights are stored: codes and floats.
            if slots > 0 && !["q4_0", "bf16"].contains(&format) {
                continue;
            }
            let options = BindOptions {
                pages: 24,
                kv,
                slots,
            };
            for isa in CpuDevice::runnable() {
                let run = |reads_ahead: bool, threads: usize| {
                    let device = CpuDevice::new(Some(threads)).reading_ahead(reads_ahead);
                    let plan = compile(&graph, device.target()).expect("plan");
                    let mut exe = CpuExecutable::bind_isa(plan, &*file, isa, &device, &options)
                        .expect("bound");
                    match adapters {
                        Adapters::Plain => {
                            let adapter = Arc::new(low_ranks(&graph, 16));
                            exe.attach(SlotId(1), adapter).expect("attached");
                        }
                        _ => attach(&mut exe, &graph, slots),
                    }
                    // Steps of several rows between those of one leave nothing of theirs behind.
                    let several = logits(&mut exe, 7, slots);
                    (logits(&mut exe, 1, slots), several)
                };
                let want = run(false, 1);
                // Sets differ in the tiles that they make of a piece, not in who takes which; portable code is slow.
                let numbers = match isa {
                    Isa::Scalar => &[3][..],
                    _ => &[1, 2, 3],
                };
                for threads in numbers {
                    assert!(
                        run(true, *threads) == want,
                        "{format}, {adapters:?}, {isa:?}, {threads} threads"
                    );
                }
            }
        }
    }
}
