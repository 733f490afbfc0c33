//! LoRA, low-rank adaptation (Hu et al. 2021): fine-tunes a frozen model by small matrices beside its linear layers.
//!
//! A layer with the weight W and an adapter computes `x·W + scale·B(A(dropout(x)))`, where A is `[rank, inputs]` and B is
//! `[outputs, rank]`. Only A and B have gradients and optimizer state, and no op saves tensors for the gradient of a frozen
//! weight. [`lora`] attaches adapters to the layers that [`Lora`] selects, and [`Adapters`] is the module to train, merge
//! and save. Folders have the format of PEFT, the library of Hugging Face.

mod adapters;
pub(crate) mod config;
mod error;
mod files;
mod options;
mod targets;

pub use adapters::{Adapters, lora};
pub use error::LoraError;
pub use files::lora_from;
pub use options::Lora;
