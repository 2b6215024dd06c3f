//! Benchmarks of kernels and whole models.
