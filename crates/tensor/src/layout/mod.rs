//! Layouts: where a tensor's elements lie in its buffer.
//!
//! A [`Layout`] is a shape with strides and an offset. Views, slices and transposed tensors differ in their layouts and share a
//! buffer. The folder also holds the operations on shapes that can fail, such as broadcasting.

mod shapes;

pub use self::shapes::IntoShape;
use crate::error::{Error, Result};
use crate::shape::{DType, MAX_RANK, Shape};

/// The shape, the distance between neighbours along each axis, and where the first element lies. All in elements.
///
/// Invariant: every index within the shape maps to an element inside the buffer that the layout was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    strides: [usize; MAX_RANK],
    offset: usize,
}

impl Layout {
    /// The layout of a fresh buffer: row-major, without gaps.
    ///
    /// # Errors
    /// [`Error::TooManyElements`] if the bytes cannot be counted.
    pub fn contiguous(op: &'static str, shape: Shape, dtype: DType) -> Result<Self> {
        match bytes_of(&shape, dtype) {
            Some(_) => Ok(Self::row_major(&shape)),
            None => Err(Error::TooManyElements { op, shape, dtype }),
        }
    }

    /// The same of a shape whose bytes [can be counted](bytes_of).
    #[inline(always)]
    pub(crate) fn row_major(shape: &Shape) -> Self {
        let mut strides = [0; MAX_RANK];
        fill_row_major(shape, &mut strides);
        Self { shape: *shape, strides, offset: 0 }
    }

    /// The layout of a row of so many elements.
    pub(crate) fn of_row(elements: usize) -> Self {
        Self::row_major(&Shape::row(elements))
    }

    /// The layout of a single number.
    pub(crate) const SCALAR: Self = Self { shape: Shape::SCALAR, strides: [0; MAX_RANK], offset: 0 };

    /// The same shape and first element with other distances between neighbours, one for each axis. All must stay within the
    /// buffer.
    pub(crate) fn with_strides(mut self, strides: &[usize]) -> Self {
        self.strides[..strides.len()].copy_from_slice(strides);
        self
    }

