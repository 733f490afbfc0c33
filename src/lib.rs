//! A tensor library that knows where every byte goes, and predicts the memory of a training step before it runs.
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
//! Add this to your `Cargo.toml`. Without it, debug builds train [about 45 times slower](guide::benchmarks#builds), because
//! Cargo does not optimize dependencies in them:
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
//! | [`guide`] | one page per task: find where memory went, predict memory, handle out-of-memory, … |

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

/// The pages of the folder `docs`.
pub mod guide {
    // Link definitions come before the text of a page: the first definition of a name counts. So links between pages
    // lead to files in the repository, and to modules in this documentation.

    #[doc = "[benchmarks]: mod@benchmarks"]
    #[doc = "[columns]: mod@columns"]
    #[doc = "[pool]: mod@pool#the-heap-outside-the-pools"]
    #[doc = "[marks]: mod@columns#marks"]
    #[doc = "[snapshots]: mod@pytorch#the-page-of-a-snapshot"]
    #[doc = include_str!("../docs/memory.md")]
    pub mod memory {}

    // The image of the page exists in the repository only. An empty image replaces it, and the drawing follows the page.
    #[doc = "[drawing]: data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="]
    #[doc = "[interop]: mod@interop"]
    #[doc = "[mapped]: mod@files#mapped-files"]
    #[doc = "[oom]: mod@out_of_memory"]
    #[doc = "[pool]: mod@pool#the-heap-outside-the-pools"]
    #[doc = "[ranks]: mod@several_machines#compare-the-ranks"]
    #[doc = "[replay]: mod@replay"]
    #[doc = "[several-machines]: mod@several_machines"]
    #[doc = "[other-runtimes]: mod@other_runtimes"]
    #[doc = "[estimate-time]: mod@prediction#estimate-time"]
    #[doc = "[usable]: mod@out_of_memory#how-much-of-a-limit-is-usable"]
    #[doc = "[pretrained]: mod@pretrained#the-key-value-cache"]
    #[doc = "[pytorch]: mod@pytorch"]
    #[doc = include_str!("../docs/columns.md")]
    #[doc = ""]
    #[doc = include_str!("../docs/columns.svg")]
    pub mod columns {}

    // The pictures exist in the repository only.
    #[doc = "[run picture]: data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="]
    #[doc = "[picture]: data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="]
    #[doc = "[precision]: mod@precision"]
    #[doc = "[estimates]: mod@benchmarks#estimated-step-times"]
    #[doc = "[exact]: mod@prediction#when-a-prediction-is-exact"]
    #[doc = "[fits]: mod@benchmarks#searches-for-a-plan"]
    #[doc = "[prediction]: mod@prediction"]
    #[doc = "[recompute]: mod@prediction#recompute-parts"]
    #[doc = "[usable]: mod@out_of_memory#how-much-of-a-limit-is-usable"]
    #[cfg_attr(feature = "train", doc = include_str!("../docs/fit.md"))]
    pub mod fit {}

    #[doc = "[fit]: mod@fit"]
    #[doc = "[memory]: mod@memory"]
    #[doc = "[oom]: mod@out_of_memory"]
    #[doc = "[scale]: mod@scale_out"]
    #[doc = "[estimates]: mod@benchmarks#estimated-step-times"]
    #[doc = "[usable]: mod@out_of_memory#how-much-of-a-limit-is-usable"]
    #[doc = include_str!("../docs/prediction.md")]
    pub mod prediction {}

    #[doc = "[prediction]: mod@prediction"]
    #[doc = "[run-out-of-memory-together]: mod@several_machines#run-out-of-memory-together"]
    #[doc = include_str!("../docs/out-of-memory.md")]
    pub mod out_of_memory {}

    #[doc = "[gpu]: mod@gpu#what-is-checked-without-a-gpu"]
    #[doc = "[memory]: mod@memory"]
    #[doc = include_str!("../docs/cudarc.md")]
    pub mod cudarc {}

    #[doc = "[benchmarks]: mod@benchmarks"]
    #[doc = "[c]: mod@c"]
    #[doc = "[columns]: mod@columns"]
    #[doc = "[files]: mod@files"]
    #[doc = "[other]: mod@other_runtimes"]
    #[doc = include_str!("../docs/replay.md")]
    pub mod replay {}

