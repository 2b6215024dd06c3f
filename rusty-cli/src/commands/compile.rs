//! `rusty compile`: the kernels of a model for a device, as a package that another machine loads.

use crate::args::Compile;
use crate::{model, progress};
use anyhow::{Context, Result, bail};
use rusty_backend::cuda::nvrtc;
use rusty_backend::{KernelText, Language, Target};
use rusty_compiler::{BindOptions, kernel_texts};
use serde_json::json;
use std::fs;

/// Writes the package and says what it holds.
pub fn run(options: &Compile) -> Result<()> {
    let target = target(&options.target)?;
    let file = model::open_or_make(options.model.as_deref(), &options.random, &options.rope)?;
    let graph = rusty_graph::arch::build(&*file)?;
    let bind = BindOptions {
        pages: 1,
        kv: options.kv.into(),
        slots: u32::from(!options.no_adapters),
    };
    let texts = kernel_texts(&graph, &*file, &target, bind)?;
    fs::create_dir_all(&options.out).with_context(|| format!("{}", options.out.display()))?;
    let coded = target.language == Language::CudaC;
    let missing = if coded { nvrtc::load().err() } else { None };
    let bar = progress::bar("compiling", false);
    bar.set_length(texts.len() as u64);
    let mut kernels = Vec::new();
    for text in &texts {
        let code = coded && missing.is_none();
        kernels.push(write(options, text, code.then_some(target.cuda_arch))?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let manifest = json!({
        "rusty": env!("CARGO_PKG_VERSION"),
        "arch": graph.arch,
        "target": target.name,
        "language": format!("{:?}", target.language),
        "kernels": kernels,
    });
    let manifest = serde_json::to_string_pretty(&manifest)?;
    fs::write(options.out.join("manifest.json"), manifest + "\n")?;
    println!(
        "{} kernels for {} in {}",
        texts.len(),
        options.target,
        options.out.display()
    );
    match (coded, missing) {
        (true, None) => println!(
            "machine code for sm_{}: --kernels uses it",
            target.cuda_arch
        ),
        (true, Some(why)) => println!("as text alone: {why}"),
        (false, _) => println!("as text: the driver there compiles it once and keeps the result"),
    }
    Ok(())
}

/// A described target by its name, or `cuda:sm_90` and the like.
fn target(name: &str) -> Result<Target> {
    if let Some(arch) = name.strip_prefix("cuda:sm_") {
        let cuda_arch: u32 = arch.parse().with_context(|| format!("--target {name}"))?;
        if cuda_arch < 70 {
            bail!("--target {name}: CUDA kernels need sm_70 or more");
        }
        let mut target = Target::named("h200").context("a described target")?;
        target.cuda_arch = cuda_arch;
        target.name = name.into();
        if cuda_arch < 80 {
            target.matrix_tiles.clear();
        }
        return Ok(target);
    }
    let known = Target::names().join(", ");
    Target::named(name)
        .with_context(|| format!("no target '{name}'; there are {known}, cuda:sm_NN"))
}

/// Writes a text, and its machine code where it is asked for; gives the manifest's entry.
fn write(options: &Compile, text: &KernelText, arch: Option<u32>) -> Result<serde_json::Value> {
    let ending = match text.language {
        Language::CudaC => "cu",
        Language::Msl => "metal",
        _ => "wgsl",
    };
    let digest = nvrtc::digest(&text.source);
    let source = format!("{digest}.{ending}");
    fs::write(options.out.join(&source), &text.source)?;
    let code = match arch {
        None => None,
        Some(arch) => {
            let code = nvrtc::cached_machine_code(&text.source, arch);
            let code = code.map_err(|log| anyhow::anyhow!("{}: {log}", text.entry))?;
            let name = nvrtc::packaged_name(&digest, arch);
            fs::write(options.out.join(&name), code)?;
            Some(name)
        }
    };
    Ok(json!({
        "entry": text.entry,
        "text": source,
        "code": code,
        "units": text.unit_dim[0],
        "shared_bytes": text.shared_bytes,
    }))
}
