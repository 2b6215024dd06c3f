//! Sessions, scheduling, paged KV, sampling, text in and out.

pub mod throughput;
