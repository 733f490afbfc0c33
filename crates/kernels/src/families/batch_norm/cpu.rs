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
use crate::cpu::number::Number;
use crate::cpu::parallel::{LIGHT, Workers};
use crate::error::Result;
use crate::families::RunCpu;

use strip::{Sizes, Strip};

impl RunCpu for NormalizeChannels<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { epsilon, input, weight, bias, ref mut out, ref mut statistics, ref mut variance, .. } =
            *self;
        let sizes = Sizes::new(input.layout().shape());
        float!(op, out.dtype(), T => {
            let x = contiguous::<T>(op, &input)?;
            let (weight, bias) = (contiguous::<T>(op, &weight)?, contiguous::<T>(op, &bias)?);
            let (out, statistics) = (host_mut::<T>(op, out)?, host_mut::<T>(op, statistics)?);
            let variance = host_mut::<T>(op, variance)?;
            let (epsilon, count) = (T::from_f64(epsilon), T::from_f64(sizes.of_channel() as f64));
            let channels = sizes.channels_per_strip(LIGHT);
            let chunks = ([statistics, variance], [2 * channels, channels]);
            workers.strips(out, sizes.strips(channels), chunks, &|number, rows, [statistics, variance]| {
                let strip = Strip { sizes, first: number * channels, channels: variance.len() };
                let (unused, mut means) = (vec![T::ZERO; variance.len()], vec![T::ZERO; variance.len()]);
                strip.sum([x], &unused, |[x], _| [x], [&mut means]);
                means.iter_mut().for_each(|mean| *mean /= count);
                strip.sum([x], &means, |[x], mean| [(x - mean) * (x - mean)], [variance]);
                variance.iter_mut().for_each(|sum| *sum /= count);
                let mut factors = vec![T::ZERO; variance.len()];
                for (channel, pair) in statistics.chunks_mut(2).enumerate() {
                    let scale = T::ONE / (variance[channel] + epsilon).sqrt();
                    pair.copy_from_slice(&[means[channel], scale]);
                    factors[channel] = scale * weight[strip.first + channel];
                }
                let shifts = &bias[strip.first..][..strip.channels];
                let normalize = |[x]: [T; 1], [mean, factor, shift]: [T; 3]| (x - mean) * factor + shift;
                strip.map([x], [&means, &factors, shifts], rows, normalize);
            });
            Ok(())
        })
    }
}

impl RunCpu for NormalizeChannelsGrad<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { ref of, grad, ref mut out, weight: ref mut weight_grad, bias: ref mut bias_grad, .. } =
            *self;
        let sizes = Sizes::new(of.input.layout().shape());
        float!(op, of.input.dtype(), T => {
            let (x, grad) = (contiguous::<T>(op, &of.input)?, contiguous::<T>(op, &grad)?);
            let statistics = contiguous::<T>(op, &of.statistics)?;
            let weight = of.weight.as_ref().map(|weight| contiguous::<T>(op, weight)).transpose()?;
            let out = out.as_mut().map_or(Ok(Default::default()), |out| host_mut::<T>(op, out))?;
            let sums = [host_mut::<T>(op, weight_grad)?, host_mut::<T>(op, bias_grad)?];
            let count = T::from_f64(sizes.of_channel() as f64);
            // Two inputs share the cache.
            let channels = sizes.channels_per_strip(LIGHT / 2);
            workers.strips(out, sizes.strips(channels), (sums, [channels; 2]), &|number, rows, [along, total]| {
                let strip = Strip { sizes, first: number * channels, channels: total.len() };
                let of_strip = &statistics[2 * strip.first..][..2 * strip.channels];
                let means: Vec<T> = of_strip.iter().copied().step_by(2).collect();
                let terms = |[x, g]: [T; 2], mean: T| [(x - mean) * g, g];
                strip.sum([x, grad], &means, terms, [along, total]);
                let mut factors = [const { Vec::new() }; 3];
                for (channel, pair) in of_strip.chunks(2).enumerate() {
                    let scale = pair[1];
                    along[channel] *= scale;
                    let weight = weight.map_or(T::ONE, |weight| weight[strip.first + channel]);
                    let of_channel = [scale * weight, total[channel] / count, scale * along[channel] / count];
                    factors.iter_mut().zip(of_channel).for_each(|(all, factor)| all.push(factor));
                }
                let [factor, mean_grad, slope] = &factors;
                let gradient = |[x, g]: [T; 2], [mean, factor, mean_grad, slope]: [T; 4]| {
                    factor * (g - mean_grad - (x - mean) * slope)
                };
                strip.map([x, grad], [&means, factor, mean_grad, slope], rows, gradient);
            });
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
