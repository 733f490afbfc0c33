//! How kernels go through strided operands: a loop nest over one shape that visits several operands at once.
//!
//! Neighboring axes are fused wherever every operand allows it. Of operands without gaps one loop is left; a row added
//! to a matrix leaves two, the inner of which runs along slices; a transposed operand leaves its strides. So one walker
//! finds the fast path of every case, and all cases visit the elements in the same order.
//!
//! Strides may be negative, in two's complement. Offsets wrap, and every visited offset is within its operand.

use std::array;
use std::ops::Range;

use crate::layout::Layout;
use crate::shape::MAX_RANK;

/// A loop nest over `N` operands of one shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopNest<const N: usize> {
    /// The sizes of the fused axes, outermost first. There is at least one axis.
    dims: [usize; MAX_RANK],
    /// The operands' strides along each fused axis.
    strides: [[usize; N]; MAX_RANK],
    rank: usize,
    /// The offset of each operand's first element.
    offsets: [usize; N],
}

/// A part of the innermost loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<const N: usize> {
    /// The offset of its first element in each operand.
    pub(crate) starts: [usize; N],
    /// The number of elements.
    pub(crate) len: usize,
}

impl<const N: usize> LoopNest<N> {
    /// Creates the nest over layouts of one shape.
    #[inline]
    pub(crate) fn new(layouts: [&Layout; N]) -> Self {
        // The most common case.
        if layouts.iter().all(|layout| layout.is_contiguous()) {
            let elements = layouts.first().map_or(1, |layout| layout.shape().elements());
            let mut nest = Self::scalar(layouts.map(Layout::offset));
            nest.dims[0] = elements;
            return nest;
        }
        Self::of_strided(layouts)
    }

    fn of_strided(layouts: [&Layout; N]) -> Self {
        let dims = layouts.first().map_or(&[][..], |layout| layout.shape().dims());
        let axes =
            dims.iter().enumerate().map(|(axis, &size)| (size, layouts.map(|layout| layout.strides()[axis])));
        Self::from_axes(axes, layouts.map(Layout::offset))
    }

    /// Creates the nest over at most [`MAX_RANK`] axes, each given as size and strides, outermost first.
    pub(crate) fn from_axes(
        axes: impl Iterator<Item = (usize, [usize; N])> + Clone,
        offsets: [usize; N],
    ) -> Self {
        let mut nest = Self::scalar(offsets);
        // The other sizes and the strides of an empty shape are arbitrary.
        if axes.clone().any(|(size, _)| size == 0) {
            nest.dims[0] = 0;
            return nest;
        }
        axes.for_each(|(size, strides)| nest.push_axis(size, strides));
        nest
    }

    /// Creates a nest without axes, which visits one element.
    pub(crate) const fn scalar(offsets: [usize; N]) -> Self {
        Self { dims: [1; MAX_RANK], strides: [[1; N]; MAX_RANK], rank: 1, offsets }
    }

