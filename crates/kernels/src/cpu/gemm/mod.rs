//! Matrix products on packed panels (Goto and van de Geijn 2008), with micro-kernels for several instruction sets.
//!
//! ```text
//! for each DEPTH of the depth, for each WIDE columns:
//!     pack these columns of rhs                         panels of COLUMNS lanes
//!     for each HIGH rows:
//!         pack these rows of lhs                        panels of ROWS lanes; they stay in the L2 cache
//!         for each panel of rhs, for each panel of lhs: the rhs panel stays in the L1 cache
//!             multiply both panels to a tile, and hand the tile to the destination
//! ```
//!
//! An [`Operand`] packs itself: a strided matrix of any float type, or the patches of an image. Patches of few filters are
//! [read where they are stored](Stored). A [`Destination`] stores
//! tiles in any layout. The caller provides the memory of the panels ([`scratch_elements`]). Its size depends only on the
//! shape. Depth is never split between threads, so results do not depend on how the output is split into blocks.

mod blocks;
mod kernel;
mod pack;

use std::ops::Range;

use self::blocks::pieces;

pub(crate) use blocks::Block;
pub(crate) use kernel::{COLUMNS, HALF, Packed, Pair, ROWS, Stored, Tile};
pub(crate) use pack::{Depth, GROUP, Operand, PackInto, RUN, Strided, f16_to_f32, interleave, to_bf16};

use super::number::Float;

/// The rows of packed panels. A panel of the right operand then takes 32 KiB of `f32`.
pub(crate) const DEPTH: usize = 256;

/// The most rows of the left operand that are packed at once: 192 KiB of `f32`.
pub(crate) const HIGH: usize = 16 * ROWS;

/// The most columns of the right operand that are packed at once: 512 KiB of `f32`.
pub(crate) const WIDE: usize = 16 * COLUMNS;

/// The fewest rows of a panel for which a tile is loaded into the cache in advance. Shallower products take less time than this.
const PREFETCH_ROWS: usize = 64;

/// Whether a product overwrites its output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// `out = lhs · rhs`.
    Overwrite,
    /// `out += lhs · rhs`.
    Accumulate,
}

/// Where a product puts its tiles.
pub(crate) trait Destination<T> {
    /// Stores or adds the upper left part of a tile. The ranges are the rows and columns of the product.
    fn put(&mut self, rows: Range<usize>, columns: Range<usize>, tile: &Tile<T>, output: Output);

    /// Loads the elements of a tile into the cache, while the micro-kernel computes it.
    fn prefetch(&mut self, _rows: Range<usize>, _columns: Range<usize>) {}

    /// Follows the last tile of these rows and columns.
    fn finish(&mut self, _rows: Range<usize>, _columns: Range<usize>) {}
}

impl<T: Float> Destination<T> for Block<'_, T> {
    #[inline]
    fn put(&mut self, rows: Range<usize>, columns: Range<usize>, tile: &Tile<T>, output: Output) {
        for (row, sums) in rows.zip(&tile.0) {
            let out = self.row(row, columns.clone());
            match (<&mut [T; COLUMNS]>::try_from(&mut *out), output) {
                (Ok(out), Output::Overwrite) => *out = *sums,
                (Ok(out), Output::Accumulate) => out.iter_mut().zip(sums).for_each(|(out, &sum)| *out += sum),
                (Err(_), Output::Overwrite) => out.copy_from_slice(&sums[..out.len()]),
                (Err(_), Output::Accumulate) => out.iter_mut().zip(sums).for_each(|(out, &sum)| *out += sum),
            }
        }
    }

    fn prefetch(&mut self, rows: Range<usize>, columns: Range<usize>) {
        Block::prefetch(self, rows, columns);
    }
}

/// The elements of the panels that a product of these sizes packs at a time.
pub(crate) fn scratch_elements([rows, columns, depth]: [usize; 3]) -> usize {
    let [lhs, rhs] = panels::<f32>([rows, columns, depth]);
    lhs + rhs
}

/// Whether a product of this depth stores each tile once, and never adds to it.
pub(crate) const fn is_summed_at_once<P: Depth>(depth: usize) -> bool {
    depth <= DEPTH * P::PER_ROW
}

