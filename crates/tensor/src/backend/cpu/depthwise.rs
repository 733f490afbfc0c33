//! Depthwise convolutions: one input and one output channel per group. As a matrix product with one row, im2col would
//! take longer than the multiplication.
//!
//! With stride 1 and equal row lengths, each tap reads the image shifted by an offset. The taps of one window column
//! are summed first, shifted by whole rows, in loops over the whole plane. Their sum is then shifted sideways, without
//! the columns that would wrap into the neighboring row.

mod run;

use std::ops::Range;

pub(super) use self::run::{forward, input_grad, weight_grad, weight_grad_workspace, workspace};
use super::conv::Sizes;
use super::fold::sum_products;
use super::matmul::Gemm;
use super::simd;

/// The depthwise algorithm for one channel.
#[derive(Clone, Copy)]
pub(super) struct Depthwise<'a> {
    sizes: &'a Sizes,
    /// The length of a row, in the image and in the output.
    width: usize,
}

impl<'a> Depthwise<'a> {
    /// Returns `None` if the convolution needs im2col.
    pub(super) fn new(sizes: &'a Sizes) -> Option<Self> {
        let width = sizes.from[1];
        let moves_by_one = sizes.conv.windows.iter().all(|window| window.stride == 1);
        let shifts = moves_by_one && sizes.to[1] == width;
        // The sums below use the workspace of the im2col matrix.
        let has_space = sizes.from[0] <= sizes.taps().saturating_mul(sizes.to[0]);
        (sizes.is_single() && shifts && has_space).then_some(Self { sizes, width })
    }

    /// Overwrites `out`. `space` has the size of the im2col matrix of a channel, here and below.
    pub(super) fn forward<T: Gemm>(self, channel: &[T], filter: &[T], space: &mut [T], out: &mut [T]) {
        out.fill(T::ZERO);
        for column in self.columns() {
            let add_taps = |sum: &mut [T]| {
                for tap in self.taps(&column) {
                    let seen = &channel[self.rows(&tap.from)];
                    add_product(&mut sum[self.rows(&tap.to)], seen, filter[tap.number]);
                }
            };
            self.add_shifted(out, space, [&column.to, &column.from], add_taps);
        }
    }

    /// Adds the gradient of the input to `image`.
    pub(super) fn input_grad<T: Gemm>(self, grad: &[T], filter: &[T], space: &mut [T], image: &mut [T]) {
        for column in self.columns() {
            let add_taps = |sum: &mut [T]| {
                for tap in self.taps(&column) {
                    let grad = &grad[self.rows(&tap.to)];
                    add_product(&mut sum[self.rows(&tap.from)], grad, filter[tap.number]);
                }
            };
            self.add_shifted(image, space, [&column.from, &column.to], add_taps);
        }
    }

    /// Adds the weights' gradient to `filter`.
    pub(super) fn weight_grad<T: Gemm>(self, channel: &[T], grad: &[T], space: &mut [T], filter: &mut [T]) {
        let inside = &mut space[..grad.len()];
        for column in self.columns() {
            inside.copy_from_slice(grad);
            self.clear_beside(&column.to, inside);
            for tap in self.taps(&column) {
                let (seen, grad) = (&channel[self.rows(&tap.from)], &inside[self.rows(&tap.to)]);
                let len = seen.len() - column.from.start.max(column.to.start);
                let (seen, grad) = (&seen[column.from.start..][..len], &grad[column.to.start..][..len]);
                filter[tap.number] += sum_products(seen, grad, |x, grad| x * grad);
            }
        }
    }

    /// The columns of the window that read an element.
    fn columns(self) -> impl Iterator<Item = Column> {
        let window = self.sizes.conv.windows[1];
        (0..window.size).filter_map(move |number| {
            let to = window.inside(number, self.width, self.width);
            let start = window.at(to.start, number, self.width)?;
            (!to.is_empty()).then(|| Column { number, from: start..start + to.len(), to })
        })
    }

    /// The taps of a column that read an element.
    fn taps(self, column: &Column) -> impl Iterator<Item = Tap> {
        let [window, beside] = self.sizes.conv.windows;
        let ([height, _], [rows, _]) = (self.sizes.from, self.sizes.to);
        let across = column.number;
        (0..window.size).filter_map(move |down| {
            let to = window.inside(down, height, rows);
            let start = window.at(to.start, down, height)?;
            let number = down * beside.size + across;
            (!to.is_empty()).then(|| Tap { number, from: start..start + to.len(), to })
        })
    }

    /// The range of elements of these rows.
    fn rows(self, which: &Range<usize>) -> Range<usize> {
        which.start * self.width..which.end * self.width
    }

    /// Sets all other columns to 0.
    fn clear_beside<T: Gemm>(self, columns: &Range<usize>, plane: &mut [T]) {
        if columns.len() == self.width {
            return;
        }
        for column in (0..columns.start).chain(columns.end..self.width) {
            for row in 0..plane.len() / self.width {
                plane[row * self.width + column] = T::ZERO;
            }
        }
    }

    /// Calls `add` with a plane of zeros, and adds the result to `plane`, moved from some columns to others.
    fn add_shifted<T: Gemm>(
        self,
        plane: &mut [T],
        space: &mut [T],
        [to, from]: [&Range<usize>; 2],
        add: impl Fn(&mut [T]),
    ) {
        if from.len() == self.width {
            return add(plane);
        }
        let sum = &mut space[..plane.len()];
        sum.fill(T::ZERO);
        add(sum);
        self.clear_beside(from, sum);
        let len = plane.len() - to.start.max(from.start);
        simd::zip(&mut plane[to.start..][..len], &sum[from.start..][..len], |to, x| *to += x);
    }
}

/// A column of the window.
struct Column {
    number: usize,
    /// The columns of the image that it reads, and the columns of the output to which they contribute.
    from: Range<usize>,
    to: Range<usize>,
}

/// A tap of a column.
struct Tap {
    /// The index in the filter.
    number: usize,
    /// The rows of the image that it reads, and the rows of the output to which they contribute.
    from: Range<usize>,
    to: Range<usize>,
}

fn add_product<T: Gemm>(sum: &mut [T], values: &[T], factor: T) {
    simd::zip(sum, values, |sum, value| *sum = value.fused(factor, *sum));
}
