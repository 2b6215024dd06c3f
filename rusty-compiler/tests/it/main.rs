//! Tests of the compiler: plans as text, and kernels against the oracle on every device.

mod cpu_goldens;
mod gpu_text;
mod plans;
mod shape_only;
