//! Layouts: the positions of a tensor's elements in its buffer.
//!
//! A [`Layout`] is a shape with strides and an offset. Views, slices and transposed tensors share a buffer
//! and differ in their layouts. The folder also contains fallible operations on shapes, such as broadcasting.

mod shapes;

use crate::error::{KernelError, Result, ShapeRule};
use crate::shape::{DType, MAX_RANK, Shape};

/// A shape, the stride of each axis, and the offset of the first element. Strides and offsets count elements.
///
/// Invariant: every index within the shape maps to an element inside the buffer that the layout was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    strides: [usize; MAX_RANK],
    offset: usize,
}

impl Layout {
    /// Returns the contiguous layout of a new buffer, in row-major order.
    ///
    /// # Errors
    /// [`KernelError::TooManyElements`] if the number of bytes overflows.
    #[inline]
    pub fn contiguous(op: &'static str, shape: Shape, dtype: DType) -> Result<Self> {
        match bytes_of(&shape, dtype) {
            Some(_) => Ok(Self::row_major(&shape)),
            None => Err(KernelError::TooManyElements { op, shape, dtype }),
        }
    }

    /// Returns the contiguous layout of a shape whose [byte count](bytes_of) does not overflow.
    #[inline(always)]
    #[must_use]
    pub fn row_major(shape: &Shape) -> Self {
        let mut strides = [0; MAX_RANK];
        fill_row_major(shape, &mut strides);
        Self { shape: *shape, strides, offset: 0 }
    }

    /// Returns the layout of a vector.
    #[must_use]
    #[inline]
    pub fn of_row(elements: usize) -> Self {
        Self::row_major(&Shape::row(elements))
    }

    /// The layout of a scalar.
    pub(crate) const SCALAR: Self = Self { shape: Shape::SCALAR, strides: [0; MAX_RANK], offset: 0 };

    /// Returns the layout with other strides, one per axis. The caller ensures that the result stays within
    /// the buffer.
    #[must_use]
    #[inline]
    pub fn with_strides(mut self, strides: &[usize]) -> Self {
        self.strides[..strides.len()].copy_from_slice(strides);
        self
    }

