//! What a GPU gets right: before a model first runs on a device, a small one (`small_model.rs`) of the same formats and kinds of
//! layers does, and is compared with the oracle. Drivers and compilers have bugs; a slower answer is better than a wrong one.
//!
//! Not tested: formats that random weights are not made of; what only some architectures have beside experts and latent
//! attention (windows, capped scores and logits, other activations); of adapters 4-bit tables, factors on inputs and
//! outputs, biases and changed embeddings.
//!
//! What was found is kept for the next process of the same build, device and driver.

pub(crate) mod small_model;

use crate::{BUILD, Error, KvFormat, Result, device_cache};
use rusty_backend::cuda::nvrtc;
use rusty_backend::{Device, Target, cache, package};
use rusty_graph::{Graph, WeightDecl};
use small_model::SmallModel;
pub(crate) use small_model::distance;
use std::collections::BTreeSet;

/// Names what it leaves out of a target's facts.
type Reduction = (&'static str, fn(&mut Target));

/// In the order in which they are tried.
const REDUCTIONS: [Reduction; 5] = [
    ("nothing", |_| {}),
    ("launches whose cubes wait for their first", |t| {
        t.starts_in_order = false;
    }),
    ("such launches and products of bytes", |t| {
        t.starts_in_order = false;
        t.packed_dot = false;
    }),
    ("such launches, products of bytes and matrix units", |t| {
        t.starts_in_order = false;
        t.packed_dot = false;
        t.matrix_tiles.clear();
    }),
    (
        "such launches, products of bytes, matrix units and planes",
        |t| {
            t.starts_in_order = false;
            t.packed_dot = false;
            t.matrix_tiles.clear();
            t.plane_ops = false;
        },
    ),
];

/// Half the squared distance of logits from the oracle's, relative to theirs, that is taken for rounding (one less the cosine, where
/// lengths agree): products in bf16 come to some hundredths of the 1e-3 below.
pub(crate) fn allowed(kv: KvFormat) -> f64 {
    match kv {
        KvFormat::Q4_0 => 0.1,
        KvFormat::Q8_0 => 5e-3,
        KvFormat::F32 | KvFormat::F16 | KvFormat::Bf16 => 1e-3,
    }
}

/// The facts of a device, or those that it is to be [planned for](package::facts) so that kernels are found in a package, without those
/// whose kernels go wrong there in a format of the graph's weights, or, where it is to be `adapted`, with adapters. A CPU is trusted.
///
/// # Errors
/// [`Error::Target`] where a device is wrong whatever is left out; [`Error::Device`] where it fails.
pub fn trusted(device: &Device, graph: &Graph, kv: KvFormat, adapted: bool) -> Result<Target> {
    let own = device.target();
    // What cannot be bound is refused by name later.
    if own.is_cpu() || kv.refusal(&graph.kv).is_some() {
        return Ok(own.clone());
    }
    let mut target = package::facts(own, BUILD).unwrap_or_else(|| own.clone());
    let shape = small_model::shape(graph);
    let mut least = 0;
    for format in formats(&graph.weights) {
        least = least.max(reduction(device, &target, shape, format, kv, adapted)?);
    }
    let (without, reduce) = REDUCTIONS[least];
    if least > 0 {
        tracing::warn!(
            "{}: its self-test goes wrong with them, so it does without {without}",
            own.name
        );
    }
    reduce(&mut target);
    Ok(target)
}

/// Formats of matrices.
pub(crate) fn formats(weights: &[WeightDecl]) -> BTreeSet<&'static str> {
    let matrices = weights.iter().filter(|w| w.shape.len() > 1);
    matrices.map(|w| w.format.name()).collect()
}

/// The first reduction of `facts` with which a format is right.
fn reduction(
    device: &Device,
    facts: &Target,
    shape: &str,
    format: &str,
    kv: KvFormat,
    adapted: bool,
) -> Result<usize> {
    let adapters = if adapted { "-adapters" } else { "" };
    let planned = other_facts(facts, device.target());
    let what = format!("{shape}-{format}-{}{adapters}{planned}", kv.name());
    let name = device_cache::name("self-test", device.target(), &what);
    let kept = name.as_deref().and_then(cache::load);
    if let Some(&[kept]) = kept.as_deref()
        && usize::from(kept) < REDUCTIONS.len()
    {
        return Ok(kept.into());
    }
    let Some(model) = SmallModel::new(shape, format, adapted)? else {
        tracing::debug!("{format} is not tested: random weights are not made of it");
        return Ok(0);
    };
    let passes = model.passes()?;
    let right = first_right(facts, format, allowed(kv), |target| {
        model.apart(&passes, target, device, kv)
    })?;
    if let Some(name) = name {
        cache::store(&name, &[right as u8]);
    }
    Ok(right)
}

