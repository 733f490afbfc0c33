//! The operands of a kernel: what one, two or three views hold, gone through together.
//!
//! A function of elements is applied to slices alone, in one loop that the compiler vectorises ([`simd`]). What lies side by
//! side in memory is such a slice; everything else (repeated, strided, backwards) is copied first, a block at a time that stays in
//! the nearest cache. So the ways through memory are compiled once for each element type, and not again for each function.

mod source;

use std::ops::Range;

pub(super) use self::source::Source;

use self::source::{PIECE, Reader, Row, STRIDED, gather};
use super::dispatch::host;
use super::parallel::Workers;
use super::simd;
use super::walk::{Segment, Walk};
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::RawElement;
use crate::storage::View;

/// Rows of at least so many elements are gone through one by one where no operand has to be copied; shorter ones in blocks.
const LONG_ROW: usize = 64;

/// What gets the elements of two operands, piece by piece, and the number of the first.
type Visit2<'v, A, B> = dyn FnMut(usize, &[A], &[B]) + 'v;

/// The same of three.
type Visit3<'v, A, B, C> = dyn FnMut(usize, &[A], &[B], &[C]) + 'v;

/// An element, or one of each operand, that is repeated side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Run<V> {
    pub(super) len: usize,
    pub(super) value: V,
}

/// Elements of two views of one shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a, A, B> {
    a: &'a [A],
    b: &'a [B],
    walk: Walk<2>,
}

impl<'a, A: RawElement, B: RawElement> Pair<'a, A, B> {
    /// The elements of the views, which must be of types `A` and `B`.
    pub(super) fn new(op: &'static str, a: View<'a>, b: View<'a>) -> Result<Self> {
        Ok(Self::of((host(op, &a)?, a.layout()), (host(op, &b)?, b.layout())))
    }

    /// The same of what is on the host. The pair is some hundred bytes, which take long to move: by this it is made where it stays.
    #[inline(always)]
    pub(super) fn of((a, of_a): (&'a [A], &Layout), (b, of_b): (&'a [B], &Layout)) -> Self {
        Self { a, b, walk: Walk::new([of_a, of_b]) }
    }

    /// Calls `f` with each element of `out` and those of the pair that belong to it, from number `start` on.
    pub(super) fn each<U>(&self, start: usize, out: &mut [U], f: impl Fn(&mut U, A, B) + Copy) {
        let len = out.len();
        self.pieces(start, len, &mut |first, a, b| simd::zip2(&mut out[first..first + a.len()], a, b, f));
    }

    /// The elements numbered `range`, if both operands repeat them side by side.
    pub(super) fn runs(&self, range: Range<usize>) -> Option<impl Iterator<Item = Run<(A, B)>>> {
        let run = |Segment { starts: [a, b], len }| Run { len, value: (self.a[a], self.b[b]) };
        (self.walk.inner() == [0, 0]).then(|| self.walk.segments(range).map(run))
    }

    /// Calls `visit` with the elements from number `start` on, each once, as slices of one length; its first argument is the
    /// number of their first element, counted from `start`.
    fn pieces(&self, start: usize, len: usize, visit: &mut Visit2<'_, A, B>) {
        let range = start..start + len;
        let long_rows = self.walk.inner_len() >= LONG_ROW.min(len);
        match self.walk.inner() {
            [1, 1] if long_rows => {
                let mut first = 0;
                for Segment { starts: [a, b], len } in self.walk.segments(range) {
                    visit(first, &self.a[a..a + len], &self.b[b..b + len]);
                    first += len;
                }
            }
            [s @ (0 | 1), t @ (0 | 1)] if long_rows => {
                let (mut of_a, mut of_b) = (Row::new(), Row::new());
                let mut first = 0;
                for Segment { starts: [a, b], len } in self.walk.segments(range) {
                    for start in (0..len).step_by(PIECE) {
                        let len = PIECE.min(len - start);
                        let a = of_a.read(self.a, a + s * start, s, len);
                        visit(first, a, of_b.read(self.b, b + t * start, t, len));
                        first += len;
                    }
                }
            }
            [0 | 1, 0 | 1] => {
                let mut a = Reader::new(Source::along(self.a, self.walk.only(0)));
                let mut b = Reader::new(Source::along(self.b, self.walk.only(1)));
                for first in (0..len).step_by(PIECE) {
                    let piece = start + first..start + len.min(first + PIECE);
                    visit(first, a.read(piece.clone()), b.read(piece));
                }
            }
            [s, t] => {
                let (mut of_a, mut of_b) = ([A::default(); STRIDED], [B::default(); STRIDED]);
                self.walk.tiles(range, STRIDED, &mut |tile| {
                    for (first, Segment { starts: [a, b], len }) in tile.rows() {
                        let (a, b) =
                            (gather(&mut of_a, self.a, a, s, len), gather(&mut of_b, self.b, b, t, len));
                        visit(first, a, b);
                    }
                });
            }
        }
    }

