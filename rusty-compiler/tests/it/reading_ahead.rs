//! One row on cores that read ahead on their own and on such that are asked ahead: weights are read in another order, in pieces that
//! threads take of each other's shares, and each result is the same to the bit.

use crate::adapted_rows::{attach, logits};
use rusty_backend::{CpuDevice, Device};
use rusty_compiler::{BindOptions, KvFormat, bind, compile};

#[test]
fn results_do_not_depend_on_it() {
    let kv = [KvFormat::F16, KvFormat::Q8_0, KvFormat::Q4_0];
    // Its gate and up are wider than the widest strip of many rows.
    for (format, kv) in ["q4_0", "q4_k_m", "q8_0"].into_iter().zip(kv) {
        let file = rusty_loader::random::model("qwen3-tiny", format).expect(format);
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        for slots in [0, 1] {
            let options = BindOptions {
                pages: 24,
                kv,
                slots,
            };
            let run = |reads_ahead: bool, threads: usize| {
                let device = CpuDevice::new(Some(threads)).reading_ahead(reads_ahead);
                let device = Device::Cpu(device);
                let plan = compile(&graph, device.target()).expect("plan");
                let mut exe = bind(plan, &*file, &device, &options).expect("bound");
                attach(&mut *exe, &graph, slots);
                logits(&mut *exe, 1, slots)
            };
            let want = run(false, 1);
            for threads in [1, 2, 3] {
                assert!(
                    run(true, threads) == want,
                    "{format}, {slots} adapters, {threads} threads"
                );
            }
        }
    }
}
