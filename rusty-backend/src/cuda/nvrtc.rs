//! NVRTC: CUDA C++ to PTX or machine code. Needs no GPU, only the library.
//!
//! The library is looked for at `RUSTY_NVRTC` (the file or the folder that it lies in), then by its name, then in
//! the toolkit's folders. PyPI's `nvidia-cuda-nvrtc` is enough: `RUSTY_NVRTC=<site-packages>/nvidia/cu13/lib`.
//! Headers that texts include (`cuda_fp16.h`, ...) are looked for beside the library, in `CUDA_PATH`,
//! `CUDA_HOME` and the toolkit's folder.

use crate::{cache, package};
use cudarc::nvrtc::{result, sys};
use sha2::{Digest, Sha256};
use std::env;
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where the toolkit usually is.
const TOOLKITS: [&str; 2] = ["/usr/local/cuda", "/opt/cuda"];

/// Finds and loads the library, once.
///
/// # Errors
/// What was looked for, and how to get it.
pub fn load() -> Result<(), String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED.get_or_init(find).clone()
}

fn find() -> Result<(), String> {
    if let Some(own) = env::var_os("RUSTY_NVRTC") {
        let own = PathBuf::from(own);
        return preload(&own).ok_or_else(|| format!("RUSTY_NVRTC: no NVRTC at {}", own.display()));
    }
    // SAFETY: loading NVRTC runs its initialisers, which have no preconditions.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    let folders = toolkits().flat_map(|t| ["lib64", "lib", "bin"].map(|sub| t.join(sub)));
    if folders.into_iter().any(|folder| preload(&folder).is_some()) {
        return Ok(());
    }
    Err(
        "NVRTC (libnvrtc) was not found; install the CUDA toolkit, or pip install nvidia-cuda-nvrtc and set \
         RUSTY_NVRTC to the folder of the library"
            .into(),
    )
}

/// Loads the library at `path`, after which the loader finds it by its name alone.
fn preload(path: &Path) -> Option<()> {
    let files: Vec<PathBuf> = if path.is_dir() {
        let of_nvrtc = |name: &str| {
            let name = name.strip_prefix("lib").unwrap_or(name);
            name.starts_with("nvrtc") && !name.contains("builtins") && !name.contains("alt")
        };
        let entries = std::fs::read_dir(path).ok()?.flatten();
        let named = entries.filter(|e| e.file_name().to_str().is_some_and(of_nvrtc));
        named.map(|e| e.path()).collect()
    } else {
        vec![path.to_owned()]
    };
    files.iter().find_map(|file| {
        // SAFETY: as in `find`; the library stays loaded for good, so no pointer into it can dangle.
        let library = unsafe { libloading::Library::new(file) }.ok()?;
        std::mem::forget(library);
        // SAFETY: as in `find`.
        unsafe { sys::is_culib_present() }.then_some(())
    })
}

fn toolkits() -> impl Iterator<Item = PathBuf> {
    let named = ["CUDA_PATH", "CUDA_HOME"]
        .into_iter()
        .filter_map(env::var_os)
        .map(PathBuf::from);
    named.chain(TOOLKITS.map(PathBuf::from))
}

/// Folders of CUDA's headers that there are.
fn include_folders() -> Vec<PathBuf> {
    let own = env::var_os("RUSTY_NVRTC").map(PathBuf::from);
    let beside = own.iter().flat_map(|path| path.ancestors().take(3));
    let beside = beside.map(Path::to_path_buf).chain(toolkits());
    beside
        .map(|folder| folder.join("include"))
        .filter(|folder| folder.join("cuda_fp16.h").is_file())
        .collect()
}

