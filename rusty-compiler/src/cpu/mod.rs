//! The CPU: native kernels that interpret a plan.
//!
//! A step is one job of a persistent thread `pool`: every thread walks the plan's kernels in order, takes its
//! share of each, and waits at a spinning barrier between two kernels. Nothing is spawned or compiled in a
//! step.
//!
//! * Kernels are written once over a vector trait (`simd`) and compiled for AVX-512 (with VNNI), AVX2, NEON
//!   and portable code; the device's instruction set picks one at run time. Where the system grants AMX, sixteen rows of
//!   integers are multiplied in its tile registers (`amx`), and any of BF16 (`amx_brains`).
//! * Float weights are read from the mapping and multiplied in single precision (`float`). Block formats are
//!   repacked once into panels (`panel`) and multiplied as integers (`tile`) with inputs (`quantize`) rounded
//!   to bytes per group of 32.
//! * A row's result never depends on the other rows of its step, bit for bit: every output accumulates in
//!   one order whatever the tile it falls into.
//!
//! Limits: little-endian hosts.

// Register tiles are walked by index beside the pointers that the same index moves.
#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod amx_brain_registers;
#[cfg(target_arch = "x86_64")]
mod amx_brains;
#[cfg(target_arch = "x86_64")]
mod amx_registers;
mod attention;
mod block_scales;
mod body;
mod brain_columns;
mod brain_tile;
mod context;
mod contract;
mod deltas;
mod executable;
mod experts;
mod filled;
mod float;
mod forms;
mod group_sums;
mod kernels;
mod kind;
mod kv;
mod kv_blocks;
mod lanes;
mod largest;
mod late_panels;
mod memory;
mod one_row;
mod panel;
mod panel_packing;
mod patience;
mod pool;
mod prefetch;
mod product;
mod quads;
mod quantize;
mod registers;
mod repacking;
mod route;
mod row_panels;
mod row_tiles;
mod rows;
mod shares;
mod short_rows;
mod short_tile;
mod shortening;
mod simd;
mod stream;
mod strips;
mod tile;
mod weight_bytes;
mod weights;
mod working_memory;

#[cfg(test)]
mod tests;

pub use executable::CpuExecutable;
pub use weight_bytes::weight_bytes;
pub use working_memory::working_bytes;
