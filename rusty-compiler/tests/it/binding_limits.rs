//! GPUs that bind less at once than a model's matrices take: those are cut into chunks of rows, and no bit changes.

use crate::adapted_rows::{PAGES, attach, logits};
use crate::golden_paths::golden;
use crate::reference::gpu_device;
use rusty_backend::memory::Usage;
use rusty_backend::{
    DeviceBuffer, GpuDevice, KernelText, Launch, Owner, Pipeline, Recording, Result, Target,
};
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::{BindOptions, KvFormat, compile};
use rusty_loader::ModelFile;
use std::sync::{Arc, Mutex};

/// Bytes of a binding: less than projections, heads and embeddings of small models take, and than 64 rows of some.
const LIMIT: u64 = 32 << 10;

/// A GPU that says it binds no more than [`LIMIT`] bytes, and remembers its buffers of weights.
#[derive(Debug)]
struct Narrow {
    gpu: Arc<dyn GpuDevice>,
    target: Target,
    weights: Mutex<Vec<(String, u64)>>,
}

impl Narrow {
    fn new(gpu: Arc<dyn GpuDevice>) -> Self {
        let target = Target {
            max_binding_bytes: LIMIT,
            ..gpu.target().clone()
        };
        Self {
            gpu,
            target,
            weights: Mutex::default(),
        }
    }

    /// All weights lie in buffers that can be bound, and each of the `cut` ones in several.
    fn check(&self, cut: &[&str]) {
        let buffers = self.weights.lock().expect("no other user");
        for (label, bytes) in buffers.iter() {
            assert!(*bytes <= LIMIT, "{label}: {bytes} bytes");
        }
        for name in cut {
            let chunks = buffers.iter().filter(|(label, _)| label == name).count();
            assert!(chunks > 1, "{name}: {chunks} chunks");
        }
    }
}

impl GpuDevice for Narrow {
    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: u64, owner: Owner, label: &str) -> Result<DeviceBuffer> {
        if owner == Owner::Weights {
            let mut weights = self.weights.lock().expect("no other user");
            weights.push((label.into(), bytes));
        }
        self.gpu.alloc(bytes, owner, label)
    }

    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()> {
        self.gpu.write(buffer, offset, data)
    }

    fn pipeline(&self, text: &KernelText) -> Result<Pipeline> {
        self.gpu.pipeline(text)
    }

    fn record(&self, launches: &[Launch]) -> Result<Recording> {
        self.gpu.record(launches)
    }

    fn submit(&self, recording: &Recording) -> Result<()> {
        self.gpu.submit(recording)
    }

    fn read_into(&self, buffer: &DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()> {
        self.gpu.read_into(buffer, offset, out)
    }

    fn copy(
        &self,
        from: &DeviceBuffer,
        from_offset: u64,
        to: &DeviceBuffer,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        self.gpu.copy(from, from_offset, to, to_offset, len)
    }

    fn synchronize(&self) -> Result<()> {
        self.gpu.synchronize()
    }

    fn usage(&self) -> Usage {
        self.gpu.usage()
    }
}

fn gpu() -> Arc<dyn GpuDevice> {
    gpu_device().gpu().expect("a GPU").clone()
}

/// A model on a device, an adapter in each slot.
fn bound(
    file: &dyn ModelFile,
    device: Arc<dyn GpuDevice>,
    options: BindOptions,
) -> rusty_compiler::Result<GpuExecutable> {
    let graph = rusty_graph::arch::build(file).expect("graph");
    let plan = compile(&graph, device.target()).expect("plan");
    let mut exe = GpuExecutable::bind(plan, file, device, options)?;
    attach(&mut exe, &graph, options.slots);
    Ok(exe)
}

/// Projections, those of one input and those that one tail reads together, heads, embeddings and experts; with adapters, too.
#[test]
fn matrices_that_no_binding_takes_are_cut_and_change_no_bit() {
    let gpu = gpu();
    for (path, slots, cut) in [
        (
            "models/qwen3-tied",
            1,
            [
                "token_embd.weight",
                "blk.0.attn_q.weight",
                "blk.0.ffn_gate.weight",
            ],
        ),
        (
            "gguf/llama/mix-Q4_K_M.gguf",
            0,
            ["token_embd.weight", "output.weight", "blk.0.attn_q.weight"],
        ),
        (
            "models/mixtral",
            0,
            [
                "token_embd.weight",
                "output.weight",
                "blk.0.ffn_down_exps.0.weight",
            ],
        ),
    ] {
        let file = rusty_loader::open(golden(path)).expect(path);
        let options = BindOptions {
            pages: PAGES,
            kv: KvFormat::F16,
            slots,
        };
        let mut whole = bound(&*file, gpu.clone(), options).expect("bound");
        let narrow = Arc::new(Narrow::new(gpu.clone()));
        let mut chunked = bound(&*file, narrow.clone(), options).expect("bound");
        narrow.check(&cut);
        for rows in [62, 3, 1] {
            let want = logits(&mut whole, rows, slots);
            let have = logits(&mut chunked, rows, slots);
            assert!(have == want, "{path}, by {rows}");
        }
    }
}

/// Keys and values of a layer are one binding: those that are too long are refused with ways out, one of which the test above
/// takes.
#[test]
fn contexts_that_no_binding_takes_are_refused() {
    let path = "models/qwen3-tied";
    let file = rusty_loader::open(golden(path)).expect(path);
    let options = BindOptions {
        pages: PAGES,
        kv: KvFormat::F32,
        slots: 0,
    };
    let refused = bound(&*file, Arc::new(Narrow::new(gpu())), options);
    let text = refused.err().expect("too long").to_string();
    for said in ["layer 0", "80 tokens", "shorter context", "fewer bits"] {
        assert!(text.contains(said), "{text}");
    }
}
