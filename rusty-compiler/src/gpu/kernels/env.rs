//! What every kernel is given: the same buffers in the same order, and scalars.
//!
//! One arena holds all activations, so a kernel with any number of operands needs one binding; where a value
//! lies is a scalar of the launch. Step operands (tokens, positions, pages, slots, rotary tables) share one
//! buffer at addresses that its header states, so that a recorded launch stays valid from step to step.

use cubecl::frontend::comptime;
use cubecl::ir::FloatKind;
use cubecl::prelude::*;
use rusty_backend::Language;

/// Number of storage buffers of every kernel, in the order of [`Buffers`]' fields.
pub const BINDINGS: usize = 6;

/// Place of the arena among them.
pub const ARENA: usize = 1;

/// The device's name by which kernels know the language that they become.
pub const fn language_name(language: Language) -> &'static str {
    match language {
        Language::Wgsl => "wgsl",
        Language::CudaC => "cuda",
        Language::Native => "native",
    }
}

/// Whether the kernel becomes CUDA C++: for what one language has an instruction for, another not. Configurations whose sizes depend
/// on it say so for themselves (`wide`, `native`).
#[cube]
pub fn is_cuda() -> comptime_type!(bool) {
    let properties = comptime::device_properties().comptime();
    comptime!(properties.identity.name == language_name(Language::CudaC))
}

/// Whether the kernel becomes WGSL.
#[cube]
pub fn is_wgsl() -> comptime_type!(bool) {
    let properties = comptime::device_properties().comptime();
    comptime!(properties.identity.name == language_name(Language::Wgsl))
}

/// Whether the kernel becomes WGSL for a device with half precision, which no other language's properties state.
#[cube]
pub fn is_wgsl_with_halves() -> comptime_type!(bool) {
    let properties = comptime::device_properties().comptime();
    comptime!(
        !properties
            .type_usage(ElemType::Float(FloatKind::F16))
            .is_empty()
    )
}

/// Words of a step buffer's header.
pub mod header {
    /// Rows of the step.
    pub const ROWS: usize = 0;
    /// Rows that want an output.
    pub const SELECTED: usize = 1;
    /// Where tokens start, `[rows]`.
    pub const TOKENS: usize = 2;
    /// Where positions start, `[rows]`.
    pub const POSITIONS: usize = 3;
    /// Where the words that say where each row's page list starts are, `[rows]`.
    pub const PAGES: usize = 4;
    /// Where slots start, `[rows]`.
    pub const SLOTS: usize = 5;
    /// Where the rows that want an output are listed, `[selected]`.
    pub const OUTPUTS: usize = 6;
    /// Where attention tiles start: pairs of first row and number of rows.
    pub const TILES: usize = 7;
    /// Where the changes of embeddings start, `[rows, 2]`: word of the row that is added to the token's, 0 where none
    /// is; and whether the token's own counts.
    pub const CHANGES: usize = 8;
    /// Where the splits of rows that are attended to alone start, each of [`SPLIT_WORDS`](super::SPLIT_WORDS) words: the row,
    /// which of the row's splits it is, how many the row has (0 behind the last), and how many of rows of several come before it.
    pub const SPLITS: usize = 9;
    /// Whether a launch of its own has made attention's heads for all rows: 1 where rows may see each other's keys.
    pub const HEADS: usize = 10;
    /// First word of the list of rotary tables; entry `i` says where table `i` starts,
    /// `[rows, dims / 2, 2]` floats by their bits.
    pub const ROPES: usize = 11;
}

/// Words of a split of a row's keys.
pub const SPLIT_WORDS: u32 = 4;

/// The buffers of a kernel. Those that it does not use are bound to small dummies.
#[derive(CubeType)]
pub struct Buffers<'a> {
    /// Stored weights.
    pub weights: &'a [u32],
    /// Activations.
    pub arena: &'a [f32],
    /// Vector weights (norms, biases) in single precision.
    pub vectors: &'a [f32],
    /// Step operands.
    pub step: &'a [u32],
    /// One layer's keys and values; for an argmax, and for gathers by token, the chosen tokens. Kernels that bind counters here have none.
    pub words: &'a [u32],
    /// One kernel's adapter tables.
    pub pool: &'a [u32],
    /// Scalars of the launch.
    pub args: Sequence<u32>,
}

/// The buffers of a launch.
#[cube]
pub fn bound<'a>(
    weights: &'a [u32],
    arena: &'a [f32],
    vectors: &'a [f32],
    step: &'a [u32],
    words: &'a [u32],
    pool: &'a [u32],
    args: Sequence<u32>,
) -> Buffers<'a> {
    Buffers::<'a> {
        weights,
        arena,
        vectors,
        step,
        words,
        pool,
        args,
    }
}

/// A barrier behind which the units of a cube see what each other left in buffers and in shared memory. CUDA's own barrier does as
/// much; a fence beside it would wait for all cubes.
#[cube]
pub fn sync_buffers() {
    let cuda = is_cuda();
    if comptime!(cuda) {
        sync_cube();
    } else {
        sync_storage();
    }
}

/// Stores an element of a buffer or of shared memory, which many functions of a kernel hold at once.
#[cube]
pub fn put<T: CubePrimitive>(to: &[T], at: u32, value: T) {
    // SAFETY: device code: between two barriers each element is stored by one unit and read by no other (or by several, that
    // store the same: cubes that share a head's keys). For the arena the memory planner sees to it (a kernel's results lie apart from its operands).
    let to = unsafe { to.as_mut_unchecked() };
    to[at as usize] = value;
}
