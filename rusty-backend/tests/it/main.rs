//! The device layer on what every test machine has: its CPU and a Vulkan adapter, a software one included; or on the GPU that
//! `RUSTY_TEST_GPU` names.

mod facts;
mod gpu;
mod nvrtc_cache;
#[path = "../../../tests/test_gpu.rs"]
mod test_gpu;
