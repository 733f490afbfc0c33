//! Random class indices, drawn from probabilities.
//!
//! With ln p as logits, this is [`categorical`](super::categorical). Draws with replacement are independent. Without
//! replacement, the op takes the largest noisy logits of one draw per class, in order: these are distributed as draws one
//! after another (the Gumbel-top-k trick: Kool, van Hoof and Welling 2019). No gradient flows.
//!
//! The op reads the extremes of each row before it draws, so it waits for a GPU. A dry device has no values to check.

use super::SortOrder;
use super::categorical::{check_shape, row_values, with_noise};
use crate::autograd::apply;
use crate::backend::RandomKey;
use crate::error::{Error, Result};
use crate::op::{Op, OpContext};
use crate::shape::{DType, Shape};
use crate::tensor::{Rng, Tensor};

const OP: &str = "multinomial";

#[derive(Debug)]
struct Multinomial {
    samples: usize,
    replacement: bool,
    key: RandomKey,
}

impl Op for Multinomial {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let probabilities = inputs[0];
        check_shape(OP, probabilities)?;
        self.check_samples(probabilities)?;
        check_probabilities(probabilities)?;
        if !self.replacement {
            self.check_classes(probabilities)?;
        }
        let logits = probabilities.to_dtype(DType::F64)?.log()?;
        if !self.replacement {
            let noisy = with_noise(ctx, self.key, &logits)?;
            return noisy.top_k_indices(OP, self.samples, -1, SortOrder::Descending);
        }
        let (leading, classes) = logits.dims().split_at(logits.rank() - 1);
        let dims = [leading, &[self.samples], classes].concat();
        let once_per_sample = Shape::new(&dims).map_err(|error| Error::from(error).in_op(OP))?;
        let logits = logits.unsqueeze(-2)?.broadcast_to(once_per_sample)?;
        with_noise(ctx, self.key, &logits)?.argmax(-1)
    }
}

impl Multinomial {
    /// Fails without samples, and without replacement if there are more samples than classes.
    fn check_samples(&self, probabilities: &Tensor) -> Result<()> {
        let classes = probabilities.dims().last().copied().unwrap_or(0);
        let expected = match self.samples {
            0 => "at least 1",
            samples if samples > classes && !self.replacement => {
                "at most the number of classes without replacement"
            }
            _ => return Ok(()),
        };
        let got = format!("{} for shape {}", self.samples, probabilities.shape());
        Err(Error::BadArgument { op: OP, argument: "num_samples", expected, got })
    }

    /// Fails with the first row that has fewer positive probabilities than samples without replacement.
    fn check_classes(&self, probabilities: &Tensor) -> Result<()> {
        let positive = probabilities.gt(0)?.sum(-1)?;
        let Some(positive) = row_values(&positive)? else { return Ok(()) };
        let Some(row) = positive.iter().position(|&positive| positive < self.samples as f64) else {
            return Ok(());
        };
        let expected = "at most the number of positive probabilities of each row without replacement";
        let (samples, shape) = (self.samples, probabilities.shape());
        let got = format!("{samples} for {} in row {row} of shape {shape}", positive[row]);
        Err(Error::BadArgument { op: OP, argument: "num_samples", expected, got })
    }
}

/// Fails with the first row that has a probability below 0, NaN or ∞, or only zeros.
fn check_probabilities(probabilities: &Tensor) -> Result<()> {
    if probabilities.elements() == 0 {
        return Ok(());
    }
    let (smallest, largest) = (probabilities.min(-1)?, probabilities.max(-1)?);
    let (Some(smallest), Some(largest)) = (row_values(&smallest)?, row_values(&largest)?) else {
        return Ok(());
    };
    let is_bad =
        |(&smallest, &largest): (&f64, &f64)| !(smallest >= 0.0 && largest > 0.0 && largest.is_finite());
    let Some(row) = smallest.iter().zip(&largest).position(is_bad) else { return Ok(()) };
    let got = match (smallest[row], largest[row]) {
        (smallest, _) if smallest < 0.0 || smallest.is_nan() => smallest.to_string(),
        (_, 0.0) => "only 0".to_owned(),
        (_, largest) => largest.to_string(),
    };
    let expected = "finite, at least 0, and not only 0 in a row";
    let got = format!("{got} in row {row} of shape {}", probabilities.shape());
    Err(Error::BadArgument { op: OP, argument: "probabilities", expected, got })
}

