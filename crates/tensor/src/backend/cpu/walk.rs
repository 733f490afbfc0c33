//! How kernels go through strided operands: a loop nest over one shape that visits several operands at once.
//!
//! Neighbouring axes are fused wherever every operand allows it. Of operands without gaps one loop is left; a row added
//! to a matrix leaves two, the inner of which runs along slices; a transposed operand leaves its strides. So one walker
//! finds the fast path of every case, and all cases visit the elements in the same order.
//!
//! Strides may be negative, as two's complement: sums of places wrap, and every place visited lies in its operand.

use std::array;
use std::ops::Range;

use crate::layout::Layout;
use crate::shape::MAX_RANK;

/// A loop nest over `N` operands of one shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk<const N: usize> {
    /// Sizes of the fused axes, outermost first. At least one axis.
    dims: [usize; MAX_RANK],
    /// The operands' strides along each fused axis.
    strides: [[usize; N]; MAX_RANK],
    rank: usize,
    /// Where each operand's first element lies.
    offsets: [usize; N],
}

/// A piece of the innermost loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment<const N: usize> {
    /// Where the piece starts in each operand.
    pub(super) starts: [usize; N],
    /// How many elements it has.
    pub(super) len: usize,
}

impl<const N: usize> Walk<N> {
    /// The nest over layouts of one shape.
    #[inline]
    pub(super) fn new(layouts: [&Layout; N]) -> Self {
        // By far the most common.
        if layouts.iter().all(|layout| layout.is_contiguous()) {
            let elements = layouts.first().map_or(1, |layout| layout.shape().elements());
            let mut walk = Self::point(layouts.map(Layout::offset));
            walk.dims[0] = elements;
            return walk;
        }
        Self::of_strided(layouts)
    }

    fn of_strided(layouts: [&Layout; N]) -> Self {
        let dims = layouts.first().map_or(&[][..], |layout| layout.shape().dims());
        let axes =
            dims.iter().enumerate().map(|(axis, &size)| (size, layouts.map(|layout| layout.strides()[axis])));
        Self::nest(axes, layouts.map(Layout::offset))
    }

    /// The nest over axes given as size and strides, outermost first; at most [`MAX_RANK`] of them.
    pub(super) fn nest(axes: impl Iterator<Item = (usize, [usize; N])> + Clone, offsets: [usize; N]) -> Self {
        let mut walk = Self::point(offsets);
        // The other sizes and the strides of an empty shape may be anything, so they are not even looked at.
        if axes.clone().any(|(size, _)| size == 0) {
            walk.dims[0] = 0;
            return walk;
        }
        axes.for_each(|(size, strides)| walk.push(size, strides));
        walk
    }

    /// The nest without axes: one element.
    pub(super) const fn point(offsets: [usize; N]) -> Self {
        Self { dims: [1; MAX_RANK], strides: [[1; N]; MAX_RANK], rank: 1, offsets }
    }

    /// One more axis, within all others, of at least one element.
    pub(super) fn push(&mut self, size: usize, strides: [usize; N]) {
        if size == 1 {
            return;
        }
        let last = self.rank - 1;
        let fuses = |outer: &[usize; N]| outer.iter().zip(&strides).all(|(&o, &i)| o == i.wrapping_mul(size));
        let at = match self.dims[last] {
            // The place of the first axis.
            1 => last,
            _ if fuses(&self.strides[last]) => last,
            _ => {
                self.rank += 1;
                last + 1
            }
        };
        self.dims[at] *= size;
        self.strides[at] = strides;
    }

    /// The number of elements.
    pub(super) fn len(&self) -> usize {
        self.dims[..self.rank].iter().product()
    }

    /// The strides of the innermost loop.
    pub(super) const fn inner(&self) -> [usize; N] {
        self.strides[self.rank - 1]
    }

    /// Whether the nest is one loop, along which an element's place is its number times the stride.
    pub(super) const fn is_line(&self) -> bool {
        self.rank == 1
    }

