//! Worlds of several processes ("ranks"), and the collective operations between them.
//!
//! A program asks for its [`World`]. It has one rank unless a launcher such as `mpiexec` started the program. Ranks
//! exchange data through a [`Collective`]: over MPI with the feature `mpi`, over NCCL with the feature `cuda`, or not at all
//! in a rehearsal.
//!
//! ```
//! use highwater_distributed::{SumOrder, World};
//!
//! let world = World::from_env()?;
//! let mut gradients = vec![1.0_f32; 1000];
//! let bytes = SumOrder::Ordered.workspace_bytes(gradients.len(), highwater_tensor::DType::F32, world.size());
//! let mut workspace = vec![0; bytes]; // the caller allocates, so that its pool accounts for the memory
//! world.collective().all_reduce(gradients.as_mut_slice().into(), SumOrder::Ordered, &mut workspace)?;
//! assert_eq!(gradients[0], world.size() as f32);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agree;
mod collective;
mod error;
mod launch;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "cuda")]
mod nccl;
mod operation;
#[cfg(any(test, feature = "cuda", feature = "mpi"))]
mod ordered;
mod parallel;
mod reduction;
mod rehearsal;
mod rehearse;
mod shard;
#[cfg(test)]
mod threads;
mod world;

pub use agree::{AgreeError, AgreedValue};
#[cfg(feature = "cuda")]
pub use bfc_cuda::CudaDriver;
pub use collective::{Collective, SliceMut, SumOrder, span, spans};
#[cfg(feature = "cuda")]
pub use error::NcclConnectError;
pub use error::{CollectiveError, WorldError};
pub use launch::{Launch, LaunchError, Launcher};
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
#[cfg(feature = "cuda")]
pub use nccl::{Nccl, Rendezvous};
pub use operation::CollectiveOperation;
pub use parallel::{DataParallel, no_sync};
pub use reduction::{ParallelError, RunStage, Stage};
pub use rehearsal::Rehearsal;
pub use rehearse::{dry_run_ranks, largest_fit_of_ranks};
pub use shard::Shard;
pub use world::{DEFAULT_TIME_LIMIT, World};
