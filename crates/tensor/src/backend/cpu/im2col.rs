//! im2col and col2im: copies the windows of a convolution to the columns of a matrix, and adds them back.

use std::ops::Range;

use super::conv::Sizes;
use super::matmul::Gemm;
use super::simd;

/// Writes the im2col matrix. Row (channel, tap) contains the element that the tap reads for each place of the output; 0
/// in the padding.
pub(super) fn im2col<T: Gemm>(sizes: &Sizes, image: &[T], columns: &mut [T]) {
    let places = sizes.to[0] * sizes.to[1];
    let channels = image.chunks(sizes.from[0] * sizes.from[1]);
    for (channel, columns) in channels.zip(columns.chunks_mut(sizes.taps() * places)) {
        for number in 0..sizes.taps() {
            let (before, rest) = columns.split_at_mut(number * places);
            Tap::new(sizes, number).copy_row(sizes, channel, before, &mut rest[..places]);
        }
    }
}

/// The adjoint of [`im2col`]: adds each entry to the element that it was copied from. Drops entries of the padding.
pub(super) fn col2im<T: Gemm>(sizes: &Sizes, columns: &mut [T], image: &mut [T]) {
    let mut rows = columns.chunks_mut(sizes.to[0] * sizes.to[1]);
    for channel in image.chunks_mut(sizes.from[0] * sizes.from[1]) {
        for number in 0..sizes.taps() {
            let Some(row) = rows.next() else { return };
            Tap::new(sizes, number).add_back(sizes, row, channel);
        }
    }
}

/// One tap of the window.
struct Tap {
    /// The row and column in the window.
    place: [usize; 2],
    /// The rows and columns of the output for which it reads an element.
    rows: Range<usize>,
    columns: Range<usize>,
    /// The row and column of the element that it reads for the first of these.
    first: [usize; 2],
}

impl Tap {
    /// The tap with this number, counted row by row. Not an iterator, which the compiler does not always inline.
    fn new(sizes: &Sizes, number: usize) -> Self {
        let [vertical, horizontal] = sizes.conv.windows;
        let ([height, width], [rows, columns]) = (sizes.from, sizes.to);
        let (y, x) = (number / horizontal.size, number % horizontal.size);
        let (rows, columns) = (vertical.inside(y, height, rows), horizontal.inside(x, width, columns));
        let first = [
            vertical.at(rows.start, y, height).unwrap_or(0),
            horizontal.at(columns.start, x, width).unwrap_or(0),
        ];
        Self { place: [y, x], rows, columns, first }
    }

    /// With stride 1 and equal row lengths, the tap reads the image shifted by an offset. Returns the corresponding
    /// ranges of the output and the image. Elements that wrap at the left and right edge belong to the padding.
    fn shifted(&self, sizes: &Sizes) -> Option<(Range<usize>, Range<usize>)> {
        let moves_by_one = sizes.conv.windows.iter().all(|window| window.stride == 1);
        let width = sizes.from[1];
        if !moves_by_one || sizes.to[1] != width || self.rows.is_empty() || self.columns.is_empty() {
            return None;
        }
        let start = self.rows.start * width + self.columns.start;
        let end = (self.rows.end - 1) * width + self.columns.end;
        let first = self.first[0] * width + self.first[1];
        Some((start..end, first..first + (end - start)))
    }

    /// Writes the row of this tap. `before` contains the rows of the previous taps.
    fn copy_row<T: Gemm>(&self, sizes: &Sizes, channel: &[T], before: &[T], out: &mut [T]) {
        let [rows, cols] = sizes.to;
        if let Some((to, from)) = self.shifted(sizes) {
            out[..to.start].fill(T::ZERO);
            out[to.end..].fill(T::ZERO);
            out[to].copy_from_slice(&channel[from]);
            self.clear_edges(out, cols);
        } else if let Some(above) = self.one_stride_before(sizes, before, 0) {
            out[..(rows - 1) * cols].copy_from_slice(&above[cols..]);
            self.copy_rows(sizes, channel, rows - 1..rows, out);
        } else if let Some(beside) = self.one_stride_before(sizes, before, 1) {
            let last = out.len() - 1;
            out[..last].copy_from_slice(&beside[1..]);
            let [vertical, horizontal] = sizes.conv.windows;
            let column = horizontal.at(cols - 1, self.place[1], sizes.from[1]);
            for row in 0..rows {
                let seen = vertical.at(row, self.place[0], sizes.from[0]).zip(column);
                out[(row + 1) * cols - 1] = seen.map_or(T::ZERO, |(y, x)| channel[y * sizes.from[1] + x]);
            }
        } else {
            self.copy_rows(sizes, channel, 0..rows, out);
        }
    }

    /// The row of the tap one stride before this one along an axis. It reads the same elements one place later, and
    /// copying them is much faster than a strided read of the image.
    fn one_stride_before<'b, T>(&self, sizes: &Sizes, before: &'b [T], axis: usize) -> Option<&'b [T]> {
        let window = sizes.conv.windows[axis];
        if !window.stride.is_multiple_of(window.dilation) {
            return None;
        }
        let mut other = self.place;
        other[axis] = other[axis].checked_sub(window.stride / window.dilation)?;
        let number = other[0] * sizes.conv.windows[1].size + other[1];
        let places = sizes.to[0] * sizes.to[1];
        before.get(number * places..(number + 1) * places)
    }

    /// Writes the elements that the tap reads for some rows of the output.
    fn copy_rows<T: Gemm>(&self, sizes: &Sizes, channel: &[T], which: Range<usize>, out: &mut [T]) {
        let (width, cols) = (sizes.from[1], sizes.to[1]);
        let [vertical, horizontal] = sizes.conv.windows.map(|window| window.stride);
        for row in which {
            let out = &mut out[row * cols..][..cols];
            out.fill(T::ZERO);
            if self.rows.contains(&row) {
                let y = self.first[0] + (row - self.rows.start) * vertical;
                let seen = &channel[y * width + self.first[1]..];
                simd::zip_step(&mut out[self.columns.clone()], seen, horizontal, |out, x| *out = x);
            }
        }
    }

    fn add_back<T: Gemm>(&self, sizes: &Sizes, from: &mut [T], channel: &mut [T]) {
        let (width, cols) = (sizes.from[1], sizes.to[1]);
        if let Some((seen, to)) = self.shifted(sizes) {
            self.clear_edges(from, cols);
            simd::zip(&mut channel[to], &from[seen], |to, x| *to += x);
            return;
        }
        let [vertical, horizontal] = sizes.conv.windows.map(|window| window.stride);
        for (row, from) in from.chunks(cols).enumerate().take(self.rows.end).skip(self.rows.start) {
            let y = self.first[0] + (row - self.rows.start) * vertical;
            let to = channel[y * width + self.first[1]..].iter_mut().step_by(horizontal);
            to.zip(&from[self.columns.clone()]).for_each(|(to, &x)| *to += x);
        }
    }

    /// Sets the entries left and right of the image to 0.
    fn clear_edges<T: Gemm>(&self, places: &mut [T], cols: usize) {
        if self.columns.len() == cols {
            return;
        }
        for row in places.chunks_mut(cols) {
            row[..self.columns.start].iter_mut().for_each(|place| *place = T::ZERO);
            row[self.columns.end..].iter_mut().for_each(|place| *place = T::ZERO);
        }
    }
}
