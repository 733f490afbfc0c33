//! Depthwise convolutions: one input and one output channel per group. For a matrix product with one row, packing would
//! take longer than the multiplication.
//!
//! With stride 1 and equal row lengths, each tap reads the image shifted by an offset. A plane is copied to the workspace
//! with its padding, where every output has all taps. The gradient of the input is the same sum over the padded gradient of
//! the output, with the taps in opposite order.
//!
//! 16-bit images are upcast while they are copied, and outputs are rounded in registers.
//!
//! For the weights' gradient, the output's gradient is copied without the columns whose tap would wrap into the neighboring
//! row. Each tap is then one sum of products.

mod correlate;
mod run;

use std::ops::Range;

use self::correlate::Correlate;
pub(crate) use self::run::{forward, input_grad, weight_grad, weight_grad_workspace, workspace};
use super::Sizes;
use super::element::FromSum;
use crate::cpu::fold::sum_products;
use crate::cpu::gemm::PackInto;
use crate::cpu::{short, simd};
use crate::families::matmul::cpu::Gemm;

/// An element of images and filters whose sums have type `T`.
pub(crate) trait Stored<T: Gemm>: PackInto<T> + FromSum<T> {}

impl<T: Gemm, I: PackInto<T> + FromSum<T>> Stored<T> for I {}

/// The depthwise algorithm for one channel.
#[derive(Clone, Copy)]
pub(crate) struct Depthwise<'a> {
    sizes: &'a Sizes,
    /// The length of a row, in the image and in the output.
    width: usize,
    /// The distance between the first and the last element of the window, along both axes.
    reach: [usize; 2],
    /// The largest number of elements of a padded plane.
    padded: usize,
}

impl<'a> Depthwise<'a> {
    /// Returns `None` if the convolution is computed as a product.
    pub(crate) fn new(sizes: &'a Sizes) -> Option<Self> {
        let (width, windows) = (sizes.from[1], sizes.conv.windows);
        let reach = windows.map(|window| window.size.saturating_sub(1).saturating_mul(window.dilation));
        let moves_by_one = windows.iter().all(|window| window.stride == 1);
        // Transposed convolutions with output padding may have more padding.
        let reads_all = windows.iter().zip(reach).all(|(window, reach)| window.padding <= reach);
        let shifts = moves_by_one && sizes.to[1] == width && reads_all;
        // The workspace has room for the taps of all places of a channel.
        let rows = sizes.from[0].max(sizes.to[0]).saturating_add(reach[0]);
        let padded = rows.saturating_mul(width.saturating_add(reach[1]));
        let has_space = padded <= sizes.taps().saturating_mul(sizes.places());
        (sizes.is_single() && shifts && has_space).then_some(Self { sizes, width, reach, padded })
    }

    /// Fills the padded plane with zeros.
    pub(crate) fn clear<T: Gemm>(self, space: &mut [T]) {
        space[..self.padded].fill(T::ZERO);
    }

    /// The offsets of the taps in a padded plane; for rows of three adjacent taps, those of the first ones.
    pub(crate) fn offsets(self) -> Vec<usize> {
        let [down, across] = self.sizes.conv.windows;
        let is_group = across.size == 3 && across.dilation == 1;
        let columns = if is_group { 1 } else { across.size };
        let rows = (0..down.size).map(|row| row * down.dilation * self.stride());
        rows.flat_map(|row| (0..columns).map(move |column| row + column * across.dilation)).collect()
    }

    /// The length of a row of a padded plane.
    const fn stride(self) -> usize {
        self.width + self.reach[1]
    }

    /// Overwrites `out`. `space` has room for the taps of all places of a channel, here and below. It starts
    /// [clear](Self::clear), and may then hold other channels.
    pub(crate) fn forward<T: Gemm, I: Stored<T>>(
        self,
        channel: &[I],
        (filter, offsets): (&[I], &[usize]),
        space: &mut [T],
        out: &mut [I],
    ) {
        let padding = self.sizes.conv.windows.map(|window| window.padding);
        self.pad(channel, padding, space);
        self.correlate(space, (filter, offsets, false), out);
    }

    /// Overwrites `image` with the gradient of the input. `space` as in [`forward`](Self::forward).
    pub(crate) fn input_grad<T: Gemm, I: Stored<T>>(
        self,
        grad: &[I],
        (filter, offsets): (&[I], &[usize]),
        space: &mut [T],
        image: &mut [I],
    ) {
        let [down, across] = self.sizes.conv.windows;
        let padding = [self.reach[0] - down.padding, self.reach[1] - across.padding];
        self.pad(grad, padding, space);
        self.correlate(space, (filter, offsets, true), image);
    }

    /// Copies a plane into the middle of a padded plane.
    fn pad<T: Gemm, I: Stored<T>>(self, plane: &[I], [above, before]: [usize; 2], padded: &mut [T]) {
        let rows = padded[above * self.stride()..].chunks_mut(self.stride());
        for (row, values) in rows.zip(plane.chunks(self.width)) {
            let row = &mut row[before..][..self.width];
            match I::unchanged(values) {
                Some(values) => short::copy(row, values),
                None => simd::zip(row, values, |to, from| *to = from.pack(I::default())),
            }
        }
    }

    fn correlate<T: Gemm, I: Stored<T>>(
        self,
        padded: &[T],
        (filter, offsets, reversed): (&[I], &[usize], bool),
        out: &mut [I],
    ) {
        let (stride, width) = (self.stride(), self.width);
        simd::run(Correlate { padded, stride, offsets, filter, reversed, width, out });
    }

    /// Adds the weights' gradient to `filter`. `upcast` has memory for the elements of 16-bit images.
    pub(crate) fn weight_grad<T: Gemm, I: Stored<T>>(
        self,
        channel: &[I],
        grad: &[I],
        [space, upcast]: [&mut [T]; 2],
        filter: &mut [T],
    ) {
        let inside = &mut space[..grad.len()];
        let channel = match I::unchanged(channel) {
            Some(channel) => channel,
            None => {
                let upcast = &mut upcast[..channel.len()];
                simd::zip(upcast, channel, |to, from| *to = from.pack(I::default()));
                &*upcast
            }
        };
        for column in self.columns() {
            simd::zip(inside, grad, |to, from| *to = from.pack(I::default()));
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
