//! Instructions of the CUDA kernels' inner loops, counted in machine code: what a multiplication costs beside itself, told
//! without a GPU. Beside them registers of a unit, what is spilled, and reads of memory before the wait for the launch before,
/// where there is one.
use crate::{nvrtc, pip, root, run};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// NVIDIA's disassembler, as tried.
const PACKAGE: &str = "nvidia-cuda-nvdisasm==13.*";
/// Architecture whose machine code is counted.
const TARGET: &str = "cuda:sm_90";
/// Instructions that are told apart.
const COUNTED: [&str; 6] = ["FFMA", "HMMA", "IDP", "LDG", "LDS", "I2F"];

/// Prints a table of the kernels of a shape of random weights in some formats.
pub fn print(shape: &str, formats: &[&str]) -> Result<()> {
    nvrtc::ensure_compiler()?;
    let disassembler = disassembler()?;
    println!(
        "for {TARGET}, {shape}: of each kernel that multiplies the longest innermost loop, its instructions, and how many there are for \
         each HMMA or, without one, IDP (four products) or FFMA"
    );
    println!(
        "{:<8} {:<18} {:>6} {}  for each  registers  spilled  early",
        "format",
        "kernel",
        "all",
        COUNTED.map(|c| format!("{c:>5}")).join(" ")
    );
    for format in formats {
        let package = root().join(format!("target/sass/{shape}-{format}"));
        compile(shape, format, &package)?;
        let manifest = std::fs::read(package.join("manifest.json"))?;
        let manifest: Value = serde_json::from_slice(&manifest)?;
        let kernels = manifest["kernels"]
            .as_array()
            .context("a manifest's kernels")?;
        let mut lines = Vec::new();
        for kernel in kernels {
            let (Some(entry), Some(code)) = (kernel["entry"].as_str(), kernel["code"].as_str())
            else {
                bail!("no machine code: NVRTC is not there");
            };
            let text = Command::new(&disassembler)
                .arg("-c")
                .arg(package.join(code))
                .output()?;
            let text = String::from_utf8_lossy(&text.stdout).into_owned();
            if let Some(line) = line(entry.trim_start_matches("rusty_"), &text) {
                lines.push(line);
            }
        }
        lines.sort();
        lines.dedup();
        for line in lines {
            println!("{format:<8} {line}");
        }
    }
    Ok(())
}

/// What is printed of a kernel; nothing where no loop multiplies.
fn line(entry: &str, text: &str) -> Option<String> {
    let instructions = longest_loop(text)?;
    let count = |word: &str| instructions.iter().filter(|i| i.starts_with(word)).count();
    let counts = COUNTED.map(|c| format!("{:>5}", count(c))).join(" ");
    let all = instructions.len();
    let products = [count("HMMA"), count("IDP"), count("FFMA")];
    let products = products.into_iter().find(|n| *n > 0)?;
    let each = all as f64 / products as f64;
    let (registers, spilled, early) = whole(text);
    Some(format!(
        "{entry:<18} {all:>6} {counts}  {each:>8.1}  {registers:>9}  {spilled:>7}  {early:>5}"
    ))
}

/// Registers of a unit, instructions that spill some or fetch them back, and reads of memory before the wait for the launch before,
/// where there is one.
fn whole(text: &str) -> (u32, usize, usize) {
    let words = || text.split(|c: char| !c.is_ascii_alphanumeric());
    let numbers = words().filter_map(|w| w.strip_prefix('R')?.parse::<u32>().ok());
    let spilled = words().filter(|w| ["STL", "LDL"].contains(w)).count();
    let before = text.split_once("ACQBULK").map_or("", |(before, _)| before);
    let reads = |w: &&str| ["LDG", "LD", "LDGSTS", "ATOMG"].contains(w);
    let early = before.split(|c: char| !c.is_ascii_alphanumeric());
    (
        numbers.max().map_or(0, |n| n + 1),
        spilled,
        early.filter(reads).count(),
    )
}

/// The instructions of the innermost loop that has most of them; on matrix units of the one that multiplies most in fewest: products of
/// halves have a second one, for inputs beyond them.
fn longest_loop(text: &str) -> Option<Vec<&str>> {
    let mut labels: HashMap<&str, usize> = HashMap::new();
    let mut instructions = Vec::new();
    let mut loops: Vec<(usize, usize)> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label, instructions.len());
        } else if let Some((_, instruction)) = line.split_once("*/")
            && let Some(instruction) = instruction.trim().strip_suffix(';')
        {
            // A predicate comes before the name.
            let name = match instruction.starts_with('@') {
                true => instruction.split_once(' ').map_or("", |(_, rest)| rest),
                false => instruction,
            };
            let target = name
                .split_once("`(")
                .and_then(|(_, rest)| rest.split(')').next());
            if name.starts_with("BRA")
                && let Some(first) = target.and_then(|t| labels.get(t))
            {
                loops.push((*first, instructions.len()));
            }
            instructions.push(name.trim());
        }
    }
    let inner = loops.iter().filter(|(first, last)| {
        let inside = |other: &&(usize, usize)| other.0 >= *first && other.1 <= *last;
        loops.iter().filter(inside).count() == 1
    });
    let (first, last) = *inner.max_by_key(|(first, last)| {
        let all = &instructions[*first..=*last];
        let on_units = all.iter().filter(|i| i.starts_with("HMMA")).count();
        let length = all.len() as isize;
        (on_units, if on_units > 0 { -length } else { length })
    })?;
    Some(instructions[first..=last].to_vec())
}

/// Writes the kernels of a model as a package.
fn compile(shape: &str, format: &str, package: &Path) -> Result<()> {
    std::fs::create_dir_all(package)?;
    let library = nvrtc::library_folder().context("NVRTC could not be installed")?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    run(Command::new(cargo)
        .args(["run", "--release", "--quiet", "-p", "rusty-cli", "--"])
        .args(["compile", "--random", shape, "--format", format])
        .args(["--target", TARGET, "--no-adapters", "--out"])
        .arg(package)
        .env("RUSTY_NVRTC", library)
        .stdout(std::process::Stdio::null()))
}

/// Where the disassembler lies; installed where it is not there.
fn disassembler() -> Result<PathBuf> {
    let folder = root().join("target/nvdisasm");
    let program = folder.join("nvidia/cu13/bin/nvdisasm");
    if !program.is_file() {
        run(pip::install(PACKAGE, &folder).arg("--no-deps"))
            .context("Python's pip is needed to install NVIDIA's disassembler")?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::{longest_loop, whole};

    #[test]
    fn what_comes_before_the_wait_is_told() {
        let text = "LDG.E R1, desc[UR4][R12.64] ; ACQBULK ; LDG.E R30, [R2] ; STL [R1], R5 ; LDL R5, [R1] ;";
        assert_eq!(whole(text), (31, 2, 1));
    }

    #[test]
    fn the_longest_innermost_loop_is_found() {
        let text = "
.L_x_1:
        /*0000*/                   MOV R1, R2 ;
.L_x_2:
        /*0010*/              @!P0 FFMA R1, R2, R3, R4 ;
        /*0020*/                   LDG.E R1, desc[UR4][R2.64] ;
        /*0030*/               @P1 BRA `(.L_x_2) ;
        /*0040*/                   FADD R1, R2, R3 ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
.L_x_3:
        /*0060*/                   BRA `(.L_x_3);
";
        let found = longest_loop(text).expect("a loop");
        assert_eq!(found.len(), 3);
        assert!(found[0].starts_with("FFMA") && found[1].starts_with("LDG"));
        assert!(longest_loop("/*0000*/ EXIT ;").is_none());
    }
}
