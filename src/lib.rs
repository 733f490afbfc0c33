//! A tensor library for training models in Rust that accounts for every byte and predicts the memory of a run before it starts.
//!
//! ```
//! use highwater::dry_run;
//! use highwater::prelude::*;
//!
//! fn step(device: &Device) -> highwater::Result<()> {
//!     let model = Linear::new(device, 4096, 1024, &Rng::new(0))?;
//!     let mut optimizer = AdamW::new(model.parameters(), 1e-3)?;
//!     let x = Tensor::zeros(device, [256, 4096])?;
//!     let loss = model.forward(&x)?.square()?.mean_all()?;
//!     optimizer.step(loss.backward()?)
//! }
//!
//! // Predicted for a GPU that this machine does not have.
//! let card: DeviceProfile = "rtx-4090".parse()?;
//! println!("{}", dry_run(card, step)?.peak);
//!
//! // Computed here.
//! let device = Device::cpu()?;
//! step(&device)?;
//! println!("{}", memory_report(&device)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Add this to your `Cargo.toml`. Without it, debug builds train many times slower, because Cargo does not optimize
//! dependencies in them:
//!
//! ```toml
//! [profile.dev.package."*"]
//! opt-level = 2
//! ```
//!
//! | start here | |
//! |---|---|
//! | [`Tensor`] | arrays, ops and gradients |
//! | [`nn`], [`optim`], [`data`], [`io`] | networks, optimizers, data and files |
//! | [`train`], [`fit`](mod@fit) | a training loop, metrics, logs and options; plans that fit a device |
//! | `models` | pretrained models: Llama, GPT-2 and BERT (with the feature `models`), and their tokenizers (`text`) |
//! | [`distributed`] | collective operations between several processes |
//! | [`Runtime`], [`Device`] | where programs compute, and how large their pools are |
//! | [`memory_report`], [`dry_run`], [`largest_fit`], [`testing`] | what a program needs, now and in advance |
//! | [`alloc`], [`tracking`], `traces` | the pools, the accounts, and (with the feature `traces`) allocation traces, without tensors |
//! | the book (`docs/` in the repository) | one chapter per task: train, find where memory went, predict memory, use a GPU, … |

#[cfg(doctest)]
mod book;

use std::sync::Arc;

pub use bfc_core as alloc;
pub use half;
#[cfg(feature = "distributed")]
pub use highwater_distributed as distributed;
#[cfg(feature = "models")]
pub use highwater_models as models;
#[doc(hidden)]
pub use highwater_nn::macros;
pub use highwater_nn::{data, modules::module, optim};
pub use highwater_tensor as tensor;
#[cfg(feature = "traces")]
pub use highwater_traces as traces;
pub use highwater_tracking as tracking;
#[cfg(feature = "train")]
pub use highwater_train as train;
#[cfg(feature = "train")]
pub use highwater_train::fit;
pub use ndarray;

pub use highwater_nn::{LayerSummary, Summary, summary, summary_with_step};
pub use highwater_tensor::{
    Activation, AttentionOptions, Axes, AxisIndex, BlockFormat, Buffer, Choice, Conv1dOptions, Conv2dOptions,
    CrossEntropyOptions, DType, Device, DeviceAllocator, DeviceFault, DeviceProfile, DeviceRules,
    DeviceSpeed, DryPeak, DryRead, DryRun, DryRunOptions, Element, Error, FitFailure, GradCheck,
    GradCheckError, Gradients, Interpolation, IntoAxisIndex, IntoAxisIndices, IntoShape, KernelError,
    LargestFit, Layout, Limit, LinearCrossEntropyOptions, MappedFile, MixedGuard, Norm, Op, OpContext,
    OpPlacement, OutputSize, PadMode, Padding, ParseProfileError, Place, PlacementReason, Pool1dOptions,
    Pool2dOptions, Projection, QuantizedMatrix, RawElement, RecordingGuard, RecurrentCell, RecurrentWeights,
    Reduction, Result, Rng, Runtime, RuntimeBuilder, Saved, Scalar, Shape, ShapeRule, SmallestPool,
    SortOrder, StepCounts, StepGraph, StepTime, Storage, Tensor, TensorOptions, TensorOrScalar,
    TrainingGuard, UnknownGradient, UnknownGradients, View, ViewMut, apply, backend, check_gradients,
    checkpoint, dlpack, dry_run, evaluating, evaluating_guard, is_recording, is_replaying, is_training,
    largest_fit, mixed, mixed_dtype, no_grad, no_grad_guard, smallest_pool, testing, training,
    training_guard, with_device,
};
pub use highwater_tensor::{assert_flat_after, assert_golden, assert_peak};
pub use highwater_tracking::{Phase, Report, Tracker, module, phase};

