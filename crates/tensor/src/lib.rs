//! Tensors, ops, autograd, modules and optimisers over accounted memory.
//!
//! A [`Tensor`] takes its memory from a pool of its [`Device`]; every op takes every byte through its [`OpContext`] and
//! only then computes, so the tracker of the device's [`Runtime`] can say which op asked for which bytes. See
//! the facade crate `highwater` for the tour.

pub mod autograd;
pub mod backend;
mod body;
mod context;
pub mod data;
mod device;
mod display;
pub mod dlpack;
mod dtype;
mod error;
mod file_kind;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod gzip;
pub mod io;
mod layout;
pub mod nn;
mod op;
mod ops;
pub mod optim;
mod outside;
mod placement;
mod predict;
mod rng;
mod runtime;
mod shape;
mod step_graph;
mod storage;
mod tensor;
pub mod testing;

pub use autograd::{
    GradCheck, GradCheckError, Gradients, Saved, UnknownGradient, UnknownGradients, check_gradients,
    checkpoint, evaluating, is_recording, is_training, no_grad, training,
};
/// What CUDA devices say, as data.
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use bfc_cuda::{
        ComputeError, CudaUnavailable, DriverVersion, LibraryProblem, SelfCheckError, TriedLibrary,
    };
}

pub use backend::Activation;
pub use context::{Buffer, OpContext};
pub use device::{Device, DeviceAllocator, DeviceFault, Place, with_device};
pub use dtype::{DType, Element, RawElement, Scalar};
pub use error::{Error, Result};
pub use layout::Layout;
pub use op::{Op, apply};
pub use ops::{
    AttentionOptions, Axes, Conv2dOptions, CrossEntropyOptions, IntoPart, IntoParts, Norm, PadMode, Part,
    Pool2dOptions, Reduction, SortOrder, TensorOptions,
};
pub use placement::{Placement, PlacementReason};
pub use predict::{
    DeviceProfile, DeviceRules, DryPeak, DryRead, DryRun, DryRunOptions, LargestFit, ParseProfileError,
    Refused, SmallestPool, dry_run, largest_fit, smallest_pool,
};
pub use rng::Rng;
pub use runtime::{Choice, Runtime, RuntimeBuilder};
pub use shape::{IntoShape, MAX_RANK, Shape};
pub use step_graph::{StepCounts, StepGraph};
pub use storage::{Storage, View, ViewMut};
pub use tensor::Tensor;
