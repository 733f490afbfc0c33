//! Runs elementwise kernels in chunks, so that the f32 temporaries of large tensors stay small.
//!
//! Each chunk is upcast, computed, rounded into a small 16-bit buffer and copied to the output. This requires
//! that every input is readable as one row with a constant stride, or repeats one element.

use bfc_core::Category;

use super::{run_copy, upcast_operands};
use crate::backend::Kernel;
use crate::error::Result;
use crate::layout::Layout;
use crate::op::OpContext;
use crate::shape::Shape;
use crate::storage::{View, ViewMut};

/// An input as one row.
#[derive(Clone, Copy)]
struct Row {
    layout: Layout,
    repeats: bool,
}

impl Row {
    /// Returns the elements as one row; `None` if they have no constant stride and do not repeat one element.
    fn new(layout: &Layout) -> Option<Self> {
        let elements = layout.shape().elements();
        let once = layout.distinct();
        let repeats = once.shape().elements() == 1;
        let row = if repeats {
            once.reshaped(Shape::SCALAR)
        } else {
            layout.reshaped(Shape::new(&[elements]).ok()?)
        };
        Some(Self { layout: row?, repeats })
    }

    /// Returns the layout of the elements `start..start + len`.
    fn chunk(&self, op: &'static str, start: usize, len: usize) -> Result<Layout> {
        if self.repeats {
            self.layout.broadcast_to(op, &Shape::new(&[len])?)
        } else {
            self.layout.sliced(op, 0, start..start + len, 1)
        }
    }
}

/// Runs an elementwise kernel on 16-bit floats. Uses chunks if the output is large and the inputs allow it.
pub(super) fn run<const N: usize>(
    ctx: &OpContext<'_>,
    inputs: [View<'_>; N],
    mut out: ViewMut<'_>,
    kernel: impl for<'a> Fn([View<'a>; N], ViewMut<'a>) -> Kernel<'a>,
) -> Result<()> {
    let (elements, dtype) = (out.layout().shape().elements(), out.dtype());
    let chunk = ctx.backend().chunk_elements().max(1);
    let rows: Option<Vec<Row>> = inputs.iter().map(|input| Row::new(input.layout())).collect();
    let (Some(rows), true) = (rows, elements > chunk && dtype.is_half()) else {
        return upcast_operands(ctx, kernel(inputs, out), |_| true);
    };
    let row = Layout::contiguous(ctx.op(), Shape::new(&[elements])?, dtype)?;
    for start in (0..elements).step_by(chunk) {
        let len = chunk.min(elements - start);
        let shape = Shape::new(&[len])?;
        let layouts = rows.iter().map(|row| row.chunk(ctx.op(), start, len));
        let layouts = layouts.collect::<Result<Vec<_>>>()?;
        // `layouts` contains one layout per input.
        let views = std::array::from_fn(|input| inputs[input].with_layout(&layouts[input]));
        let mut rounded = ctx.buffer(&shape, dtype, Category::Workspace)?;
        upcast_operands(ctx, kernel(views, rounded.view_mut()), |_| true)?;
        let place = out.with_layout(&row);
        run_copy(ctx, Kernel::CopyInto { input: rounded.view(), axis: 0, start, step: 1, out: place })?;
    }
    Ok(())
}
