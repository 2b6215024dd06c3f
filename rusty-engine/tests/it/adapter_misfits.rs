//! Refusals of adapters whose tensors do not fit name the tensor, the shape that it has and the shape that is needed.

use super::adapter_oddities::Adapter;
use super::adapters::{BASES, Golden, names};
use super::warnings::told;
use super::{Tensors, golden};
use rusty_adapters::{Base, Container, Precision, Result, export, load, packed};
use rusty_compiler::SlotData;
use rusty_graph::{Dim, Graph, Site};
use rusty_loader::Format;
use rusty_loader::gguf::Gguf;
use rusty_loader::gguf::write::GgufWriter;
use std::collections::BTreeSet;
use std::path::Path;
use tracing::Level;

/// Ranks that two tensors share: part and axis, other part and axis. Which of them is wrong nobody can tell; it is the
/// other that is said not to fit.
const RANKS: [(&str, usize, &str, usize); 8] = [
    ("hada_w1_b", 0, "hada_w1_a", 1),
    ("hada_w2_b", 0, "hada_w2_a", 1),
    ("lokr_w1_a", 1, "lokr_w1_b", 0),
    ("lokr_w2_a", 1, "lokr_w2_b", 0),
    ("vera_A", 0, "vera_B", 1),
    // GGUFs state no rank, and hold the embedding's first factor by tokens.
    ("attn_q.weight.lora_a", 0, "attn_q.weight.lora_b", 1),
    ("output.weight.lora_a", 0, "output.weight.lora_b", 1),
    ("token_embd.weight.lora_a", 1, "token_embd.weight.lora_b", 1),
];

fn shape<'a>(tensors: &'a Tensors, name: &str) -> &'a [usize] {
    &tensors[name].0
}

fn shorter(shape: &[usize], axis: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[axis] -= 1;
    shape
}

/// A tensor without the last of an axis.
fn without_last((shape, values): &(Vec<usize>, Vec<f32>), axis: usize) -> (Vec<usize>, Vec<f32>) {
    let left = shorter(shape, axis);
    let (all, kept): (usize, usize) = (
        shape[axis..].iter().product(),
        left[axis..].iter().product(),
    );
    let values = values.chunks_exact(all).flat_map(|part| &part[..kept]);
    (left, values.copied().collect())
}

/// What is said of a tensor that lacks the last of an axis, and the shape that is needed.
fn expected(tensors: &Tensors, name: &str, axis: usize) -> (String, Vec<usize>) {
    let misfit = |name: &str, have: &[usize]| format!("tensor '{name}' has shape {have:?}");
    let rank = RANKS
        .iter()
        .find(|(end, its, ..)| name.ends_with(*end) && axis == *its);
    if let Some((end, _, other, other_axis)) = rank {
        let other = name.replace(*end, other);
        let have = shape(tensors, &other);
        return (misfit(&other, have), shorter(have, *other_axis));
    }
    let have = shorter(shape(tensors, name), axis);
    // Factors of a Kronecker product may have any shape: it is the product that does not fit, and all of them are named.
    if let Some((stem, part)) = name.split_once("lokr_")
        && !(part.ends_with("_b") && axis == 0)
    {
        let lanes = |factor: &str, end: &str, axis: usize| -> usize {
            let whole = format!("{stem}lokr_{factor}");
            let part = format!("{whole}_{end}");
            let tensor = tensors.get(&whole).or_else(|| tensors.get(&part));
            tensor.expect("a factor").0[axis]
        };
        let side = |end: &str, axis: usize| lanes("w1", end, axis) * lanes("w2", end, axis);
        let needed = vec![side("a", 0), side("b", 1)];
        return (format!("'{name}' {have:?}"), needed);
    }
    // Vectors may be stored as matrices of one row or column; of IA3's this says which side they are for.
    let needed = shape(tensors, name).iter().copied();
    let needed = needed.filter(|lanes| *lanes != 1 || name.ends_with("ia3_l"));
    let needed = needed.collect();
    (misfit(name, &have), needed)
}

