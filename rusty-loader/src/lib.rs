//! Model files: opened by mmap, described by canonical metadata and tensor names, whichever the file.
//!
//! The crate owns everything between a path and borrowed bytes: GGUF and safetensors readers
//! ([`open`]), block formats as data ([`formats`]), tokenizers and chat templates ([`text`]) and, with the feature `hub`, which is on
//! by default, the hub cache. It knows no device.
//!
//! * A model is a [`ModelFile`]: metadata under [canonical keys](meta) and tensors under
//!   [canonical names](tensor_names) (GGUF's spelling: `blk.0.attn_q.weight`).
//! * A tensor is a [`WeightView`]: shared bytes of the mapping, a [`Format`] and a shape. Opening reads
//!   no tensor bytes but where a file stores weights as no view can show them: quantized checkpoints, the joined
//!   up-projections of latent attention and norms less one become blocks and matrices of our own memory.

pub mod arch;
pub mod bytes;
pub mod error;
pub mod formats;
pub mod fused;
pub mod gguf;
#[cfg(feature = "hub")]
pub mod hub;
pub mod integrity;
mod latent;
mod loaded;
pub mod meta;
pub mod model_file;
mod open;
pub mod output_file;
pub mod quantize;
pub mod random;
pub mod rope_override;
pub mod safetensors;
mod structure;
pub mod tensor_names;
pub mod text;

pub use bytes::{PageBuffer, SharedBytes};
pub use error::{Error, Result};
pub use formats::{Codec, Format};
pub use loaded::LoadedModel;
pub use meta::Meta;
pub use model_file::{ModelFile, WeightView};
pub use open::{files_at, model_path, open, open_any_rope, open_gguf_bytes};