    /// The shape.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The distance between neighbours along each axis, in elements; 0 along a broadcast axis.
    #[must_use]
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.shape.rank()]
    }

    /// Sizes and strides of a matrix.
    #[inline(always)]
    pub(crate) const fn as_matrix(&self) -> Option<([usize; 2], [usize; 2])> {
        match self.shape.as_matrix() {
            Some(dims) => Some((dims, [self.strides[0], self.strides[1]])),
            None => None,
        }
    }

    /// The place of the first element in the buffer, in elements.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// One past the place of the last element, by which the buffer has to reach; 0 without elements, and `None` if it cannot be
    /// counted.
    #[inline]
    pub(crate) fn reach(&self) -> Option<usize> {
        // Matrices, by far the most common, take no loop.
        if let Some(([rows, columns], [row, column])) = self.as_matrix()
            && rows > 0
            && columns > 0
        {
            let [down, across] = [(rows - 1).checked_mul(row)?, (columns - 1).checked_mul(column)?];
            return down.checked_add(across)?.checked_add(self.offset)?.checked_add(1);
        }
        let mut last = Some(self.offset);
        for (&size, &stride) in self.shape.dims().iter().zip(&self.strides) {
            // Without elements no place is looked at.
            let Some(steps) = size.checked_sub(1) else { return Some(0) };
            last = last.and_then(|last| last.checked_add(steps.checked_mul(stride)?));
        }
        last?.checked_add(1)
    }

    /// Whether the elements lie in row-major order without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        // Matrices and vectors, by far the most common, take no loop.
        if let Some(([rows, columns], [row, column])) = self.as_matrix() {
            let in_order = (columns == 1 || column == 1) && (rows == 1 || row == columns);
            return in_order || rows == 0 || columns == 0;
        }
        if let (&[size], &[stride]) = (self.shape.dims(), self.strides()) {
            return size <= 1 || stride == 1;
        }
        let (mut expected, mut in_order) = (1_usize, true);
        for (&size, &stride) in self.shape.dims().iter().zip(&self.strides).rev() {
            // The strides of an empty shape are never followed, and its other sizes may overflow when multiplied.
            if size == 0 {
                return true;
            }
            in_order &= size == 1 || stride == expected;
            expected = expected.wrapping_mul(size);
        }
        in_order
    }

    /// The same elements, in row-major order, seen with another shape of as many elements, if that is possible where they lie: if
    /// the distance between neighbours is one along all axes that are merged.
    #[must_use]
    pub fn reshaped(&self, shape: Shape) -> Option<Self> {
        if shape.checked_elements() != self.shape.checked_elements() {
            return None;
        }
        if self.is_contiguous() {
            return Some(Self { offset: self.offset, ..Self::row_major(&shape) });
        }
        Some(Self { strides: self.cut_otherwise(&shape)?, shape, offset: self.offset })
    }

    /// The strides of another shape of as many elements, of which there is at least one, over the same places.
    ///
    /// Source: NumPy's `_attempt_nocopy_reshape`. From the first axes on, as few of each shape are looked at together as have
    /// equally many elements. Those of this layout have to be as good as one axis, which is cut into those of the other.
    fn cut_otherwise(&self, shape: &Shape) -> Option<[usize; MAX_RANK]> {
        let mut strides = [0; MAX_RANK];
        // No step is ever taken along axes of size 1.
        let mut own = (0..self.shape.rank()).filter(|&axis| self.shape[axis] != 1);
        let mut others = (0..shape.rank()).filter(|&axis| shape[axis] != 1).peekable();
        while others.peek().is_some() {
            let mut merged = own.next()?;
            let mut elements = self.shape[merged];
            let (mut cut, mut covered) = ([0; MAX_RANK], 1);
            let mut count = 0;
            while covered != elements {
                if covered < elements {
                    let axis = others.next()?;
                    covered *= shape[axis];
                    (cut[count], count) = (axis, count + 1);
                } else {
                    let next = own.next()?;
                    if self.strides[next].checked_mul(self.shape[next]) != Some(self.strides[merged]) {
                        return None;
                    }
                    elements *= self.shape[next];
                    merged = next;
                }
            }
            let mut stride = self.strides[merged];
            for &axis in cut[..count].iter().rev() {
                strides[axis] = stride;
                stride = stride.saturating_mul(shape[axis]);
            }
        }
        Some(strides)
    }

    /// The same elements repeated along axes of size 1 and along new axes in front.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the shape does not broadcast to `shape`.
    pub fn broadcast_to(&self, op: &'static str, shape: &Shape) -> Result<Self> {
        let mismatch = || Error::ShapeMismatch { op, lhs: self.shape, rhs: *shape };
        let Some(extra) = shape.rank().checked_sub(self.shape.rank()) else { return Err(mismatch()) };
        let mut strides = [0; MAX_RANK];
        for axis in 0..self.shape.rank() {
            let (from, to) = (self.shape[axis], shape[extra + axis]);
            if from == to {
                strides[extra + axis] = self.strides[axis];
            } else if from != 1 {
                return Err(mismatch());
            }
        }
        Ok(Self { shape: *shape, strides, offset: self.offset })
    }

    /// The same elements, but each of those repeated along an axis only once: [`broadcast_to`](Self::broadcast_to) the shape
    /// repeats them again.
    pub(crate) fn distinct(&self) -> Self {
        let mut once = *self;
        for axis in 0..self.shape.rank() {
            if self.strides[axis] == 0 && self.shape[axis] > 1 {
                once.shape = once.shape.with_dim(axis, 1);
            }
        }
        once
    }

    /// The same elements with the first two axes exchanged, where there are so many.
    #[inline]
    pub(crate) const fn transposed(&self) -> Self {
        let mut transposed = Self { shape: self.shape.transposed(), ..*self };
        if transposed.shape.rank() >= 2 {
            transposed.strides.swap(0, 1);
        }
        transposed
    }

    /// The same elements with the axes in another order; `axes` must be a permutation.
    ///
    /// # Errors
    /// [`Error::BadPermutation`] if it is not.
    pub fn permuted(&self, op: &'static str, axes: &[usize]) -> Result<Self> {
        let rank = self.shape.rank();
        if (axes, rank) == (&[1, 0], 2) {
            // By far the most common.
            return Ok(self.transposed());
        }
        let mut seen = [false; MAX_RANK];
        let mut dims = [0; MAX_RANK];
        let mut strides = [0; MAX_RANK];
        let valid = axes.len() == rank
            && axes.iter().enumerate().all(|(to, &from)| {
                if from >= rank || std::mem::replace(&mut seen[from], true) {
                    return false;
                }
                dims[to] = self.shape[from];
                strides[to] = self.strides[from];
                true
            });
        if !valid {
            return Err(Error::BadPermutation { op, axes: axes.to_vec(), shape: self.shape });
        }
        Ok(Self { shape: Shape::new(&dims[..rank])?, strides, offset: self.offset })
    }

    /// The same elements with a new axis of size 1 before `axis`, or behind all others.
    ///
    /// # Errors
    /// [`Error::RankTooLarge`] past [`MAX_RANK`] axes.
    pub(crate) fn with_axis(&self, axis: usize) -> Result<Self> {
        let rank = self.shape.rank();
        if rank == MAX_RANK {
            return Err(Error::RankTooLarge { op: "", rank: rank + 1 });
        }
        let (mut dims, mut strides) = ([1; MAX_RANK], [0; MAX_RANK]);
        for from in 0..rank {
            let to = if from < axis { from } else { from + 1 };
            dims[to] = self.shape[from];
            strides[to] = self.strides[from];
        }
        Ok(Self { shape: Shape::new(&dims[..=rank])?, strides, offset: self.offset })
    }

    /// The first elements along an axis, without that axis; all of them where its size is 1.
    pub(crate) fn without_axis(&self, axis: usize) -> Self {
        let mut strides = [0; MAX_RANK];
        for from in (0..self.shape.rank()).filter(|&from| from != axis) {
            let to = if from < axis { from } else { from - 1 };
            strides[to] = self.strides[from];
        }
        Self { shape: self.shape.without(axis), strides, offset: self.offset }
    }

    /// The elements with the same index along two axes: along the first one, as far as both go, without the second one.
    pub(crate) fn diagonal(&self, first: usize, second: usize) -> Self {
        let mut along = *self;
        along.shape = self.shape.with_dim(first, self.shape[first].min(self.shape[second]));
        along.strides[first] = self.strides[first].saturating_add(self.strides[second]);
        along.without_axis(second)
    }

    /// Every `step`-th of the elements `start..end` along one axis.
    ///
    /// # Errors
    /// [`Error::RangeOutOfBounds`] if the range leaves the axis or the step is 0.
    pub fn sliced(
        &self,
        op: &'static str,
        axis: usize,
        range: std::ops::Range<usize>,
        step: usize,
    ) -> Result<Self> {
        let size = self.shape.dims().get(axis).copied().unwrap_or(0);
        if axis >= self.shape.rank() || range.start > range.end || range.end > size || step == 0 {
            return Err(Error::RangeOutOfBounds { op, range, step, axis, shape: self.shape });
        }
        let mut layout = *self;
        let count = (range.end - range.start).div_ceil(step);
        layout.shape = self.shape.with_dim(axis, count);
        // Without elements there is no first one; it might lie outside of the buffer.
        if layout.shape.elements() > 0 {
            layout.offset += range.start * self.strides[axis];
        }
        layout.strides[axis] = self.strides[axis].saturating_mul(step);
        Ok(layout)
    }

    /// Every `step`-th place from `start` on along `axis`, as many as `shape` has: where elements of that shape are copied
    /// to.
    ///
    /// # Errors
    /// [`Error::RangeOutOfBounds`] if they reach beyond the axis; [`Error::ShapeMismatch`] if other axes differ.
    pub(crate) fn part(
        &self,
        op: &'static str,
        shape: &Shape,
        axis: usize,
        start: usize,
        step: usize,
    ) -> Result<Self> {
        let size = shape.dims().get(axis).copied().unwrap_or(0);
        // One past the last place; a range that cannot be counted is out of bounds like any other.
        let end = match size.checked_sub(1) {
            None => start,
            Some(last) => last.saturating_mul(step).saturating_add(start).saturating_add(1),
        };
        let part = self.sliced(op, axis, start..end, step)?;
        if part.shape() == shape {
            Ok(part)
        } else {
            Err(Error::ShapeMismatch { op, lhs: *shape, rhs: self.shape })
        }
    }

    /// The place in the buffer of each element, in the logical (row-major) order of the shape.
    pub fn positions(&self) -> impl Iterator<Item = usize> + use<> {
        let layout = *self;
        let rank = layout.shape.rank();
        let mut index = [0usize; MAX_RANK];
        let mut position = layout.offset;
        (0..layout.shape.elements()).map(move |_| {
            let current = position;
            for axis in (0..rank).rev() {
                index[axis] += 1;
                // Past the last index this may wrap, as the stride along an axis of size 1 may be anything; going back
                // undoes it.
                position = position.wrapping_add(layout.strides[axis]);
                if index[axis] < layout.shape[axis] {
                    break;
                }
                position = position.wrapping_sub(layout.strides[axis].wrapping_mul(index[axis]));
                index[axis] = 0;
            }
            current
        })
    }
}

