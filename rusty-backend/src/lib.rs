//! Devices: finding them, their facts, buffers, uploads, pipelines and recorded launches.
