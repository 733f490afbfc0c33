//! Tensors, ops and autograd with exact memory accounting.
//!
//! A [`Tensor`] allocates from a pool of its [`Device`]. An op requests all of its memory through its
//! [`OpContext`] before it computes. So the tracker of the device's [`Runtime`] knows which op requested
//! which bytes. The facade crate `highwater` has a tour.
//!
//! Each module uses only modules that precede it in this list: `settings`, `shape`, `error`, `layout`, `storage`, `speed`,
//! `backend`, `device`, `tensor`, `op`, `autograd`, `ops`, `step`, `predict`, `testing`, `interop`.

mod autograd;
pub mod backend;
mod device;
pub mod error;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod interop;
mod layout;
mod op;
mod ops;
mod predict;
mod settings;
mod shape;
mod speed;
mod step;
mod storage;
mod tensor;
pub mod testing;

pub use autograd::{
    GradCheck, GradCheckError, GradientHook, GradientPass, Gradients, HookGuard, MixedGuard, Parameter,
    PassEnd, TrainingGuard, apply, check_gradients, checkpoint, evaluating, evaluating_guard, hook_gradients,
    is_training, mixed, record_passes, training, training_guard,
};
// For the crates of this workspace.
#[doc(hidden)]
pub use autograd::{LossOp, LossTerm, Objective, record_objectives};
#[doc(hidden)]
pub use op::mixed::without_mixed;
/// Errors and properties of CUDA devices.
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use bfc_cuda::{
        ComputeError, CudaUnavailable, DriverVersion, LibraryProblem, SelfCheckError, TriedLibrary,
    };
}

pub use backend::{
    Activation, BlockFormat, DeviceRules, DeviceSpeed, Limit, RecurrentCell, StepCounts, StepTime,
};
pub use device::{
    Choice, Device, DeviceAllocator, DeviceProfile, DryRead, OpPlacement, Place, PlacementReason, Runtime,
    RuntimeBuilder, with_device,
};
pub use error::{
    DeviceFault, Error, KernelError, ParseProfileError, Result, ShapeRule, UnknownGradient, UnknownGradients,
};
pub use interop::{MappedFile, dlpack};
pub use layout::{AxisSize, IntoShape, Layout};
pub use op::mixed::mixed_dtype;
pub use op::{Buffer, Op, OpContext, RecordingGuard, Saved, Summation, is_recording, no_grad, no_grad_guard};
pub use ops::{
    AttentionOptions, Axes, AxisIndex, BatchStatistics, Conv1dOptions, Conv2dOptions, CrossEntropyOptions,
    Interpolation, IntoAxisIndex, IntoAxisIndices, LinearCrossEntropyOptions, Norm, OutputSize, PadMode,
    Padding, Pool1dOptions, Pool2dOptions, Projection, QuantizedMatrix, RecurrentWeights, Reduction,
    RunningStatistics, SortOrder, TensorOptions, TensorOrScalar,
};
pub use predict::{
    DryPeak, DryRun, DryRunOptions, FitFailure, LargestFit, SmallestPool, dry_run, largest_fit, smallest_pool,
};
pub use settings::{MODELS, SETTINGS, TF32, THREADS, UPDATE_GOLDEN, settings};
pub use shape::{DType, Element, MAX_RANK, RawElement, Scalar, Shape};
pub use step::StepGraph;
pub use storage::{Storage, View, ViewMut};
pub use tensor::{Rng, Tensor, is_replaying};
