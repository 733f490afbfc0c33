//! Direct sums, for the results that Winograd's algorithm leaves without a finite value.
//!
//! The transforms add inputs. So one infinite input makes several outputs NaN whose direct sums are infinite, and large
//! inputs may overflow. Each output reads at least one transformed value of each of its inputs and taps, and no later step
//! makes an infinity or NaN finite. So outputs whose direct sums read such a value are not finite here either, and only
//! outputs that are not finite need a direct sum.

use super::{Direction, TAPS, Winograd};
use crate::cpu::gemm::{Block, Depth, PackInto};
use crate::cpu::number::Float;
use crate::cpu::simd::Loop;

/// The number of neighboring outputs that are summed together.
const LANES: usize = 16;

/// The products of a sum before it is added to the total, as in the direct algorithm's panels.
const DEPTH: usize = 256;

/// The number of products between checks whether all sums are NaN, which they remain.
const CHECKED: usize = 32;

/// Whether a value is neither infinite nor NaN.
#[inline(always)]
pub(super) fn is_finite<T: Float>(value: T) -> bool {
    value.magnitude() < T::HIGHEST
}

/// Pixels of a row of a plane, from a column that counts the padding on.
#[derive(Clone, Copy)]
struct Row<'a, S> {
    /// Empty for a row of the padding.
    pixels: &'a [S],
    padding: usize,
}

impl<'a, S> Row<'a, S> {
    /// A row that counts the padding.
    #[inline(always)]
    fn new(sizes: &Winograd, plane: &'a [S], row: usize) -> Self {
        let ([height, width], [above, padding]) = (sizes.from, sizes.padding);
        let row = row.checked_sub(above).filter(|&row| row < height);
        Self { pixels: row.map_or(&[], |row| &plane[row * width..][..width]), padding }
    }

    /// `count` pixels; 0 for the padding and for further lanes.
    #[inline(always)]
    fn at<T: Float + Depth>(&self, column: usize, count: usize) -> [T; LANES]
    where
        S: PackInto<T>,
    {
        let mut lanes = [T::ZERO; LANES];
        let start = self.padding.saturating_sub(column).min(count);
        let end = (self.pixels.len() + self.padding).saturating_sub(column).min(count);
        if start < end {
            let pixels = &self.pixels[column + start - self.padding..];
            lanes[start..end].iter_mut().zip(pixels).for_each(|(to, from)| *to = from.pack(S::default()));
        }
        lanes
    }
}

/// Computes the outputs of a task that are not finite.
pub(super) struct Outputs<'a, 'b, T, S> {
    pub(super) sizes: &'a Winograd,
    pub(super) from: &'a [S],
    pub(super) weight: &'a [[S; TAPS]],
    /// Rows are images; columns are channels and places.
    pub(super) out: &'a mut Block<'b, T>,
}

impl<T: Float + Depth, S: PackInto<T>> Loop for Outputs<'_, '_, T, S> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { sizes, from, weight, out } = self;
        let ([height, width], image) = (sizes.to, sizes.inputs * sizes.from[0] * sizes.from[1]);
        let plane = height * width;
        for number in out.rows() {
            let image = &from[number * image..][..image];
            let channels = out.columns().start / plane..out.columns().end / plane;
            for channel in channels {
                let outputs = out.row(number, channel * plane..(channel + 1) * plane);
                for (row, outputs) in outputs.chunks_exact_mut(width).enumerate() {
                    for (group, outputs) in outputs.chunks_mut(LANES).enumerate() {
                        if !outputs.iter().all(|&output| is_finite(output)) {
                            let sums = Sums { sizes, image, weight, channel, row, column: group * LANES };
                            sums.replace(outputs);
                        }
                    }
                }
            }
        }
    }
}

/// The direct sums of neighboring outputs, from one row and column on.
struct Sums<'a, S> {
    sizes: &'a Winograd,
    image: &'a [S],
    weight: &'a [[S; TAPS]],
    channel: usize,
    row: usize,
    column: usize,
}