/// Loads an adapter once for each axis of each tensor, which is too short by one, and gives how often; of several layers the first
/// speaks for all.
pub fn check(tensors: &Tensors, load: &dyn Fn(&Tensors) -> Result<SlotData>) -> usize {
    load(tensors).expect("whole, it fits");
    let mut seen = BTreeSet::new();
    let mut count = 0;
    for (name, tensor) in tensors {
        let words = name.split('.').filter(|word| word.parse::<u32>().is_err());
        if !seen.insert(words.collect::<Vec<_>>()) {
            continue;
        }
        for axis in (0..tensor.0.len()).filter(|axis| tensor.0[*axis] > 1) {
            let mut cut = tensors.clone();
            cut.insert(name.clone(), without_last(tensor, axis));
            let error = load(&cut).expect_err(name).to_string();
            let (said, needed) = expected(tensors, name, axis);
            let both = error.contains(&said) && error.contains(&format!("needs {needed:?}"));
            assert!(
                both,
                "{name}, axis {axis}: {error}; wanted: {said}, needs {needed:?}"
            );
            count += 1;
        }
    }
    count
}

/// Every kind: LoRA with its variants, DoRA, IA3, LoHa, LoKr, VeRA, soft prompts, whole modules.
#[test]
fn tensors_that_do_not_fit_are_named_with_both_shapes() {
    let folder = tempfile::tempdir().expect("folder");
    let mut refused = 0;
    for base in BASES {
        let file = rusty_loader::open(golden(base)).expect(base);
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let model = Base::new(&graph, &*file);
        for name in names() {
            if Golden::read(&format!("adapters/{name}")).base() != base {
                continue;
            }
            let Adapter { config, tensors } = Adapter::golden(&name);
            refused += check(&tensors, &|tensors| {
                let adapter = Adapter {
                    config: config.clone(),
                    tensors: tensors.clone(),
                };
                load(&adapter.write(folder.path()), &model, Precision::Stored)
            });
        }
    }
    assert!(refused >= 427, "{refused}");
}

/// The tensors of a GGUF, all of them in single precision.
pub fn gguf_tensors(file: &Gguf) -> Tensors {
    let mut tensors = Tensors::new();
    for info in &file.tensors {
        let format = Format::by_ggml_type(info.kind.id);
        assert_eq!(format, Some(Format::F32), "{}", info.name);
        let shape: Vec<usize> = info.shape.iter().map(|lanes| *lanes as usize).collect();
        let mut values = vec![0.0; shape.iter().product()];
        let bytes = file.tensor_bytes(info).expect("bytes");
        Format::F32.decode_row(&bytes, &mut values);
        tensors.insert(info.name.clone(), (shape, values));
    }
    tensors
}

/// Writes other tensors with the keys of a GGUF, for an architecture.
pub fn write_gguf(from: &Gguf, arch: &str, tensors: &Tensors, path: &Path) {
    let mut writer = GgufWriter::new(arch);
    writer.copy_keys(from, &[]);
    for (name, (shape, _)) in tensors {
        writer.tensor(name, Format::F32, shape);
    }
    let bytes = |name: &str| -> Vec<u8> {
        let values = tensors[name].1.iter();
        values.flat_map(|v| v.to_le_bytes()).collect()
    };
    let saved = writer.save(path, |name, out| out.write_all(&bytes(name)));
    saved.expect("written");
}

/// Reads other tensors in the place of a GGUF's, as of an architecture.
type AsOf<'a> = &'a dyn Fn(&str, &Tensors) -> Result<SlotData>;

