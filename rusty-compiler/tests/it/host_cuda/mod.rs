//! A device that runs CUDA texts on the host, so that what only CUDA's kernels do is tested where there is none of its GPUs: each text is
//! compiled as C++ with [an emulator](../emulator.cpp) of cubes and of the instructions that kernels are written in.
//!
//! It needs a C++ compiler for x86-64 with half precision (GCC 12), and is slow: a launch takes milliseconds to seconds.

mod text;

use libloading::Library;
use rusty_backend::memory::{Accounts, Usage};
use rusty_backend::{
    DeviceBuffer, Error, Fetch, GpuDevice, KernelText, Launch, Owner, Pending, Pipeline, Recording,
    Result, Target,
};
use std::collections::BTreeMap;
use std::ffi::{OsStr, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The emulator, which is compiled once, and what texts see of it.
const EMULATOR: &str = include_str!("emulator.cpp");
const HEADER: &str = include_str!("emulator.hpp");

/// What a compiled text exports: buffers, info block, groups, units of a group, bytes of shared memory.
type Run = unsafe extern "C" fn(*const *mut c_void, *const u64, *const u32, *const u32, u32);

/// A CUDA device on the host.
#[derive(Debug)]
pub(crate) struct HostCuda {
    target: Target,
    accounts: Arc<Accounts>,
}

impl HostCuda {
    /// A device of that architecture.
    pub(crate) fn new() -> Arc<Self> {
        let target = Target::named("cuda:sm_90").expect("an architecture");
        Arc::new(Self {
            accounts: Accounts::new(&target.name, u64::MAX),
            target,
        })
    }
}

/// What vectors and copies may be aligned to, as device memory is.
const LINE: usize = 256;

/// Device memory, words from the first that is aligned.
struct Memory(Mutex<Vec<u64>>);

impl Memory {
    fn new(bytes: u64) -> Self {
        Self(Mutex::new(vec![0; (bytes as usize + LINE).div_ceil(8)]))
    }

    fn start(&self) -> *mut u8 {
        self.with(<[u8]>::as_mut_ptr)
    }

    fn with<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        let first = bytes.as_ptr().align_offset(LINE);
        work(&mut bytes[first..])
    }
}

struct Compiled {
    library: Library,
    /// Its launches run one at a time: a library has one cube, whichever device it is of.
    turn: Arc<Mutex<()>>,
    text: KernelText,
}

/// The turns of a library that may be loaded before.
fn turn_of(library: &Path) -> Arc<Mutex<()>> {
    static TURNS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    turns.entry(library.into()).or_default().clone()
}

