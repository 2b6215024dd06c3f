//! Steps that are enqueued before those in front of them have run, and go on from tokens that the host does not know yet.

use crate::golden_paths::golden;
use crate::reference::{PLAIN, bound, bound_with, gpu};
use rusty_compiler::{
    DeltaTable, EmbeddingDelta, Executable, KvFormat, LowRankRows, RowResult, Sequence, SlotData,
    SlotId, Step, StepOutput, Want, chosen,
};
use rusty_loader::Format;
use std::sync::Arc;

/// Tokens of each sequence's prompt.
const PROMPTS: [usize; 3] = [1, 5, 17];
/// Tokens that each sequence generates: they end one after the other, the first one first.
const GENERATED: [usize; 3] = [4, 6, 9];
/// Pages of each sequence.
const PAGES: [[u32; 2]; 3] = [[4, 1], [0, 5], [7, 2]];

/// A row: its sequence, its position, its token, and whether it wants the next one.
type Row = (usize, usize, u32, bool);

/// Hands the step of some rows to `work`.
fn with_step<T>(rows: &[Row], slot: SlotId, work: impl FnOnce(&Step<'_>) -> T) -> T {
    let sequences = PAGES.each_ref().map(|pages| Sequence {
        pages,
        rope_length: 32,
    });
    let want = |wanted: bool| match wanted {
        true => Want::ArgMax,
        false => Want::Nothing,
    };
    work(&Step {
        tokens: &rows.iter().map(|row| row.2).collect::<Vec<_>>(),
        positions: &rows.iter().map(|row| row.1 as u32).collect::<Vec<_>>(),
        sequence_of: &rows.iter().map(|row| row.0 as u32).collect::<Vec<_>>(),
        sequences: &sequences,
        slots: &vec![slot; rows.len()],
        wants: &rows.iter().map(|row| want(row.3)).collect::<Vec<_>>(),
    })
}

/// All prompts, each of whose last rows wants a token.
fn prompts() -> Vec<Row> {
    let rows = (0..PROMPTS.len()).flat_map(|sequence| {
        let length = PROMPTS[sequence];
        let token = move |at| (sequence * 71 + at * 37 + 11) as u32 % 250;
        (0..length).map(move |at| (sequence, at, token(at), at + 1 == length))
    });
    rows.collect()
}

/// Rows of step `number` behind the prompts: of the sequences that go on, in another order each time, with tokens by sequence.
fn decoding(number: usize, token: impl Fn(usize) -> u32) -> Vec<Row> {
    let count = PROMPTS.len();
    let turned = (0..count).map(|i| (i + number) % count);
    let going = turned.filter(|s| number < GENERATED[*s]);
    going
        .map(|s| (s, PROMPTS[s] + number - 1, token(s), true))
        .collect()
}

fn tokens(output: StepOutput) -> Vec<u32> {
    let results = output.results.into_iter().map(|(_, result)| match result {
        RowResult::Token(token) => token,
        other => panic!("asked for tokens, got {other:?}"),
    });
    results.collect()
}

/// Sequences of the rows that want a token.
fn wanting(rows: &[Row]) -> Vec<usize> {
    rows.iter().filter(|row| row.3).map(|row| row.0).collect()
}

/// Tokens by sequence, each step behind the results of the one before.
fn one_by_one(exe: &mut dyn Executable) -> [Vec<u32>; 3] {
    let mut all: [Vec<u32>; 3] = Default::default();
    let (mut rows, mut number) = (prompts(), 0);
    while !rows.is_empty() {
        let output = with_step(&rows, SlotId::BASE, |step| exe.run(step)).expect("step");
        for (sequence, token) in wanting(&rows).into_iter().zip(tokens(output)) {
            all[sequence].push(token);
        }
        number += 1;
        rows = decoding(number, |s| *all[s].last().expect("a token"));
    }
    all
}

/// The same with as many steps under way as there may be `most` before results are taken.
fn ahead(exe: &mut dyn Executable, most: usize) -> [Vec<u32>; 3] {
    let queue = exe.queue().expect("a queue");
    let mut all: [Vec<u32>; 3] = Default::default();
    let mut under_way: Vec<Vec<usize>> = Vec::new();
    let (mut rows, mut number) = (prompts(), 0);
    while !rows.is_empty() || !under_way.is_empty() {
        if !rows.is_empty() {
            with_step(&rows, SlotId::BASE, |step| queue.enqueue(step)).expect("enqueued");
            let last = wanting(&rows);
            let place = |s: usize| last.iter().position(|other| *other == s);
            number += 1;
            rows = decoding(number, |s| chosen(place(s).expect("its row") as u32));
            under_way.push(last);
        }
        if under_way.len() > most || rows.is_empty() {
            let output = queue.finish().expect("results");
            for (sequence, token) in under_way.remove(0).into_iter().zip(tokens(output)) {
                all[sequence].push(token);
            }
        }
    }
    all
}

#[test]
fn steps_ahead_of_their_tokens_choose_the_same() {
    for path in ["models/qwen3-tied", "gguf/llama/mix-Q4_K_M.gguf"] {
        let file = rusty_loader::open(golden(path)).expect(path);
        let mut exe = bound_with(&*file, &gpu(), 1, PLAIN);
        let want = one_by_one(&mut *exe);
        let mut distinct: Vec<u32> = want.concat();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 3, "{path}: tokens that tell rows apart");
        assert_eq!(want.each_ref().map(Vec::len), GENERATED, "{path}");
        for most in [0, 1, 3] {
            assert_eq!(ahead(&mut *exe, most), want, "{path}, {most} ahead");
        }
    }
}