/// Gives a test a base and the tensors of an adapter's GGUF: on a layer, the head and the embedding.
fn with_gguf_tensors(test: impl FnOnce(&Graph, Tensors, AsOf<'_>)) {
    let folder = tempfile::tempdir().expect("folder");
    let file = rusty_loader::open(golden(BASES[1])).expect(BASES[1]);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let model = Base::new(&graph, &*file);
    let path = golden("adapters/llama-lora-head");
    let adapter = load(&path, &model, Precision::Stored).expect("adapter");
    let path = folder.path().join("good.gguf");
    let said = told(Level::WARN, || {
        export(&adapter, &model, &path, Container::Gguf).expect("written");
    });
    assert!(said.is_empty(), "its head is not the embedding: {said}");
    let good = Gguf::open(&path).expect("gguf");
    let bad = folder.path().join("bad.gguf");
    test(&graph, gguf_tensors(&good), &|arch, tensors| {
        write_gguf(&good, arch, tensors, &bad);
        load(&bad, &model, Precision::Stored)
    });
}

/// One that is another architecture's is refused for that.
#[test]
fn tensors_of_ggufs_that_do_not_fit_are_named_with_both_shapes() {
    with_gguf_tensors(|_, tensors, as_of| {
        // Two factors at each of the three places.
        assert_eq!(check(&tensors, &|tensors| as_of("llama", tensors)), 12);
        let error = as_of("qwen3", &tensors).expect_err("another's").to_string();
        assert!(error.contains("is for qwen3"), "{error}");
    });
}

/// A stack of no matrices where the model has one.
#[test]
fn stacks_of_nothing_are_refused() {
    with_gguf_tensors(|_, mut tensors, as_of| {
        for part in ["lora_a", "lora_b"] {
            let name = format!("blk.0.attn_q.weight.{part}");
            tensors.insert(name, (vec![0, 4, 64], vec![]));
        }
        let error = as_of("llama", &tensors).expect_err("nothing").to_string();
        assert!(
            error.contains("blk.0.attn_q") && error.contains("[0, 4, 64]"),
            "{error}"
        );
    });
}

#[test]
fn a_fused_product_under_two_names_is_refused_by_both() {
    with_gguf_tensors(|graph, mut tensors, as_of| {
        let rows = |name: &str| graph.site(graph.site_named(name).expect(name)).n as usize;
        let both = rows("blk.0.ffn_gate") + rows("blk.0.ffn_up");
        for name in ["ffn_up", "ffn_gate_up"] {
            for (factor, shape) in [("lora_a", vec![2, 64]), ("lora_b", vec![both, 2])] {
                let values = vec![0.5; shape.iter().product()];
                tensors.insert(format!("blk.0.{name}.weight.{factor}"), (shape, values));
            }
        }
        let error = as_of("llama", &tensors).expect_err("fused under two names");
        let want = "as 'blk.0.ffn_up' and as 'blk.0.ffn_gate_up'";
        assert!(error.to_string().contains(want), "{error}");
    });
}

/// The first layer's product that makes queries, `[64 -> 128]`.
fn queries(graph: &mut Graph) -> &mut Site {
    let id = graph.site_named("blk.0.attn_q").expect("a site");
    &mut graph.sites[id.index()]
}

/// Of packed files: what was packed for a model is opened for others, each of which differs in one place.
#[test]
fn packed_adapters_that_do_not_fit_are_refused_with_both_shapes() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("packed.safetensors");
    let file = rusty_loader::open(golden(BASES[0])).expect(BASES[0]);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let model = Base::new(&graph, &*file);
    let refused = |name: &str, change: &dyn Fn(&mut Graph), want: &str| {
        let source = golden(&format!("adapters/{name}"));
        let adapter = load(&source, &model, Precision::Stored).expect(name);
        let mut other = graph.clone();
        change(&mut other);
        for deflate in [false, true] {
            packed::pack(&adapter, &model, &path, deflate).expect("packed");
            load(&path, &model, Precision::Stored).expect("it fits");
            let error = load(&path, &Base::new(&other, &*file), Precision::Stored);
            let error = error.expect_err(want).to_string();
            assert!(error.contains(want), "{error}; wanted: {want}");
        }
    };
    let want = "tensor 'blk.0.attn_q.a' has shape [4, 64], the model needs [4, 96]";
    refused("qwen3-lora-all", &|g: &mut Graph| queries(g).k = 96, want);
    // Panels of 32 outputs, each of four ranks.
    let want = "tensor 'blk.0.attn_q.b' has shape [16, 32], the model needs [20, 32]";
    refused("qwen3-lora-all", &|g: &mut Graph| queries(g).n = 160, want);
    let want = "tensor 'embedding.0.a' has shape [256, 4], the model needs [257, 4]";
    refused("qwen3-lora-embed", &|g: &mut Graph| g.vocab = 257, want);
    let wider = |g: &mut Graph| {
        let hidden = g.hidden.index();
        g.values[hidden].shape[1] = Dim::Const(96);
    };
    let want = "tensor 'embedding.prompt' has shape [8, 64], the model needs [8, 96]";
    refused("qwen3-prompt", &wider, want);
    let want = "the keys of layer 1 are 384 numbers, not 576 (6 tokens of 96)";
    refused("qwen3-prefix", &|g: &mut Graph| g.kv[1].kv_heads = 3, want);
    let want = "holds a prefix of 3 layers; the model has 2";
    refused("qwen3-prefix", &|g: &mut Graph| g.kv.truncate(2), want);
    let layer = graph.kv[0];
    let want = "holds a prefix of 3 layers; the model has 4";
    refused("qwen3-prefix", &|g: &mut Graph| g.kv.push(layer), want);
}