    /// Returns the shape.
    #[must_use]
    #[inline]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the stride of each axis, in elements; 0 along a broadcast axis.
    #[must_use]
    #[inline]
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.shape.rank()]
    }

    /// Returns the sizes and strides of a matrix.
    #[inline(always)]
    pub(crate) const fn as_matrix(&self) -> Option<([usize; 2], [usize; 2])> {
        match self.shape.as_matrix() {
            Some(dims) => Some((dims, [self.strides[0], self.strides[1]])),
            None => None,
        }
    }

    /// Returns the offset of the first element in the buffer, in elements.
    #[must_use]
    #[inline]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Returns one past the offset of the last element, which the buffer must reach. Returns 0 for zero
    /// elements, and `None` on overflow.
    #[inline]
    #[must_use]
    pub fn reach(&self) -> Option<usize> {
        // Fast path for matrices, the most common layouts.
        if let Some(([rows, columns], [row, column])) = self.as_matrix()
            && rows > 0
            && columns > 0
        {
            let [down, across] = [(rows - 1).checked_mul(row)?, (columns - 1).checked_mul(column)?];
            return down.checked_add(across)?.checked_add(self.offset)?.checked_add(1);
        }
        let mut last = Some(self.offset);
        for (&size, &stride) in self.shape.dims().iter().zip(&self.strides) {
            // Zero elements occupy no memory.
            let Some(steps) = size.checked_sub(1) else { return Some(0) };
            last = last.and_then(|last| last.checked_add(steps.checked_mul(stride)?));
        }
        last?.checked_add(1)
    }

    /// Returns whether the elements are contiguous, in row-major order.
    #[must_use]
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        // Fast path for matrices and vectors, the most common layouts.
        if let Some(([rows, columns], [row, column])) = self.as_matrix() {
            let contiguous = (columns == 1 || column == 1) && (rows == 1 || row == columns);
            return contiguous || rows == 0 || columns == 0;
        }
        if let (&[size], &[stride]) = (self.shape.dims(), self.strides()) {
            return size <= 1 || stride == 1;
        }
        let (mut expected, mut contiguous) = (1_usize, true);
        for (&size, &stride) in self.shape.dims().iter().zip(&self.strides).rev() {
            // The strides of an empty shape are unused. The product of its other sizes may overflow.
            if size == 0 {
                return true;
            }
            contiguous &= size == 1 || stride == expected;
            expected = expected.wrapping_mul(size);
        }
        contiguous
    }

    /// Returns a view of the elements with another shape of the same size, in row-major order. Returns `None`
    /// if the merged axes are not contiguous with each other.
    #[must_use]
    pub fn reshaped(&self, shape: Shape) -> Option<Self> {
        if shape.checked_elements() != self.shape.checked_elements() {
            return None;
        }
        if self.is_contiguous() {
            return Some(Self { offset: self.offset, ..Self::row_major(&shape) });
        }
        Some(Self { strides: self.reshaped_strides(&shape)?, shape, offset: self.offset })
    }

    /// Returns the strides of a non-empty shape of the same size over the same positions.
    ///
    /// Source: NumPy's `_attempt_nocopy_reshape`. Both shapes are split into groups of axes with equal
    /// element counts. The axes of a group in this layout must merge into one axis, which is split into the
    /// axes of the other shape.
    fn reshaped_strides(&self, shape: &Shape) -> Option<[usize; MAX_RANK]> {
        let mut strides = [0; MAX_RANK];
        // The strides of axes of size 1 are unused.
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

    /// Broadcasts axes of size 1 and adds leading axes.
    ///
    /// # Errors
    /// [`KernelError::ShapeMismatch`] if the shape does not broadcast to `shape`.
    pub fn broadcast_to(&self, op: &'static str, shape: &Shape) -> Result<Self> {
        let mismatch = || KernelError::ShapeMismatch {
            op,
            lhs: self.shape,
            rhs: *shape,
            rule: &ShapeRule::Other("each size of the first must be that of the second or 1"),
        };
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

    /// Returns the layout with each broadcast axis reduced to size 1. [`broadcast_to`](Self::broadcast_to)
    /// reverses this.
    #[must_use]
    pub fn distinct(&self) -> Self {
        let mut once = *self;
        for axis in 0..self.shape.rank() {
            if self.strides[axis] == 0 && self.shape[axis] > 1 {
                once.shape = once.shape.with_dim(axis, 1);
            }
        }
        once
    }

    /// Returns the layout with the first two axes exchanged; unchanged below two axes.
    #[inline]
    #[must_use]
    pub const fn transposed(&self) -> Self {
        let mut transposed = Self { shape: self.shape.transposed(), ..*self };
        if transposed.shape.rank() >= 2 {
            transposed.strides.swap(0, 1);
        }
        transposed
    }

    /// Returns the layout with reordered axes. `axes` must be a permutation.
    ///
    /// # Errors
    /// [`KernelError::BadPermutation`] if it is not.
    pub fn permuted(&self, op: &'static str, axes: &[usize]) -> Result<Self> {
        let rank = self.shape.rank();
        if (axes, rank) == (&[1, 0], 2) {
            // Fast path for the most common permutation.
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
            return Err(KernelError::BadPermutation { op, axes: axes.to_vec(), shape: self.shape });
        }
        Ok(Self { shape: Shape::new(&dims[..rank])?, strides, offset: self.offset })
    }

    /// Returns the layout with a new axis of size 1 before `axis`, or after the last axis.
    ///
    /// # Errors
    /// [`KernelError::RankTooLarge`] above [`MAX_RANK`] axes.
    pub fn with_axis(&self, axis: usize) -> Result<Self> {
        let rank = self.shape.rank();
        if rank == MAX_RANK {
            return Err(KernelError::RankTooLarge { op: "", rank: rank + 1 });
        }
        let (mut dims, mut strides) = ([1; MAX_RANK], [0; MAX_RANK]);
        for from in 0..rank {
            let to = if from < axis { from } else { from + 1 };
            dims[to] = self.shape[from];
            strides[to] = self.strides[from];
        }
        Ok(Self { shape: Shape::new(&dims[..=rank])?, strides, offset: self.offset })
    }

    /// Selects index 0 along an axis and removes the axis.
    #[must_use]
    pub fn without_axis(&self, axis: usize) -> Self {
        let mut strides = [0; MAX_RANK];
        for from in (0..self.shape.rank()).filter(|&from| from != axis) {
            let to = if from < axis { from } else { from - 1 };
            strides[to] = self.strides[from];
        }
        Self { shape: self.shape.without(axis), strides, offset: self.offset }
    }

    /// Selects the diagonal of two axes. It replaces the first axis; the second axis is removed.
    #[must_use]
    pub fn diagonal(&self, first: usize, second: usize) -> Self {
        let mut along = *self;
        along.shape = self.shape.with_dim(first, self.shape[first].min(self.shape[second]));
        along.strides[first] = self.strides[first].saturating_add(self.strides[second]);
        along.without_axis(second)
    }

    /// Returns windows of `size` elements along an axis. The axis counts the windows, and a new last axis has their
    /// elements. `steps` are the distances of windows and of their elements. Windows may overlap; the caller ensures that
    /// the axis contains them.
    ///
    /// # Errors
    /// [`KernelError::RankTooLarge`] above [`MAX_RANK`] axes.
    pub fn windows(&self, axis: usize, count: usize, size: usize, steps: [usize; 2]) -> Result<Self> {
        let last = self.shape.rank();
        let mut windows = self.with_axis(last)?;
        windows.shape = windows.shape.with_dim(axis, count).with_dim(last, size);
        let [of_windows, of_elements] = steps.map(|step| self.strides[axis].saturating_mul(step));
        (windows.strides[axis], windows.strides[last]) = (of_windows, of_elements);
        Ok(windows)
    }

    /// Returns every `step`-th element of the range `start..end` along one axis.
    ///
    /// # Errors
    /// [`KernelError::RangeOutOfBounds`] if the range exceeds the axis or the step is 0.
    pub fn sliced(
        &self,
        op: &'static str,
        axis: usize,
        range: std::ops::Range<usize>,
        step: usize,
    ) -> Result<Self> {
        let size = self.shape.dims().get(axis).copied().unwrap_or(0);
        if axis >= self.shape.rank() || range.start > range.end || range.end > size || step == 0 {
            return Err(KernelError::RangeOutOfBounds { op, range, step, axis, shape: self.shape });
        }
        let mut layout = *self;
        let count = (range.end - range.start).div_ceil(step);
        layout.shape = self.shape.with_dim(axis, count);
        // Without elements the offset stays, as the start may be outside of the buffer.
        if layout.shape.elements() > 0 {
            layout.offset += range.start * self.strides[axis];
        }
        layout.strides[axis] = self.strides[axis].saturating_mul(step);
        Ok(layout)
    }

    /// Selects the destination for a copy of a tensor of shape `shape`: every `step`-th position along
    /// `axis`, from `start` on.
    ///
    /// # Errors
    /// [`KernelError::RangeOutOfBounds`] if the positions exceed the axis; [`KernelError::ShapeMismatch`] if other axes
    /// differ.
    pub fn part(
        &self,
        op: &'static str,
        shape: &Shape,
        axis: usize,
        start: usize,
        step: usize,
    ) -> Result<Self> {
        let size = shape.dims().get(axis).copied().unwrap_or(0);
        // One past the last position. An overflowing range is out of bounds.
        let end = match size.checked_sub(1) {
            None => start,
            Some(last) => last.saturating_mul(step).saturating_add(start).saturating_add(1),
        };
        let part = self.sliced(op, axis, start..end, step)?;
        if part.shape() == shape {
            Ok(part)
        } else {
            Err(KernelError::ShapeMismatch {
                op,
                lhs: *shape,
                rhs: self.shape,
                rule: &ShapeRule::Other("their sizes must be equal except along the axis of the copy"),
            })
        }
    }

    /// Returns the offset of each element in the buffer, in logical (row-major) order.
    pub fn positions(&self) -> impl Iterator<Item = usize> + use<> {
        let layout = *self;
        let rank = layout.shape.rank();
        let mut index = [0usize; MAX_RANK];
        let mut position = layout.offset;
        (0..layout.shape.elements()).map(move |_| {
            let current = position;
            for axis in (0..rank).rev() {
                index[axis] += 1;
                // This may wrap past the last index, as an axis of size 1 may have any stride. The
                // subtraction below reverses it.
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

/// Returns the number of bytes of a tensor; `None` on overflow.
#[must_use]
#[inline]
pub fn bytes_of(shape: &Shape, dtype: DType) -> Option<usize> {
    let bytes = shape.checked_elements()?.checked_mul(dtype.size())?;
    (bytes <= isize::MAX as usize).then_some(bytes)
}

/// Writes row-major strides.
#[inline(always)]
fn fill_row_major(shape: &Shape, strides: &mut [usize; MAX_RANK]) {
    if let Some([_, columns]) = shape.as_matrix() {
        // Fast path for the most common shapes.
        (strides[0], strides[1]) = (columns.max(1), 1);
        return;
    }
    let mut next = 1usize;
    for axis in (0..shape.rank()).rev() {
        strides[axis] = next;
        // Only an empty shape can overflow here, and its strides are unused.
        next = next.wrapping_mul(shape[axis].max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline]
    fn contiguous(dims: &[usize]) -> Layout {
        Layout::contiguous("test", Shape::new(dims).unwrap(), DType::F32).unwrap()
    }

    #[test]
    fn a_new_layout_has_consecutive_positions() {
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

    /// Returns all shapes of this rank with this number of elements.
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

    /// Returns the layout of this shape with these positions, if one exists.
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
    fn reshape_succeeds_iff_strides_for_the_positions_exist() {
        let mut layouts = Vec::new();
        for axes in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let permuted = contiguous(&[4, 6, 2]).permuted("permute", &axes).unwrap();
            layouts.push(permuted);
            for axis in 0..3 {
                let size = permuted.shape()[axis];
                layouts.push(permuted.sliced("slice", axis, 0..size / 2, 1).unwrap());
                layouts.push(permuted.sliced("slice", axis, 1..size, 2).unwrap());
                let one = permuted.sliced("slice", axis, 0..1, 1).unwrap();
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
    fn with_axis_and_without_axis_are_inverse() {
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
            Err(KernelError::TooManyElements { op: "zeros", .. })
        ));
    }

    #[test]
    fn only_permutations_permute() {
        for bad in [&[0usize, 0][..], &[0], &[0, 2], &[0, 1, 2]] {
            assert!(contiguous(&[2, 3]).permuted("permute", bad).is_err());
        }
    }
}