    #[doc = "[files]: mod@files"]
    #[doc = "[memory]: mod@memory"]
    #[cfg_attr(feature = "traces", doc = include_str!("../docs/other-runtimes.md"))]
    pub mod other_runtimes {}

    #[doc = "[columns]: mod@columns"]
    #[doc = "[other-runtimes]: mod@other_runtimes"]
    #[doc = "[replay]: mod@replay"]
    #[doc = "[categories]: mod@other_runtimes#categories-of-pytorchs-snapshots"]
    #[doc = "[page]: mod@memory#view-a-run-in-a-browser"]
    #[doc = "[fit]: mod@fit"]
    #[doc = "[prediction]: mod@prediction"]
    #[doc = "[python]: mod@python"]
    #[doc = include_str!("../docs/pytorch.md")]
    pub mod pytorch {}

    #[doc = "[columns]: mod@columns"]
    #[doc = "[heap]: mod@benchmarks#accounts-recordings-and-exports"]
    #[doc = "[oom]: mod@out_of_memory"]
    #[doc = "[replay]: mod@replay"]
    #[doc = "[children-of-fork]: mod@c#children-of-fork"]
    #[doc = include_str!("../docs/pool.md")]
    pub mod pool {}

    #[doc = "[fit]: mod@fit"]
    #[doc = include_str!("../docs/data.md")]
    pub mod data {}

    #[doc = "[coming-from]: mod@coming_from"]
    #[doc = "[files]: mod@files"]
    #[doc = "[pretrained]: mod@pretrained"]
    #[doc = include_str!("../docs/layers.md")]
    pub mod layers {}

    #[doc = "[classifier]: mod@finetune#classify-pairs-of-sentences"]
    #[doc = "[files]: mod@files"]
    #[doc = "[finetune]: mod@finetune"]
    #[doc = "[layers]: mod@layers#attention"]
    #[doc = "[mapped]: mod@files#mapped-files"]
    #[doc = "[prediction]: mod@prediction"]
    #[doc = "[recompute]: mod@prediction#recompute-parts"]
    #[doc = "[training]: mod@training#options-for-your-program"]
    #[cfg_attr(feature = "text", doc = include_str!("../docs/pretrained.md"))]
    pub mod pretrained {}

    #[doc = "[data]: mod@data#tokens-for-language-models"]
    #[doc = "[fit]: mod@fit"]
    #[doc = "[pretrained]: mod@pretrained"]
    #[doc = "[quantized]: mod@pretrained#quantized-weights"]
    #[doc = "[several-machines]: mod@several_machines"]
    #[doc = "[training]: mod@training#options-for-your-program"]
    #[cfg_attr(feature = "text", doc = include_str!("../docs/finetune.md"))]
    pub mod finetune {}

    #[doc = "[adapters]: mod@layers#adapters"]
    #[doc = "[data]: mod@data"]
    #[doc = "[other]: mod@other_runtimes"]
    #[doc = include_str!("../docs/files.md")]
    pub mod files {}

    #[doc = "[memory]: mod@memory"]
    #[doc = "[prediction]: mod@prediction"]
    #[doc = "[precision]: mod@precision"]
    #[doc = "[when-a-batch-stays-in-one-piece]: mod@fit#when-a-batch-stays-in-one-piece"]
    #[doc = "[several-machines]: mod@several_machines"]
    #[doc = "[fit]: mod@fit"]
    #[doc = include_str!("../docs/training.md")]
    pub mod training {}

    #[doc = "[columns]: mod@columns#comparisons"]
    #[doc = "[gpu]: mod@gpu#check-a-gpu"]
    #[doc = "[recording]: mod@memory#record-a-run"]
    #[doc = "[scale]: mod@scale_out"]
    #[doc = "[variables]: mod@environment#cuda"]
    #[doc = "[training]: mod@training"]
    #[doc = include_str!("../docs/several-machines.md")]
    pub mod several_machines {}

    #[doc = "[precision]: mod@precision"]
    #[doc = "[gpu]: mod@gpu"]
    #[doc = "[memory]: mod@memory"]
    #[doc = "[ranks]: mod@several_machines"]
    #[doc = include_str!("../docs/scale-out.md")]
    pub mod scale_out {}