impl<S: Copy + Default> Sums<'_, S> {
    /// Replaces the outputs that are not finite.
    #[inline(always)]
    fn replace<T: Float + Depth>(&self, outputs: &mut [T])
    where
        S: PackInto<T>,
    {
        let count = outputs.len();
        let (mut totals, mut sums) = ([T::NAN; LANES], [T::ZERO; LANES]);
        for (total, &output) in totals.iter_mut().zip(&*outputs) {
            if !is_finite(output) {
                *total = T::ZERO;
            }
        }
        for index in 0..TAPS * self.sizes.inputs {
            let (pixels, tap) = self.factors(index, count);
            for (sum, pixel) in sums.iter_mut().zip(pixels) {
                *sum = tap.fused(pixel, *sum);
            }
            if index % DEPTH == DEPTH - 1 {
                totals
                    .iter_mut()
                    .zip(&mut sums)
                    .for_each(|(total, sum)| *total += std::mem::replace(sum, T::ZERO));
            }
            if index % CHECKED == CHECKED - 1 {
                let mut all = true;
                totals.iter().zip(&sums).for_each(|(&total, &sum)| all &= (total + sum).is_nan());
                if all {
                    break;
                }
            }
        }
        for ((output, total), sum) in outputs.iter_mut().zip(totals).zip(sums) {
            if !is_finite(*output) {
                *output = total + sum;
            }
        }
    }

    /// The pixels and the tap of a product, in the order of the direct algorithm.
    #[inline(always)]
    fn factors<T: Float + Depth>(&self, index: usize, count: usize) -> ([T; LANES], T)
    where
        S: PackInto<T>,
    {
        let Winograd { inputs, outputs, from: [height, width], .. } = *self.sizes;
        let (input, place, tap) = match self.sizes.direction {
            Direction::Forward => {
                let (input, tap) = (index / TAPS, index % TAPS);
                (input, tap, self.weight[self.channel * inputs + input][tap])
            }
            Direction::Backward => {
                let (input, tap) = (index % inputs, index / inputs);
                (input, TAPS - 1 - tap, self.weight[input * outputs + self.channel][tap])
            }
        };
        let plane = &self.image[input * height * width..][..height * width];
        let row = Row::new(self.sizes, plane, self.row + place / 3);
        (row.at(self.column + place % 3, count), tap.pack(S::default()))
    }
}

/// Computes the filters of one output channel's gradient that are not finite.
pub(super) struct Filters<'a, T, S> {
    pub(super) sizes: &'a Winograd,
    pub(super) images: &'a [S],
    pub(super) grads: &'a [S],
    /// The output channel.
    pub(super) channel: usize,
    pub(super) filters: &'a mut [[T; TAPS]],
}

impl<T: Float + Depth, S: PackInto<T>> Loop for Filters<'_, T, S> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { sizes, images, grads, channel, filters } = self;
        let [pixels, places] = [sizes.from, sizes.to].map(|[height, width]| height * width);
        for (input, filter) in filters.iter_mut().enumerate() {
            if filter.iter().all(|&tap| is_finite(tap)) {
                continue;
            }
            let mut totals = [T::ZERO; TAPS];
            for image in 0..sizes.images {
                let seen = &images[(image * sizes.inputs + input) * pixels..][..pixels];
                let grads = &grads[(image * sizes.outputs + channel) * places..][..places];
                add_image(sizes, seen, grads, &mut totals);
                if totals.iter().all(|total| total.is_nan()) {
                    break;
                }
            }
            for (tap, total) in filter.iter_mut().zip(totals) {
                if !is_finite(*tap) {
                    *tap = total;
                }
            }
        }
    }
}

/// Adds the products of a plane of the input and a plane of gradients.
#[inline(always)]
fn add_image<T: Float + Depth, S: PackInto<T>>(
    sizes: &Winograd,
    seen: &[S],
    grads: &[S],
    totals: &mut [T; TAPS],
) {
    let mut sums = [[T::ZERO; LANES]; TAPS];
    for (row, grads) in grads.chunks_exact(sizes.to[1]).enumerate() {
        for (group, grads) in grads.chunks(LANES).enumerate() {
            let grads = Row { pixels: grads, padding: 0 }.at::<T>(0, LANES);
            let count = LANES.min(sizes.to[1] - group * LANES);
            for (tap, sums) in sums.iter_mut().enumerate() {
                let row = Row::new(sizes, seen, row + tap / 3);
                let pixels = row.at::<T>(group * LANES + tap % 3, count);
                for ((sum, grad), pixel) in sums.iter_mut().zip(grads).zip(pixels) {
                    *sum = grad.fused(pixel, *sum);
                }
            }
        }
    }
    for (total, sums) in totals.iter_mut().zip(sums) {
        sums.into_iter().for_each(|sum| *total += sum);
    }
}
