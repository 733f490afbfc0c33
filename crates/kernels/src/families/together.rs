//! Kernels that run together, because they do not depend on each other: updates of all parameters by an optimizer, or the
//! scaling of all gradients.
//!
//! - The CPU divides large kernels between its threads, one after another, and the small ones as wholes. So small kernels wake
//!   the threads once for all of them.
//! - A GPU computes neighbors of one kind in one launch, whose table has a row for each.
//!
//! Each kernel computes as it does alone, so the values are equal bit by bit.

use std::sync::{Mutex, PoisonError};

use super::Kernel;
use crate::cost::Work;
use crate::cpu::parallel::{LIGHT, LIGHT_CHUNKS, Workers};
#[cfg(feature = "cuda")]
use crate::cuda::launch::Launcher;
use crate::error::{KernelError, Result};

/// The most kernels of a launch.
const MAX_TOGETHER: usize = 60;

#[cfg(feature = "cuda")]
const _: () = assert!(MAX_TOGETHER == bfc_cuda::kernels::TABLE_ROWS);

impl Kernel<'_> {
    /// Whether a GPU computes both kernels in one launch.
    fn shares_launch(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::OptimizerStep(step), Self::OptimizerStep(other)) => step.shares_launch(other),
            (Self::Scale(scale), Self::Scale(other)) => scale.shares_launch(other),
            (Self::Clip(clip), Self::Clip(other)) => clip.shares_launch(other),
            _ => false,
        }
    }
}

/// The kernels of each launch on a GPU.
fn launches<'k, 'a>(kernels: &'k mut [Kernel<'a>]) -> impl Iterator<Item = &'k mut [Kernel<'a>]> {
    kernels.chunk_by_mut(Kernel::shares_launch).flat_map(|alike| alike.chunks_mut(MAX_TOGETHER))
}

/// Calls `note` with the work of each launch on a GPU.
pub(crate) fn work_of_launches(kernels: &mut [Kernel<'_>], mut note: impl FnMut(&Work)) {
    for kernels in launches(kernels) {
        let works = kernels.iter_mut().map(Kernel::work);
        if let Some(work) = works.reduce(|all, work| all.together_with(&work)) {
            note(&work);
        }
    }
}

/// Runs kernels on a GPU.
#[cfg(feature = "cuda")]
pub(crate) fn run_on_cuda(device: &Launcher, op: &'static str, kernels: &mut [Kernel<'_>]) -> Result<()> {
    use super::{clip, step};
    /// The kernels of a launch, which are of one kind.
    macro_rules! all {
        ($all:expr, $kind:ident) => {
            $all.iter()
                .filter_map(|kernel| if let Kernel::$kind(kernel) = kernel { Some(kernel) } else { None })
        };
    }
    launches(kernels).try_for_each(|all| match &*all {
        [Kernel::OptimizerStep(first), _, ..] => {
            step::cuda::launch(device, op, first, all!(all, OptimizerStep))
        }
        [Kernel::Scale(first), _, ..] => clip::cuda::scale(device, op, first, all!(all, Scale)),
        [Kernel::Clip(first), _, ..] => clip::cuda::clip(device, op, first, all!(all, Clip)),
        all => all.iter().try_for_each(|kernel| kernel.run_cuda(device, op)),
    })
}

/// Runs kernels on the CPU. After an error of one of them, others may have run.
pub(crate) fn run_on_cpu(workers: &Workers, op: &'static str, kernels: &mut [Kernel<'_>]) -> Result<()> {
    let is_small = |kernel: &mut Kernel<'_>| kernel.work().size() < (LIGHT * LIGHT_CHUNKS) as u64;
    let mut elements = 0;
    for kernel in &mut *kernels {
        if is_small(kernel) {
            elements += kernel.work().size();
        } else {
            kernel.run_cpu(workers, op)?;
        }
    }
    let chunks = elements as usize / LIGHT;
    let failure: Mutex<Option<KernelError>> = Mutex::default();
    let mut small = kernels.iter_mut();
    let small = std::iter::from_fn(|| small.find_map(|kernel| is_small(kernel).then_some(kernel)));
    workers.share(chunks, LIGHT_CHUNKS, small, &|kernel| {
        if let Err(error) = kernel.run_cpu(&Workers::ALONE, op) {
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