    #[doc = "[benchmarks]: mod@benchmarks"]
    #[doc = "[finetune]: mod@finetune"]
    #[doc = "[memory]: mod@memory"]
    #[doc = "[prediction]: mod@prediction"]
    #[doc = "[ranks]: mod@several_machines"]
    #[doc = "[training]: mod@training"]
    #[doc = include_str!("../docs/precision.md")]
    pub mod precision {}

    #[doc = "[data]: mod@data"]
    #[doc = "[files]: mod@files"]
    #[doc = "[mapped]: mod@files#mapped-files"]
    #[doc = include_str!("../docs/interop.md")]
    pub mod interop {}

    #[doc = "[data]: mod@data"]
    #[doc = "[files]: mod@files"]
    #[doc = "[interop]: mod@interop"]
    #[doc = "[layers]: mod@layers"]
    #[doc = "[training]: mod@training"]
    #[doc = "[precision]: mod@precision"]
    #[doc = include_str!("../docs/coming-from.md")]
    pub mod coming_from {}

    #[doc = "[columns]: mod@columns"]
    #[doc = "[environment]: mod@environment"]
    #[doc = "[oom]: mod@out_of_memory"]
    #[doc = "[policies]: mod@replay#policies"]
    #[doc = "[usable]: mod@out_of_memory#how-much-of-a-limit-is-usable"]
    #[doc = "[replay]: mod@replay"]
    #[doc = include_str!("../docs/c.md")]
    pub mod c {}

    #[doc = "[c]: mod@c"]
    #[doc = "[columns]: mod@columns"]
    #[doc = "[gpu]: mod@gpu#what-is-checked-without-a-gpu"]
    #[doc = "[fork]: mod@c#children-of-fork"]
    #[doc = include_str!("../docs/python.md")]
    pub mod python {}

    #[doc = "[c]: mod@c#pools"]
    #[doc = "[policies]: mod@replay#policies"]
    #[doc = "[python]: mod@python"]
    #[doc = "[usable]: mod@out_of_memory#how-much-of-a-limit-is-usable"]
    #[doc = include_str!("../docs/environment.md")]
    pub mod environment {}

    #[doc = "[environment]: mod@environment"]
    #[doc = "[finetune]: mod@finetune"]
    #[doc = "[files]: mod@files"]
    #[doc = "[gpu]: mod@gpu"]
    #[doc = "[interop]: mod@interop"]
    #[doc = "[layers]: mod@layers"]
    #[doc = "[memory]: mod@memory"]
    #[doc = "[oom]: mod@out_of_memory"]
    #[doc = "[pool]: mod@pool"]
    #[doc = "[prediction]: mod@prediction"]
    #[doc = "[replay]: mod@replay"]
    #[doc = "[training]: mod@training"]
    #[doc = "[precision]: mod@precision"]
    #[doc = "[other]: mod@other_runtimes"]
    #[doc = "[several-machines]: mod@several_machines"]
    #[doc = "[fit]: mod@fit"]
    #[doc = "[data]: mod@data"]
    #[doc = "[pretrained]: mod@pretrained"]
    #[doc = include_str!("../docs/features.md")]
    pub mod features {}

    #[doc = "[prediction]: mod@prediction"]
    #[doc = "[precision]: mod@precision"]
    #[doc = "[several]: mod@several_machines#nccl"]
    #[doc = include_str!("../docs/gpu.md")]
    pub mod gpu {}

    #[doc = "[gpu]: mod@gpu"]
    #[doc = "[speed]: mod@gpu#speed"]
    #[doc = "[fit]: mod@fit"]
    #[doc = "[estimate-time]: mod@prediction#estimate-time"]
    #[doc = include_str!("../docs/benchmarks.md")]
    pub mod benchmarks {}

    #[doc = "[benchmarks]: mod@benchmarks"]
    #[doc = include_str!("../docs/performance-notes.md")]
    pub mod performance_notes {}

    #[doc = "[performance-notes]: mod@performance_notes"]
    #[doc = include_str!("../docs/upstream.md")]
    pub mod upstream {}

    #[doc = include_str!("../docs/proof.md")]
    pub mod proof {}
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

/// The README's code is tested, and not a part of the documentation: its picture and its links to files exist in the
/// repository only.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
