//! Modules, optimizers, data sets and file formats for [`highwater_tensor`].
//!
//! [`modules`] has layers and the trait [`Module`](modules::Module). [`optim`] has optimizers. [`data`] reads and
//! batches data sets. [`io`] reads and writes safetensors files, NumPy files and PyTorch state dicts. [`checkpoint`]
//! saves training runs. This crate uses only the public interface of [`highwater_tensor`], so programs can define their
//! own modules, optimizers and formats.

// The macros of modules name `::highwater`.
extern crate self as highwater;

pub mod checkpoint;
pub mod data;
mod file_kind;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod io;
pub mod lora;
#[doc(hidden)]
pub mod macros;
pub mod modules;
pub mod optim;
pub mod recompute;
mod summary;

pub use summary::{LayerOutput, LayerSummary, Summary, summary, summary_with_step};
