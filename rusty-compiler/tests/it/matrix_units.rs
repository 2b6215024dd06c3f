//! Contractions on matrix units against tiles in single precision on the same GPU. Where the GPU's language has no such
//! instruction, its substitute multiplies the same fragments, so that tiles, fragments and tails are tested everywhere.

use crate::adapted_rows::{TOKENS, attach, logits};
use crate::experts::of_many_rows;
use crate::golden_paths::golden;
use crate::reference::{distance, gpu_device, mean_kl};
use rusty_backend::Language;
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::plan::{Anchor, Implementation, Tuning};
use rusty_compiler::{BindOptions, KvFormat, compile};
use rusty_loader::{Format, Meta, ModelFile, SharedBytes, WeightView};

/// A way to run a model: tiles of matrix units, storage of keys and values.
type Way = (Vec<(u32, u32, u32)>, KvFormat);

/// A model, `slots` of it with the adapter.
fn bound(file: &dyn ModelFile, (tiles, kv): Way, slots: u32) -> GpuExecutable {
    let device = gpu_device();
    let graph = rusty_graph::arch::build(file).expect("graph");
    let mut target = device.target().clone();
    target.matrix_tiles = tiles;
    let plan = compile(&graph, &target).expect("plan");
    let options = BindOptions {
        pages: 24,
        kv,
        slots,
    };
    let device = device.gpu().expect("a GPU").clone();
    let mut exe = GpuExecutable::bind(plan, file, device, options).expect("bind");
    attach(&mut exe, &graph, slots);
    exe
}

const TILES: (u32, u32, u32) = (16, 8, 16);

/// All cases where the GPU has the instruction, else the first `few`: its substitute makes long kernels, and what else differs between
/// cases is run [on the host](crate::cuda_texts).
fn some_of<T>(cases: impl IntoIterator<Item = T>, few: usize) -> impl Iterator<Item = T> {
    let native = gpu_device().target().language == Language::CudaC;
    let most = if native { usize::MAX } else { few };
    cases.into_iter().take(most)
}

/// Slots with the adapter, and how many rows are run at a time by what tiles.
type Cases = Vec<(u32, Vec<(usize, Tuning)>)>;

/// Logits of a model in one way against those in another. `most` are bounds of the root mean square, of one less the cosine, and of
/// the mean KL divergence.
fn agrees(
    name: &str,
    file: &dyn ModelFile,
    (way, other): (Way, Way),
    all_cases: Cases,
    most: (f64, f64, f64),
) {
    let said = format!("{name}, keys and values in {:?}", way.1);
    for (slots, cases) in all_cases {
        let want = logits(&mut bound(file, other.clone(), slots), 62, slots);
        let mut exe = bound(file, way.clone(), slots);
        for (chunk, tuning) in cases {
            exe.retune(tuning).expect("tuned");
            let have = logits(&mut exe, chunk, slots);
            let mut rows = rows_apart(&have, &want);
            let farthest = format!("rms of the farthest rows {:?}", &rows[rows.len() - 3..]);
            // Rounding may choose another expert where two are as good: a row that is far then, and no measure of arithmetic.
            let mut kernels = exe.plan().kernels.iter();
            if kernels.any(|kernel| matches!(kernel.anchor, Anchor::Route { .. })) {
                rows.pop();
            }
            let [have, want] = [&have, &want].map(|all| of_rows(all, &rows));
            let (rms, apart) = distance(&have, &want);
            let kl = mean_kl(&have, &want, rows.len());
            let said = format!(
                "{said}, by {chunk}: rms {rms}, 1 - cosine {apart}, mean KL {kl}; {farthest}"
            );
            println!("{said}");
            assert!(rms > 0.0, "{said}: no other kernel");
            assert!(rms < most.0 && apart < most.1 && kl < most.2, "{said}");
        }
    }
}