    /// Adds an innermost axis of at least one element; fuses it with the axis around it if the strides allow it.
    pub(crate) fn push_axis(&mut self, size: usize, strides: [usize; N]) {
        if size == 1 {
            return;
        }
        let last = self.rank - 1;
        let fuses = |outer: &[usize; N]| outer.iter().zip(&strides).all(|(&o, &i)| o == i.wrapping_mul(size));
        let at = match self.dims[last] {
            // The first axis.
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
    pub(crate) fn len(&self) -> usize {
        self.dims[..self.rank].iter().product()
    }

    /// The strides of the innermost loop.
    pub(crate) const fn inner(&self) -> [usize; N] {
        self.strides[self.rank - 1]
    }

    /// Whether the nest is a single loop.
    pub(crate) const fn is_line(&self) -> bool {
        self.rank == 1
    }

    /// The size of the innermost loop.
    pub(crate) const fn inner_len(&self) -> usize {
        self.dims[self.rank - 1]
    }

    /// The nest over one operand. Its axes may fuse even if those of all operands do not.
    pub(crate) fn only(&self, operand: usize) -> LoopNest<1> {
        let axes = self.dims.iter().zip(&self.strides).take(self.rank);
        LoopNest::from_axes(axes.map(|(&size, strides)| (size, [strides[operand]])), [self.offsets[operand]])
    }

    /// The offset of element number `index` in each operand.
    pub(crate) fn at(&self, index: usize) -> [usize; N] {
        self.segments(index..index.saturating_add(1)).next().map_or(self.offsets, |segment| segment.starts)
    }

    /// The offset of element number `index` in each operand, if the nest is a single loop.
    #[inline]
    pub(crate) fn at_line(&self, index: usize) -> Option<[usize; N]> {
        self.is_line().then(|| advance(self.offsets, index, self.strides[0]))
    }

    /// The elements with numbers in `range`, in order, as segments of the innermost loop.
    pub(crate) fn segments(&self, range: Range<usize>) -> Segments<'_, N> {
        let mut segments =
            Segments { nest: self, index: [0; MAX_RANK], base: self.offsets, column: 0, left: range.len() };
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

impl<const N: usize> LoopNest<N> {
    /// The offset of each operand, if the nest is not empty and all operands are contiguous.
    #[inline]
    pub(crate) fn contiguous_offsets(&self) -> Option<[usize; N]> {
        (self.is_line() && self.inner() == [1; N] && self.dims[0] != 0).then_some(self.offsets)
    }
}

impl LoopNest<1> {
    /// For contiguous elements that repeat: the offset of the first element and the number of repetitions.
    pub(crate) fn repeats(&self) -> Option<(usize, usize)> {
        let [offset] = self.offsets;
        (self.rank == 2 && self.strides[..2] == [[1], [0]]).then_some((offset, self.dims[1]))
    }
}

/// Advances each offset by `count` strides.
fn advance<const N: usize>(places: [usize; N], count: usize, strides: [usize; N]) -> [usize; N] {
    array::from_fn(|operand| places[operand].wrapping_add(count.wrapping_mul(strides[operand])))
}

/// The number of rows of a tile: the elements of about one cache line.
pub(crate) const TILE: usize = 16;

impl<const N: usize> LoopNest<N> {
    /// Visits the elements with numbers in `range` in tiles of up to [`TILE`] rows by `width` elements of the innermost
    /// loop.
    ///
    /// For operands with a large innermost stride, such as transposed matrices. Their neighbors in memory belong to
    /// neighboring rows of the loop, and a tile visits them while their cache line is cached.
    pub(crate) fn tiles(&self, range: Range<usize>, width: usize, visit: &mut dyn FnMut(Tile<'_, N>)) {
        let strides = self.inner();
        let mut segments = self.segments(range).peekable();
        let mut rows = [[0; N]; TILE];
        let mut first = 0;
        while let Some(Segment { starts, len }) = segments.next() {
            rows[0] = starts;
            let mut count = 1;
            while count < TILE
                && let Some(next) = segments.next_if(|next| next.len == len)
            {
                rows[count] = next.starts;
                count += 1;
            }
            let rows = &rows[..count];
            for column in (0..len).step_by(width) {
                let (width, first) = (width.min(len - column), first + column);
                visit(Tile { first, width, column, rows, len, strides });
            }
            first += count * len;
        }
    }
}

/// A tile: neighboring elements of several rows of the innermost loop.
pub(crate) struct Tile<'t, const N: usize> {
    /// The number of the first element, counted from the start of the range.
    pub(crate) first: usize,
    /// The number of elements in each row.
    pub(crate) width: usize,
    /// The difference between the element numbers of neighboring rows.
    pub(crate) len: usize,
    column: usize,
    /// The offsets at which the rows start.
    rows: &'t [[usize; N]],
    strides: [usize; N],
}

impl<const N: usize> Tile<'_, N> {
    /// The rows of the tile, each with the number of its first element.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (usize, Segment<N>)> {
        self.rows.iter().enumerate().map(|(turn, &starts)| {
            let starts = advance(starts, self.column, self.strides);
            (self.first + turn * self.len, Segment { starts, len: self.width })
        })
    }
}

impl<const N: usize> Tile<'_, N> {
    /// If the columns of the tile are contiguous in an operand's memory: the offset of the first row and the number of rows.
    pub(crate) fn columns(&self, operand: usize) -> Option<(usize, usize)> {
        let first = self.rows.first()?[operand];
        let neighbors = self.rows.iter().zip(first..).all(|(starts, place)| starts[operand] == place);
        let start = first.wrapping_add(self.column.wrapping_mul(self.strides[operand]));
        (self.rows.len() > 1 && neighbors).then_some((start, self.rows.len()))
    }
}

/// The iterator of [`LoopNest::segments`].
#[derive(Clone, Debug)]
pub(crate) struct Segments<'a, const N: usize> {
    nest: &'a LoopNest<N>,
    /// The indices of the outer loops.
    index: [usize; MAX_RANK],
    /// The offset in each operand at which the innermost loop starts.
    base: [usize; N],
    /// The index of the innermost loop.
    column: usize,
    /// The number of elements not visited yet.
    left: usize,
}

impl<const N: usize> Segments<'_, N> {
    /// Moves by `count` steps along an outer axis, forwards or backwards.
    fn step(&mut self, axis: usize, count: usize) {
        self.base = advance(self.base, count, self.nest.strides[axis]);
    }

    /// Moves to the next row of the innermost loop.
    #[inline]
    fn next_row(&mut self) {
        self.column = 0;
        for axis in (0..self.nest.rank - 1).rev() {
            self.index[axis] += 1;
            self.step(axis, 1);
            if self.index[axis] < self.nest.dims[axis] {
                return;
            }
            self.step(axis, self.nest.dims[axis].wrapping_neg());
            self.index[axis] = 0;
        }
    }
}

