//! The errors of data-parallel training.

use bfc_core::{debug_as_message, printable};
use highwater_tensor::error::HookError;
use highwater_tensor::{DType, Error as TensorError};
use thiserror::Error;

use super::status::Stage;
use crate::agree::AgreeError;
use crate::error::CollectiveError;
use crate::operation::CollectiveOperation;
use crate::shard::Shard;

/// The reason why ranks cannot train together. [`ParallelError::of`] finds it in a tensor error.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// A rank failed in this step, which all ranks discard. Parameters and the optimizer's state are unchanged.
    #[error(
        "rank {rank} {} in this step, which all ranks discard; {}",
        if *out_of_memory { "ran out of memory" } else { "failed" },
        if *out_of_memory { "retry with a smaller batch" } else { "look for its error" }
    )]
    Discarded {
        /// The lowest rank that failed.
        rank: usize,
        /// Whether memory ran out there.
        out_of_memory: bool,
    },
    /// The ranks run different passes or steps.
    #[error(
        "rank {rank} is at {theirs}, but rank 0 at {expected}: all ranks must run the same backward passes and steps"
    )]
    OutOfStep {
        /// The lowest rank that differs from rank 0.
        rank: usize,
        /// The stage of that rank.
        theirs: Stage,
        /// The stage of rank 0.
        expected: Stage,
    },
    /// The ranks train different models, or with different options.
    #[error(transparent)]
    Disagree(#[from] AgreeError),
    /// An exchange of data failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A parameter is on a device whose memory this world cannot exchange.
    #[error(
        "data_parallel: the parameter {parameter} is on {device}, whose memory this world cannot exchange; \
         connect GPUs with World::nccl_from_env, and keep all parameters on one device",
        parameter = printable(parameter),
        device = printable(device)
    )]
    Device {
        /// The path of the parameter.
        parameter: String,
        /// Its device.
        device: String,
    },
    /// Ranks cannot sum gradients of this element type.
    #[error(
        "data_parallel: the parameter {parameter} has type {dtype}; expected f32, f64, bf16 or f16",
        parameter = printable(parameter)
    )]
    DType {
        /// The path of the parameter.
        parameter: String,
        /// Its element type.
        dtype: DType,
    },
    /// The optimizer holds state for other parameters than those of its rank.
    #[error(
        "data_parallel: with {shard:?}, this rank owns {expected} parameters, but its optimizer holds {held}; \
         create it with the parameters that the closure receives"
    )]
    Share {
        /// The division of memory.
        shard: Shard,
        /// The parameters of this rank.
        expected: usize,
        /// The parameters of the optimizer.
        held: usize,
    },
}

debug_as_message!(ParallelError);

impl ParallelError {
    /// The reducer thread has ended, which happens only if it panics.
    pub(crate) fn ended(rank: usize) -> Self {
        let operation = CollectiveOperation::AllReduce;
        CollectiveError::Ended { operation, rank, cause: "the thread that sums gradients has ended".into() }
            .into()
    }

    /// Returns the cause of a tensor error, if it comes from training with several ranks.
    #[must_use]
    pub fn of(error: &TensorError) -> Option<&Self> {
        match error.root() {
            TensorError::Hook(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// Returns whether memory ran out, on this rank or on another one that told this rank.
    #[must_use]
    pub fn is_out_of_memory(error: &TensorError) -> bool {
        error.out_of_memory().is_some()
            || matches!(Self::of(error), Some(Self::Discarded { out_of_memory: true, .. }))
    }
}

impl From<ParallelError> for TensorError {
    fn from(error: ParallelError) -> Self {
        HookError::new(error).into()
    }
}
