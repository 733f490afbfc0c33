//! Batch normalization: the statistics of each channel and the normalization, in one pass over memory.
//!
//! The elements have the shape `[images, channels, places]`. A strip is a few neighboring channels of all images, small
//! enough for the L2 cache:
//!
//! ```text
//!             channel 0   1   2   3 …
//!   image 0   ▓▓▓▓▓▓▓▓▓▓▓|░░░░░░░|░░
//!   image 1   ▓▓▓▓▓▓▓▓▓▓▓|░░░░░░░|░░
//! ```
//!
//! Each strip is summed and then normalized, so that the second pass reads it from the cache. Sums go over the images
//! first, for many elements of an image at once, and then over the places of each channel. The strips depend only on the
//! shape.

mod strip;

use super::{NormalizeChannels, NormalizeChannelsGrad};
use crate::cpu::dispatch::{contiguous, float, host_mut};
use crate::cpu::parallel::{LIGHT, Workers};
use crate::cpu::tiles::{Computed, Tiles, bytes_mut};
use crate::error::Result;
use crate::families::RunCpu;
use crate::shape::DType;
use crate::storage::ViewMut;

use strip::{Sizes, Strip};

/// The largest ratio of the squared mean of shifted elements to their variance for which the variance is accurate.
const SHIFTED: f64 = 16.0;

/// The moments of the channels of a strip: the mean is `shifts + means`.
struct Moments<T> {
    shifts: Vec<T>,
    means: Vec<T>,
    variances: Vec<T>,
}

impl<T: Computed> Moments<T> {
    /// The moments of shifted elements. The shift is the first element of the channel. If that is far from the mean, a second
    /// pass takes the mean. No element is more than √n deviations from the mean of n elements, so that mean is accurate.
    fn new(strip: &Strip, x: Tiles<'_, T>) -> Self {
        let zeros = || vec![T::ZERO; strip.channels];
        let mut found = Self { shifts: zeros(), means: zeros(), variances: zeros() };
        if strip.sizes.of_channel() > 0 {
            for (shift, first) in found.shifts.iter_mut().zip(strip.first_elements()) {
                x.copy(first..first + 1, std::slice::from_mut(shift));
            }
        }
        if found.sum(strip, x) {
            found.shifts.iter_mut().zip(&found.means).for_each(|(shift, &mean)| *shift += mean);
            found.sum(strip, x);
        }
        found
    }

    /// Computes the means and the variances. Returns whether a shift is far from a mean.
    fn sum(&mut self, strip: &Strip, x: Tiles<'_, T>) -> bool {
        let terms = |[x]: [T; 1], shift: T| {
            let shifted = x - shift;
            [shifted, shifted * shifted]
        };
        strip.sum([x], &self.shifts, terms, [&mut self.means, &mut self.variances]);
        let count = T::from_f64(strip.sizes.of_channel() as f64);
        let mut is_far = false;
        for (mean, variance) in self.means.iter_mut().zip(&mut self.variances) {
            *mean = *mean / count;
            let square = *mean * *mean;
            *variance = (*variance / count - square).larger(T::ZERO);
            is_far |= square > *variance * T::from_f64(SHIFTED);
        }
        is_far
    }
}

impl RunCpu for NormalizeChannels<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        float!(op, self.statistics.dtype(), T => self.run::<T>(workers, op))
    }
}

impl NormalizeChannels<'_> {
    fn run<T: Computed>(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { epsilon, rectified, ref input, ref weight, ref bias, ref residual, .. } = *self;
        let sizes = Sizes::new(input.layout().shape());
        let (x, added) = (Tiles::<T>::new(op, input)?, Tiles::optional(op, residual.as_ref())?);
        let (weight, bias) = (Tiles::<T>::new(op, weight)?, Tiles::<T>::new(op, bias)?);
        let fixed = match (&self.fixed_mean, &self.fixed_variance) {
            (Some(mean), Some(variance)) => Some([Tiles::<T>::new(op, mean)?, Tiles::new(op, variance)?]),
            _ => None,
        };
        let adds = residual.is_some();
        let dtype = self.out.dtype();
        let (out, statistics) = (bytes_mut(op, &mut self.out)?, host_mut::<T>(op, &mut self.statistics)?);
        let variance = self.variance.as_mut().map_or(Ok(Default::default()), |out| host_mut::<T>(op, out))?;
        let (epsilon, channels) = (T::from_f64(epsilon), sizes.channels_per_strip(LIGHT));
        let chunks = ([statistics, variance], [2 * channels, channels]);
        let strips = sizes.strips(channels);
        workers.strips([(out, dtype.size())], strips, chunks, &|number, [mut rows], [pairs, variance]| {
            let strip = Strip { sizes, first: number * channels, channels: pairs.len() / 2 };
            let of_strip = strip.first..strip.first + strip.channels;
            let Moments { shifts, means, variances } = match fixed {
                Some(given) => {
                    let [mut shifts, mut variances] = [(); 2].map(|()| vec![T::ZERO; strip.channels]);
                    given[0].copy(of_strip.clone(), &mut shifts);
                    given[1].copy(of_strip.clone(), &mut variances);
                    Moments { shifts, means: vec![T::ZERO; strip.channels], variances }
                }
                None => Moments::new(&strip, x),
            };
            if !variance.is_empty() {
                variance.copy_from_slice(&variances);
            }
            let [mut factors, mut offsets] = [(); 2].map(|()| vec![T::ZERO; strip.channels]);
            weight.copy(of_strip.clone(), &mut factors);
            bias.copy(of_strip, &mut offsets);
            for (channel, pair) in pairs.chunks_mut(2).enumerate() {
                let scale = T::ONE / (variances[channel] + epsilon).sqrt();
                pair.copy_from_slice(&[shifts[channel] + means[channel], scale]);
                factors[channel] *= scale;
                offsets[channel] -= means[channel] * factors[channel];
            }
            let (values, rows) = ([&shifts[..], &factors, &offsets], &mut rows[..]);
            let normal = |x: T, [shift, factor, offset]: [T; 3]| (x - shift) * factor + offset;
            match (adds, rectified) {
                (false, false) => strip.map([x], values, dtype, rows, |[x], of| normal(x, of)),
                (false, true) => strip.map([x], values, dtype, rows, |[x], of| normal(x, of).rectified()),
                (true, false) => strip.map([x, added], values, dtype, rows, |[x, r], of| normal(x, of) + r),
                (true, true) => {
                    strip.map([x, added], values, dtype, rows, |[x, r], of| (normal(x, of) + r).rectified());
                }
            }
        });
        Ok(())
    }
}

