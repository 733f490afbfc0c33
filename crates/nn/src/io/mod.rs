//! File formats: safetensors, GGUF, NumPy's `.npy` and `.npz`, and PyTorch's state dicts.
//!
//! [`Weights`] loads the tensors of a checkpoint one at a time, from files that are mapped instead of read.
//!
//! Readers treat every file as untrusted. They check sizes against limits before they allocate, and allocate as bytes
//! arrive instead of trusting the header. Errors name the file and the offset.

mod archive;
mod array;
mod atomic;
pub(crate) mod gguf;
mod mapped;
pub(crate) mod mismatch;
mod npy;
mod npz;
pub(crate) mod safetensors;
pub(crate) mod sharded;
mod skipped;
pub(crate) mod state_dict;
pub(crate) mod stored;
mod weights;

pub use array::{Array, Arrays};
pub use atomic::write_atomically;
pub use gguf::{Gguf, GgufArray, GgufLimits, GgufValue, write_gguf_to};
pub use mapped::MappedSafetensors;
pub use npy::{NpyLimits, read_npy, read_npy_from, write_npy, write_npy_to};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use npz::read_npz_bytes;
pub use npz::{read_npz, read_npz_from, write_npz, write_npz_to};
pub use safetensors::{
    Safetensors, SafetensorsLimits, read_safetensors, read_safetensors_from, write_safetensors_to,
};
pub use sharded::ShardedSafetensors;
pub use skipped::Loaded;
pub use state_dict::{read_state_dict, read_state_dict_from};
pub use weights::{Quantized, WeightInfo, Weights, open_weights};

pub use highwater_tensor::error::{Difference, FileError, Mismatch, Skipped};
