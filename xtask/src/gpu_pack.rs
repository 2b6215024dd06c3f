//! The bundle that checks the GPUs of another machine: programs, tests, their data and what libraries it may lack in one
//! folder.

use crate::{root, vulkan};
use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Message;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Most bytes of a bundle.
const MOST: u64 = 60 << 20;

/// The program that runs everything, and the bundle's folder.
const PROGRAM: &str = "gpu-check";

/// Burn's side of the comparison of chains: its manifest, its program, and what that is called in the bundle.
const BURN: [&str; 3] = ["benches/burn/Cargo.toml", "rusty-bench-burn", "burn"];

/// Packages whose test programs run on GPUs.
const TESTED: [&str; 3] = ["rusty-backend", "rusty-compiler", "rusty-engine"];

/// What the tests read.
const DATA: [&str; 11] = [
    "tests/goldens/hostile",
    "tests/goldens/models",
    "tests/goldens/gguf",
    "tests/goldens/adapters",
    "tests/goldens/adapter_combos",
    "tests/architectures",
    "tests/checkpoints",
    "tests/gguf_adapters",
    "assets/demo/adapters",
    "assets/demo/experts",
    "assets/demo/expected.json",
];

/// Builds everything and packs it into `target/gpu-check.tar.xz`.
pub fn pack() -> Result<()> {
    // What is missing is told before anything is built.
    let Some(loader) = vulkan::loader() else {
        bail!(
            "{}, which finds Vulkan's drivers, is not on this machine: install it (libvulkan1 on Debian), `cargo xtask setup` \
             does",
            vulkan::LOADER
        );
    };
    let bundle = root().join("target").join(PROGRAM);
    if bundle.exists() {
        fs::remove_dir_all(&bundle)?;
    }
    fs::create_dir_all(bundle.join("tests"))?;
    for program in built(&["build", "--bins", "--workspace"])? {
        if program.target == PROGRAM {
            stripped(&program.path, &bundle.join(PROGRAM))?;
        }
    }
    for program in built(&["test", "--no-run", "--test", "it", "--workspace"])? {
        if TESTED.contains(&program.package.as_str()) {
            stripped(&program.path, &bundle.join("tests").join(&program.package))?;
        }
    }
    let [manifest, target, burn] = BURN;
    // Where `cargo bench` builds it, too.
    let place = [
        "build",
        "--manifest-path",
        manifest,
        "--target-dir",
        "target/burn",
    ];
    for program in built(&place)? {
        if program.target == target {
            stripped(&program.path, &bundle.join(burn))?;
        }
    }
    for path in DATA {
        copied(&root().join(path), &bundle.join("data").join(path))?;
    }
    copied(&loader, &bundle.join("lib").join(vulkan::LOADER))?;
    let tests = TESTED.map(|package| Path::new("tests").join(package));
    for program in tests
        .iter()
        .map(PathBuf::as_path)
        .chain([Path::new(PROGRAM), Path::new(burn)])
    {
        ensure!(bundle.join(program).exists(), "{program:?} was not built");
    }
    archived(&bundle)
}

/// Packs the bundle beside its folder.
fn archived(bundle: &Path) -> Result<()> {
    let archive = bundle.with_extension("tar.xz");
    let status = Command::new("tar")
        .args(["-C".as_ref(), root().join("target").as_os_str()])
        .args(["-cJf".as_ref(), archive.as_os_str(), PROGRAM.as_ref()])
        // Programs share most of their code: what is known of one packs the next, and calls by their targets pack better.
        .env("XZ_OPT", "--x86 --lzma2=preset=9")
        .status()
        .context("tar does not start")?;
    ensure!(status.success(), "{} cannot be written", archive.display());
    let bytes = fs::metadata(&archive)?.len();
    println!(
        "{}: {:.1} MiB",
        archive.display(),
        bytes as f64 / (1 << 20) as f64
    );
    ensure!(
        bytes < MOST,
        "a bundle may take {} MiB: pack less data",
        MOST >> 20
    );
    println!("on the other machine: tar xf gpu-check.tar.xz && OUT=FOLDER gpu-check/gpu-check");
    Ok(())
}

/// A program that cargo made.
struct Program {
    package: String,
    target: String,
    path: PathBuf,
}

/// Builds programs in release mode.
fn built(arguments: &[&str]) -> Result<Vec<Program>> {
    let mut cargo = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(arguments)
        .args(["--release", "--message-format", "json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo does not start")?;
    let Some(messages) = cargo.stdout.take() else {
        bail!("cargo says nothing");
    };
    let mut programs = vec![];
    for message in Message::parse_stream(BufReader::new(messages)) {
        if let Message::CompilerArtifact(artifact) = message?
            && let Some(path) = artifact.executable
        {
            let name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
            let package = artifact.manifest_path.parent().map(|p| p.as_std_path());
            programs.push(Program {
                package: package.and_then(name).unwrap_or_default(),
                target: artifact.target.name,
                path: path.into(),
            });
        }
    }
    ensure!(cargo.wait()?.success(), "cargo {arguments:?} failed");
    Ok(programs)
}

/// A copy without symbols, which are most of a program.
fn stripped(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("strip")
        .arg("-o")
        .args([to, from])
        .status()
        .context("strip, of binutils, does not start")?;
    ensure!(status.success(), "{} cannot be stripped", from.display());
    Ok(())
}

/// Copies a file, or a folder with everything in it.
fn copied(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copied(&from.join(&name), &to.join(&name))?;
        }
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}
