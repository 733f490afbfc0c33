//! What a device is given to do, as a value that can wait.

use crate::compute::ComputeError;
use crate::compute::Product;
use crate::kernels::{Job, Kernel};

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most of them are kernels, in lists that are kept")]
pub(crate) enum Work {
    /// A kernel with so many blocks.
    Kernel { kernel: Kernel, blocks: u32, job: Job },
    /// A product of matrices, and whether the library knows how to compute it: if not, it is nothing to do.
    Product { product: Product, known: bool },
}

impl Work {
    /// Whether a graph that has the other at this place can do this one instead: of kernels it can change the job.
    pub(crate) fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Kernel { kernel, blocks, .. }, Self::Kernel { kernel: other, blocks: others, .. }) => {
                kernel == other && blocks == others
            }
            (Self::Product { product, .. }, Self::Product { product: other, .. }) => product == other,
            _ => false,
        }
    }

    /// Whether it is the very same, bit by bit.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Kernel { kernel, blocks, job },
                Self::Kernel { kernel: other, blocks: others, job: its },
            ) => kernel == other && blocks == others && job.is_same(its),
            _ => self == other,
        }
    }

    /// What the one who gave it is told: false for products that the library does not know.
    pub(crate) const fn is_known(&self) -> bool {
        match self {
            Self::Kernel { .. } => true,
            Self::Product { known, .. } => *known,
        }
    }

    /// The same, with what the device said.
    pub(crate) const fn answered(mut self, answer: bool) -> Self {
        if let Self::Product { known, .. } = &mut self {
            *known = answer;
        }
        self
    }
}

/// A device that does work as it is given, and can keep some as a graph: many things, started at once, in the same order.
///
/// # Safety
/// As for [`Compute`](crate::Compute).
pub(crate) unsafe trait Issue: Send + Sync {
    /// Work that was prepared.
    type Graph: Send;

    /// Gives the device one thing to do. False for a product that its library does not know.
    ///
    /// # Safety
    /// As [`Compute::launch`](crate::Compute::launch) and [`Compute::multiply`](crate::Compute::multiply).
    unsafe fn give(&self, work: &Work) -> Result<bool, ComputeError>;

    /// Prepares work, of which nothing is done yet. All of it was given before, one by one.
    ///
    /// # Safety
    /// As [`give`](Self::give), until the graph is started.
    unsafe fn prepare(&self, work: &[Work]) -> Result<Self::Graph, ComputeError>;

    /// Puts a kernel with another job in the place of the same kernel. A graph of which that failed is used no more.
    ///
    /// # Safety
    /// As [`prepare`](Self::prepare).
    unsafe fn replace(&self, graph: &mut Self::Graph, place: usize, by: &Work) -> Result<(), ComputeError>;

    /// Gives the device all that a graph has.
    ///
    /// # Safety
    /// As [`give`](Self::give), for all that the graph was prepared with, where it was not replaced.
    unsafe fn start(&self, graph: &Self::Graph) -> Result<(), ComputeError>;

    /// Has memory of the device given back that nobody uses, for calls beside the pools; whether there was some. Not called while
    /// work is held back by the caller's locks.
    fn make_room(&self) -> bool {
        false
    }
}
