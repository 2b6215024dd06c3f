//! Adapters on the CPU: what fills slots, and an adapter's share of a contraction.
//!
//! [`slots`] knows where the tables of each slot lie ([`site_tables`]); [`injection`] computes `A x` of a contraction's rows
//! before its tiles and adds `B u` to each tile, with the products of [`low_rank`], by how a table's values are stored;
//! [`experts`] does so for products with experts.

mod experts;
pub(super) mod injection;
mod int4_reduce;
mod int8_expand;
mod int8_reduce;
mod kronecker;
pub(super) mod low_rank;
pub(super) mod site_tables;
pub(super) mod slots;
mod table_values;
