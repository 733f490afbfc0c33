//! Kernels that copy elements, in another order or type.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::Computation;
use crate::cost::{Class, Work};
use crate::error::Result;
use crate::layout::Layout;
use crate::operands::{Operand, Rules, Visit, checked, field, operands};
use crate::storage::{View, ViewMut};

/// `out[i] = input[i]`, converted to the output's element type (PyTorch's `copy_`). Floats become integers by truncation
/// and saturate. A boolean is true if the element is not 0.
#[derive(Debug)]
pub struct Copy<'a> {
    /// The elements to copy.
    pub input: View<'a>,
    /// The output.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Copy<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read input, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.same_shapes(rules.operands)
    }

    fn work(&self) -> Work {
        let class = match self.input.layout() {
            layout if layout.is_contiguous() => Class::Arithmetic,
            layout if has_rows(layout) => Class::Reorder,
            _ => Class::Transpose,
        };
        Work::over(class, self.out.layout())
    }
}

/// Whether the last axis of a layout is contiguous and longer than a cache line of f32.
fn has_rows(layout: &Layout) -> bool {
    match (layout.shape().dims(), layout.strides()) {
        ([.., size], [.., stride]) => *size >= 16 && *stride <= 1,
        _ => true,
    }
}

/// `out[.., i, ..] = input[.., n - 1 - i, ..]` along some axes (PyTorch's `flip`). The element types are equal.
#[derive(Debug)]
pub struct Flip<'a> {
    /// The elements to copy.
    pub input: View<'a>,
    /// For each axis, whether it is reversed.
    pub axes: &'a [bool],
    /// The output.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Flip<'a> {
    const SUPPORTS_HALF: bool = true;

    operands!(Read input, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, out) = checked!(self: input, out);
        rules.flags(self.axes, input)?;
        rules.same_shape(out, input)?;
        rules.same_type(out, input)
    }

    fn work(&self) -> Work {
        Work::over(Class::Transpose, self.out.layout())
    }
}

/// `out[.., start + i·step, ..] = input[.., i, ..]` along `axis` (PyTorch's `slice_scatter`, in place). The sizes of the
/// other axes and the element types are equal.
#[derive(Debug)]
pub struct CopyInto<'a> {
    /// The elements to copy.
    pub input: View<'a>,
    /// The axis of the slice.
    pub axis: usize,
    /// The first index of the slice.
    pub start: usize,
    /// The distance between indices of the slice.
    pub step: usize,
    /// The output, in any layout. Elements outside of the slice do not change.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for CopyInto<'a> {
    const SUPPORTS_HALF: bool = true;

    #[inline(always)]
    fn operands<'k>(&'k mut self, visit: &mut impl Visit<'k, 'a>) -> Result<()> {
        let written = self.input.layout().shape().elements();
        visit(field!(self.input), Operand::Read(&mut self.input))?;
        visit(field!(self.out), Operand::WritePart(&mut self.out, written))
    }

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let ((from, to), axis) = (checked!(self: input, out), self.axis);
        rules.axis(axis, to)?;
        if from.shape().rank() != to.shape().rank()
            || to.shape().with_dim(axis, from.dims()[axis]) != *from.shape()
        {
            return Err(rules.mismatch(
                &from,
                &to,
                "their sizes must be equal except along the axis of the copy",
            ));
        }
        rules.same_type(from, to)?;
        to.layout().part(rules.op, from.shape(), axis, self.start, self.step).map(drop)
    }

    fn work(&self) -> Work {
        Work::over(Class::Reorder, self.input.layout())
    }
}