impl RunCpu for NormalizeChannelsGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        float!(op, self.weight.dtype(), T => self.run::<T>(workers, op))
    }
}

/// The gradient that passes a ReLU with output y.
// Adds 0 as the gradient of the function `relu` does, so that both return the same bits.
#[inline(always)]
fn masked<T: Computed>(g: T, y: T) -> T {
    if y <= T::ZERO { T::ZERO } else { g + T::ZERO }
}

impl NormalizeChannelsGrad<'_> {
    fn run<T: Computed>(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { of_batch, ref of, ref grad, ref output, .. } = *self;
        let sizes = Sizes::new(of.input.layout().shape());
        let (x, grad) = (Tiles::<T>::new(op, &of.input)?, Tiles::<T>::new(op, grad)?);
        let (y, statistics) = (Tiles::optional(op, output.as_ref())?, contiguous::<T>(op, &of.statistics)?);
        let weight = of.weight.as_ref().map(|weight| Tiles::<T>::new(op, weight)).transpose()?;
        let rectified = output.is_some();
        let outs = [&mut self.out, &mut self.residual];
        let dtypes = outs.each_ref().map(|out| out.as_ref().map_or(DType::F32, ViewMut::dtype));
        let mut matrices: [(&mut [u8], usize); 2] = Default::default();
        for ((matrix, dtype), out) in matrices.iter_mut().zip(dtypes).zip(outs) {
            let bytes = out.as_mut().map_or(Ok(Default::default()), |out| bytes_mut(op, out))?;
            *matrix = (bytes, dtype.size());
        }
        let sums = [host_mut::<T>(op, &mut self.weight)?, host_mut::<T>(op, &mut self.bias)?];
        let count = T::from_f64(sizes.of_channel() as f64);
        // Several inputs share the cache.
        let channels = sizes.channels_per_strip(LIGHT / 2);
        let (strips, chunks) = (sizes.strips(channels), (sums, [channels; 2]));
        workers.strips(matrices, strips, chunks, &|number, [mut rows, mut added], [along, total]| {
            let strip = Strip { sizes, first: number * channels, channels: total.len() };
            let of_strip = &statistics[2 * strip.first..][..2 * strip.channels];
            let means: Vec<T> = of_strip.iter().copied().step_by(2).collect();
            if rectified {
                let terms = |[x, g, y]: [T; 3], mean: T| {
                    let g = masked(g, y);
                    [(x - mean) * g, g]
                };
                strip.sum([x, grad, y], &means, terms, [along, total]);
            } else {
                let terms = |[x, g]: [T; 2], mean: T| [(x - mean) * g, g];
                strip.sum([x, grad], &means, terms, [along, total]);
            }
            let mut factors = vec![T::ONE; strip.channels];
            if let Some(weight) = &weight {
                weight.copy(strip.first..strip.first + strip.channels, &mut factors);
            }
            let [mut mean_grads, mut slopes] = [(); 2].map(|()| vec![T::ZERO; strip.channels]);
            for (channel, pair) in of_strip.chunks(2).enumerate() {
                let scale = pair[1];
                along[channel] *= scale;
                factors[channel] *= scale;
                mean_grads[channel] = total[channel] / count;
                slopes[channel] = scale * along[channel] / count;
            }
            let values = [&means[..], &factors, &mean_grads, &slopes];
            let [dtype, of_residual] = dtypes;
            let gradient = |x: T, g: T, [mean, factor, mean_grad, slope]: [T; 4]| {
                factor * (g - mean_grad - (x - mean) * slope)
            };
            match (of_batch, rectified) {
                (true, true) => strip.map([x, grad, y], values, dtype, &mut rows, |[x, g, y], of| {
                    gradient(x, masked(g, y), of)
                }),
                (true, false) => {
                    strip.map([x, grad], values, dtype, &mut rows, |[x, g], of| gradient(x, g, of));
                }
                (false, true) => {
                    strip.map([grad, y], [&factors[..]], dtype, &mut rows, |[g, y], [factor]| {
                        factor * masked(g, y)
                    })
                }
                (false, false) => {
                    strip.map([grad], [&factors[..]], dtype, &mut rows, |[g], [factor]| factor * g);
                }
            }
            if rectified {
                strip.map([grad, y], [], of_residual, &mut added, |[g, y], []| masked(g, y));
            } else {
                strip.map([grad], [], of_residual, &mut added, |[g], []| g);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
