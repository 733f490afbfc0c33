//! The operands of elementwise kernels: one or two views of any layout, visited together.
//!
//! Functions are applied only to slices, in one loop that the compiler vectorizes ([`simd`]). Contiguous elements are such
//! slices. Broadcast, strided and reversed elements are first copied, in blocks that fit into the L1 cache. So the strided
//! loops are compiled once per element type and not once per function.

mod source;

pub(crate) use self::source::Source;

use self::source::{PIECE, Reader, Row, STRIDED, TileRows};
use super::dispatch::host;
use super::loop_nest::{LoopNest, Segment};
use super::parallel::Workers;
use super::simd;
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::RawElement;
use crate::storage::View;

/// The smallest row that is processed on its own; shorter rows are copied and processed in blocks.
const LONG_ROW: usize = 64;

/// Receives slices of two operands and the number of their first element.
type Visit2<'v, A, B> = dyn FnMut(usize, &[A], &[B]) + 'v;

/// The elements of two views of one shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a, A, B> {
    a: &'a [A],
    b: &'a [B],
    nest: LoopNest<2>,
}

impl<'a, A: RawElement, B: RawElement> Pair<'a, A, B> {
    /// Creates a pair from two views, which must have the types `A` and `B`.
    pub(crate) fn new(op: &'static str, a: View<'a>, b: View<'a>) -> Result<Self> {
        Ok(Self::of((host(op, &a)?, a.layout()), (host(op, &b)?, b.layout())))
    }

    /// Creates a pair from host slices. Inlined, because a pair is several hundred bytes and expensive to move.
    #[inline(always)]
    pub(crate) fn of((a, of_a): (&'a [A], &Layout), (b, of_b): (&'a [B], &Layout)) -> Self {
        Self { a, b, nest: LoopNest::new([of_a, of_b]) }
    }

    /// The first operand.
    pub(crate) fn first(&self) -> Source<'a, A> {
        Source::along(self.a, self.nest.only(0))
    }

    /// The second operand.
    pub(crate) fn second(&self) -> Source<'a, B> {
        Source::along(self.b, self.nest.only(1))
    }

    /// Calls `f` with each element of `out` and the pair's elements, starting at number `start`.
    pub(crate) fn each<U>(&self, start: usize, out: &mut [U], f: impl Fn(&mut U, A, B) + Sync) {
        self.run(start, out, &Each(f));
    }

    /// [`each`](Self::each), compiled once for all functions.
    fn run<U>(&self, start: usize, out: &mut [U], loops: &dyn Loops<U, A, B>) {
        let len = out.len();
        if self.nest.inner() == [1, 0] && self.nest.inner_len() >= LONG_ROW {
            // Rows and one element for each, such as a column.
            let mut first = 0;
            for Segment { starts: [a, b], len } in self.nest.segments(start..start + len) {
                let (row, b) = (&self.a[a..a + len], self.b[b]);
                loops.rows(&mut out[first..first + len], row, b);
                first += len;
            }
            return;
        }
        self.pieces(start, len, &mut |first, a, b| loops.pairs(&mut out[first..first + a.len()], a, b));
    }

    /// Calls `visit` with slices of `len` elements in total, starting at number `start`. Its first argument is the number of
    /// the slices' first element, counted from `start`. Each element occurs once, in any order.
    fn pieces(&self, start: usize, len: usize, visit: &mut Visit2<'_, A, B>) {
        let range = start..start + len;
        let long_rows = self.nest.inner_len() >= LONG_ROW.min(len);
        match self.nest.inner() {
            [1, 1] if long_rows => {
                let mut first = 0;
                for Segment { starts: [a, b], len } in self.nest.segments(range) {
                    visit(first, &self.a[a..a + len], &self.b[b..b + len]);
                    first += len;
                }
            }
            [s @ (0 | 1), t @ (0 | 1)] if long_rows => {
                let (mut of_a, mut of_b) = (Row::new(), Row::new());
                let mut first = 0;
                for Segment { starts: [a, b], len } in self.nest.segments(range) {
                    for start in (0..len).step_by(PIECE) {
                        let len = PIECE.min(len - start);
                        let a = of_a.read(self.a, a + s * start, s, len);
                        visit(first, a, of_b.read(self.b, b + t * start, t, len));
                        first += len;
                    }
                }
            }
            [0 | 1, 0 | 1] => {
                let mut a = Reader::new(self.first());
                let mut b = Reader::new(self.second());
                for first in (0..len).step_by(PIECE) {
                    let piece = start + first..start + len.min(first + PIECE);
                    visit(first, a.read(piece.clone()), b.read(piece));
                }
            }
            [s, t] => {
                let (mut of_a, mut of_b) = (TileRows::new(), TileRows::new());
                self.nest.tiles(range, STRIDED, &mut |tile| {
                    of_a.load(self.a, &tile, 0, s);
                    of_b.load(self.b, &tile, 1, t);
                    for (row, (first, Segment { starts: [a, b], len })) in tile.rows().enumerate() {
                        let a = of_a.row(row, self.a, (a, s), len);
                        visit(first, a, of_b.row(row, self.b, (b, t), len));
                    }
                });
            }
        }
    }

    /// `out[i] = f(a[i], b[i])`.
    pub(crate) fn map<U: Send>(
        &self,
        workers: &Workers,
        chunk: usize,
        out: &mut [U],
        f: impl Fn(A, B) -> U + Sync,
    ) {
        self.run_chunks(workers, chunk, out, &Each(|out: &mut U, a, b| *out = f(a, b)));
    }

    /// [`map`](Self::map), compiled once for all functions.
    fn run_chunks<U: Send>(
        &self,
        workers: &Workers,
        chunk: usize,
        out: &mut [U],
        loops: &dyn Loops<U, A, B>,
    ) {
        workers.chunks(out, chunk, &|start, part| self.run(start, part, loops));
    }
}

/// The loops of one function of an element of the output and of two operands.
trait Loops<U, A, B>: Sync {
    fn pairs(&self, out: &mut [U], a: &[A], b: &[B]);

    /// One element of the second operand for all of the first.
    fn rows(&self, out: &mut [U], a: &[A], b: B);
}

/// The loops of a closure.
struct Each<F>(F);

impl<U, A: RawElement, B: RawElement, F: Fn(&mut U, A, B) + Sync> Loops<U, A, B> for Each<F> {
    fn pairs(&self, out: &mut [U], a: &[A], b: &[B]) {
        simd::zip2(out, a, b, &self.0);
    }

    fn rows(&self, out: &mut [U], a: &[A], b: B) {
        simd::zip(out, a, |out, a| (self.0)(out, a, b));
    }
}

#[cfg(test)]
mod tests;
