//! Models of BF16, whose rows are shortened between steps: every step answers as the first.

use crate::reference::*;
use rusty_backend::CpuDevice;
use rusty_compiler::cpu::{self, CpuExecutable};
use rusty_compiler::{BindOptions, Executable, KvFormat, PAGE_TOKENS, compile};

#[test]
fn shortening_changes_nothing() {
    let file = rusty_loader::random::model("qwen3-tiny", "bf16").expect("shape");
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let pages: Vec<u32> = (0..24).collect();
    let ids: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 250).collect();
    for isa in CpuDevice::runnable() {
        let run = |limit: u64| {
            let device = CpuDevice::new(Some(2)).within(limit);
            let plan = compile(&graph, device.target()).expect("plan");
            let (stated, kv) = (cpu::weight_bytes(&plan), KvFormat::F16);
            let beside = plan.arena_bytes + 4 * PAGE_TOKENS as u64 * plan.kv_bytes_per_token(kv);
            let options = BindOptions {
                pages: 4,
                kv,
                slots: 0,
            };
            let mut exe =
                CpuExecutable::bind_isa(plan, &*file, isa, &device, &options).expect("bind");
            let first = all_logits(&mut exe, &ids, SELECTED, &pages);
            for step in 2..5 {
                // The head's rows are gathered, too: it is tied.
                let later = all_logits(&mut exe, &ids, SELECTED, &pages);
                assert_eq!(first, later, "{isa:?} step {step}");
            }
            // One row takes another way through the products than many.
            let alone = all_logits(&mut exe, &ids[..1], 1, &pages);
            assert_eq!(alone[0], first[0], "{isa:?} alone");
            let memory = exe.memory();
            let held = memory.mapped_weights + memory.resident_weights;
            (first, held, stated, beside)
        };
        let (short, held, stated, beside) = run(u64::MAX);
        assert!(
            held * 5 < stated * 4,
            "{isa:?} holds {held} of {stated} bytes"
        );
        let (long, held, ..) = run(beside + stated / 2);
        assert_eq!(held, stated, "{isa:?} has no room for copies");
        assert_eq!(short, long, "{isa:?}");
    }
}
