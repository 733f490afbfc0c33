//! Sums and elementwise functions over a strip: a few neighboring channels of all images.

use crate::cpu::fold::{Sum, fold_slice};
use crate::cpu::number::Float;
use crate::cpu::simd::{self, Loop};
use crate::cpu::tiles::{Computed, Tiles, write};
use crate::shape::{DType, Shape};

/// The number of neighboring elements of an image that are processed together: 2 KiB of f32.
const TILE: usize = 512;

/// The number of images that are summed before they are added to the sums.
const GROUP: usize = 4;

/// The number of elements that are converted from 16-bit floats before they are summed.
const CONVERTED: usize = 16 * TILE;

/// The number of elements up to which a loop sums the places of a channel.
const FEW: usize = 32;

/// Elements of shape `[images, channels, places]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    images: usize,
    channels: usize,
    places: usize,
}

impl Sizes {
    /// The sizes of an input of shape `[images, channels, ..]`.
    pub(super) fn new(shape: &Shape) -> Self {
        let (images, rest) = shape.dims().split_first().unwrap_or((&1, &[]));
        let (channels, rest) = rest.split_first().unwrap_or((&1, &[]));
        Self { images: *images, channels: *channels, places: rest.iter().product() }
    }

    /// The number of elements of a channel.
    pub(super) const fn of_channel(self) -> usize {
        self.images * self.places
    }

    /// The number of channels of a strip with about `elements` elements.
    pub(super) fn channels_per_strip(self, elements: usize) -> usize {
        (elements / self.of_channel().max(1)).clamp(1, self.channels.max(1))
    }

    /// The length of an image, and the width of a strip of this number of channels.
    pub(super) const fn strips(self, channels: usize) -> [usize; 2] {
        [self.channels * self.places, channels * self.places]
    }
}

/// Neighboring channels of all images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip {
    pub(super) sizes: Sizes,
    /// The first channel.
    pub(super) first: usize,
    pub(super) channels: usize,
}

impl Strip {
    /// The first element of each channel in an image.
    pub(super) fn first_elements(&self) -> impl Iterator<Item = usize> {
        (self.first..self.first + self.channels).map(|channel| channel * self.sizes.places)
    }

