//! The gradient of the weight: Gᵀ [Σ (A y Aᵀ) ⊙ (Bᵀ d B)] G, where y are gradients of the output and the sum is over tiles.
//!
//! Each position has its own product: rows are output channels, columns are input channels, and the depth are the tiles.
//! So panels hold [channels] side by side. Few tiles are multiplied [at once](at_once), many tiles [in parts](in_parts).

mod at_once;
mod channels;
mod in_parts;
mod weights;

use super::super::dispatch::{contiguous, float, host_mut, scratch};
use super::super::parallel::Workers;
use super::{Element, Winograd};
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// The most tiles that are multiplied at once.
const FEW: usize = 512;

impl Winograd {
    /// The number of elements in the workspace of [`weight_grad`](Self::weight_grad).
    pub(in super::super) fn weight_grad_workspace(&self) -> usize {
        if self.tile_count() <= FEW { at_once::workspace(self) } else { in_parts::workspace(self) }
    }

    /// Computes the gradient of the weight, for the algorithm of [`forward`](Self::forward).
    pub(in super::super) fn weight_grad(
        &self,
        workers: &Workers,
        op: &'static str,
        [input, grad]: [&View<'_>; 2],
        workspace: &mut Option<ViewMut<'_>>,
        out: &mut ViewMut<'_>,
    ) -> Result<()> {
        float!(op, out.dtype(), T => {
            let (input, grad) = (contiguous::<T>(op, input)?, contiguous::<T>(op, grad)?);
            let workspace = scratch::<T>(op, workspace, self.weight_grad_workspace())?;
            self.run_weight_grad(workers, [input, grad], workspace, host_mut::<T>(op, out)?);
            Ok(())
        })
    }

    pub(super) fn run_weight_grad<T: Element>(
        &self,
        workers: &Workers,
        operands: [&[T]; 2],
        workspace: &mut [T],
        out: &mut [T],
    ) {
        if self.tile_count() <= FEW {
            at_once::run(self, workers, operands, workspace, out);
        } else {
            in_parts::run(self, workers, operands, workspace, out);
        }
    }
}
