//! Modules, optimizers, data sets and file formats for [`highwater_tensor`].
//!
//! [`modules`] has layers and the trait [`Module`](modules::Module), [`optim`] has optimizers, [`data`] reads and batches data sets,
//! [`io`] reads and writes safetensors files, NumPy files and PyTorch state dictionaries, and [`checkpoint`] saves training runs. Everything here uses only
//! the public interface of [`highwater_tensor`], so programs can define modules, optimizers and formats of their own.

pub mod checkpoint;
pub mod data;
mod file_kind;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod io;
pub mod modules;
pub mod optim;

/// Names that the macros of this crate use.
#[doc(hidden)]
pub mod macros {
    pub use highwater_tensor::Rng;
}
