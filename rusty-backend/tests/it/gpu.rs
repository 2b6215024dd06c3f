//! A hand-written kernel on a GPU: uploads, launches, recordings, and every way to be refused.

use crate::test_gpu;
use rusty_backend::*;
use std::sync::{Arc, OnceLock};

/// The GPU of all tests here.
fn gpu() -> Arc<dyn GpuDevice> {
    static DEVICE: OnceLock<Arc<dyn GpuDevice>> = OnceLock::new();
    DEVICE.get_or_init(|| open(None)).clone()
}

fn open(limit: Option<u64>) -> Arc<dyn GpuDevice> {
    let choice = test_gpu::choice();
    match Device::open_within(&choice, None, limit) {
        Ok(device) => device.gpu().expect("a GPU").clone(),
        Err(error) => {
            panic!("these tests need {choice} (for Vulkan mesa-vulkan-drivers is enough): {error}")
        }
    }
}

fn language() -> Language {
    gpu().target().language
}

/// `y[i] = y[i] + factor * x[i]`, where `x` is bound with the given access.
fn axpy(x: BindingAccess) -> KernelText {
    let (access, constant) = match x {
        BindingAccess::Read => ("read", "const"),
        BindingAccess::ReadWrite => ("read_write", ""),
    };
    let source = match language() {
        Language::CudaC => format!(
            "struct Info {{ float factor; unsigned pad; unsigned count; unsigned more; }};
             extern \"C\" __global__ void axpy({constant} float* x, float* y, const Info info) {{
                 unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
                 if (i < info.count) {{ y[i] = y[i] + info.factor * x[i]; }}
             }}"
        ),
        _ => format!(
            "@group(0) @binding(0) var<storage, {access}> x: array<f32>;
             @group(0) @binding(1) var<storage, read_write> y: array<f32>;
             struct Info {{ factor: f32, pad: u32, count: u32 }}
             @group(0) @binding(2) var<storage, read> info: Info;
             @compute @workgroup_size(64)
             fn axpy(@builtin(global_invocation_id) id: vec3<u32>) {{
                 if id.x < info.count {{ y[id.x] = y[id.x] + info.factor * x[id.x]; }}
             }}"
        ),
    };
    KernelText {
        entry: "axpy".into(),
        source,
        language: language(),
        bindings: vec![x, BindingAccess::ReadWrite],
        info: true,
        unit_dim: [64, 1, 1],
        shared_bytes: 0,
        key: format!("axpy {access}"),
    }
}

fn info(factor: f32, count: usize) -> Vec<u64> {
    vec![u64::from(factor.to_bits()), count as u64]
}

fn launch(pipeline: &Pipeline, x: BufferSlice, y: BufferSlice, factor: f32) -> Launch {
    let count = (y.len / 4) as usize;
    Launch {
        pipeline: pipeline.clone(),
        buffers: vec![x, y],
        info: info(factor, count),
        groups: [count.div_ceil(64) as u32, 1, 1],
        label: "test launch".into(),
    }
}

fn upload(gpu: &dyn GpuDevice, values: &[f32], label: &str) -> DeviceBuffer {
    let bytes = bytemuck::cast_slice(values);
    let buffer = gpu.alloc(bytes.len() as u64, Owner::Other, label).unwrap();
    gpu.write(&buffer, 0, bytes).unwrap();
    buffer
}

fn range(buffer: &DeviceBuffer, offset: u64, len: usize) -> Fetch<'_> {
    Fetch {
        buffer,
        offset,
        len,
    }
}

fn floats(gpu: &dyn GpuDevice, buffer: &DeviceBuffer) -> Vec<f32> {
    let bytes = gpu.read(buffer, 0, buffer.bytes()).unwrap();
    bytemuck::pod_collect_to_vec(&bytes)
}

#[test]
fn a_recording_replays_in_order() {
    let gpu = gpu();
    let kernel = gpu.pipeline(&axpy(BindingAccess::Read)).unwrap();
    let x = upload(&*gpu, &[1.0; 1000], "x");
    let y = upload(&*gpu, &[0.5; 1000], "y");
    // The second launch reads what the first wrote.
    let z = upload(&*gpu, &[0.0; 1000], "z");
    let recording = gpu
        .record(&[
            launch(&kernel, x.whole(), y.whole(), 2.0),
            launch(&kernel, y.whole(), z.whole(), 10.0),
        ])
        .unwrap();
    assert_eq!(recording.len(), 2);
    gpu.submit(&recording).unwrap();
    gpu.submit(&recording).unwrap();
    // A write between submissions is seen by the later one.
    gpu.write(&x, 0, bytemuck::cast_slice(&[3.0f32; 1000]))
        .unwrap();
    gpu.submit(&recording).unwrap();
    assert_eq!(floats(&*gpu, &y), [10.5; 1000]);
    assert_eq!(floats(&*gpu, &z), [25.0 + 45.0 + 105.0; 1000]);
}

