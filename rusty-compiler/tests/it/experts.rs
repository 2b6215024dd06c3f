//! Models with routed experts.

use crate::expected::Expected;
use crate::golden_paths::golden;
use crate::reference::{
    On, SELECTED, all_logits, assert_close, bound, everywhere, gpu, instruction_sets, plain,
};
use rusty_backend::Target;
use rusty_compiler::plan::verify;
use rusty_compiler::{Executable, KvFormat, RowResult, Sequence, SlotId, Step, Want, compile};
use rusty_graph::Interpreter;
use rusty_loader::meta::keys;
use rusty_loader::quantize::{self, quantize};
use rusty_loader::{Meta, ModelFile, SharedBytes, WeightView};

/// Models whose layers have experts.
const EXPERT_MODELS: [&str; 4] = ["deepseek-v2", "deepseek-v3", "mixtral", "qwen3-moe"];

/// Rows that share experts and rows by themselves: on a CPU bit for bit the same.
#[test]
fn experts_do_not_depend_on_the_rows_beside() {
    for model in EXPERT_MODELS {
        let folder = format!("models/{model}");
        let file = rusty_loader::open(golden(&folder)).expect(model);
        let expected = Expected::read(&folder);
        for on in everywhere() {
            let mut exe = bound(&*file, &on, KvFormat::F32, 2);
            for prompt in 0..3 {
                let ids = expected.ids(&format!("ids.{prompt}")).expect("ids");
                let pages: Vec<u32> = (0..24).rev().collect();
                let together = all_logits(&mut *exe, &ids, SELECTED, &pages);
                let alone = all_logits(&mut *exe, &ids, 1, &pages);
                let want = expected.floats(&format!("logits.{prompt}"));
                assert_close(&format!("{model} {on:?} alone"), &alone, &want, 1e-3);
                let same = together == alone || matches!(on, On::Gpu(_));
                assert!(same, "{model} {on:?} {prompt}");
            }
        }
    }
}

/// GPU kernels without products of bytes multiply decoded weights with unrounded inputs: many rows by tiles, and one at a time.
#[test]
fn experts_in_blocks_on_a_gpu_match_decoded_weights() {
    let on = gpu();
    for (model, target) in EXPERT_MODELS.into_iter().zip([
        quantize::Target::Int8,
        quantize::Target::Int4,
        quantize::Target::Int4,
        quantize::Target::Int8,
    ]) {
        let folder = format!("models/{model}");
        let ids = Expected::read(&folder).ids("ids.2").expect("ids");
        let floats = rusty_loader::open(golden(&folder)).expect(model);
        let file = quantize(floats, target, &|_, _| {}).expect(model);
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let oracle = Interpreter::new(&graph, &*file).expect(model);
        let want = oracle.run(&ids, &[]).expect(model);
        let want = &want.logits().data;
        let mut exe = plain(&*file, &on);
        let pages: Vec<u32> = (0..24).collect();
        for chunk in [SELECTED, 1] {
            let logits = all_logits(&mut *exe, &ids, chunk, &pages);
            let name = format!("{model} {target:?}, {chunk} rows");
            assert_close(&name, &logits, want, 1e-3);
        }
    }
}

/// Steps of more rows than one look at the routes takes.
#[test]
fn experts_of_many_rows_agree_across_devices() {
    for model in ["mixtral", "deepseek-v3"] {
        let file = rusty_loader::open(golden(&format!("models/{model}"))).expect(model);
        let want = of_many_rows(&mut *plain(&*file, &instruction_sets().remove(0)));
        let have = of_many_rows(&mut *plain(&*file, &gpu()));
        assert_close(model, &have, &want.concat(), 1e-3);
    }
}

/// Logits of five rows of a step of 300.
pub(crate) fn of_many_rows(exe: &mut dyn Executable) -> Vec<Vec<f32>> {
    let ids: Vec<u32> = (0..300).map(|i| (i * 37 + 11) % 250).collect();
    let step = Step {
        tokens: &ids,
        positions: &(0..300).collect::<Vec<_>>(),
        sequence_of: &[0; 300],
        sequences: &[Sequence {
            pages: &(0..24).collect::<Vec<_>>(),
            rope_length: 300,
        }],
        slots: &[SlotId::BASE; 300],
        wants: &std::array::from_fn::<_, 300, _>(|i| match i % 60 {
            59 => Want::Logits,
            _ => Want::Nothing,
        }),
    };
    let logits = exe.run(&step).expect("step").results.into_iter();
    let logits = logits.map(|(_, result)| match result {
        RowResult::Logits(logits) => logits,
        other => panic!("asked for logits, got {other:?}"),
    });
    let logits: Vec<_> = logits.collect();
    assert_eq!(logits.len(), 5);
    logits
}