impl GpuDevice for HostCuda {
    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: u64, owner: Owner, label: &str) -> Result<DeviceBuffer> {
        let charge = self.accounts.charge(owner, bytes)?;
        let memory = Memory::new(bytes.max(4));
        Ok(DeviceBuffer::new(Box::new(memory), bytes, label, charge))
    }

    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()> {
        buffer.check_transfer(offset, data.len() as u64)?;
        let to = offset as usize..offset as usize + data.len();
        let memory = buffer.raw::<Memory>()?;
        memory.with(|bytes| bytes[to].copy_from_slice(data));
        Ok(())
    }

    fn pipeline(&self, text: &KernelText) -> Result<Pipeline> {
        let refuse = |log: String| refusal(text, log);
        let path = compiled(text).map_err(refuse)?;
        // SAFETY: the library is the text's, compiled here, and starts nothing by itself.
        let library = unsafe { Library::new(&path) }.map_err(|e| refuse(e.to_string()))?;
        let compiled = Compiled {
            library,
            turn: turn_of(&path),
            text: text.clone(),
        };
        Ok(Pipeline::new(Box::new(compiled), text))
    }

    fn record(&self, launches: &[Launch]) -> Result<Recording> {
        launches.iter().try_for_each(|l| l.check(&self.target))?;
        Ok(Recording::new(Box::new(launches.to_vec()), launches))
    }

    fn submit(&self, recording: &Recording) -> Result<()> {
        let launches = recording.raw::<Vec<Launch>>()?;
        launches.iter().try_for_each(run)
    }

    fn fetch(&self, behind: Option<&Recording>, ranges: &[Fetch<'_>]) -> Result<Pending> {
        ranges.iter().try_for_each(Fetch::check)?;
        if let Some(recording) = behind {
            self.submit(recording)?;
        }
        let mut fetched: Vec<Vec<u8>> = Vec::new();
        for range in ranges {
            let from = range.offset as usize..range.offset as usize + range.len;
            let memory = range.buffer.raw::<Memory>()?;
            fetched.push(memory.with(|bytes| bytes[from].to_vec()));
        }
        Ok(Pending::new(Box::new(fetched), ranges))
    }

    fn receive(&self, pending: Pending, out: &mut [&mut [u8]]) -> Result<()> {
        let fetched: Vec<Vec<u8>> = pending.into_raw(out)?;
        let places = fetched.iter().zip(out);
        places.for_each(|(bytes, place)| place.copy_from_slice(bytes));
        Ok(())
    }

    fn copy(
        &self,
        from: &DeviceBuffer,
        from_offset: u64,
        to: &DeviceBuffer,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        let data = self.read(from, from_offset, len)?;
        self.write(to, to_offset, &data)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn submissions(&self) -> u64 {
        0
    }

    fn usage(&self) -> Usage {
        self.accounts.usage()
    }
}

fn run(launch: &Launch) -> Result<()> {
    let compiled = launch.pipeline.raw::<Compiled>()?;
    let buffers: Vec<*mut c_void> = (launch.buffers.iter())
        .map(|slice| {
            let memory = slice.buffer.raw::<Memory>()?;
            Ok(memory.start().wrapping_add(slice.offset as usize).cast())
        })
        .collect::<Result<_>>()?;
    let text = &compiled.text;
    let _turn = compiled.turn.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the function is what `compiled` has put there; its buffers are alive, as long as the launch says (the kernels of the
    // compiler keep to that), and its launches run one at a time.
    unsafe {
        let run = compiled.library.get::<Run>(b"rusty_run\0");
        let run = run.map_err(|e| refusal(text, e.to_string()))?;
        run(
            buffers.as_ptr(),
            launch.info.as_ptr(),
            launch.groups.as_ptr(),
            text.unit_dim.as_ptr(),
            text.shared_bytes,
        );
    }
    Ok(())
}

fn refusal(text: &KernelText, log: String) -> Error {
    Error::Kernel {
        device: "host CUDA".into(),
        entry: text.entry.clone(),
        log,
    }
}

/// What the emulator and texts are compiled as. Texts are not optimised, since each is run little.
const OPTIONS: [&str; 5] = [
    "-std=c++17",
    "-w",
    "-fPIC",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
];

/// The library of a text.
fn compiled(text: &KernelText) -> std::result::Result<PathBuf, String> {
    let source = text::on_host(text)?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host-cuda");
    let emulator = emulator(&folder)?;
    let library = folder.join(format!(
        "{}-{}.so",
        text.entry,
        hashed((&source, &emulator))
    ));
    compile(&["-shared".as_ref(), emulator.as_ref()], &source, &library)?;
    Ok(library)
}

/// The object file of the emulator, which every library has within.
fn emulator(folder: &Path) -> std::result::Result<PathBuf, String> {
    static MADE: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    let make = || {
        std::fs::create_dir_all(folder).map_err(|e| e.to_string())?;
        let object = folder.join(format!(
            "emulator-{}.o",
            hashed((EMULATOR, HEADER, OPTIONS))
        ));
        compile(&["-O2".as_ref(), "-c".as_ref()], EMULATOR, &object)?;
        Ok(object)
    };
    MADE.get_or_init(make).clone()
}

fn hashed(value: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The path of a file that becomes another, which threads and processes may make at once.
fn own(path: &Path, ending: &str) -> PathBuf {
    let (process, thread) = (std::process::id(), std::thread::current().id());
    path.with_extension(format!("{process}-{thread:?}.{ending}"))
}

/// Compiles what stands behind the header as `how` says, unless an earlier run left it.
fn compile(how: &[&OsStr], source: &str, output: &Path) -> std::result::Result<(), String> {
    if output.is_file() {
        return Ok(());
    }
    let input = own(output, "cpp");
    std::fs::write(&input, format!("{HEADER}{source}")).map_err(|e| e.to_string())?;
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    let part = own(output, "part");
    let made = Command::new(&compiler)
        .args(OPTIONS)
        .args(how)
        .arg("-o")
        .args([&part, &input])
        .output()
        .map_err(|e| format!("{compiler}: {e}; a C++ compiler is needed (Debian: g++)"))?;
    if !made.status.success() {
        return Err(String::from_utf8_lossy(&made.stderr).into_owned());
    }
    std::fs::remove_file(&input).map_err(|e| e.to_string())?;
    std::fs::rename(&part, output).map_err(|e| e.to_string())
}