/// Modules (layers) and their building blocks, and recomputations: blocks of a model that run again in the backward pass.
pub mod nn {
    pub use highwater_nn::lora::{Adapters, Lora, LoraError, lora, lora_from};
    pub use highwater_nn::modules::*;
    pub use highwater_nn::recompute;
}

/// Files: checkpoints, safetensors, GGUF, NumPy arrays and PyTorch state dictionaries.
pub mod io {
    pub use highwater_nn::checkpoint::*;
    pub use highwater_nn::io::*;
}

/// The names that most programs use.
pub mod prelude {
    pub use crate::alloc::{AllocatorAttributes, Bytes, Category};
    pub use crate::data::{
        ArrayDataset, Augment, Batches, CsvOptions, Dataset, IdxOptions, LabelColumn, Missing, Normalize,
        PairOptions, Pairs, Sample, TargetColumns, Text, TokenWindows, read_csv, read_idx,
    };
    #[cfg(feature = "images")]
    pub use crate::data::{Channels, ImageFolder, ImageOptions};
    pub use crate::io::Checkpoint;
    pub use crate::nn::activation::*;
    pub use crate::nn::{
        Adapters, AvgPool2d, BatchNorm, Checkpointed, Conv1d, Conv2d, ConvTranspose2d, Dropout, Elu,
        Embedding, Fans, GroupNorm, GroupedQueryAttention, Gru, Init, InstanceNorm, KeyValueCache,
        KeyValueCacheOptions, LayerNorm, LeakyRelu, Linear, LinearOptions, Llama3Scaling, LogSoftmax, Lora,
        Lstm, MaxPool2d, Module, MultiHeadAttention, PRelu, Parameter, PixelShuffle, RecurrentOptions,
        RmsNorm, Rnn, RotaryEmbedding, RotaryOptions, RotaryPairs, Sequential, Softmax, SwiGlu,
        TransformerBlock, Upsample, lora, lora_from,
    };
    pub use crate::optim::*;
    pub use crate::{
        Activation, AttentionOptions, Conv1dOptions, Conv2dOptions, CrossEntropyOptions, DType, Device,
        DeviceProfile, Error, Gradients, Interpolation, IntoAxisIndex, LinearCrossEntropyOptions, Norm,
        PadMode, Padding, Pool1dOptions, Pool2dOptions, Reduction, Result, Rng, Runtime, SortOrder,
        StepGraph, Tensor, checkpoint, evaluating, evaluating_guard, memory_report, mixed, module, no_grad,
        no_grad_guard,
    };
}

/// The figures of all ops run so far on the device's runtime, and of the pool that ops on the device take from; beside it, of
/// memory that others own and tensors look into, if there was any.
///
/// ```
/// use highwater::{Device, Tensor, memory_report};
/// let device = Device::cpu()?;
/// let _x = Tensor::zeros(&device, [100])?;
/// assert!(memory_report(&device)?.ops.iter().any(|row| row.op == "zeros" && row.live_bytes >= 400));
///
/// let _lent = Tensor::from_owner(&device, vec![0.0f32; 10], [10])?;
/// assert!(memory_report(&device)?.pools.iter().any(|row| row.name == "cpu:0 external" && row.in_use == 40));
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// If the device's memory cannot be had.
pub fn memory_report(device: &Device) -> Result<Report> {
    let mut pools = vec![Arc::clone(device.default_allocator()?)];
    if device.external_memory().num_allocs > 0 {
        pools.push(device.external_allocator());
    }
    Ok(Report::new(device.tracker(), &pools))
}
