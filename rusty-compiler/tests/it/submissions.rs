//! What a step costs the queue of a GPU: operands, launches and results are one submission, whatever its rows want.

use crate::golden_paths::golden;
use crate::reference::{On, PLAIN, bound_with, gpu_device};
use rusty_compiler::{Executable, RowResult, Sequence, SlotId, Step, Want};

/// Runs the first token of as many sequences as there are wants.
fn results(exe: &mut dyn Executable, wants: &[Want]) -> Vec<RowResult> {
    let rows: Vec<u32> = (0..wants.len() as u32).collect();
    let sequences = rows.chunks(1).map(|pages| Sequence {
        pages,
        rope_length: 1,
    });
    let step = Step {
        tokens: &vec![11; rows.len()],
        positions: &vec![0; rows.len()],
        sequence_of: &rows,
        sequences: &sequences.collect::<Vec<_>>(),
        slots: &vec![SlotId::BASE; rows.len()],
        wants,
    };
    let results = exe.run(&step).expect("step").results;
    results.into_iter().map(|(_, result)| result).collect()
}

/// The lowest of the most likely tokens.
fn most_likely(logits: &[f32]) -> u32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let first = logits.iter().position(|l| *l == largest);
    first.expect("numbers") as u32
}

#[test]
fn a_decoded_token_is_one_submission() {
    let device = gpu_device();
    let gpu = device.gpu().expect("a GPU").clone();
    let model = "models/qwen3-tied";
    let file = rusty_loader::open(golden(model)).expect(model);
    let mut exe = bound_with(&*file, &On::Gpu(device), 1, PLAIN);
    let all = [Want::Hidden, Want::ArgMax, Want::Logits];
    // The first step brings the weights.
    results(&mut *exe, &all);
    for _ in 0..2 {
        for wants in [&all[..], &all[..1], &all[1..2], &all[2..], &[Want::Nothing]] {
            let before = gpu.submissions();
            let have = results(&mut *exe, wants);
            assert_eq!(gpu.submissions() - before, 1, "{wants:?}");
            let kinds: Vec<Want> = have
                .iter()
                .map(|result| match result {
                    RowResult::Token(_) | RowResult::NotFinite => Want::ArgMax,
                    RowResult::Logits(_) => Want::Logits,
                    RowResult::Hidden(_) => Want::Hidden,
                })
                .collect();
            let wanted = wants.iter().filter(|want| **want != Want::Nothing);
            assert_eq!(kinds, wanted.copied().collect::<Vec<_>>());
            // All rows are the same, so that what they get fits together.
            if let [RowResult::Hidden(hidden), token, RowResult::Logits(logits)] = &have[..] {
                assert!(hidden.iter().all(|h| h.is_finite()) && hidden.iter().any(|h| *h != 0.0));
                assert_eq!(token, &RowResult::Token(most_likely(logits)));
            }
        }
    }
}
