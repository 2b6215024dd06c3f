//! The most likely token of rows that several cubes look through.

use crate::host_cuda::HostCuda;
use crate::reference::gpu_device;
use rusty_backend::{GpuDevice, Launch, Owner};
use rusty_compiler::gpu::kernels::choose::ChooseConfig;
use rusty_compiler::gpu::kernels::env::header;
use rusty_compiler::gpu::text::{KernelSpec, Kind, info};

/// Rows and their lanes: of no unit's whole turns.
const ROWS: u32 = 7;
const WIDTH: u32 = 5003;
/// Word of the arena where cubes leave their best.
const LEFT: u32 = ROWS * WIDTH;

fn spec(cubes: u32) -> KernelSpec {
    KernelSpec {
        kind: Kind::Choose(ChooseConfig {
            units: 64,
            rows: header::SELECTED,
            width: WIDTH,
            cubes,
            args: [0, 1],
        }),
        scalars: 2,
    }
}

/// Rows of many lanes that are alike, and the first of the largest of each: one in the last lane, one in the first, one of several, one
/// beside lanes that are no numbers, and rows without an answer.
fn rows() -> (Vec<f32>, Vec<u32>) {
    let small = |lane: u32| ((lane * 7919) % 1009) as f32 / 1009.0;
    let mut lanes: Vec<f32> = (0..ROWS * WIDTH).map(|i| small(i % WIDTH)).collect();
    let mut put = |row: u32, lane: u32, value| lanes[(row * WIDTH + lane) as usize] = value;
    put(0, WIDTH - 1, 2.0);
    put(1, 0, 2.0);
    for lane in [4000, 3999, 1300, 1301, 4999] {
        put(2, lane, 3.0);
    }
    put(3, 77, f32::INFINITY);
    for lane in 0..WIDTH {
        put(4, lane, -5.0);
    }
    for lane in (0..WIDTH).filter(|lane| *lane != 4321) {
        put(
            5,
            lane,
            [f32::NAN, f32::NEG_INFINITY, -6.0][lane as usize % 3],
        );
    }
    put(5, 4321, -5.0);
    for lane in 0..WIDTH {
        put(6, lane, [f32::NAN, f32::NEG_INFINITY][lane as usize % 2]);
    }
    (lanes, vec![WIDTH - 1, 0, 1300, u32::MAX, 0, 4321, u32::MAX])
}

fn picks(gpu: &dyn GpuDevice, cubes: u32) -> Vec<u32> {
    let spec = spec(cubes);
    let text = spec.text(gpu.target()).expect("text");
    let pipeline = gpu.pipeline(&text).expect("compiled");
    let (mut arena, _) = rows();
    arena.resize((LEFT + ROWS * 2 * cubes) as usize, 0.0);
    let mut step = vec![0u32; 16];
    step[header::SELECTED] = ROWS;
    let bytes =
        |words: Vec<u32>| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let arena = bytes(arena.iter().map(|v| v.to_bits()).collect());
    let contents = [
        vec![0; 64],
        arena,
        vec![0; 64],
        bytes(step),
        vec![0; 64],
        vec![0; 64],
    ];
    let buffers = contents.map(|bytes| {
        let buffer = gpu.alloc(bytes.len() as u64, Owner::Other, "test");
        let buffer = buffer.expect("memory");
        gpu.write(&buffer, 0, &bytes).expect("written");
        buffer
    });
    let lengths = std::array::from_fn(|i| buffers[i].bytes() / 4);
    let launch = Launch {
        pipeline,
        buffers: buffers.iter().map(|b| b.whole()).collect(),
        info: info(&[0, LEFT], lengths),
        groups: [ROWS, cubes, 1],
        label: "choice".into(),
    };
    let words = |bytes: Vec<u8>| -> Vec<u32> {
        let (whole, _) = bytes.as_chunks::<4>();
        whole.iter().map(|w| u32::from_le_bytes(*w)).collect()
    };
    // Twice: counters are as they were.
    for _ in 0..2 {
        gpu.run(std::slice::from_ref(&launch)).expect("run");
        let counted = words(gpu.read(&buffers[5], 0, 64).expect("read"));
        assert!(counted.iter().all(|count| *count == 0), "{counted:?}");
    }
    let mut picks = words(gpu.read(&buffers[4], 0, 64).expect("read"));
    picks.truncate(ROWS as usize);
    picks
}

#[test]
fn the_first_of_the_largest_lanes_is_chosen() {
    let device = gpu_device();
    let gpu = &**device.gpu().expect("a GPU");
    let host = HostCuda::new();
    for gpu in [gpu, &*host] {
        let several = if gpu.target().orders_groups { 7 } else { 1 };
        for cubes in [1, several] {
            assert_eq!(picks(gpu, cubes), rows().1, "{cubes} cubes");
        }
    }
}
