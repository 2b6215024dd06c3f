//! A digest of all that kernels' texts are made by, so that texts that are kept are found by the builds that would make the same.
//! Outside of the workspace the versions of crates stand for what is not there.

use std::fs;
use std::path::Path;

/// Sources: this crate's, the operations and formats that kernels are made for, and the versions of what compiles them.
const SOURCES: [&str; 5] = [
    "src",
    "../rusty-graph/src",
    "../rusty-loader/src/formats",
    "../rusty-backend/src/target.rs",
    "../Cargo.lock",
];

fn main() {
    // FNV-1a, whose results do not change between builds.
    let mut digest = 0xcbf2_9ce4_8422_2325;
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
        add(Path::new(source), &mut digest);
    }
    println!("cargo:rustc-env=RUSTY_KERNELS={digest:016x}");
}

fn add(path: &Path, digest: &mut u64) {
    if let Ok(entries) = fs::read_dir(path) {
        let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).collect();
        paths.sort();
        paths.iter().for_each(|path| add(path, digest));
    } else if let Ok(bytes) = fs::read(path) {
        for byte in bytes {
            *digest = (*digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