    /// The size of the innermost loop.
    pub(super) const fn inner_len(&self) -> usize {
        self.dims[self.rank - 1]
    }

    /// The nest over one operand alone, whose axes may fuse where those of all do not.
    pub(super) fn only(&self, operand: usize) -> Walk<1> {
        let axes = self.dims.iter().zip(&self.strides).take(self.rank);
        Walk::nest(axes.map(|(&size, strides)| (size, [strides[operand]])), [self.offsets[operand]])
    }

    /// Where each operand's element number `index` lies.
    pub(super) fn at(&self, index: usize) -> [usize; N] {
        self.segments(index..index.saturating_add(1)).next().map_or(self.offsets, |segment| segment.starts)
    }

    /// The elements numbered `range`, in order, as pieces of the innermost loop.
    pub(super) fn segments(&self, range: Range<usize>) -> Segments<'_, N> {
        let mut segments =
            Segments { walk: self, index: [0; MAX_RANK], base: self.offsets, column: 0, left: range.len() };
        if range.start == 0 || range.is_empty() {
            return segments;
        }
        let inner = self.rank - 1;
        let mut rest = range.start / self.dims[inner];
        segments.column = range.start % self.dims[inner];
        for axis in (0..inner).rev() {
            segments.index[axis] = rest % self.dims[axis];
            rest /= self.dims[axis];
            segments.step(axis, segments.index[axis]);
        }
        segments
    }
}

impl<const N: usize> Walk<N> {
    /// Where each operand's elements begin, if there are any and those of each lie side by side.
    #[inline]
    pub(super) fn gapless(&self) -> Option<[usize; N]> {
        (self.is_line() && self.inner() == [1; N] && self.dims[0] != 0).then_some(self.offsets)
    }
}

impl Walk<1> {
    /// Where the elements begin that lie side by side and are visited several times each, and how many times.
    pub(super) fn repeats(&self) -> Option<(usize, usize)> {
        let [offset] = self.offsets;
        (self.rank == 2 && self.strides[..2] == [[1], [0]]).then_some((offset, self.dims[1]))
    }
}

/// Where one is after `count` steps.
fn along<const N: usize>(places: [usize; N], count: usize, strides: [usize; N]) -> [usize; N] {
    array::from_fn(|operand| places[operand].wrapping_add(count.wrapping_mul(strides[operand])))
}

/// Rows of the tiles in [`Walk::tiles`]: as many elements as share a cache line, or a few lines' worth of small ones.
pub(super) const TILE: usize = 16;

impl<const N: usize> Walk<N> {
    /// The elements numbered `range`, each once, as pieces of at most `width` elements of the innermost loop, in tiles rather
    /// than in order. `visit` gets each piece and the number of its first element, counted from the start of the range.
    ///
    /// For operands whose innermost stride is large, as of a transposed matrix: neighbours in memory are then visited
    /// by neighbouring turns of the loop, and in a tile they are visited while their cache line is still there.
    pub(super) fn tiles(&self, range: Range<usize>, width: usize, visit: &mut dyn FnMut(Tile<'_, N>)) {
        let strides = self.inner();
        let mut segments = self.segments(range).peekable();
        let mut turns = [[0; N]; TILE];
        let mut first = 0;
        while let Some(Segment { starts, len }) = segments.next() {
            turns[0] = starts;
            let mut count = 1;
            while count < TILE
                && let Some(next) = segments.next_if(|next| next.len == len)
            {
                turns[count] = next.starts;
                count += 1;
            }
            let turns = &turns[..count];
            for column in (0..len).step_by(width) {
                let (width, first) = (width.min(len - column), first + column);
                visit(Tile { first, width, column, turns, len, strides });
            }
            first += count * len;
        }
    }
}

/// Some neighbouring elements of some turns of the innermost loop.
pub(super) struct Tile<'t, const N: usize> {
    /// The number of its first element, counted from the first that was asked for.
    pub(super) first: usize,
    /// Elements of each turn.
    pub(super) width: usize,
    /// By how many the first elements of two turns differ in number.
    pub(super) len: usize,
    column: usize,
    /// Where the turns start.
    turns: &'t [[usize; N]],
    strides: [usize; N],
}

