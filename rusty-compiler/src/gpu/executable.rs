//! A plan bound to a GPU.

mod launches;
mod queue;
mod recording;
mod results;
mod retuning;
mod self_test;

use super::adapters::Pool;
use super::arena::arena_bytes;
use super::attention_cuts::Room;
use super::caches::{Cache, caches};
use super::kernels::page_words::PageWords;
use super::lower::stages;
use super::pages::page_format;
use super::prepare::{
    Pipelines, attention_room, compile, counters, of_this_language, vector_weights,
};
use super::random_weights::Maker;
use super::residence::{Contents, Residence};
use super::stage::Stage;
use super::weights::{Chunks, WeightStore};
use crate::plan::{Kernel, Plan};
use crate::slots::{EmbeddingDelta, KvPrefix, PrefixLayer, SlotData};
use crate::step::StepQueue;
use crate::upload::Upload;
use crate::{
    BindOptions, Error, Executable, MemoryUse, PAGE_TOKENS, Result, SlotId, Step, StepOutput,
};
use queue::UnderWay;
use recording::Recordings;
use rusty_backend::{DeviceBuffer, GpuDevice, Owner};
use rusty_graph::WeightId;
use rusty_loader::ModelFile;
use std::collections::HashMap;
use std::sync::Arc;

/// Ranks for which room is made at first.
const FIRST_RANKS: u32 = 64;
/// Words of the step buffer at first.
const FIRST_STEP_WORDS: u64 = 16 << 10;

/// A plan with its weights on a device and every kernel compiled.
pub struct GpuExecutable {
    plan: Plan,
    options: BindOptions,
    device: Arc<dyn GpuDevice>,
    stages: Vec<Stage>,
    pipelines: Pipelines,
    vectors: DeviceBuffer,
    /// Words of the vectors, and chunks of the matrices: where a plan that is tuned anew finds them.
    places: HashMap<WeightId, u32>,
    chunks: Chunks,
    arena: DeviceBuffer,
    step: DeviceBuffer,
    picks: DeviceBuffer,
    dummies: [DeviceBuffer; 3],
    kv: Vec<Cache>,
    pages: PageWords,
    /// By stage; empty where adapters cannot act.
    pools: Vec<Option<Pool>>,
    /// What slots do to embeddings, which is computed on the host.
    embeddings: HashMap<SlotId, Arc<EmbeddingDelta>>,
    /// Ranks for which the arena has room.
    ranks: u32,
    recordings: Recordings,
    under_way: UnderWay,
    weights: Residence,
    /// What attention's kernels take of a step.
    room: Room,
    /// Words of the arena for what cubes leave each other: splits of attention, shares of a depth, bests of a row.
    split_words: u32,
    /// How many of the cubes that leave each other something are done; zero between launches.
    counters: DeviceBuffer,
}

