//! The semantic graph of a transformer: what is computed, with no device and no kernel in sight.
//!
//! A [`Graph`] is a list of [`Node`]s in SSA form over [`Value`]s whose shapes are `[rows, width]` with
//! symbolic rows ([`Dim`]). Weights are declared by name and read from a model file only when a plan is
//! bound. Each linear product carries a [`SiteId`], the place where an adapter's delta is injected.
//!
//! A graph prints as [text](mod@text) and is read back from it; the [interpreter](interpret) runs it in the plainest
//! way, as the oracle for everything faster.
//!
//! [`arch::build`] makes the graph of a model file through a [`GraphBuilder`]; [`verify()`] states and checks
//! the invariants.

pub mod arch;
pub mod builder;
pub mod dim;
pub mod error;
pub mod ids;
pub mod interpret;
pub mod ir;
pub mod op;
mod parse;
pub mod rope;
mod route;
pub mod shape;
pub mod text;
pub mod verify;

pub use arch::Arch;
pub use builder::GraphBuilder;
pub use dim::{Dim, Symbol};
pub use error::{Error, Result};
pub use ids::{NodeId, RopeId, SiteId, SymId, ValueId, WeightId};
pub use interpret::Interpreter;
pub use ir::{Graph, KvLayer, Node, Site, Value, WeightDecl};
pub use op::{
    AttentionSpec, AttentionValues, BinaryOp, GroupScore, Input, Op, OpClass, RouteGroups,
    RouteScore, RouteSpec, UnaryOp,
};
pub use rope::{RopeLayout, RopeScaling, RopeSpec, Turns};
pub use shape::{L, T};
pub use verify::verify;