impl<const N: usize> Tile<'_, N> {
    /// Its rows, with the number of the first element of each.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, Segment<N>)> {
        self.turns.iter().enumerate().map(|(turn, &starts)| {
            let starts = along(starts, self.column, self.strides);
            (self.first + turn * self.len, Segment { starts, len: self.width })
        })
    }
}

impl Tile<'_, 1> {
    /// If there are several rows, each one element behind the one before: where the first begins, and how many there are. So the
    /// elements of a column lie side by side.
    pub(super) fn columns(&self) -> Option<(usize, usize)> {
        let [first] = *self.turns.first()?;
        let neighbours = self.turns.iter().zip(first..).all(|(&[start], place)| start == place);
        let [start] = along([first], self.column, self.strides);
        (self.turns.len() > 1 && neighbours).then_some((start, self.turns.len()))
    }
}

/// See [`Walk::segments`].
#[derive(Clone, Debug)]
pub(super) struct Segments<'a, const N: usize> {
    walk: &'a Walk<N>,
    /// The place in the outer loops.
    index: [usize; MAX_RANK],
    /// Where the innermost loop starts in each operand.
    base: [usize; N],
    /// The place in the innermost loop.
    column: usize,
    /// Elements not visited yet.
    left: usize,
}

impl<const N: usize> Segments<'_, N> {
    /// Goes `count` steps, forwards or backwards, along an outer axis.
    fn step(&mut self, axis: usize, count: usize) {
        self.base = along(self.base, count, self.walk.strides[axis]);
    }

    /// Goes to the next turn of the innermost loop.
    fn turn(&mut self) {
        self.column = 0;
        for axis in (0..self.walk.rank - 1).rev() {
            self.index[axis] += 1;
            self.step(axis, 1);
            if self.index[axis] < self.walk.dims[axis] {
                return;
            }
            self.step(axis, self.walk.dims[axis].wrapping_neg());
            self.index[axis] = 0;
        }
    }
}