/// The elements of the packed parts of both operands.
fn panels<P: Depth>([rows, columns, depth]: [usize; 3]) -> [usize; 2] {
    let deep = DEPTH.min(P::rows(depth));
    [deep * HIGH.min(rows.next_multiple_of(ROWS)), deep * WIDE.min(columns.next_multiple_of(COLUMNS))]
}

/// Computes the rows and columns of a product, over the whole depth. `scratch` has at least [`scratch_elements`]. Compiled
/// once for each type of panels: a call of a pointer packs a whole panel or stores a whole tile.
pub(crate) fn product<P: Depth>(
    lhs: &dyn Operand<P>,
    rhs: &dyn Operand<P>,
    [rows, columns]: [Range<usize>; 2],
    depth: usize,
    scratch: &mut [P],
    out: &mut dyn Destination<P::Sum>,
    output: Output,
) {
    #[cfg(any(test, feature = "testing"))]
    // Not there in destructors of other values of an ending thread.
    let _ = GEMM_CALL.try_with(|call| {
        if call.borrow().is_some() {
            call.replace(Some(std::backtrace::Backtrace::force_capture()));
        }
    });
    let [left, right] = panels::<P>([rows.len(), columns.len(), depth]);
    let (left, right) = scratch[..left + right].split_at_mut(left);
    let mut tile = Tile::ZERO;
    for start in (0..depth).step_by(DEPTH * P::PER_ROW) {
        let deep = start..depth.min(start + DEPTH * P::PER_ROW);
        let output = if start == 0 { output } else { Output::Accumulate };
        let panel_rows = P::rows(deep.len());
        for wide in pieces(&columns, WIDE) {
            // Panels that are not read where they are stored.
            let mut stored = [None; WIDE / COLUMNS];
            for (lanes, stored) in pieces(&wide, COLUMNS).zip(&mut stored) {
                *stored = rhs.stored(lanes.start, deep.clone());
            }
            let right = pack::<P, COLUMNS>(rhs, &wide, &deep, right, &stored);
            for high in pieces(&rows, HIGH) {
                let left = pack::<P, ROWS>(lhs, &high, &deep, left, &[]);
                let panels = right.chunks(panel_rows).zip(&stored);
                for (wide, (right, stored)) in pieces(&wide, COLUMNS).zip(panels) {
                    for (high, left) in pieces(&high, ROWS).zip(left.chunks(panel_rows)) {
                        if panel_rows >= PREFETCH_ROWS {
                            out.prefetch(high.clone(), wide.clone());
                        }
                        match *stored {
                            Some(right) => P::multiply(left, right, high.len(), &mut tile),
                            None => P::multiply(left, right, high.len(), &mut tile),
                        }
                        out.put(high.clone(), wide.clone(), &tile, output);
                        if deep.end == depth {
                            out.finish(high, wide.clone());
                        }
                    }
                }
            }
        }
    }
}

/// Packs lanes into panels, one after another, except for panels that are stored.
fn pack<'a, P: Depth, const W: usize>(
    operand: &dyn Operand<P>,
    lanes: &Range<usize>,
    depth: &Range<usize>,
    scratch: &'a mut [P],
    stored: &[Option<Stored<'_, P>>],
) -> &'a [[P; W]] {
    let rows = P::rows(depth.len());
    let (panels, _) = scratch.as_chunks_mut::<W>();
    let panels = &mut panels[..lanes.len().div_ceil(W) * rows];
    for (number, (lanes, panel)) in pieces(lanes, W).zip(panels.chunks_mut(rows)).enumerate() {
        if stored.get(number).is_none_or(Option::is_none) {
            operand.pack(lanes.start, depth.clone(), W, panel.as_flattened_mut());
        }
    }
    panels
}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    /// The stack of the latest call to [`product`] on this thread, once a test has set it.
    #[doc(hidden)]
    pub static GEMM_CALL: std::cell::RefCell<Option<std::backtrace::Backtrace>> =
        const { std::cell::RefCell::new(None) };
}

#[cfg(test)]
mod tests;
