//! Sorting along the last axis.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::{Computation, Workspace};
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::operands::{Rules, checked, operands};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// PyTorch's stable `argsort`: the indices (i64) that sort the last axis. Equal elements keep their order, and NaN is
/// larger than every number.
#[derive(Debug)]
pub struct ArgSort<'a> {
    /// Whether the order is descending.
    pub descending: bool,
    /// The number of valid indices (k of a top-k); later ones are arbitrary.
    pub first: usize,
    /// The elements to sort.
    pub input: View<'a>,
    /// At least as many bytes as [`ArgSortWorkspace`] requires; `None` if it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// Has the shape of the input.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for ArgSort<'a> {
    operands!(Read input, Scratch workspace, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, workspace, out) = checked!(self: input, workspace, out);
        rules.same_shape(out, input)?;
        rules.typed(out, DType::I64)?;
        rules.workspace(workspace, &ArgSortWorkspace { shape: input.shape() })
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        let shape = self.input.layout().shape();
        let row = shape.dims().last().copied().unwrap_or(1);
        let comparisons = u64::from(row.max(2).next_power_of_two().ilog2());
        Work::per_element(Class::Sort, (shape.elements() as u64).saturating_mul(comparisons))
    }
}

/// The workspace of an [`ArgSort`]: the buffer of the merge sort of GPUs. The CPU requires the same, and does not use it.
#[derive(Clone, Copy, Debug)]
pub struct ArgSortWorkspace<'a> {
    /// The input's shape.
    pub shape: &'a Shape,
}

impl Workspace for ArgSortWorkspace<'_> {
    fn cpu_bytes(&self) -> usize {
        self.shape.elements().saturating_mul(size_of::<i64>())
    }

    fn gpu_bytes(&self) -> usize {
        self.cpu_bytes()
    }
}
