//! Functions of elements, piece by piece: however large the tensors of halves, the f32 temporaries stay small.
//!
//! This is possible where steps of one length lead through all elements, or they are one repeated. Each piece is widened, computed, rounded into a piece of
//! halves, and copied to its place.

use bfc_core::Category;

use super::{Read, temporary};
use crate::backend::{Kernel, check};
use crate::error::Result;
use crate::layout::Layout;
use crate::op::OpContext;
use crate::shape::Shape;
use crate::storage::{View, ViewMut};

/// A layout of which pieces can be had.
#[derive(Clone, Copy)]
struct Flat {
    layout: Layout,
    repeats: bool,
}

impl Flat {
    /// The elements in one row; `None` if they neither lie in one nor are one repeated.
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

    /// Elements number `start` to `start + len`.
    fn piece(&self, op: &'static str, start: usize, len: usize) -> Result<Layout> {
        if self.repeats {
            self.layout.broadcast_to(op, &Shape::new(&[len])?)
        } else {
            self.layout.sliced(op, 0, start..start + len, 1)
        }
    }
}

/// Computes `out` from `inputs` by the kernel that `kernel` makes for a piece of each. False, and nothing done, if pieces
/// cannot be had or are not needed.
pub(super) fn run<const N: usize>(
    ctx: &OpContext<'_>,
    inputs: [View<'_>; N],
    out: &mut ViewMut<'_>,
    kernel: impl for<'a> Fn([View<'a>; N], ViewMut<'a>) -> Kernel<'a>,
) -> Result<bool> {
    let (elements, dtype) = (out.layout().shape().elements(), out.dtype());
    let piece = ctx.backend().piece().max(1);
    let rows: Option<Vec<Flat>> = inputs.iter().map(|input| Flat::new(input.layout())).collect();
    let (Some(rows), true) = (rows, elements > piece && dtype.is_half()) else { return Ok(false) };
    let row = Layout::contiguous(ctx.op(), Shape::new(&[elements])?, dtype)?;
    let run = |kernel: Kernel<'_>| check::run(ctx.device().as_ref(), ctx.op(), kernel);
    for start in (0..elements).step_by(piece) {
        let len = piece.min(elements - start);
        let shape = Shape::new(&[len])?;
        let layouts = rows.iter().map(|row| row.piece(ctx.op(), start, len));
        let layouts = layouts.collect::<Result<Vec<_>>>()?;
        let pieces =
            inputs.iter().zip(&layouts).map(|(input, layout)| Read::new(ctx, input.with_layout(layout)));
        let pieces = pieces.collect::<Result<Vec<_>>>()?;
        let mut wide = temporary(ctx, &shape)?;
        let mut rounded = ctx.buffer(&shape, dtype, Category::Workspace)?;
        // There is a piece for each input.
        run(kernel(std::array::from_fn(|input| pieces[input].view()), wide.view_mut()))?;
        run(Kernel::Copy { input: wide.view(), out: rounded.view_mut() })?;
        run(Kernel::CopyInto { input: rounded.view(), axis: 0, start, step: 1, out: out.with_layout(&row) })?;
    }
    Ok(true)
}
