//! Libraries of NVIDIA, found at run time: the compiler (NVRTC), matrix products (cuBLAS) and collective operations
//! between GPUs (NCCL).
//!
//! They are called through their C interfaces. A machine may have several versions; [`search`] lists the files and
//! the first one that supports the device is used. Compiled kernels are kept on disk in [`kernel_cache`].

mod cublas;
mod dynamic;
mod kernel_cache;
#[cfg(feature = "nccl")]
mod nccl;
mod nvrtc;
mod search;

pub use cublas::Cublas;
#[cfg(feature = "emulator")]
pub(crate) use kernel_cache::user_cache;
pub(crate) use kernel_cache::{KernelCache, Key};
#[cfg(feature = "nccl")]
pub use nccl::{CollectiveCall, CollectiveKind, Communicator, NcclError, NcclLibrary, UniqueId};
pub use nvrtc::{CompiledCode, Nvrtc};
