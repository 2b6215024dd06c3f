//! Results do not depend on what runs beside, on chunks, pages or threads.

use crate::golden_paths::golden;
use crate::reference::{On, all_logits, bound, instruction_sets};
use rusty_compiler::step::StepLimits;
use rusty_compiler::{KvFormat, RowResult, Sequence, SlotId, Step, Want};
use rusty_loader::ModelFile;

/// Two sequences in one batch, chunked and on scattered pages, give bit for bit what each gives alone.
#[test]
fn batching_and_paging_change_no_bit() {
    for path in [
        "gguf/qwen3/Q4_0.gguf",
        "models/qwen3-tied",
        "gguf/llama/mix-Q4_K_M.gguf",
    ] {
        let file = rusty_loader::open(golden(path)).expect(path);
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        for kv in KvFormat::ALL {
            assert!(graph.kv.iter().all(|layer| kv.holds(layer)), "{path}");
            for isa in instruction_sets() {
                batched_as_alone(path, &*file, &isa, kv);
            }
        }
    }
}

fn batched_as_alone(path: &str, file: &dyn ModelFile, isa: &On, kv: KvFormat) {
    let ids: Vec<u32> = (0..90).map(|i| (i * 37 + 11) % 250).collect();
    let (a, b) = (&ids[..58], &ids[20..]);
    let mut alone = bound(file, isa, kv, 1);
    let straight: Vec<u32> = (0..8).collect();
    let want_a = all_logits(&mut *alone, a, 1, &straight);
    let want_b = all_logits(&mut *alone, b, 64, &straight);

    let mut exe = bound(file, isa, kv, 2);
    let (mut got_a, mut got_b) = (vec![], vec![]);
    let pages: [&[u32]; 2] = [&[21, 3, 17, 5], &[2, 4, 23, 0, 9]];
    let mut done = [0, 0];
    let mut round = 0;
    while done[0] < a.len() || done[1] < b.len() {
        round += 1;
        let take = [
            (round * 5 % 17 + 1).min(a.len() - done[0]),
            (round * 7 % 23 + 1).min(b.len() - done[1]),
        ];
        let both = [a, b];
        let (mut tokens, mut positions, mut sequence_of) = (vec![], vec![], vec![]);
        for s in [1, 0] {
            let range = done[s]..done[s] + take[s];
            tokens.extend(&both[s][range.clone()]);
            positions.extend(range.clone().map(|i| i as u32));
            sequence_of.extend(range.map(|_| s as u32));
            done[s] += take[s];
        }
        let sequences = [0, 1].map(|s| Sequence {
            pages: pages[s],
            rope_length: both[s].len() as u32,
        });
        let step = Step {
            tokens: &tokens,
            positions: &positions,
            sequence_of: &sequence_of,
            sequences: &sequences,
            slots: &vec![SlotId::BASE; tokens.len()],
            wants: &vec![Want::Logits; tokens.len()],
        };
        for (row, result) in exe.run(&step).expect("step").results {
            let RowResult::Logits(l) = result else {
                panic!("asked for logits")
            };
            [&mut got_a, &mut got_b][sequence_of[row as usize] as usize].push(l);
        }
    }
    assert!(got_a == want_a, "{path} {isa:?} {kv:?}: first sequence");
    assert!(got_b == want_b, "{path} {isa:?} {kv:?}: second sequence");
}

/// Why a step of two sequences on these pages is refused, whose rows are of a sequence at a position.
fn refusal(pages: [&[u32]; 2], rows: &[(u32, u32)]) -> Option<String> {
    let sequences = pages.map(|pages| Sequence {
        pages,
        rope_length: 64,
    });
    let step = Step {
        tokens: &vec![0; rows.len()],
        positions: &rows.iter().map(|row| row.1).collect::<Vec<_>>(),
        sequence_of: &rows.iter().map(|row| row.0).collect::<Vec<_>>(),
        sequences: &sequences,
        slots: &vec![SlotId::BASE; rows.len()],
        wants: &vec![Want::Nothing; rows.len()],
    };
    let limits = StepLimits {
        chosen: 0,
        rows: 64,
        selected: 64,
        vocab: 8,
        pages: 4,
        slots: 0,
        prompt_rows: &|_| 0,
    };
    step.check(&limits).err().map(|error| error.to_string())
}

/// Of two sequences, and of one that names a page twice. Pages in common that no row writes are nothing to refuse.
#[test]
fn rows_that_write_one_place_are_refused() {
    assert_eq!(refusal([&[0, 1], &[2, 3]], &[(0, 17), (1, 17)]), None);
    assert_eq!(refusal([&[0, 1], &[0, 3]], &[(0, 17), (1, 17)]), None);
    let error = refusal([&[0, 1], &[2, 1]], &[(0, 17), (1, 17)]);
    let text = error.expect("one place");
    assert!(
        text.contains("rows 0 and 1 both write row 1 of page 1"),
        "{text}"
    );
    let rows: Vec<(u32, u32)> = (0..20).map(|position| (0, position)).collect();
    let text = refusal([&[3, 3], &[0]], &rows).expect("one place");
    assert!(
        text.contains("rows 0 and 16 both write row 0 of page 3"),
        "{text}"
    );
}