/// The PTX of `source` for compute capability `arch` (90 for sm_90).
///
/// # Errors
/// The compiler's log, or why there is no compiler.
pub fn ptx(source: &str, arch: u32) -> Result<String, String> {
    let program = Program::compile(source, arch)?;
    // SAFETY: the program was compiled and is alive.
    let text = unsafe { result::get_ptx(program.0) }.map_err(|e| e.to_string())?;
    let bytes: Vec<u8> = text
        .into_iter()
        .map(|c| c as u8)
        .take_while(|c| *c != 0)
        .collect();
    String::from_utf8(bytes).map_err(|e| e.to_string())
}

/// The machine code of `source` for compute capability `arch` (90 for sm_90).
///
/// # Errors
/// As [`ptx`].
pub fn machine_code(source: &str, arch: u32) -> Result<Vec<u8>, String> {
    let program = Program::compile(source, arch)?;
    let mut size = 0;
    // SAFETY: the program was compiled and is alive; `size` outlives the call.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &mut size) }
        .result()
        .map_err(|e| e.to_string())?;
    let mut image = vec![0u8; size];
    // SAFETY: `image` has the size that NVRTC asked for.
    unsafe { sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast::<c_char>()) }
        .result()
        .map_err(|e| e.to_string())?;
    Ok(image)
}

/// The machine code of `source`, from a package or from the cache, where it was compiled before by the same version of NVRTC;
/// kept there otherwise.
///
/// # Errors
/// As [`ptx`].
pub fn cached_machine_code(source: &str, arch: u32) -> Result<Vec<u8>, String> {
    let digest = digest(source);
    if let Some(code) = package::machine_code(&packaged_name(&digest, arch)) {
        return Ok(code);
    }
    match cache::load(&cached_name(&digest, arch)?) {
        Some(kept) => Ok(kept),
        None => fresh_machine_code(source, arch),
    }
}

/// The machine code of `source`, compiled now and kept in the cache in place of what was there.
///
/// # Errors
/// As [`ptx`].
pub fn fresh_machine_code(source: &str, arch: u32) -> Result<Vec<u8>, String> {
    let made = machine_code(source, arch)?;
    cache::store(&cached_name(&digest(source), arch)?, &made);
    Ok(made)
}

fn cached_name(digest: &str, arch: u32) -> Result<String, String> {
    Ok(format!(
        "cuda/nvrtc-{}/sm_{arch}/{digest}.cubin",
        version()?
    ))
}

/// What names a text in packages and caches: its SHA-256.
pub fn digest(source: &str) -> String {
    let digest = Sha256::digest(source.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file of a package that holds the machine code of a text.
pub fn packaged_name(digest: &str, arch: u32) -> String {
    format!("{digest}.sm_{arch}.cubin")
}

/// Its version, `13.0`.
///
/// # Errors
/// Why there is no compiler.
pub fn version() -> Result<String, String> {
    load()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both outlive the call.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }
        .result()
        .map_err(|e| e.to_string())?;
    Ok(format!("{major}.{minor}"))
}

/// A compiled program; dropped, it is destroyed.
struct Program(sys::nvrtcProgram);

impl Program {
    fn compile(source: &str, arch: u32) -> Result<Self, String> {
        load()?;
        let source = CString::new(source).map_err(|e| e.to_string())?;
        // NVRTC copies the source.
        let program = Self(result::create_program(&source, None).map_err(|e| e.to_string())?);
        let mut options = vec![
            format!("--gpu-architecture=sm_{arch}"),
            "--std=c++17".to_string(),
        ];
        let includes = include_folders();
        options.extend(
            includes
                .iter()
                .map(|i| format!("--include-path={}", i.display())),
        );
        // SAFETY: the program was just created and is alive.
        let compiled = unsafe { result::compile_program(program.0, &options) };
        compiled.map_err(|error| {
            // SAFETY: as above.
            let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
            let log: Vec<u8> = log.into_iter().map(|c| c as u8).collect();
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
            format!("{error}\n{}", log.to_string_lossy().trim_end())
        })?;
        Ok(program)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is alive and not used again.
        if let Err(error) = unsafe { result::destroy_program(self.0) } {
            tracing::debug!("an NVRTC program is not destroyed: {error}");
        }
    }
}
