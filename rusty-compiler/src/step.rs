//! What the engine hands to an executable, and what it gets back.
//!
//! A step is a ragged batch: rows of any number of sequences, prefill chunks and decode rows together.
//! Rows of one sequence are contiguous, with ascending positions. Sequences may have pages in common, but no two rows write
//! the same row of a page.

mod limits;

pub use limits::StepLimits;

#[cfg(doc)]
use crate::Error;
use crate::slots::{KvPrefix, SlotData, SlotId};
use crate::upload::Upload;
use crate::{PAGE_TOKENS, Result};
use rusty_graph::{AttentionValues, KvLayer};
use std::sync::Arc;

/// Storage of keys and values.
///
/// The block formats hold each 32 lanes of a head of one token, rotated by a Hadamard transform, as one block of GGUF's
/// format of that name: a half-precision scale and signed codes; on GPUs with a scale in single precision and codes from
/// -127 to 127 or -7 to 7. They are for layers that [`KvFormat::holds`]. What is beyond a format's range becomes its largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvFormat {
    /// Single precision.
    F32,
    /// Half precision.
    #[default]
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Blocks of 32 codes of eight bits.
    Q8_0,
    /// Blocks of 32 codes of four bits.
    Q4_0,
}

impl KvFormat {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0];

    /// Its name: `f32`, `f16`, `bf16`, `q8_0` or `q4_0`.
    pub const fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Bf16 => "bf16",
            KvFormat::Q8_0 => "q8_0",
            KvFormat::Q4_0 => "q4_0",
        }
    }

    /// Lanes of a block; 1 where each stands alone.
    pub const fn block_lanes(self) -> u64 {
        match self {
            KvFormat::F32 | KvFormat::F16 | KvFormat::Bf16 => 1,
            KvFormat::Q8_0 | KvFormat::Q4_0 => 32,
        }
    }

    /// The largest number that is stored: what is beyond it becomes it. Blocks are cut to half precision's range.
    pub(crate) const fn largest(self) -> f32 {
        match self {
            KvFormat::F32 => f32::MAX,
            KvFormat::F16 | KvFormat::Q8_0 | KvFormat::Q4_0 => 65_504.0,
            KvFormat::Bf16 => f32::from_bits(0x7f7f_0000),
        }
    }

    /// Whether a layer can be stored so: blocks need heads of whole blocks, and values that are not lanes of the keys.
    pub fn holds(self, layer: &KvLayer) -> bool {
        let whole = u64::from(layer.head_dim).is_multiple_of(self.block_lanes());
        self.block_lanes() == 1 || (whole && layer.values == AttentionValues::Own)
    }

    /// Why a model's keys and values cannot be stored so; none where they can.
    pub fn refusal(self, layers: &[KvLayer]) -> Option<String> {
        let held = layers.iter().all(|layer| self.holds(layer));
        (!held).then(|| {
            let name = self.name();
            format!(
                "{name} keys and values need heads of whole blocks of 32 lanes, and values of their own; this model's are \
                 not: take f16"
            )
        })
    }

    /// Bytes of `lanes` lanes of a token.
    pub const fn bytes(self, lanes: u64) -> u64 {
        let block = match self {
            KvFormat::F32 => 4,
            KvFormat::F16 | KvFormat::Bf16 => 2,
            KvFormat::Q8_0 => 34,
            KvFormat::Q4_0 => 18,
        };
        lanes.div_ceil(self.block_lanes()) * block
    }
}

/// Sizes fixed when a plan is bound to a device.
#[derive(Clone, Copy, Debug)]
pub struct BindOptions {
    /// KV pages in the pool.
    pub pages: u32,
    /// Storage of keys and values.
    pub kv: KvFormat,
    /// Adapter slots beside BASE.
    pub slots: u32,
}

impl BindOptions {
    /// Pages for `tokens` tokens in one sequence; `u32::MAX` where there is no such number.
    pub fn pages_for(tokens: usize) -> u32 {
        u32::try_from(tokens.div_ceil(PAGE_TOKENS)).unwrap_or(u32::MAX)
    }
}

/// What a row is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Only its keys and values.
    Nothing,
    /// The most likely next token.
    ArgMax,
    /// All logits.
    Logits,
    /// The normed hidden row.
    Hidden,
}

/// One sequence of a step.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Pages in order: token at position `p` lies in `pages[p / 16]`, row `p % 16`. They reach at least to the
    /// last position of the step.
    pub pages: &'a [u32],
    /// Length for which length-dependent rotary frequencies are fixed (the prompt's).
    pub rope_length: u32,
}

/// What a row names that takes the token which the step before it chooses, plus that token's place among the results of that
/// step. Vocabularies are smaller.
pub(crate) const CHOSEN: u32 = 1 << 31;

/// As a row's token: that which the step enqueued right before this one chooses for the `place`-th of its rows that want an
/// output, whether or not the host knows it yet ([`StepQueue`]).
pub const fn chosen(place: u32) -> u32 {
    CHOSEN | place
}

/// A ragged batch; all row slices have the same length.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Token of each row; in a [`StepQueue`] also what is [`chosen`].
    pub tokens: &'a [u32],
    /// Position of each row in its sequence.
    pub positions: &'a [u32],
    /// Index into `sequences` of each row.
    pub sequence_of: &'a [u32],
    /// The sequences.
    pub sequences: &'a [Sequence<'a>],
    /// Adapter slot of each row.
    pub slots: &'a [SlotId],
    /// What each row is run for.
    pub wants: &'a [Want],
}