/// How far apart rows are, the farthest last, each with its number.
fn rows_apart(have: &[f32], want: &[f32]) -> Vec<(f64, usize)> {
    let vocab = want.len() / TOKENS as usize;
    let rows = have.chunks_exact(vocab).zip(want.chunks_exact(vocab));
    let mut all: Vec<(f64, usize)> = rows.map(|(h, w)| distance(h, w).0).zip(0..).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// The logits of some rows.
fn of_rows(all: &[f32], rows: &[(f64, usize)]) -> Vec<f32> {
    let vocab = all.len() / TOKENS as usize;
    let each = rows.iter().map(|(_, row)| row * vocab);
    each.flat_map(|at| &all[at..at + vocab]).copied().collect()
}

#[test]
fn contractions_on_matrix_units_agree_with_tiles() {
    let cases = [
        ("gguf/llama/mix-Q4_K_M.gguf", (0.05, 1e-4, 1.5e-3)),
        ("gguf/qwen3-float/BF16.gguf", (0.05, 1e-4, 1.5e-3)),
        (IN_HALVES, (0.008, 2e-6, 4e-5)),
    ];
    for (path, most) in some_of(cases, 1) {
        let file = rusty_loader::open(golden(path)).expect(path);
        products_agree(path, &*file, most);
    }
}

/// A model all of whose matrices are in half precision.
const IN_HALVES: &str = "gguf/qwen3-float/F16.gguf";

/// For chunks of 20 rows, which take the smallest tile, of 62, which take the middle one, cut in the middle, and once more in the
/// largest, for whose substitute with adapters devices may have too little shared memory.
fn products_agree(name: &str, file: &dyn ModelFile, most: (f64, f64, f64)) {
    let large = Tuning {
        small_tile_rows: 0,
        middle_tile_rows: 0,
        large_tile_lanes: 0,
        ..Tuning::default()
    };
    let all = Tuning {
        small_tile_rows: 32,
        middle_tile_rows: 256,
        ..Tuning::default()
    };
    let cases = vec![
        (1, vec![(20, all.clone()), (62, all)]),
        (0, vec![(62, large)]),
    ];
    let ways = ((vec![TILES], KvFormat::F32), (vec![], KvFormat::F32));
    agrees(name, file, ways, cases, most);
}

/// Of 20 and 62 rows an expert has fewer than a tile holds, of 300 more.
#[test]
fn experts_on_matrix_units_agree_with_tiles() {
    let cases = [
        ("qwen3moe-tiny", "q4_0"),
        ("deepseek-tiny", "bf16"),
        ("qwen3moe-tiny", "bf16"),
        ("deepseek-tiny", "q8_0"),
    ];
    for (shape, format) in some_of(cases, 1) {
        let file = rusty_loader::random::model(shape, format).expect(shape);
        let ways = ((vec![TILES], KvFormat::F32), (vec![], KvFormat::F32));
        let name = format!("{shape} {format}");
        let mut exe = bound(&*file, ways.0.clone(), 0);
        let mut variants = exe.plan().kernels.iter().flat_map(|k| &k.variants);
        let on_units = variants.any(|v| v.implementation == Implementation::ExpertsMatrix);
        assert!(on_units, "{name}");
        let have = of_many_rows(&mut exe).concat();
        let want = of_many_rows(&mut bound(&*file, ways.1.clone(), 0)).concat();
        let (rms, apart) = distance(&have, &want);
        println!("{name}, 300 rows: rms {rms}, 1 - cosine {apart}");
        assert!(rms < 0.05 && apart < 1e-4, "{name}: {rms}, {apart}");
        let chunks = [20, 62].map(|rows| (rows, Tuning::default()));
        let cases = vec![(1, chunks.to_vec())];
        agrees(&name, &*file, ways, cases, (0.05, 1e-4, 1.5e-3));
    }
}

/// Inputs beyond half precision, before a norm and of a product of their own: what they make is neither infinite nor of the largest
/// half.
#[test]
fn inputs_beyond_half_precision_are_multiplied_as_they_are() {
    let file = rusty_loader::open(golden(IN_HALVES)).expect(IN_HALVES);
    let large = Changed(file, |name, mut values| {
        let gain = if name.contains("0.attn_norm") {
            1e6
        } else {
            1.0
        };
        values.iter_mut().for_each(|v| *v *= gain);
        let format = match name.contains("norm") {
            true => Format::F32,
            false => Format::F16,
        };
        (format, values)
    });
    products_agree("large inputs", &large, (0.05, 1e-4, 1.5e-3));
}

/// Rounded to bf16, as other weights are, those in half precision would give logits that are several times as far away.
#[test]
fn weights_in_half_precision_keep_their_bits() {
    let file = rusty_loader::open(golden(IN_HALVES)).expect(IN_HALVES);
    let single = (vec![], KvFormat::F32);
    let want = logits(&mut bound(&*file, single, 0), 62, 0);
    let units = || (vec![TILES], KvFormat::F32);
    let have = logits(&mut bound(&*file, units(), 0), 62, 0);
    let (own, _) = distance(&have, &want);
    let rounded = Changed(file, |name, values| match name.contains("norm") {
        true => (Format::F32, values),
        false => (Format::Bf16, values),
    });
    let have = logits(&mut bound(&rounded, units(), 0), 62, 0);
    let (as_bf16, _) = distance(&have, &want);
    println!("rms {own}, rounded to bf16 {as_bf16}");
    assert!(own > 0.0 && own * 4.0 < as_bf16, "{own}, {as_bf16}");
}

/// A model with other weights: by a tensor's name and values what they become.
struct Changed(Box<dyn ModelFile>, fn(&str, Vec<f32>) -> (Format, Vec<f32>));

/// A model whose weights are single precision, which stays apart from matrix units.
pub(crate) fn in_singles(file: Box<dyn ModelFile>) -> impl ModelFile {
    Changed(file, |_, values| (Format::F32, values))
}

impl ModelFile for Changed {
    fn arch(&self) -> &str {
        self.0.arch()
    }

    fn meta(&self, key: &str) -> Option<&Meta> {
        self.0.meta(key)
    }

    fn tensor(&self, name: &str) -> Option<WeightView> {
        let view = self.0.tensor(name)?;
        let mut values = vec![0.0; view.elements()];
        view.format.decode_row(&view.bytes, &mut values);
        let (format, values) = self.1(name, values);
        Some(WeightView {
            bytes: SharedBytes::from_vec(format.encode(&values)?),
            format,
            shape: view.shape,
        })
    }

    fn tensor_names(&self) -> Vec<String> {
        self.0.tensor_names()
    }

    fn label(&self) -> &str {
        self.0.label()
    }
}

/// Attention alone differs, by what halves are rounded: softcaps, windows, groups that divide no tile, and values that are the first
/// lanes of keys.
#[test]
fn attention_on_matrix_units_agrees_with_tiles() {
    let cases = [
        ("models/qwen3-tied", KvFormat::Bf16),
        ("models/qwen3-untied-bf16", KvFormat::F16),
        (HEADS_OF_64, KvFormat::F16),
        ("models/deepseek-v2", KvFormat::F16),
        ("models/gemma2", KvFormat::F16),
        ("models/qwen3-tied", KvFormat::F16),
        ("models/mistral-window", KvFormat::F16),
    ];
    for (path, kv) in some_of(cases, 4) {
        let most = match kv {
            KvFormat::Bf16 => (0.03, 3e-5, 5e-4),
            _ => (0.004, 5e-7, 1e-5),
        };
        attention_agrees(path, kv, most);
    }
}

/// Blocks of codes, one or two a head. A lane of a later layer that is rounded otherwise is a step away, of four bits a seventh of its block's largest.
#[test]
fn attention_over_blocks_on_matrix_units_agrees_with_tiles() {
    let paths = [HEADS_OF_64, "models/mistral-window", "models/qwen3-tied"];
    for path in some_of(paths, 2) {
        for (kv, most) in [
            (KvFormat::Q8_0, (0.02, 1e-5, 1e-4)),
            (KvFormat::Q4_0, (0.15, 6e-4, 5e-3)),
        ] {
            attention_agrees(path, kv, most);
        }
    }
}

/// Random weights in place of a golden model.
const HEADS_OF_64: &str = "qwen3-tiny";

fn attention_agrees(path: &str, kv: KvFormat, most: (f64, f64, f64)) {
    let file = match path {
        HEADS_OF_64 => rusty_loader::random::model(path, "f32"),
        _ => rusty_loader::open(golden(path)),
    };
    let file = in_singles(file.expect(path));
    let cases = vec![(0, [20, 62].map(|rows| (rows, Tuning::default())).to_vec())];
    agrees(path, &file, ((vec![TILES], kv), (vec![], kv)), cases, most);
}
