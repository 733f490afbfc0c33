//! The product of the states of a group with the weight, which is packed once for all steps.

use std::ops::Range;

use crate::cpu::gemm::{COLUMNS, Depth, Operand, PackInto, ROWS, Strided, Tile};
use crate::cpu::parallel::Workers;

/// Packs a weight of this depth into panels of columns. Returns the panels.
pub(super) fn pack_weight<'a, P: Depth, T: PackInto<P>>(
    workers: &Workers,
    weight: &Strided<'_, T>,
    depth: usize,
    packed: &'a mut [P],
) -> &'a [[P; COLUMNS]] {
    let rows = P::rows(depth);
    let panels = &mut packed.as_chunks_mut::<COLUMNS>().0[..weight.lanes.div_ceil(COLUMNS) * rows];
    if rows > 0 {
        workers.chunks(panels, rows, &|start, panel| {
            weight.pack(start / rows * COLUMNS, 0..depth, COLUMNS, panel.as_flattened_mut());
        });
    }
    panels
}

/// The packed rows of a group, in panels of [`ROWS`].
pub(super) struct Panels<'a, P> {
    panels: &'a mut [[P; ROWS]],
    rows: usize,
    /// Panel rows in a panel.
    depth: usize,
}

impl<'a, P: Depth> Panels<'a, P> {
    /// Panels of uninitialized rows with `depth` elements.
    pub(super) fn new(memory: &'a mut [P], rows: usize, depth: usize) -> Self {
        let depth = P::rows(depth);
        let panels = &mut memory.as_chunks_mut::<ROWS>().0[..rows.div_ceil(ROWS) * depth];
        Self { panels, rows, depth }
    }

    /// Packs a range of the elements of each row. The start is even.
    pub(super) fn pack(&mut self, from: &dyn Operand<P>, range: Range<usize>) {
        let inside = range.start / P::PER_ROW..P::rows(range.end);
        for (number, panel) in self.panels.chunks_mut(self.depth).enumerate() {
            let panel = panel[inside.clone()].as_flattened_mut();
            from.pack(number * ROWS, 0..range.len(), ROWS, panel);
        }
    }
}

/// Overwrites a product with one row for each packed row, whose columns are padded to whole panels.
pub(super) fn multiply<P: Depth>(lhs: &Panels<'_, P>, rhs: &[[P; COLUMNS]], out: &mut [P::Sum]) {
    let width = out.len() / lhs.rows;
    let mut tile = Tile::ZERO;
    for (number, rhs) in rhs.chunks(lhs.depth).enumerate() {
        for (lhs, out) in lhs.panels.chunks(lhs.depth).zip(out.chunks_mut(ROWS * width)) {
            P::multiply(lhs, rhs, out.len() / width, &mut tile);
            for (out, sums) in out.chunks_mut(width).zip(&tile.0) {
                out[number * COLUMNS..][..COLUMNS].copy_from_slice(sums);
            }
        }
    }
}