impl Step<'_> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Rows that want an output, ascending.
    pub fn selected(&self) -> Vec<u32> {
        (0..self.rows() as u32)
            .filter(|&r| self.wants[r as usize] != Want::Nothing)
            .collect()
    }
}

/// What a row gave.
#[derive(Clone, Debug, PartialEq)]
pub enum RowResult {
    /// [`Want::ArgMax`]: the most likely token, the lowest id among equals.
    Token(u32),
    /// [`Want::ArgMax`] where no logit is the largest: they overflowed or are no numbers.
    NotFinite,
    /// [`Want::Logits`].
    Logits(Vec<f32>),
    /// [`Want::Hidden`].
    Hidden(Vec<f32>),
}

impl RowResult {
    /// What an argmax kernel stores where the largest lane is not finite.
    pub(crate) const NO_TOKEN: u32 = u32::MAX;

    /// The result of an argmax kernel.
    pub(crate) fn pick(word: u32) -> Self {
        match word {
            Self::NO_TOKEN => RowResult::NotFinite,
            token => RowResult::Token(token),
        }
    }
}

/// Results of the rows that wanted one, in row order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// Row of the step and its result.
    pub results: Vec<(u32, RowResult)>,
}

/// Bytes held by a bound plan, by owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights read in place from a file mapping.
    pub mapped_weights: u64,
    /// Weights held in memory of their own (device copies, repacked copies).
    pub resident_weights: u64,
    /// KV pages.
    pub kv: u64,
    /// Adapter tables, with the room that a GPU keeps for more of them.
    pub adapters: u64,
    /// What of `adapters` is room that holds no table: at most a quarter of the most that was attached at once, and what
    /// was detached since.
    pub adapter_room: u64,
    /// Activations and scratch.
    pub arena: u64,
}

/// A plan bound to weights and a device.
pub trait Executable: Send {
    /// Runs a step: writes the rows' keys and values to their pages and returns what the rows want.
    ///
    /// # Errors
    /// [`Error::Step`] where the step asks for more than the executable was bound for, or cannot be finished;
    /// [`Error::Device`] where the device fails or has no memory left.
    fn run(&mut self, step: &Step<'_>) -> Result<StepOutput>;

    /// Puts an adapter into a slot; rows of later steps may name it.
    ///
    /// # Errors
    /// [`Error::Slot`] where there is no such slot or the adapter does not fit the model; [`Error::Device`] where its
    /// tables do not fit the device, or the device fails.
    fn attach(&mut self, slot: SlotId, data: Arc<SlotData>) -> Result<()>;

    /// Empties a slot.
    ///
    /// # Errors
    /// [`Error::Slot`] where there is no such slot; [`Error::Device`] where the device fails.
    fn detach(&mut self, slot: SlotId) -> Result<()>;

    /// Stores keys and values in front of a sequence: those of token `t` at row `t % 16` of `pages[t / 16]`. Other
    /// rows of these pages hold nothing yet.
    ///
    /// # Errors
    /// [`Error::Step`] where it does not fit the layers or the pages; [`Error::Device`] where the device fails.
    fn write_prefix(&mut self, pages: &[u32], prefix: &KvPrefix) -> Result<()>;

    /// Copies the keys and values of one page to another, in every layer: measurements of throughput fill a cache with
    /// it.
    ///
    /// # Errors
    /// [`Error::Step`] where there is no such page; [`Error::Device`] where the device fails.
    fn copy_page(&mut self, from: u32, to: u32) -> Result<()>;

    /// Bytes held.
    fn memory(&self) -> MemoryUse;

    /// Weights that were copied to a device so far, to stay there: none where they are read in place.
    fn uploaded(&self) -> Upload {
        Upload::default()
    }

    /// Whether slots are copies on a device, so that what [`Executable::attach`] was given may be dropped but for changed
    /// embeddings and prefixes. Otherwise a slot reads the given tables where they lie.
    fn copies_tables(&self) -> bool;

    /// Kernels that were compiled for it; a CPU's are part of the program. Steps and adapters add none.
    fn compiled_kernels(&self) -> usize;

    /// Where steps can be enqueued before those in front of them have run; none where that takes as long as to run them. It stays so as
    /// long as the executable lives.
    fn queue(&mut self) -> Option<&mut dyn StepQueue> {
        None
    }
}

/// Steps one behind the other, without the host in between: while one runs, the next is made ready, which may go on from the tokens
/// that the first chooses. All else that an executable is asked for has its place in the same order.
pub trait StepQueue {
    /// Enqueues a step; returns before it has run. Whoever enqueues takes all results before [`Executable::run`] is called.
    ///
    /// # Errors
    /// As [`Executable::run`]; [`Error::Step`] also where a row takes a token that the step before did not choose, or whose
    /// embedding its adapter may change. The step is not enqueued then.
    fn enqueue(&mut self, step: &Step<'_>) -> Result<()>;

    /// Waits for the oldest step that was enqueued, and gives its results.
    ///
    /// # Errors
    /// [`Error::Step`] where nothing is enqueued; [`Error::Device`] where the device fails: what else was enqueued is then
    /// forgotten.
    fn finish(&mut self) -> Result<StepOutput>;
}
