//! The gradient of the weight: Gᵀ [Σ (A y Aᵀ) ⊙ (Bᵀ d B)] G, where y are gradients of the output and the sum is over tiles.
//!
//! Each position has its own product: rows are output channels, columns are input channels, and the depth are the tiles.
//! So panels hold [channels] side by side. Few tiles are multiplied [at once](at_once), many tiles [in parts](in_parts).

mod at_once;
mod channels;
mod in_parts;
mod weights;

use super::{Element, Winograd};
use crate::cpu::gemm::PackInto;
use crate::cpu::parallel::Workers;

/// The most tiles that are multiplied at once.
const FEW: usize = 512;

impl Winograd {
    /// The number of elements in the workspace of [`weight_grad`](Self::weight_grad).
    pub(crate) fn weight_grad_workspace(&self) -> usize {
        if self.tile_count() <= FEW { at_once::workspace(self) } else { in_parts::workspace(self) }
    }

    /// Computes the gradient of the weight, for the algorithm of [`forward`](Self::forward).
    pub(crate) fn weight_grad<T: Element, S: PackInto<T>>(
        &self,
        workers: &Workers,
        operands: [&[S]; 2],
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