/// Of several buffers, with an end that is no whole word, and with a small write before the launches.
#[test]
fn results_come_back_with_their_submission() {
    let gpu = open(None);
    let kernel = gpu.pipeline(&axpy(BindingAccess::Read)).unwrap();
    let x = upload(&*gpu, &[0.0; 100], "x");
    let y = upload(&*gpu, &(0..100).map(|i| i as f32).collect::<Vec<_>>(), "y");
    let odd = gpu.alloc(6, Owner::Other, "odd").unwrap();
    gpu.write(&odd, 0, &[1, 2, 3, 4, 5, 6]).unwrap();
    let recording = gpu
        .record(&[launch(&kernel, x.whole(), y.whole(), 2.0)])
        .unwrap();
    gpu.synchronize().unwrap();
    let (mut end, mut added, mut nothing, mut first) =
        ([0u8; 2], [0.0f32; 3], [0u8; 0], [0.0f32; 2]);
    let before = gpu.submissions();
    gpu.write(&x, 0, bytemuck::cast_slice(&[5.0f32; 100]))
        .unwrap();
    let ranges = [
        range(&odd, 4, 2),
        range(&y, 8, 12),
        range(&y, 0, 0),
        range(&x, 0, 8),
    ];
    let first_run = gpu.fetch(Some(&recording), &ranges).unwrap();
    // A second run is enqueued behind it, before anything of the first has come.
    gpu.write(&x, 0, bytemuck::cast_slice(&[7.0f32; 100]))
        .unwrap();
    let second_run = gpu.fetch(Some(&recording), &ranges[1..2]).unwrap();
    assert_eq!(gpu.submissions() - before, 2);
    let mut places = [
        &mut end[..],
        bytemuck::cast_slice_mut(&mut added),
        &mut nothing[..],
        bytemuck::cast_slice_mut(&mut first),
    ];
    gpu.receive(first_run, &mut places).unwrap();
    assert_eq!((end, added, first), ([5, 6], [12.0, 13.0, 14.0], [5.0; 2]));
    let mut short = [0u8; 8];
    let refused = gpu.receive(second_run, &mut [&mut short[..]]);
    assert!(matches!(refused, Err(Error::Received { .. })));
    assert_eq!(floats(&*gpu, &y)[2], 26.0);
    // One bad range, and nothing runs.
    let bad = gpu.fetch(Some(&recording), &[range(&odd, 4, 8)]);
    assert!(matches!(bad, Err(Error::Range { .. })));
    assert_eq!(floats(&*gpu, &y)[2], 26.0);
    // Nothing to bring is something to wait for.
    let none = gpu.fetch(None, &[]).unwrap();
    gpu.receive(none, &mut []).unwrap();
}

#[test]
fn buffers_start_zeroed_and_large_uploads_stream() {
    let gpu = gpu();
    // Three rounds of the ring, and an end that is no whole word.
    let data: Vec<u8> = (0..(100 << 20) + 2)
        .map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let buffer = gpu
        .alloc(data.len() as u64, Owner::Weights, "large")
        .unwrap();
    assert_eq!(gpu.read(&buffer, 4096, 64).unwrap(), [0; 64]);
    gpu.write(&buffer, 0, &data).unwrap();
    assert!(gpu.read(&buffer, 0, data.len() as u64).unwrap() == data);
    let staging = gpu
        .usage()
        .by_owner
        .into_iter()
        .find(|(o, _)| *o == Owner::Staging)
        .unwrap()
        .1;
    assert!(staging <= 256 << 20, "{staging} bytes of staging");
    assert!(gpu.write(&buffer, 2, &[0; 4]).is_err());
    assert!(gpu.write(&buffer, 0, &[0; 3]).is_err());
    assert!(gpu.read(&buffer, data.len() as u64, 8).is_err());
}

#[test]
fn copies_between_and_within_buffers() {
    let gpu = gpu();
    let a = upload(&*gpu, &[1.0, 2.0, 3.0, 4.0], "a");
    let b = upload(&*gpu, &[0.0; 4], "b");
    gpu.copy(&a, 8, &b, 0, 8).unwrap();
    assert_eq!(floats(&*gpu, &b), [3.0, 4.0, 0.0, 0.0]);
    gpu.copy(&b, 0, &b, 8, 8).unwrap();
    assert_eq!(floats(&*gpu, &b), [3.0, 4.0, 3.0, 4.0]);
    assert!(gpu.copy(&a, 8, &b, 8, 12).is_err());
}

