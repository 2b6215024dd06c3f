//! The device layer on what every test machine has: its CPU and a Vulkan adapter, a software one included.

mod facts;
mod nvrtc_cache;
mod vulkan;