/// Products that another launch takes need room of their width.
#[test]
fn plans_without_room_for_products_are_refused() {
    let file = rusty_loader::open(golden("models/mixtral")).expect("mixtral");
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let target = Target::named("h200").expect("target");
    let plan = compile(&graph, &target).expect("plan");
    verify(&plan).expect("a sound plan");
    let all = plan.kernels.iter().enumerate();
    let apart: Vec<_> = all.filter_map(|(at, k)| Some((at, k.scratch?))).collect();
    // Gate and up, then down, in each of two layers.
    let [(at, _), _, (other, _), _] = apart[..] else {
        panic!("kernels that leave products: {apart:?}");
    };
    let mut without = plan.clone();
    without.kernels[at].scratch = None;
    let mut narrow = plan.clone();
    let scratch = narrow.kernels[at].scratch.expect("room");
    narrow.values[scratch.index()].width -= 1;
    let mut twice = plan;
    twice.kernels[other].scratch = Some(scratch);
    for broken in [without, narrow, twice] {
        assert!(verify(&broken).is_err());
    }
}

/// A model whose tensor `name` is another one.
struct Changed<'a> {
    file: &'a dyn ModelFile,
    name: String,
    view: WeightView,
}

impl ModelFile for Changed<'_> {
    fn arch(&self) -> &str {
        self.file.arch()
    }

    fn meta(&self, key: &str) -> Option<&Meta> {
        self.file.meta(key)
    }

    fn tensor(&self, name: &str) -> Option<WeightView> {
        match name == self.name {
            true => Some(self.view.clone()),
            false => self.file.tensor(name),
        }
    }

    fn tensor_names(&self) -> Vec<String> {
        self.file.tensor_names()
    }

    fn label(&self) -> &str {
        self.file.label()
    }
}

/// Of one token, as many experts count as are chosen: what the others hold, even if it is no number, changes no bit.
#[test]
fn experts_that_are_not_chosen_do_not_count() {
    for model in EXPERT_MODELS {
        let floats = rusty_loader::open(golden(&format!("models/{model}"))).expect(model);
        for on in everywhere() {
            unchosen_do_not_count(&format!("{model} {on:?}"), &*floats, &on);
        }
        let blocks = quantize(floats, quantize::Target::Int8, &|_, _| {}).expect(model);
        for on in everywhere() {
            unchosen_do_not_count(&format!("{model} in blocks, {on:?}"), &*blocks, &on);
        }
    }
}

fn unchosen_do_not_count(name: &str, file: &dyn ModelFile, on: &On) {
    let all = file.tensor_names().into_iter();
    let all: Vec<_> = all.filter(|n| n.contains(".ffn_up_exps.")).collect();
    let layer = all[0].split("ffn_up_exps").next().expect("a layer");
    let experts: Vec<_> = all.iter().filter(|n| n.starts_with(layer)).collect();
    let chosen = file.meta(keys::EXPERT_USED_COUNT).and_then(Meta::as_u64);
    let logits = |file: &dyn ModelFile| {
        let mut exe = plain(file, on);
        let bits = |l: &f32| l.to_bits();
        // Blocks are repacked after the first step.
        all_logits(&mut *exe, &[11], 1, &[0]);
        let all = all_logits(&mut *exe, &[11], 1, &[0]).concat();
        all.iter().map(bits).collect::<Vec<_>>()
    };
    let want = logits(file);
    let counts = |tensor: &&&String| {
        let view = file.tensor(tensor).expect(tensor);
        let changed = Changed {
            file,
            name: tensor.to_string(),
            view: WeightView {
                // All bits set is no number in any float format.
                bytes: SharedBytes::from_vec(vec![0xff; view.bytes.len()]),
                ..view
            },
        };
        logits(&changed) != want
    };
    let counting = experts.iter().filter(counts).count();
    assert_eq!(
        Some(counting as u64),
        chosen,
        "{name}, {} experts",
        experts.len()
    );
}
