//! `rusty compile`: the kernels of a model for a device, as a package that another machine loads.

use crate::args::Compile;
use crate::{model, progress};
use anyhow::{Context, Result, ensure};
use rusty_backend::cuda::nvrtc;
use rusty_backend::package::{MANIFEST, Manifest, Packed};
use rusty_backend::{KernelText, Language};
use rusty_compiler::{BUILD, BindOptions, kernel_texts};
use rusty_loader::output_file::write_folder;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// The folder inside a package's in which it is gathered until it is whole: elsewhere there may be another file system.
const PART: &str = "unfinished-package";

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
    let out = &*options.out;
    let before = earlier(out).with_context(|| format!("--out {}", out.display()))?;
    let coded = target.language == Language::CudaC;
    let missing = if coded { nvrtc::load().err() } else { None };
    let arch = (coded && missing.is_none()).then_some(target.cuda_arch);
    let mut manifest = Manifest {
        rusty: BUILD.into(),
        arch: graph.arch,
        target: target.clone(),
        kernels: vec![],
    };
    let part = out.join(PART);
    write_folder(&part, || gather(&part, &texts, arch, &mut manifest))?;
    install(&part, out, &before)?;
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
    let (count, folder) = (texts.len(), out.display());
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{count} kernels for {} in {folder}\n{how}",
        options.target
    )?;
    Ok(())
}

/// Makes the folder; gives the files of the package that is in it. What a run that was cut off left there is removed.
fn earlier(folder: &Path) -> Result<BTreeSet<String>> {
    fs::create_dir_all(folder)?;
    let part = folder.join(PART);
    let whole = named(folder);
    let begun = named(&part).unwrap_or_default();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let own = name == PART || name.to_str().is_some_and(|name| begun.contains(name));
        ensure!(
            whole.is_some() || own,
            "holds other things: name a new folder, or one that this command made"
        );
    }
    let whole_files = whole.unwrap_or_default();
    // While the unfinished manifest is there, it is known whose they are.
    remove(folder, begun.difference(&whole_files))?;
    if part.exists() {
        fs::remove_dir_all(part)?;
    }
    Ok(whole_files)
}

/// Removes files of a package, but for its manifest; some may be gone.
fn remove<'a>(folder: &Path, files: impl Iterator<Item = &'a String>) -> Result<()> {
    for name in files.filter(|name| *name != MANIFEST) {
        let old = folder.join(name);
        match fs::remove_file(&old) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.with_context(|| old.display().to_string())?,
        }
    }
    Ok(())
}

/// The files that a package's manifest names; none where there is no manifest.
fn named(package: &Path) -> Option<BTreeSet<String>> {
    let manifest = fs::read(package.join(MANIFEST)).ok()?;
    let manifest: Value = serde_json::from_slice(&manifest).ok()?;
    let files = manifest["kernels"].as_array()?.iter();
    let files = files.flat_map(|k| [&k["text"], &k["code"]]);
    let plain = |name: &&str| !name.contains(['/', '\\']);
    let files = files.filter_map(Value::as_str).filter(plain);
    Some(files.map(str::to_string).collect())
}

/// Writes the texts, their machine code where it is asked for, and the manifest, which gets an entry for each.
fn gather(
    folder: &Path,
    texts: &[KernelText],
    arch: Option<u32>,
    manifest: &mut Manifest,
) -> Result<()> {
    let bar = progress::bar("compiling", false);
    bar.set_length(texts.len() as u64);
    for text in texts {
        manifest.kernels.push(write(folder, text, arch)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let manifest = serde_json::to_string_pretty(&*manifest)?;
    put(&folder.join(MANIFEST), (manifest + "\n").as_bytes())
}

/// Moves a package to its place, the manifest last: until then the folder is the package that it was, whose kernels have other names or
/// serve as well. Then it removes what of those `before` the package does not have.
fn install(part: &Path, out: &Path, before: &BTreeSet<String>) -> Result<()> {
    let files = named(part).with_context(|| format!("{}: cannot be read", part.display()))?;
    let all = files.iter().map(String::as_str);
    for name in all.chain([MANIFEST]) {
        let to = out.join(name);
        fs::rename(part.join(name), &to).with_context(|| to.display().to_string())?;
    }
    fs::remove_dir(part).with_context(|| part.display().to_string())?;
    remove(out, before.difference(&files))
}

/// Writes a text, and its machine code where it is asked for; gives the manifest's entry.
fn write(folder: &Path, text: &KernelText, arch: Option<u32>) -> Result<Packed> {
    let ending = match text.language {
        Language::CudaC => "cu",
        _ => "wgsl",
    };
    let digest = nvrtc::digest(&text.source);
    let source = format!("{digest}.{ending}");
    put(&folder.join(&source), text.source.as_bytes())?;
    let code = match arch {
        None => None,
        Some(arch) => {
            let code = nvrtc::cached_machine_code(&text.source, arch);
            let code = code.map_err(|log| anyhow::anyhow!("{}: {log}", text.entry))?;
            let name = nvrtc::packaged_name(&digest, arch);
            put(&folder.join(&name), &code)?;
            Some(name)
        }
    };
    Ok(Packed::new(text, source, code))
}

/// Writes a file.
fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| path.display().to_string())
}