    /// Sums `f(elements, shift of the channel)` over each channel, for contiguous inputs.
    pub(super) fn sum<T: Computed, const N: usize, const S: usize>(
        &self,
        inputs: [Tiles<'_, T>; N],
        shifts: &[T],
        f: impl Fn([T; N], T) -> [T; S],
        mut sums: [&mut [T]; S],
    ) {
        sums.iter_mut().for_each(|sums| sums.fill(T::ZERO));
        if inputs.iter().all(|input| input.computed().is_some()) {
            self.sum_in(inputs, shifts, &f, sums, &mut []);
        } else {
            self.sum_converted(inputs, shifts, &f, sums);
        }
    }

    /// As [`sum`](Self::sum), for inputs with 16-bit floats. Apart, because other inputs require no stack for conversions.
    #[inline(never)]
    fn sum_converted<T: Computed, const N: usize, const S: usize>(
        &self,
        inputs: [Tiles<'_, T>; N],
        shifts: &[T],
        f: &impl Fn([T; N], T) -> [T; S],
        sums: [&mut [T]; S],
    ) {
        self.sum_in(inputs, shifts, f, sums, &mut [T::ZERO; CONVERTED]);
    }

    fn sum_in<T: Computed, const N: usize, const S: usize>(
        &self,
        inputs: [Tiles<'_, T>; N],
        shifts: &[T],
        f: &impl Fn([T; N], T) -> [T; S],
        mut sums: [&mut [T]; S],
        space: &mut [T],
    ) {
        let Sizes { images, places, .. } = self.sizes;
        let image_size = self.sizes.strips(0)[0];
        // The images that are summed at a time. Not those of a group, so that all inputs are summed in the same order.
        let at_once = if space.is_empty() { images } else { space.len() / (N * TILE) / GROUP * GROUP };
        let mut spread = [[T::ZERO; TILE]; 1];
        for start in (0..self.channels * places).step_by(TILE) {
            let end = (start + TILE).min(self.channels * places);
            let len = end - start;
            per_element([shifts], places, start..end, &mut spread);
            let mut of_tile = [[T::ZERO; TILE]; S];
            for image in (0..images).step_by(at_once.max(1)) {
                let count = at_once.min(images - image);
                let mut columns: [(&[T], usize); N] = [(&[], 0); N];
                let mut rest = &mut *space;
                for (column, input) in columns.iter_mut().zip(&inputs) {
                    let first = image * image_size + self.first * places + start;
                    if let Some(values) = input.computed() {
                        *column = (&values[first..], image_size);
                        continue;
                    }
                    let Some(space) = rest.split_off_mut(..count * TILE) else { return };
                    for (row, space) in space.chunks_mut(TILE).enumerate() {
                        let from = first + row * image_size;
                        input.copy(from..from + len, &mut space[..len]);
                    }
                    *column = (space, TILE);
                }
                let (inputs, shifts, sums) = (columns, &spread[0][..len], &mut of_tile);
                simd::run(Columns { inputs, images: count, shifts, sums, f });
            }
            let mut from = start;
            while from < end {
                let channel = from / places;
                let to = end.min((channel + 1) * places);
                for (sums, of_tile) in sums.iter_mut().zip(&of_tile) {
                    sums[channel] += sum_of(&of_tile[from - start..to - start]);
                }
                from = to;
            }
        }
    }

    /// `rows[image][i] = f(elements, values of the channel)`, for contiguous inputs and rows of elements of type `dtype`.
    pub(super) fn map<T: Computed, const N: usize, const P: usize>(
        &self,
        inputs: [Tiles<'_, T>; N],
        values: [&[T]; P],
        dtype: DType,
        rows: &mut [&mut [u8]],
        f: impl Fn([T; N], [T; P]) -> T,
    ) {
        let (places, size) = (self.sizes.places, dtype.size());
        let mut spread = [[T::ZERO; TILE]; P];
        let (mut read, mut written) = ([[T::ZERO; TILE]; N], [T::ZERO; TILE]);
        for start in (0..self.channels * places).step_by(TILE) {
            let end = (start + TILE).min(self.channels * places);
            per_element(values, places, start..end, &mut spread);
            let values = spread.each_ref().map(|spread| &spread[..end - start]);
            for (image, row) in rows.iter_mut().enumerate() {
                let first = image * self.sizes.strips(0)[0] + self.first * places + start;
                let mut from: [&[T]; N] = [&[]; N];
                for ((from, input), space) in from.iter_mut().zip(&inputs).zip(&mut read) {
                    *from = input.load(first..first + (end - start), space);
                }
                write(dtype, &mut row[start * size..end * size], &mut written, |out| {
                    simd::run(Elements { inputs: from, values, out, f: &f });
                });
            }
        }
    }
}

/// Repeats the values of channels for the elements `range` of a strip.
fn per_element<T: Float, const P: usize>(
    values: [&[T]; P],
    places: usize,
    range: std::ops::Range<usize>,
    spread: &mut [[T; TILE]; P],
) {
    let mut from = range.start;
    while from < range.end {
        let channel = from / places;
        let to = range.end.min((channel + 1) * places);
        for (spread, values) in spread.iter_mut().zip(values) {
            spread[from - range.start..to - range.start].fill(values[channel]);
        }
        from = to;
    }
}

/// Sums the places of a channel.
fn sum_of<T: Float>(values: &[T]) -> T {
    if values.len() > FEW {
        return fold_slice::<T, Sum>(values);
    }
    values.iter().fold(T::ZERO, |sum, &value| sum + value)
}

/// Adds the sums of `f` over the images to `sums`, for each element of a tile.
struct Columns<'a, T, F, const N: usize, const S: usize> {
    /// The inputs, from the tile's first element in the first image on, and the distance to the next image.
    inputs: [(&'a [T], usize); N],
    images: usize,
    shifts: &'a [T],
    sums: &'a mut [[T; TILE]; S],
    f: &'a F,
}

impl<T: Float, F: Fn([T; N], T) -> [T; S], const N: usize, const S: usize> Loop for Columns<'_, T, F, N, S> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "loops by index vectorize")]
    fn run(self) {
        let Self { inputs, images, shifts, f, .. } = self;
        // A copy, so that the compiler knows that no input aliases it.
        let mut sums = *self.sums;
        let len = shifts.len().min(TILE);
        let row = |image: usize| inputs.map(|(input, step)| &input[image * step..][..len]);
        let element = |row: [&[T]; N], i: usize| f(row.map(|values| values[i]), shifts[i]);
        let grouped = images - images % GROUP;
        for image in (0..grouped).step_by(GROUP) {
            let [a, b, c, d] = [row(image), row(image + 1), row(image + 2), row(image + 3)];
            for i in 0..len {
                let [a, b, c, d] = [element(a, i), element(b, i), element(c, i), element(d, i)];
                for sum in 0..S {
                    sums[sum][i] += (a[sum] + b[sum]) + (c[sum] + d[sum]);
                }
            }
        }
        for image in grouped..images {
            let row = row(image);
            for i in 0..len {
                let terms = element(row, i);
                for sum in 0..S {
                    sums[sum][i] += terms[sum];
                }
            }
        }
        *self.sums = sums;
    }
}

/// `out[i] = f(inputs[i], values[i])`.
struct Elements<'a, T, F, const N: usize, const P: usize> {
    inputs: [&'a [T]; N],
    values: [&'a [T]; P],
    out: &'a mut [T],
    f: &'a F,
}

impl<T: Float, F: Fn([T; N], [T; P]) -> T, const N: usize, const P: usize> Loop for Elements<'_, T, F, N, P> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { inputs, values, out, f } = self;
        let len = out.len();
        let (inputs, values) = (inputs.map(|input| &input[..len]), values.map(|values| &values[..len]));
        for (i, out) in out.iter_mut().enumerate() {
            *out = f(inputs.map(|input| input[i]), values.map(|values| values[i]));
        }
    }
}
