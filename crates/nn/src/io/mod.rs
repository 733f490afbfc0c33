//! File formats: safetensors, NumPy's `.npy` and `.npz`, and PyTorch's state dicts.
//!
//! Readers treat every file as untrusted. They check sizes against limits before they allocate, and allocate as bytes
//! arrive instead of trusting the header. Errors name the file and the offset.

mod archive;
mod array;
mod atomic;
pub(crate) mod mismatch;
mod npy;
mod npz;
pub(crate) mod safetensors;
mod skipped;
pub(crate) mod state_dict;
pub(crate) mod stored;
mod weights;

pub use array::{Array, Arrays};
pub use atomic::write_atomically;
pub use npy::{NpyLimits, read_npy, read_npy_from, write_npy, write_npy_to};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use npz::read_npz_bytes;
pub use npz::{read_npz, read_npz_from, write_npz, write_npz_to};
pub use safetensors::{
    Safetensors, SafetensorsLimits, read_safetensors, read_safetensors_from, write_safetensors_to,
};
pub use skipped::Loaded;
pub use state_dict::{read_state_dict, read_state_dict_from};
pub use weights::{WeightInfo, Weights};

pub use highwater_tensor::error::{Difference, FileError, Mismatch, Skipped};