impl<const N: usize> Iterator for Segments<'_, N> {
    type Item = Segment<N>;

    fn next(&mut self) -> Option<Segment<N>> {
        if self.left == 0 {
            return None;
        }
        let inner = self.walk.rank - 1;
        let len = self.left.min(self.walk.dims[inner] - self.column);
        let starts = along(self.base, self.column, self.walk.strides[inner]);
        self.left -= len;
        if self.left > 0 {
            self.turn();
        }
        Some(Segment { starts, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{DType, Shape};

    fn contiguous(dims: &[usize]) -> Layout {
        Layout::contiguous("test", Shape::new(dims).unwrap(), DType::F32).unwrap()
    }

    fn places(walk: &Walk<1>, range: Range<usize>) -> Vec<usize> {
        let [stride] = walk.inner();
        walk.segments(range)
            .flat_map(|Segment { starts: [start], len }| (0..len).map(move |i| start + i * stride))
            .collect()
    }

    #[test]
    fn operands_without_gaps_leave_one_loop() {
        let layout = contiguous(&[2, 3, 4]);
        let walk = Walk::new([&layout, &layout]);
        assert!(walk.is_line());
        assert_eq!(walk.segments(5..24).collect::<Vec<_>>(), [Segment { starts: [5, 5], len: 19 }]);
    }

    #[test]
    fn a_row_on_a_matrix_leaves_one_turn_per_row() {
        let matrix = contiguous(&[2, 3]);
        let row = contiguous(&[3]).broadcast_to("add", matrix.shape()).unwrap();
        let walk = Walk::new([&matrix, &row]);
        assert_eq!(walk.inner(), [1, 1]);
        assert_eq!(
            walk.segments(1..6).collect::<Vec<_>>(),
            [Segment { starts: [1, 1], len: 2 }, Segment { starts: [3, 0], len: 3 }]
        );
    }

    #[test]
    fn a_broadcast_scalar_needs_one_loop() {
        let matrix = contiguous(&[2, 3]);
        let number = contiguous(&[]).broadcast_to("add", matrix.shape()).unwrap();
        let walk = Walk::new([&matrix, &number]);
        assert!(walk.is_line());
        assert_eq!(walk.inner(), [1, 0]);
    }

    #[test]
    fn elements_visited_several_times_each_are_known() {
        let column = contiguous(&[2, 3, 1]);
        let shape = |dims: &[usize]| Shape::new(dims).unwrap();
        let repeats =
            |dims: &[usize]| Walk::new([&column.broadcast_to("b", &shape(dims)).unwrap()]).repeats();
        assert_eq!(repeats(&[2, 3, 4]), Some((0, 4)));
        assert_eq!(repeats(&[2, 3, 1]), None);
        assert_eq!(repeats(&[5, 2, 3, 4]), None);
    }

    #[test]
    fn negative_strides_lead_back_and_fuse() {
        let back = 0usize.wrapping_sub(1);
        let rows = Walk::nest([(2, [4]), (4, [back])].into_iter(), [3]);
        let expected = [3, 2, 1, 0, 7, 6, 5, 4];
        for start in 0..=8 {
            let visited = rows
                .segments(start..8)
                .flat_map(|Segment { starts: [start], len }| (0..len).map(move |i| start - i));
            assert!(visited.eq(expected[start..].iter().copied()));
        }
        let whole = Walk::nest([(2, [4usize.wrapping_neg()]), (4, [back])].into_iter(), [7]);
        assert!(whole.is_line());
        assert_eq!(whole.at(5), [2]);
    }

    #[test]
    fn every_part_of_a_walk_visits_the_places_of_the_layout() {
        let base = contiguous(&[3, 4, 5]);
        let layouts = [
            base,
            base.permuted("t", &[2, 0, 1]).unwrap(),
            base.sliced("s", 1, 1..4, 2).unwrap().permuted("t", &[1, 2, 0]).unwrap(),
            contiguous(&[4, 1]).broadcast_to("b", &Shape::new(&[2, 4, 3]).unwrap()).unwrap(),
            contiguous(&[]),
            contiguous(&[3, 0, 2]),
        ];
        for layout in layouts {
            let walk = Walk::new([&layout]);
            let expected: Vec<usize> = layout.positions().collect();
            assert_eq!(walk.len(), expected.len());
            for start in 0..=expected.len() {
                for end in start..=expected.len() {
                    assert_eq!(places(&walk, start..end), expected[start..end], "{layout:?} {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn tiles_visit_every_place_once_and_know_its_number() {
        let base = contiguous(&[37, 3, 41]);
        for layout in [base, base.permuted("t", &[2, 0, 1]).unwrap(), base.permuted("t", &[2, 1, 0]).unwrap()]
        {
            let walk = Walk::new([&layout]);
            let [stride] = walk.inner();
            let expected: Vec<usize> = layout.positions().collect();
            for range in [0..expected.len(), 0..0, 5..6, 100..3000] {
                let mut seen = vec![None; range.len()];
                walk.tiles(range.clone(), 16, &mut |tile| {
                    for (first, Segment { starts: [start], len }) in tile.rows() {
                        for i in 0..len {
                            assert_eq!(seen[first + i].replace(start + i * stride), None);
                        }
                    }
                    if let Some((start, rows)) = tile.columns() {
                        assert!(rows <= TILE && tile.width <= 16);
                        for (row, (_, segment)) in tile.rows().enumerate() {
                            assert_eq!(segment.starts, [start + row]);
                        }
                    }
                });
                assert!(seen.iter().copied().eq(expected[range].iter().copied().map(Some)));
            }
        }
    }

    #[test]
    fn an_empty_shape_of_huge_axes_does_not_overflow() {
        let layout = contiguous(&[usize::MAX, usize::MAX, 0]);
        assert_eq!(Walk::new([&layout]).len(), 0);
    }
}
