//! Reductions along axes.

pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;
pub(super) mod functions;

use super::{Computation, Workspace};
use crate::cost::{Class, Work};
use crate::error::{KernelError, Result};
use crate::families::grid::split_reduction;
use crate::families::{Reduce, fast};
use crate::operands::{Rules, checked, operands};
use crate::shape::{DType, Shape};
use crate::storage::{View, ViewMut};

/// `out[..] = f(input over the reduced axes) / divisor` (PyTorch's `sum`, `mean`, `amax` and so on). The order of the
/// additions depends only on the shape.
#[derive(Debug)]
pub struct Fold<'a> {
    /// The reduction. Sums and products support floats and i64.
    pub f: Reduce,
    /// The divisor of the results, for means. Integers require 1.
    pub divisor: f64,
    /// The input.
    pub input: View<'a>,
    /// For each axis, whether it is reduced.
    pub axes: &'a [bool],
    /// At least as many bytes as [`FoldWorkspace`] requires; `None` if it requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// Has one element for each combination of the kept axes, in their order.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Fold<'a> {
    operands!(Read input, Scratch workspace, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, workspace, out) = checked!(self: input, workspace, out);
        rules.flags(self.axes, input)?;
        rules.same_computed(&[input, out])?;
        // Saturates: no output has `usize::MAX` elements.
        let mut kept = 1_usize;
        for (&size, &folded) in input.dims().iter().zip(self.axes) {
            if !folded {
                kept = kept.saturating_mul(size);
            }
        }
        if kept != out.elements() {
            return Err(rules.mismatch(
                &out,
                &input,
                "it must have one element for each combination of the kept axes",
            ));
        }
        if self.divisor != 1.0 && !input.dtype().is_float() {
            return Err(KernelError::UnsupportedDType { op: rules.op, dtype: input.dtype() });
        }
        if self.f.requires_elements() && kept > 0 && input.elements() == 0 {
            return Err(KernelError::EmptyReduction { op: rules.op, shape: *input.shape() });
        }
        // A reduction without a workspace is valid on every backend.
        if workspace.is_none() {
            return Ok(());
        }
        let (shape, axes, dtype) = (input.shape(), self.axes, input.dtype());
        rules.workspace(workspace, &FoldWorkspace { shape, axes, dtype })
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    #[inline(always)]
    fn fast_check(&mut self, device: u32) -> Option<DType> {
        let Self { f: Reduce::Sum | Reduce::SumSquares, input, axes, workspace: None, out, .. } = self else {
            return None;
        };
        let fits = fast::is_written(out, device)
            && fast::is_read(input, out, device)
            && input.dtype().is_float()
            && is_kept(input.layout().shape(), axes, out.layout().shape());
        fits.then(|| out.dtype())
    }

    fn work(&self) -> Work {
        let class = if self.axes.last() == Some(&true) { Class::ReduceRows } else { Class::ReduceColumns };
        Work::over(class, self.input.layout())
    }
}

/// Whether `out` is the scalar or vector that the reduction of a matrix returns.
#[inline(always)]
fn is_kept(shape: &Shape, axes: &[bool], out: &Shape) -> bool {
    let (Some([rows, columns]), &[down, across]) = (shape.as_matrix(), axes) else { return false };
    let kept = match (down, across) {
        (true, true) => 1,
        (true, false) => columns,
        (false, true) => rows,
        (false, false) => return false,
    };
    out.is_row_of(kept) || (kept == 1 && out.rank() == 0)
}

/// The workspace of a [`Fold`].
#[derive(Clone, Copy, Debug)]
pub struct FoldWorkspace<'a> {
    /// The input's shape.
    pub shape: &'a Shape,
    /// For each axis, whether it is reduced.
    pub axes: &'a [bool],
    /// The element type.
    pub dtype: DType,
}

impl Workspace for FoldWorkspace<'_> {
    fn cpu_bytes(&self) -> usize {
        cpu::workspace(self.shape, self.axes, self.dtype.computed_as())
    }

    fn gpu_bytes(&self) -> usize {
        let elements = split_reduction(self.shape, self.axes).workspace_elements();
        elements.saturating_mul(self.dtype.computed_as().size())
    }
}

/// PyTorch's `argmax` or `argmin` along `axis`, which is not empty: the index (i64) of the first largest or smallest
/// element. NaN counts as both.
#[derive(Debug)]
pub struct ArgReduce<'a> {
    /// Whether to find the largest element instead of the smallest.
    pub largest: bool,
    /// The elements.
    pub input: View<'a>,
    /// The axis.
    pub axis: usize,
    /// The indices; the size of `axis` is 1.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for ArgReduce<'a> {
    operands!(Read input, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, out) = checked!(self: input, out);
        rules.axis(self.axis, input)?;
        rules.typed(out, DType::I64)?;
        if input.shape().with_dim(self.axis, 1) != *out.shape() {
            return Err(rules.mismatch(&out, &input, "it must have the same sizes, except 1 along the axis"));
        }
        if input.elements() == 0 && out.elements() > 0 {
            return Err(KernelError::EmptyReduction { op: rules.op, shape: *input.shape() });
        }
        Ok(())
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        let is_last = self.axis + 1 == self.input.layout().shape().rank();
        let class = if is_last { Class::ReduceRows } else { Class::ReduceColumns };
        Work::over(class, self.input.layout())
    }
}
