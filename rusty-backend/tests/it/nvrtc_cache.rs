//! Machine code of CUDA texts is kept between processes, and taken from packages.

use rusty_backend::cuda::nvrtc;
use rusty_backend::{Target, package};
use std::path::Path;

/// Takes machine code out of a folder from here on.
fn use_as_package(folder: &Path) {
    let manifest = package::Manifest {
        rusty: "0".into(),
        arch: "test".into(),
        target: Target::named("cuda:sm_90").expect("a target"),
        kernels: vec![],
    };
    let manifest = serde_json::to_vec(&manifest).expect("JSON");
    std::fs::write(folder.join(package::MANIFEST), manifest).expect("written");
    package::use_package(folder).expect("a package");
}

/// What a package holds whole is taken as it is, with no compiler at hand.
#[test]
fn packages_come_first() {
    let folder = std::env::temp_dir().join(format!("rusty-package-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let text = "extern \"C\" __global__ void packaged() {}";
    let name = nvrtc::packaged_name(&nvrtc::digest(text), 90);
    // The header of a file in which nothing is.
    let mut code = vec![0; 64];
    code[..5].copy_from_slice(b"\x7fELF\x02");
    std::fs::write(folder.join(&name), &code).expect("written");
    use_as_package(&folder);
    let made = |arch| nvrtc::cached_machine_code(text, arch);
    assert_eq!(made(90).as_ref(), Ok(&code));
    assert_ne!(made(80).as_ref(), Ok(&code));
    let part = &code[..code.len() - 1];
    std::fs::write(folder.join(&name), part).expect("written");
    assert!(made(90).is_err() || made(90).is_ok_and(|anew| anew != part));
    std::fs::remove_dir_all(folder).expect("removed");
}

/// Code is compiled once, found again, and compiled anew for another architecture.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn machine_code_is_kept() {
    // Another text in each run, so that nothing is kept of it yet.
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_nanos();
    let text = format!(
        "extern \"C\" __global__ void k(float* x) {{ x[threadIdx.x] += {}.0f; }}",
        now % 1_000_000_007
    );
    let made = nvrtc::cached_machine_code(&text, 80).expect("compiles");
    assert_eq!(nvrtc::cached_machine_code(&text, 80).expect("kept"), made);
    assert_eq!(nvrtc::machine_code(&text, 80).expect("compiles"), made);
    assert_ne!(
        nvrtc::cached_machine_code(&text, 90).expect("compiles"),
        made
    );
    assert!(nvrtc::cached_machine_code("no CUDA", 80).is_err());
    // As a package's it is whole: it is taken for a text that it is not made of.
    let other = text.replace("+=", "-=");
    let folder = std::env::temp_dir().join(format!("rusty-code-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let name = nvrtc::packaged_name(&nvrtc::digest(&other), 80);
    std::fs::write(folder.join(name), &made).expect("written");
    use_as_package(&folder);
    assert_eq!(nvrtc::cached_machine_code(&other, 80).as_ref(), Ok(&made));
    std::fs::remove_dir_all(folder).expect("removed");
}
