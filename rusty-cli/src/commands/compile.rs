//! `rusty compile`: the kernels of a model for a device, as a package that another machine loads.

use crate::args::Compile;
use crate::{model, progress};
use anyhow::{Context, Result, bail};
use rusty_backend::cuda::nvrtc;
use rusty_backend::package::{MANIFEST, Manifest, Packed};
use rusty_backend::{KernelText, Language};
use rusty_compiler::{BUILD, BindOptions, kernel_texts};
use serde_json::Value;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Writes the package and says what it holds.
pub fn run(options: &Compile) -> Result<()> {
    let mut target = model::target(&options.target)?;
    if options.single_precision {
        target = target.in_single_precision();
    }
    let file = model::open_or_outline(options.model.as_deref(), &options.random, &options.rope)?;
    let graph = rusty_graph::arch::build(&*file)?;
    let bind = BindOptions {
        pages: 1,
        kv: options.kv.into(),
        slots: u32::from(!options.no_adapters),
    };
    let texts = kernel_texts(&graph, &*file, &target, bind)?;
    prepare(&options.out).with_context(|| format!("--out {}", options.out.display()))?;
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
    let manifest = Manifest {
        rusty: BUILD.into(),
        arch: graph.arch,
        target: target.clone(),
        kernels,
    };
    let manifest = serde_json::to_string_pretty(&manifest)?;
    fs::write(options.out.join(MANIFEST), manifest + "\n")?;
    let how = match (coded, missing) {
        (true, None) => format!(
            "as text and machine code for sm_{}: --kernels uses both",
            target.cuda_arch
        ),
        (true, Some(why)) => format!("as text alone, which --kernels uses: {why}"),
        (false, _) => {
            "as text, which --kernels uses: the driver there compiles it once and keeps the result"
                .into()
        }
    };
    let (count, folder) = (texts.len(), options.out.display());
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{count} kernels for {} in {folder}\n{how}",
        options.target
    )?;
    Ok(())
}

/// Makes the folder, or empties one that an earlier package is in.
fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    if fs::read_dir(folder)?.next().is_none() {
        return Ok(());
    }
    let manifest = folder.join(MANIFEST);
    let before = fs::read(&manifest).ok();
    let before: Option<Value> = before.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let Some(kernels) = before.as_ref().and_then(|b| b["kernels"].as_array()) else {
        bail!("holds other things: name a new folder, or one that this command made");
    };
    fs::remove_file(manifest)?;
    let files = kernels.iter().flat_map(|k| [&k["text"], &k["code"]]);
    for name in files
        .filter_map(Value::as_str)
        .filter(|n| !n.contains(['/', '\\']))
    {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Writes a text, and its machine code where it is asked for; gives the manifest's entry.
fn write(options: &Compile, text: &KernelText, arch: Option<u32>) -> Result<Packed> {
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
    Ok(Packed::new(text, source, code))
}