/// What tells results apart that are of other facts than the device's `own`; nothing where they are those.
fn other_facts(facts: &Target, own: &Target) -> String {
    if facts == own {
        return String::new();
    }
    // How much memory may be used changes no kernel.
    let facts = Target {
        memory_bytes: 0,
        ..facts.clone()
    };
    let digest = nvrtc::digest(&format!("{facts:?}"));
    format!("-{}", &digest[..16])
}

/// The first reduction of `facts` under which results are not too far `apart`, or kernels are taken at all.
fn first_right(
    facts: &Target,
    format: &str,
    allowed: f64,
    mut apart: impl FnMut(&Target) -> Result<f64>,
) -> Result<usize> {
    let mut before: Option<(Target, String)> = None;
    for (at, (without, reduce)) in REDUCTIONS.iter().enumerate() {
        let mut target = facts.clone();
        reduce(&mut target);
        // Nothing to leave out is nothing to try.
        if before.as_ref().is_some_and(|(b, _)| *b == target) {
            continue;
        }
        let wrong = match apart(&target) {
            Ok(worst) if worst <= allowed => return Ok(at),
            Ok(worst) => format!("logits are {worst:.1e} apart"),
            Err(error) if is_refusal(&error) => error.to_string(),
            Err(error) => return Err(error),
        };
        tracing::warn!(
            "{}: kernels go wrong in {format} without {without}: {wrong}",
            facts.name
        );
        before = Some((target, wrong));
    }
    let wrong = before.map_or_else(String::new, |(_, wrong)| wrong);
    Err(Error::Target {
        target: facts.name.clone(),
        kernel: "self-test".into(),
        reason: format!(
            "goes wrong in {format} ({wrong}): update its driver, or take another device"
        ),
    })
}

/// Whether a kernel was refused, as opposed to a device that is lost or full.
pub(crate) fn is_refusal(error: &Error) -> bool {
    use rusty_backend::Error as Backend;
    matches!(
        error,
        Error::Target { .. } | Error::Device(Backend::Kernel { .. } | Backend::Launch { .. })
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Result<f64> {
        Err(Error::Device(rusty_backend::Error::Kernel {
            device: "test".into(),
            entry: "gemm".into(),
            log: "no such instruction".into(),
        }))
    }

    /// Kernels of a package's facts are others than a device's own: what is found of the ones says nothing of the others.
    #[test]
    fn results_are_of_the_facts_that_were_planned_for() {
        let named = |name| Target::named(name).expect("target");
        let own = named("llvmpipe");
        assert_eq!(other_facts(&own, &own), "");
        let [a, b] = ["vulkan", "webgpu"].map(|n| own.planned_as(&named(n)));
        assert_ne!(other_facts(&a, &own), other_facts(&b, &own));
        assert!(other_facts(&a, &own).starts_with('-'));
        // Limits of memory are not among them.
        let limited = |t: &Target| Target {
            memory_bytes: 1,
            ..t.clone()
        };
        let of_limited = other_facts(&limited(&a), &limited(&own));
        assert_eq!(of_limited, other_facts(&a, &own));
    }

    /// What goes wrong or is not taken is left out, and no more than that.
    #[test]
    fn the_first_right_reduction_is_taken() {
        let facts = Target::named("h200").expect("target");
        let right = |wrong: fn(&Target) -> bool| {
            let apart = |target: &Target| Ok(if wrong(target) { 0.5 } else { 1e-6 });
            first_right(&facts, "q4_0", 1e-3, apart)
        };
        assert_eq!(right(|_| false).expect("right"), 0);
        assert_eq!(right(|t| t.starts_in_order).expect("right"), 1);
        assert_eq!(right(|t| t.packed_dot).expect("right"), 2);
        assert_eq!(right(|t| !t.matrix_tiles.is_empty()).expect("right"), 3);
        assert_eq!(right(|t| t.plane_ops).expect("right"), 4);
        let apart = |t: &Target| match t.matrix_tiles.is_empty() {
            true => Ok(1e-6),
            false => refused(),
        };
        assert_eq!(first_right(&facts, "q4_0", 1e-3, apart).expect("right"), 3);
        let wrong = right(|_| true).expect_err("wrong").to_string();
        assert!(
            wrong.contains("q4_0") && wrong.contains("driver"),
            "{wrong}"
        );
        // Without matrix units there are four ways; a device that is full has none.
        let mut plain = facts.clone();
        plain.matrix_tiles.clear();
        let mut tried = 0;
        let wrong = first_right(&plain, "q4_0", 1e-3, |_| {
            tried += 1;
            refused()
        });
        assert!(wrong.is_err() && tried == 4, "{tried}");
        let full = first_right(&facts, "q4_0", 1e-3, |_| Err(Error::Step("full".into())));
        assert!(full.expect_err("full").to_string().contains("full"));
    }
}