impl GpuExecutable {
    /// Finds the weights, makes the caches and compiles every kernel variant. Weights of mapped files are uploaded beside the
    /// first steps; those that do not fit the device's memory stream from the mapping in each step.
    ///
    /// # Errors
    /// [`Error::Weight`] where the file does not match the plan, [`Error::Target`] where the device cannot run
    /// a kernel, [`Error::Device`] where it runs out of memory or refuses a kernel's text.
    pub fn bind(
        plan: Plan,
        file: &dyn ModelFile,
        device: Arc<dyn GpuDevice>,
        options: BindOptions,
    ) -> Result<Self> {
        of_this_language(&plan, device.target())?;
        let pages = page_format(&plan, &options)?;
        // What is too much is refused before anything is compiled.
        let kv = caches(&plan, &*device, pages, options.pages)?;
        let mut store = WeightStore::new(&plan, file, &*device);
        let (vectors, places) = store.vectors(&vector_weights(&plan))?;
        let pieces = pieces_of(&kv);
        let of_pages = (pages, &pieces[..]);
        let stages = stages(&plan, of_pages, options.slots > 0, &places, &mut store)?;
        let (chunks, contents) = store.into_chunks();
        let pipelines = compile(&stages, &plan.target, &*device, &Pipelines::new())?;
        let maker = maker(&contents, &*device)?;
        device.keep_pipelines();
        let pools = pools(&plan, options.slots, &*device)?;
        let rows = plan.output_budget() as u64;
        let other = |bytes: u64, label: &str| device.alloc(bytes, Owner::Other, label);
        let (split_words, room) = attention_room(&stages, &plan);
        let ranks = if options.slots > 0 { FIRST_RANKS } else { 0 };
        let arena = arena_bytes(&plan, split_words, ranks);
        let mut bound = Self {
            vectors,
            places,
            chunks,
            arena: device.alloc(arena, Owner::Arena, "arena")?,
            counters: other(counters(&plan) * 4, "cubes done")?,
            room,
            split_words,
            step: other(FIRST_STEP_WORDS * 4, "step operands")?,
            picks: other(rows * 4, "chosen tokens")?,
            dummies: [
                other(256, "no weights")?,
                other(256, "no pages")?,
                other(256, "no adapters")?,
            ],
            kv,
            pages,
            stages,
            pipelines,
            pools,
            embeddings: HashMap::new(),
            ranks,
            recordings: Recordings::default(),
            under_way: UnderWay::default(),
            weights: Residence::default(),
            plan,
            options,
            device,
        };
        // Last, because they take what the rest leaves.
        bound.weights = Residence::place(contents, maker, &*bound.device)?;
        Ok(bound)
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    fn upload(&mut self, words: &[u32]) -> Result<()> {
        let bytes = words.len() as u64 * 4;
        if bytes > self.step.bytes() {
            self.recordings.clear();
            self.step =
                self.device
                    .alloc(bytes.next_power_of_two(), Owner::Other, "step operands")?;
        }
        Ok(self
            .device
            .write(&self.step, 0, bytemuck::cast_slice(words))?)
    }

    /// Makes room for the intermediate of an adapter's ranks.
    fn reserve_ranks(&mut self, data: &SlotData) -> Result<()> {
        let rank = data.largest_rank();
        if rank <= self.ranks {
            return Ok(());
        }
        let ranks = rank.next_power_of_two();
        let bytes = arena_bytes(&self.plan, self.split_words, ranks);
        let target = self.device.target();
        // Every kernel binds all of it: one that is too large would end every step, those without adapters too.
        if bytes > target.max_binding_bytes {
            // No error of the device's: nobody could make room.
            return Err(Error::Slot {
                adapter: data.name.clone(),
                site: "all".into(),
                reason: format!(
                    "results of rank {rank} take an arena of {bytes} bytes; {} binds {} at most",
                    target.name, target.max_binding_bytes
                ),
            });
        }
        self.recordings.clear();
        self.arena = self.device.alloc(bytes, Owner::Arena, "arena")?;
        self.ranks = ranks;
        Ok(())
    }

    /// Writes an adapter's tables into the pools.
    fn place(&mut self, slot: SlotId, data: &SlotData) -> Result<()> {
        self.embeddings.remove(&slot);
        for pool in self.pools.iter_mut().flatten() {
            if pool.attach(slot, data, &*self.device)? {
                self.recordings.clear();
            }
        }
        if let Some(embedding) = &data.embedding {
            self.embeddings.insert(slot, embedding.clone());
        }
        Ok(())
    }

    /// Makes pools smaller that are larger than they were `before`, as far as there is room to copy what stays in them: an
    /// adapter that did not fit must not keep others out.
    fn give_back(&mut self, before: &[u64]) {
        let pools = self.pools.iter_mut().flatten().zip(before);
        let grown = pools.filter(|(pool, before)| pool.buffer().bytes() > **before);
        let mut grown: Vec<&mut Pool> = grown.map(|(pool, _)| pool).collect();
        // What those of few tables leave is room for the others' copies.
        grown.sort_by_key(|pool| pool.taken_words());
        for pool in grown {
            if let Err(error) = pool.resize(0, &*self.device) {
                tracing::debug!("{error}; its pool stays as large as it is");
            }
        }
    }
}

/// What makes weights on the device, where it can make some.
fn maker(contents: &[Contents], device: &dyn GpuDevice) -> Result<Option<Maker>> {
    let promised = contents.iter().any(Contents::is_promised);
    promised.then(|| Maker::new(device)).transpose()
}

/// By layer, in how many buffers its pages lie.
fn pieces_of(kv: &[Cache]) -> Vec<u32> {
    kv.iter().map(Cache::pieces).collect()
}

/// Room for the tables of `slots` adapters, by kernel; none where adapters cannot act.
fn pools(plan: &Plan, slots: u32, device: &dyn GpuDevice) -> Result<Vec<Option<Pool>>> {
    let pool = |k: &Kernel| {
        let needed = slots > 0 && k.has_sites();
        needed.then(|| Pool::new(k, slots, device)).transpose()
    };
    plan.kernels.iter().map(pool).collect()
}

impl Executable for GpuExecutable {
    fn run(&mut self, step: &Step<'_>) -> Result<StepOutput> {
        if !self.under_way.is_empty() {
            return Err(Error::Step(
                "others are enqueued; take their results first".into(),
            ));
        }
        self.enqueue(step)?;
        self.finish()
    }