/// # Sample classes by probabilities
impl Tensor {
    /// Draws `num_samples` class indices (i64) per row of probabilities, as `torch.multinomial`.
    ///
    /// Shapes: `[.., classes]` to `[.., num_samples]`. The probabilities need not add up to 1. A class of probability 0 is
    /// never drawn. Without replacement, the draws of a row are different, and in the order in which they are drawn. On a
    /// GPU, the method waits until the device has computed the probabilities, because it checks them first. A dry run
    /// checks no values.
    ///
    /// Needs up to three temporaries of 8 bytes per class of each row; with replacement, of 8 bytes per class of each sample.
    /// [`categorical`](Self::categorical) takes logits.
    ///
    /// ```
    /// use highwater::{Device, Rng, Tensor};
    /// let odds = Tensor::from_slice(&Device::cpu()?, &[0.0f32, 3.0, 1.0], [3])?;
    /// let drawn = odds.multinomial(5, true, &Rng::new(0))?.to_vec::<i64>()?;
    /// assert!(drawn.iter().all(|class| [1, 2].contains(class)));
    /// let mut both = odds.multinomial(2, false, &Rng::new(0))?.to_vec::<i64>()?;
    /// both.sort();
    /// assert_eq!(both, [1, 2]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] names the first row with a probability below 0, NaN or `inf`, with only zeros, or, without
    /// replacement, with fewer positive probabilities than samples; also for no samples. [`Error::BadRank`] for a scalar,
    /// [`Error::EmptyReduction`] for rows without classes, [`Error::UnsupportedDType`] unless the elements are floats,
    /// [`Error::RankTooLarge`] with replacement, [`Error::Allocation`] if there is no memory. After an error the random
    /// generator is unchanged.
    pub fn multinomial(&self, num_samples: usize, replacement: bool, rng: &Rng) -> Result<Self> {
        rng.with_keys(|[key]| apply(Multinomial { samples: num_samples, replacement, key }, &[self]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu(threads: usize) -> Device {
        Runtime::builder().threads(threads).build().unwrap().cpu().unwrap()
    }

    const ALL: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

    /// Checks that an event of probability `p` came `count` times of `all`, within five standard deviations.
    fn check_share(count: usize, all: usize, p: f64, what: &str) {
        let (share, bound) = (count as f64 / all as f64, 5.0 * (p * (1.0 - p) / all as f64).sqrt());
        assert!((share - p).abs() <= bound, "{what}: {share} for {p}");
    }

    #[test]
    fn draws_with_replacement_are_independent_and_as_frequent_as_their_probabilities() {
        const ROWS: usize = 20_000;
        let (device, rng) = (cpu(2), Rng::new(7));
        let odds = [1.0, 0.0, 4.0, 3.0];
        for dtype in ALL {
            let row = Tensor::from_slice(&device, &odds, [1, 4]).unwrap().to_dtype(dtype).unwrap();
            let drawn = row.broadcast_to([ROWS, 4]).unwrap().multinomial(2, true, &rng).unwrap();
            assert_eq!((drawn.dims(), drawn.dtype()), (&[ROWS, 2][..], DType::I64));
            let drawn = drawn.to_vec::<i64>().unwrap();
            for first in 0..4_usize {
                for second in 0..4_usize {
                    let pair = [first as i64, second as i64];
                    let count = drawn.chunks(2).filter(|&drawn| drawn == pair).count();
                    let p = odds[first] * odds[second] / 64.0;
                    check_share(count, ROWS, p, &format!("{first} and {second} of {dtype}"));
                }
            }
        }
    }

    #[test]
    fn draws_without_replacement_come_as_often_as_successive_draws() {
        const ROWS: usize = 40_000;
        let odds = [1.0, 0.0, 4.0, 3.0];
        let rows = Tensor::from_slice(&cpu(2), &odds, [1, 4]).unwrap().broadcast_to([ROWS, 4]).unwrap();
        let drawn = rows.multinomial(2, false, &Rng::new(3)).unwrap();
        assert_eq!(drawn.dims(), [ROWS, 2]);
        let drawn = drawn.to_vec::<i64>().unwrap();
        for first in 0..4_usize {
            for second in 0..4_usize {
                let pair = [first as i64, second as i64];
                let count = drawn.chunks(2).filter(|&drawn| drawn == pair).count();
                // The second draw is from the classes that remain.
                let p = if first == second {
                    0.0
                } else {
                    odds[first] / 8.0 * odds[second] / (8.0 - odds[first])
                };
                check_share(count, ROWS, p, &format!("{first} and {second}"));
            }
        }
        let one = Tensor::from_slice(&cpu(1), &[0.25f32, 0.5, 0.25], 3).unwrap();
        let mut all = one.multinomial(3, false, &Rng::new(0)).unwrap().to_vec::<i64>().unwrap();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    }

    #[test]
    fn draws_depend_on_the_seed_and_not_on_threads_or_layout() {
        for replacement in [true, false] {
            let drawn = |threads, transposed: bool| {
                let odds = Tensor::uniform(&cpu(threads), [30, 50], 0.1, 1.0, &Rng::new(5)).unwrap();
                let odds =
                    if transposed { odds.t().unwrap().contiguous().unwrap().t().unwrap() } else { odds };
                odds.multinomial(7, replacement, &Rng::new(1)).unwrap().to_vec::<i64>().unwrap()
            };
            assert_eq!(drawn(1, false), drawn(2, false));
            assert_eq!(drawn(1, false), drawn(2, true));
        }
    }

    #[test]
    fn rows_that_cannot_be_drawn_from_are_named_and_draw_no_key() {
        let (device, rng) = (cpu(1), Rng::new(0));
        let before = rng.state();
        let rules = "multinomial: probabilities must be finite, at least 0, and not only 0 in a row, got";
        for (row, got) in [
            ([0.5, -1.0, 2.0], "-1"),
            ([0.5, f64::NAN, 2.0], "NaN"),
            ([f64::NAN, -1.0, f64::INFINITY], "NaN"),
            ([0.5, f64::INFINITY, 0.0], "inf"),
            ([0.0, -0.0, 0.0], "only 0"),
        ] {
            for dtype in ALL {
                for replacement in [true, false] {
                    let odds = [1.0, 1.0, 0.0].into_iter().chain(row).chain(row).collect::<Vec<_>>();
                    let odds = Tensor::from_slice(&device, &odds, [3, 3]).unwrap().to_dtype(dtype).unwrap();
                    let error = odds.multinomial(2, replacement, &rng).unwrap_err();
                    assert_eq!(error.to_string(), format!("{rules} {got} in row 1 of shape [3, 3]"));
                }
            }
        }
        let odds = Tensor::from_slice(&device, &[1.0f32, 1.0, 0.0, 1.0, 0.0, 0.0], [2, 3]).unwrap();
        for (samples, replacement, message) in [
            (0, true, "at least 1, got 0 for shape [2, 3]"),
            (4, false, "at most the number of classes without replacement, got 4 for shape [2, 3]"),
            (
                2,
                false,
                "at most the number of positive probabilities of each row without replacement, got 2 for 1 in row 1 of shape [2, 3]",
            ),
        ] {
            let error = odds.multinomial(samples, replacement, &rng).unwrap_err();
            assert_eq!(error.to_string(), format!("multinomial: num_samples must be {message}"));
        }
        let of = |dims: &[usize]| Tensor::ones(&device, dims).unwrap();
        assert!(matches!(of(&[]).multinomial(1, true, &rng), Err(Error::BadRank { op: OP, .. })));
        assert!(matches!(of(&[2, 0]).multinomial(1, true, &rng), Err(Error::EmptyReduction { op: OP, .. })));
        let whole = odds.to_dtype(DType::I64).unwrap().multinomial(1, true, &rng);
        assert!(matches!(whole, Err(Error::UnsupportedDType { op: OP, .. })));
        assert_eq!(rng.state(), before);
        for replacement in [true, false] {
            assert_eq!(of(&[0, 3]).multinomial(2, replacement, &rng).unwrap().dims(), [0, 2]);
        }
    }

    #[test]
    fn a_dry_run_checks_no_values_and_requests_the_same_memory() {
        for replacement in [true, false] {
            let peak = |device: &Device| {
                let odds = Tensor::ones(device, [7, 11]).unwrap().requiring_grad().unwrap();
                let drawn = odds.multinomial(5, replacement, &Rng::new(0)).unwrap();
                assert!(!drawn.requires_grad());
                device.default_allocator().unwrap().stats().peak_bytes_in_use
            };
            let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
            assert_eq!(peak(&dry), peak(&cpu(1)));
        }
    }
}