    /// out = f(a, b) for all elements.
    pub(super) fn map<U: Send>(
        &self,
        workers: &Workers,
        chunk: usize,
        out: &mut [U],
        f: impl Fn(A, B) -> U + Sync,
    ) {
        let f = &f;
        let store = |out: &mut U, a, b| *out = f(a, b);
        workers.chunks(out, chunk, &|start, part| self.each(start, part, store));
    }
}

/// Elements of three views of one shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Triple<'a, A, B, C> {
    a: &'a [A],
    b: &'a [B],
    c: &'a [C],
    walk: Walk<3>,
}

impl<'a, A: RawElement, B: RawElement, C: RawElement> Triple<'a, A, B, C> {
    /// The elements of the views, which must be of types `A`, `B` and `C`.
    pub(super) fn new(op: &'static str, a: View<'a>, b: View<'a>, c: View<'a>) -> Result<Self> {
        let walk = Walk::new([a.layout(), b.layout(), c.layout()]);
        Ok(Self { a: host(op, &a)?, b: host(op, &b)?, c: host(op, &c)?, walk })
    }

    /// out = f(a, b, c) for all elements.
    pub(super) fn map<U: Send>(
        &self,
        workers: &Workers,
        chunk: usize,
        out: &mut [U],
        f: impl Fn(A, B, C) -> U + Sync,
    ) {
        let f = &f;
        workers.chunks(out, chunk, &|start, part| {
            let len = part.len();
            self.pieces(start, len, &mut |first, a, b, c| {
                simd::zip3(&mut part[first..first + a.len()], a, b, c, |out, a, b, c| *out = f(a, b, c));
            });
        });
    }

    /// As [`Pair::pieces`].
    fn pieces(&self, start: usize, len: usize, visit: &mut Visit3<'_, A, B, C>) {
        let range = start..start + len;
        let long_rows = self.walk.inner_len() >= LONG_ROW.min(len);
        match self.walk.inner() {
            [1, 1, 1] if long_rows => {
                let mut first = 0;
                for Segment { starts: [a, b, c], len } in self.walk.segments(range) {
                    visit(first, &self.a[a..a + len], &self.b[b..b + len], &self.c[c..c + len]);
                    first += len;
                }
            }
            [s @ (0 | 1), t @ (0 | 1), u @ (0 | 1)] if long_rows => {
                let (mut of_a, mut of_b, mut of_c) = (Row::new(), Row::new(), Row::new());
                let mut first = 0;
                for Segment { starts: [a, b, c], len } in self.walk.segments(range) {
                    for start in (0..len).step_by(PIECE) {
                        let len = PIECE.min(len - start);
                        let a = of_a.read(self.a, a + s * start, s, len);
                        let b = of_b.read(self.b, b + t * start, t, len);
                        visit(first, a, b, of_c.read(self.c, c + u * start, u, len));
                        first += len;
                    }
                }
            }
            [0 | 1, 0 | 1, 0 | 1] => {
                let mut a = Reader::new(Source::along(self.a, self.walk.only(0)));
                let mut b = Reader::new(Source::along(self.b, self.walk.only(1)));
                let mut c = Reader::new(Source::along(self.c, self.walk.only(2)));
                for first in (0..len).step_by(PIECE) {
                    let piece = start + first..start + len.min(first + PIECE);
                    visit(first, a.read(piece.clone()), b.read(piece.clone()), c.read(piece));
                }
            }
            [s, t, u] => {
                let (mut of_a, mut of_b) = ([A::default(); STRIDED], [B::default(); STRIDED]);
                let mut of_c = [C::default(); STRIDED];
                self.walk.tiles(range, STRIDED, &mut |tile| {
                    for (first, Segment { starts: [a, b, c], len }) in tile.rows() {
                        let (a, b) =
                            (gather(&mut of_a, self.a, a, s, len), gather(&mut of_b, self.b, b, t, len));
                        visit(first, a, b, gather(&mut of_c, self.c, c, u, len));
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