    fn attach(&mut self, slot: SlotId, data: Arc<SlotData>) -> Result<()> {
        slot.check(self.options.slots, &data.name)?;
        data.fit(self.plan.slot_shape())?;
        let data = data.plain()?;
        let pools = self.pools.iter().flatten();
        let before: Vec<u64> = pools.map(|pool| pool.buffer().bytes()).collect();
        let alone = self.left_alone();
        // The arena last: it would stay large for an adapter whose tables do not fit.
        let placed = self.place(slot, &data);
        let attached = placed.and_then(|()| self.reserve_ranks(&data));
        if attached.is_err() {
            // Half an adapter is none, and recordings may bind a pool that is no more.
            self.recordings.clear();
            self.detach(slot)?;
            self.give_back(&before);
        } else if self.left_alone() != alone {
            self.recordings.clear();
        }
        attached
    }

    fn detach(&mut self, slot: SlotId) -> Result<()> {
        slot.check(self.options.slots, "none")?;
        self.embeddings.remove(&slot);
        let alone = self.left_alone();
        for pool in self.pools.iter_mut().flatten() {
            pool.detach(slot, &*self.device)?;
        }
        if self.left_alone() != alone {
            self.recordings.clear();
        }
        Ok(())
    }

    fn write_prefix(&mut self, pages: &[u32], prefix: &KvPrefix) -> Result<()> {
        prefix.check_pages(pages, self.options.pages, &self.plan.kv)?;
        for (layer, PrefixLayer { keys, values }) in prefix.layers.iter().enumerate() {
            let used = prefix.tokens.div_ceil(PAGE_TOKENS as u32) as usize;
            for (index, page) in pages.iter().enumerate().take(used) {
                let (rows, first) = ((&keys[..], &values[..]), index * PAGE_TOKENS);
                self.kv[layer].write(&*self.device, *page, rows, first)?;
            }
        }
        Ok(())
    }

    fn copy_page(&mut self, from: u32, to: u32) -> Result<()> {
        let pages = self.options.pages;
        if from >= pages || to >= pages {
            return Err(Error::Step(format!(
                "page copy from {from} to {to}; there are {pages} pages"
            )));
        }
        if from == to {
            return Ok(());
        }
        let mut layers = self.kv.iter();
        layers.try_for_each(|layer| layer.copy(&*self.device, from, to))
    }

    fn memory(&self) -> MemoryUse {
        let pools = || self.pools.iter().flatten();
        MemoryUse {
            mapped_weights: self.weights.streamed_bytes(),
            resident_weights: self.weights.resident_bytes() + self.vectors.bytes(),
            kv: self.kv.iter().map(Cache::bytes).sum(),
            adapters: pools().map(|p| p.buffer().bytes()).sum(),
            adapter_room: pools().map(Pool::room_bytes).sum(),
            arena: self.arena.bytes() + self.step.bytes() + self.picks.bytes(),
        }
    }

    fn uploaded(&self) -> Upload {
        self.weights.uploaded()
    }

    fn copies_tables(&self) -> bool {
        true
    }

    fn compiled_kernels(&self) -> usize {
        self.pipelines.len()
    }

    fn queue(&mut self) -> Option<&mut dyn StepQueue> {
        // Where weights stream the host enqueues a step no faster than it runs.
        let resident = self.weights.streamed_bytes() == 0;
        resident.then_some(self)
    }
}