impl<const N: usize> Iterator for Segments<'_, N> {
    type Item = Segment<N>;

    #[inline]
    fn next(&mut self) -> Option<Segment<N>> {
        if self.left == 0 {
            return None;
        }
        let inner = self.nest.rank - 1;
        let len = self.left.min(self.nest.dims[inner] - self.column);
        let starts = advance(self.base, self.column, self.nest.strides[inner]);
        self.left -= len;
        if self.left > 0 {
            self.next_row();
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

    fn places(nest: &LoopNest<1>, range: Range<usize>) -> Vec<usize> {
        let [stride] = nest.inner();
        nest.segments(range)
            .flat_map(|Segment { starts: [start], len }| (0..len).map(move |i| start + i * stride))
            .collect()
    }

    #[test]
    fn contiguous_operands_need_one_loop() {
        let layout = contiguous(&[2, 3, 4]);
        let nest = LoopNest::new([&layout, &layout]);
        assert!(nest.is_line());
        assert_eq!(nest.segments(5..24).collect::<Vec<_>>(), [Segment { starts: [5, 5], len: 19 }]);
    }

    #[test]
    fn a_broadcast_row_needs_one_segment_per_row() {
        let matrix = contiguous(&[2, 3]);
        let row = contiguous(&[3]).broadcast_to("add", matrix.shape()).unwrap();
        let nest = LoopNest::new([&matrix, &row]);
        assert_eq!(nest.inner(), [1, 1]);
        assert_eq!(
            nest.segments(1..6).collect::<Vec<_>>(),
            [Segment { starts: [1, 1], len: 2 }, Segment { starts: [3, 0], len: 3 }]
        );
    }

    #[test]
    fn a_broadcast_scalar_needs_one_loop() {
        let matrix = contiguous(&[2, 3]);
        let number = contiguous(&[]).broadcast_to("add", matrix.shape()).unwrap();
        let nest = LoopNest::new([&matrix, &number]);
        assert!(nest.is_line());
        assert_eq!(nest.inner(), [1, 0]);
    }

    #[test]
    fn repeated_elements_are_detected() {
        let column = contiguous(&[2, 3, 1]);
        let shape = |dims: &[usize]| Shape::new(dims).unwrap();
        let repeats =
            |dims: &[usize]| LoopNest::new([&column.broadcast_to("b", &shape(dims)).unwrap()]).repeats();
        assert_eq!(repeats(&[2, 3, 4]), Some((0, 4)));
        assert_eq!(repeats(&[2, 3, 1]), None);
        assert_eq!(repeats(&[5, 2, 3, 4]), None);
    }

    #[test]
    fn negative_strides_fuse() {
        let back = 0usize.wrapping_sub(1);
        let rows = LoopNest::from_axes([(2, [4]), (4, [back])].into_iter(), [3]);
        let expected = [3, 2, 1, 0, 7, 6, 5, 4];
        for start in 0..=8 {
            let visited = rows
                .segments(start..8)
                .flat_map(|Segment { starts: [start], len }| (0..len).map(move |i| start - i));
            assert!(visited.eq(expected[start..].iter().copied()));
        }
        let whole = LoopNest::from_axes([(2, [4usize.wrapping_neg()]), (4, [back])].into_iter(), [7]);
        assert!(whole.is_line());
        assert_eq!(whole.at(5), [2]);
    }

    #[test]
    fn every_range_visits_the_positions_of_the_layout() {
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
            let nest = LoopNest::new([&layout]);
            let expected: Vec<usize> = layout.positions().collect();
            assert_eq!(nest.len(), expected.len());
            for start in 0..=expected.len() {
                for end in start..=expected.len() {
                    assert_eq!(places(&nest, start..end), expected[start..end], "{layout:?} {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn tiles_visit_every_element_once_with_its_number() {
        let base = contiguous(&[37, 3, 41]);
        for layout in [base, base.permuted("t", &[2, 0, 1]).unwrap(), base.permuted("t", &[2, 1, 0]).unwrap()]
        {
            let nest = LoopNest::new([&layout]);
            let [stride] = nest.inner();
            let expected: Vec<usize> = layout.positions().collect();
            for range in [0..expected.len(), 0..0, 5..6, 100..3000] {
                let mut seen = vec![None; range.len()];
                nest.tiles(range.clone(), 16, &mut |tile| {
                    for (first, Segment { starts: [start], len }) in tile.rows() {
                        for i in 0..len {
                            assert_eq!(seen[first + i].replace(start + i * stride), None);
                        }
                    }
                    if let Some((start, rows)) = tile.columns(0) {
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
        assert_eq!(LoopNest::new([&layout]).len(), 0);
    }
}