/// Zeros.
fn table(rows: usize, columns: usize) -> DeltaTable {
    let zeros = vec![0.0; rows * columns];
    DeltaTable::encode(Format::F32, None, rows, columns, &zeros).expect("a table")
}

/// Attaches an adapter that changes embeddings alone.
fn attach(exe: &mut dyn Executable, slot: u32, embedding: EmbeddingDelta) {
    let data = SlotData {
        name: format!("adapter {slot}"),
        sites: vec![],
        embedding: Some(Arc::new(embedding)),
        prefix: None,
    };
    exe.attach(SlotId(slot), Arc::new(data)).expect("attached");
}

/// A row of a token that was not chosen, or whose embedding an adapter changes; a step that is run beside others under way.
#[test]
fn what_cannot_be_taken_ahead_is_refused() {
    let path = "models/qwen3-tied";
    let file = rusty_loader::open(golden(path)).expect(path);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let (vocab, width) = (graph.vocab as usize, graph.hidden_width() as usize);
    let mut exe = bound(&*file, &gpu(), KvFormat::F16, 1);
    let low_rank = LowRankRows {
        a: table(vocab, 1),
        b: table(width, 1),
        scale: 1.0,
    };
    let (low_ranks, prompt) = (vec![low_rank], Some(table(1, width)));
    let changes = EmbeddingDelta {
        low_ranks,
        ..EmbeddingDelta::default()
    };
    let prompts = EmbeddingDelta {
        prompt,
        ..EmbeddingDelta::default()
    };
    attach(&mut *exe, 1, changes);
    attach(&mut *exe, 2, prompts);
    let rows = |token| [(0, 0, token, true)];
    let first = with_step(&rows(3), SlotId::BASE, |step| exe.run(step)).expect("step");
    let queue = exe.queue().expect("a queue");
    let mut refusal = |token, slot| {
        let enqueued = with_step(&rows(token), SlotId(slot), |step| queue.enqueue(step));
        enqueued.map_or_else(|error| error.to_string(), |()| String::new())
    };
    let error = refusal(chosen(1), 0);
    assert!(
        error.contains("token 1 of the step before, which chose 1"),
        "{error}"
    );
    let error = refusal(chosen(0), 1);
    assert!(error.contains("slot 1 changes embeddings"), "{error}");
    // Embeddings of virtual tokens are no other ones of the vocabulary's.
    assert_eq!(refusal(chosen(0), 2), "");
    let busy = with_step(&rows(3), SlotId::BASE, |step| exe.run(step));
    let error = busy.expect_err("others are under way").to_string();
    assert!(error.contains("take their results first"), "{error}");
    let queue = exe.queue().expect("a queue");
    let second = tokens(queue.finish().expect("results"));
    assert!(queue.finish().is_err(), "nothing is under way");
    // From the same token as the host would have told.
    let token = tokens(first)[0];
    let told = with_step(&rows(token), SlotId(2), |step| exe.run(step)).expect("step");
    assert_eq!(tokens(told), second);
}