/// The bytes of so many elements, if they can be counted.
pub(crate) fn bytes_of(shape: &Shape, dtype: DType) -> Option<usize> {
    let bytes = shape.checked_elements()?.checked_mul(dtype.size())?;
    (bytes <= isize::MAX as usize).then_some(bytes)
}

/// Writes row-major strides.
#[inline(always)]
fn fill_row_major(shape: &Shape, strides: &mut [usize; MAX_RANK]) {
    if let Some([_, columns]) = shape.as_matrix() {
        // By far the most common, and without a loop.
        (strides[0], strides[1]) = (columns.max(1), 1);
        return;
    }
    let mut next = 1usize;
    for axis in (0..shape.rank()).rev() {
        strides[axis] = next;
        // Only an empty shape can overflow here, and its strides are never followed.
        next = next.wrapping_mul(shape[axis].max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contiguous(dims: &[usize]) -> Layout {
        Layout::contiguous("test", Shape::new(dims).unwrap(), DType::F32).unwrap()
    }

    #[test]
    fn a_fresh_layout_counts_its_positions_up() {
        let layout = contiguous(&[2, 3]);
        assert!(layout.is_contiguous());
        assert_eq!(layout.positions().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_transposed_layout_is_not_contiguous_and_cannot_be_reshaped() {
        let layout = contiguous(&[2, 3]).permuted("transpose", &[1, 0]).unwrap();
        assert!(!layout.is_contiguous());
        assert_eq!(layout.positions().collect::<Vec<_>>(), [0, 3, 1, 4, 2, 5]);
        assert_eq!(layout.reshaped(Shape::new(&[6]).unwrap()), None);
    }

    /// All shapes of so many elements with so many axes.
    fn shapes_of(elements: usize, rank: usize) -> Vec<Vec<usize>> {
        if rank == 0 {
            return if elements == 1 { vec![vec![]] } else { vec![] };
        }
        let first = (1..=elements).filter(|first| elements.is_multiple_of(*first));
        let with = |first| {
            let rest = shapes_of(elements / first, rank - 1).into_iter();
            rest.map(move |rest| [vec![first], rest].concat())
        };
        first.flat_map(with).collect()
    }

    /// The layout of this shape whose elements lie in these places, if there is one.
    fn layout_of(shape: &Shape, places: &[usize]) -> Option<Layout> {
        let counted = Layout::row_major(shape).strides;
        let mut strides = [0; MAX_RANK];
        for axis in (0..shape.rank()).filter(|&axis| shape[axis] > 1) {
            strides[axis] = places[counted[axis]].checked_sub(places[0])?;
        }
        let layout = Layout { shape: *shape, strides, offset: places[0] };
        layout.positions().eq(places.iter().copied()).then_some(layout)
    }

    #[test]
    fn a_layout_is_reshaped_only_if_strides_allow_it() {
        let mut layouts = Vec::new();
        for axes in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let turned = contiguous(&[4, 6, 2]).permuted("permute", &axes).unwrap();
            layouts.push(turned);
            for axis in 0..3 {
                let size = turned.shape()[axis];
                layouts.push(turned.sliced("slice", axis, 0..size / 2, 1).unwrap());
                layouts.push(turned.sliced("slice", axis, 1..size, 2).unwrap());
                let one = turned.sliced("slice", axis, 0..1, 1).unwrap();
                layouts.push(one.broadcast_to("repeat", &one.shape().with_dim(axis, 3)).unwrap());
            }
        }
        let mut reshaped = [0, 0];
        for layout in layouts {
            let places: Vec<usize> = layout.positions().collect();
            for shape in (1..5).flat_map(|rank| shapes_of(places.len(), rank)) {
                let shape = Shape::new(&shape).unwrap();
                let found = layout.reshaped(shape);
                let expected = layout_of(&shape, &places);
                assert_eq!(found.is_some(), expected.is_some(), "{layout:?} as {shape}");
                reshaped[usize::from(found.is_some())] += 1;
                if let Some(found) = found {
                    assert!(found.positions().eq(places.iter().copied()), "{layout:?} as {shape}");
                }
            }
        }
        assert!(reshaped.iter().all(|&count| count > 300), "{reshaped:?}");
    }

    #[test]
    fn a_slice_with_a_step_starts_inside_the_buffer() {
        let layout = contiguous(&[2, 5]).sliced("slice", 1, 1..5, 2).unwrap();
        assert_eq!(layout.positions().collect::<Vec<_>>(), [1, 3, 6, 8]);
        assert!(contiguous(&[2, 5]).sliced("slice", 1, 1..6, 1).is_err());
        assert!(contiguous(&[2, 5]).sliced("slice", 2, 0..0, 1).is_err());
        assert_eq!(contiguous(&[4]).sliced("slice", 0, 4..4, 1).unwrap().shape().elements(), 0);
    }

    #[test]
    fn a_step_past_everything_leaves_the_first_element() {
        let layout = contiguous(&[2, 5]).sliced("slice", 1, 3..5, usize::MAX).unwrap();
        assert_eq!(layout.positions().collect::<Vec<_>>(), [3, 8]);
    }

    #[test]
    fn an_empty_shape_of_huge_axes_does_not_overflow() {
        const HUGE: usize = 1 << 40;
        for dims in [[0, HUGE, HUGE, HUGE], [HUGE, HUGE, HUGE, 0]] {
            let layout = contiguous(&dims);
            assert!(layout.is_contiguous());
            assert!(layout.reshaped(Shape::new(&[HUGE, 0]).unwrap()).is_some());
            for (axis, &size) in dims.iter().enumerate() {
                let part = layout.sliced("slice", axis, size / 2..size, 3).unwrap();
                assert_eq!((part.offset(), part.positions().count()), (0, 0));
            }
        }
    }

    #[test]
    fn broadcasting_repeats_with_stride_zero() {
        let target = Shape::new(&[2, 3]).unwrap();
        let layout = contiguous(&[3]).broadcast_to("add", &target).unwrap();
        assert_eq!(layout.positions().collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        assert!(contiguous(&[2]).broadcast_to("add", &target).is_err());
    }

    #[test]
    fn an_axis_of_size_one_comes_and_goes_in_any_layout() {
        let layout = contiguous(&[2, 3]).permuted("transpose", &[1, 0]).unwrap();
        for axis in 0..=2 {
            let with = layout.with_axis(axis).unwrap();
            assert_eq!(with.shape()[axis], 1);
            assert!(with.positions().eq(layout.positions()));
            assert_eq!(with.without_axis(axis), layout);
        }
        assert!(contiguous(&[1; MAX_RANK]).with_axis(0).is_err());
    }

    #[test]
    fn sizes_that_overflow_in_bytes_are_an_error() {
        let shape = Shape::new(&[1 << 61]).unwrap();
        assert!(matches!(
            Layout::contiguous("zeros", shape, DType::F64),
            Err(Error::TooManyElements { op: "zeros", .. })
        ));
    }

    #[test]
    fn only_permutations_permute() {
        for bad in [&[0usize, 0][..], &[0], &[0, 2], &[0, 1, 2]] {
            assert!(contiguous(&[2, 3]).permuted("permute", bad).is_err());
        }
    }
}
