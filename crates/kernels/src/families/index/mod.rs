//! Kernels that read or write elements by their indices.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::{Computation, Workspace};
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::families::grid::sorts_indices;
use crate::layout::Layout;
use crate::operands::{Operand, Rules, Visit, checked, field, operands};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

const WITHIN: &str = "its sizes must be at most as large, except along the axis of the indices";

/// Whether every index below the size of the axis addresses an element.
fn within(indices: &[usize], of: &[usize], axis: usize) -> bool {
    let sizes = indices.iter().zip(of).enumerate();
    indices.len() == of.len() && sizes.into_iter().all(|(other, (size, all))| other == axis || size <= all)
}

/// `out[i, j] = input[indices[i, j], j]` for axis 0 (PyTorch's `gather`). An index out of range is
/// [`KernelError::IndexOutOfRange`](crate::error::KernelError::IndexOutOfRange), before the kernel writes anything.
#[derive(Debug)]
pub struct Gather<'a> {
    /// The elements to select from.
    pub input: View<'a>,
    /// The indices, i64.
    pub indices: View<'a>,
    /// The axis.
    pub axis: usize,
    /// Has the shape of the indices.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Gather<'a> {
    const SUPPORTS_HALF: bool = true;

    #[inline(always)]
    fn operands<'k>(&'k mut self, visit: &mut impl Visit<'k, 'a>) -> Result<()> {
        let read = self.out.layout().shape().elements();
        visit(field!(self.input), Operand::ReadPart(&mut self.input, read))?;
        visit(field!(self.indices), Operand::Read(&mut self.indices))?;
        visit(field!(self.out), Operand::Write(&mut self.out))
    }

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, indices, out) = checked!(self: input, indices, out);
        rules.axis(self.axis, input)?;
        rules.typed(indices, DType::I64)?;
        rules.same_type(out, input)?;
        rules.same_shape(out, indices)?;
        if !within(indices.dims(), input.dims(), self.axis) {
            return Err(rules.mismatch(&indices, &input, WITHIN));
        }
        Ok(())
    }

    fn work(&self) -> Work {
        Work::over(Class::Gather, self.out.layout())
    }
}

/// `out = 0`, then `out[indices[i, j], j] += input[i, j]` in order, for axis 0 (PyTorch's `scatter_add`): the
/// gradient of [`Gather`], with the same errors.
#[derive(Debug)]
pub struct ScatterAdd<'a> {
    /// The elements to add.
    pub input: View<'a>,
    /// The indices, i64.
    pub indices: View<'a>,
    /// The axis.
    pub axis: usize,
    /// At least as many bytes as [`ScatterAddWorkspace`] requires; `None` if it
    /// requires none.
    pub workspace: Option<ViewMut<'a>>,
    /// The sums.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for ScatterAdd<'a> {
    operands!(Read input, Read indices, Scratch workspace, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, indices, workspace, out) = checked!(self: input, indices, workspace, out);
        rules.axis(self.axis, out)?;
        rules.typed(indices, DType::I64)?;
        rules.same_computed(&[out, input])?;
        rules.same_shape(input, indices)?;
        if !within(indices.dims(), out.dims(), self.axis) {
            return Err(rules.mismatch(&indices, &out, WITHIN));
        }
        rules.workspace(workspace, &ScatterAddWorkspace { indices: indices.layout(), axis: self.axis })
    }

    /// The CPU adds 16-bit elements to sums in f32, which the caller rounds if the output is a 16-bit float.
    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::ScatterAdd, self.input.layout())
    }
}

/// The workspace of a [`ScatterAdd`].
#[derive(Clone, Copy, Debug)]
pub struct ScatterAddWorkspace<'a> {
    /// The layout of the indices.
    pub indices: &'a Layout,
    /// The axis of the output that the indices address.
    pub axis: usize,
}

impl Workspace for ScatterAddWorkspace<'_> {
    /// One thread adds the elements directly to the output.
    fn cpu_bytes(&self) -> usize {
        0
    }

    /// The sorted order of the indices, and the buffer of the merge sort.
    fn gpu_bytes(&self) -> usize {
        if sorts_indices(self.indices, self.axis) {
            self.indices.shape()[self.axis].saturating_mul(2 * size_of::<i64>())
        } else {
            0
        }
    }
}

/// `out[.., c] = (indices[..] == c)` (PyTorch's `one_hot`). Errors as for [`Gather`].
#[derive(Debug)]
pub struct OneHot<'a> {
    /// The indices, i64.
    pub indices: View<'a>,
    /// Has the axes of the indices and a last axis of classes.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for OneHot<'a> {
    operands!(Read indices, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (indices, out) = checked!(self: indices, out);
        rules.typed(indices, DType::I64)?;
        match out.dims() {
            [leading @ .., _] if leading == indices.dims() => Ok(()),
            _ => Err(rules.mismatch(&out, &indices, "it must have the same axes and a last axis of classes")),
        }
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::Arithmetic, self.out.layout())
    }
}