/// What an arena in one buffer may do: all slices of a launch bound alike, never read beside read-write.
#[test]
fn two_slices_of_one_buffer() {
    let gpu = gpu();
    let mut values = vec![2.0f32; 256];
    values.extend([1.0; 256]);
    let arena = upload(&*gpu, &values, "arena");
    let (x, y) = (arena.slice(0, 1024), arena.slice(1024, 1024));

    let writable = gpu.pipeline(&axpy(BindingAccess::ReadWrite)).unwrap();
    let both = gpu
        .record(&[launch(&writable, x.clone(), y.clone(), 3.0)])
        .unwrap();
    gpu.submit(&both).unwrap();
    assert_eq!(floats(&*gpu, &arena)[256..], [7.0; 256]);

    // CUDA does not tell bindings apart.
    if language() == Language::CudaC {
        return;
    }
    let read_only = gpu.pipeline(&axpy(BindingAccess::Read)).unwrap();
    let error = gpu.record(&[launch(&read_only, x, y, 3.0)]).unwrap_err();
    assert!(matches!(error, Error::Launch { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("test launch") && text.contains("arena"),
        "{text}"
    );
    gpu.synchronize().unwrap();
}

#[test]
fn launches_are_checked_when_recorded() {
    let gpu = gpu();
    let kernel = gpu.pipeline(&axpy(BindingAccess::Read)).unwrap();
    let x = upload(&*gpu, &[1.0; 512], "x");
    let y = upload(&*gpu, &[1.0; 512], "y");
    let good = launch(&kernel, x.whole(), y.whole(), 1.0);
    let refused = |edit: &dyn Fn(&mut Launch)| {
        let mut bad = good.clone();
        edit(&mut bad);
        gpu.record(&[good.clone(), bad]).unwrap_err().to_string()
    };
    assert!(refused(&|l| l.info.clear()).contains("info block"));
    assert!(
        refused(&|l| {
            l.buffers.pop();
        })
        .contains("1 buffers for 2 bindings")
    );
    let misplaced = refused(&|l| (l.buffers[0].offset, l.buffers[0].len) = (4, 1024));
    assert!(misplaced.contains("multiple of"), "{misplaced}");
    assert!(refused(&|l| l.buffers[0].len = 1 << 20).contains("buffer x has 2048 bytes"));
    assert!(refused(&|l| l.groups = [1, 1, u32::MAX]).contains("groups"));
}

#[test]
fn a_bad_kernel_names_itself_and_its_mistake() {
    let gpu = gpu();
    let mut text = axpy(BindingAccess::Read);
    text.key.clear();
    text.source = text.source.replace("info.factor", "info.missing");
    let error = gpu.pipeline(&text).unwrap_err();
    assert!(
        matches!(&error, Error::Kernel { entry, log, .. } if entry == "axpy" && log.contains("missing")),
        "{error}"
    );
    text = axpy(BindingAccess::Read);
    text.key.clear();
    text.entry = "other".into();
    assert!(gpu.pipeline(&text).is_err());
    text = axpy(BindingAccess::Read);
    text.key.clear();
    text.language = match language() {
        Language::CudaC => Language::Wgsl,
        _ => Language::CudaC,
    };
    assert!(gpu.pipeline(&text).is_err());
    gpu.synchronize().unwrap();
}

#[test]
fn memory_ends_before_the_driver_does() {
    let gpu = open(Some(10 << 20));
    let kept = gpu.alloc(8 << 20, Owner::Weights, "weights").unwrap();
    let error = gpu.alloc(4 << 20, Owner::Kv, "pages").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{text}");
    assert!(
        text.contains("kv asked for 4194304 bytes, 8388608 of 10485760"),
        "{text}"
    );
    assert_eq!(gpu.usage().by_owner, [(Owner::Weights, 8 << 20)]);
    drop(kept);
    gpu.alloc(8 << 20, Owner::Kv, "pages").unwrap();

    let gpu = self::gpu();
    let most = gpu.target().max_buffer_bytes;
    let error = gpu.alloc(most + 4, Owner::Other, "huge").unwrap_err();
    let refused = match language() {
        // There a buffer may be as large as the memory, of which no more than is free is counted upon.
        Language::CudaC => matches!(error, Error::OutOfMemory { .. }),
        _ => matches!(error, Error::TooLarge { limit, .. } if limit == most),
    };
    assert!(refused, "{error}");
}

#[test]
fn pipelines_are_compiled_on_many_threads_and_once_per_key() {
    let gpu = gpu();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let gpu = &gpu;
            scope.spawn(move || {
                for i in 0..4 {
                    let mut text = axpy(BindingAccess::Read);
                    text.key = format!("parallel {}", (thread + i) % 5);
                    let kernel = gpu.pipeline(&text).unwrap();
                    let y = upload(&**gpu, &[1.0; 64], "y");
                    let x = upload(&**gpu, &[thread as f32; 64], "x");
                    gpu.run(&[launch(&kernel, x.whole(), y.whole(), 1.0)])
                        .unwrap();
                    assert_eq!(floats(&**gpu, &y), [1.0 + thread as f32; 64]);
                }
            });
        }
    });
}

#[test]
fn tensors_go_to_the_device_and_back() {
    let gpu = gpu();
    let device = Device::Gpu(gpu.clone());
    let host = UnifiedTensor::aligned_copy(&[9; 18]);
    let there = host.to_device(&device, Owner::Weights, "block").unwrap();
    assert!(there.host_bytes().is_none() && there.byte_len() == 18);
    let back = there.to_host(&device).unwrap();
    assert_eq!(back.host_bytes(), host.host_bytes());
    let cpu = Device::open(&DeviceChoice::Cpu, None).unwrap();
    assert!(matches!(
        there.to_device(&cpu, Owner::Weights, "block"),
        Err(Error::Foreign { .. })
    ));
}
