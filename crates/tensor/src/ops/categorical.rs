//! Random class indices, drawn from logits.
//!
//! Along the last axis, class i is drawn with probability softmax(s)ᵢ. The op takes the index of the largest sᵢ -
//! ln(-ln uᵢ) with uniform u (the Gumbel-max trick: Maddison, Tarlow and Minka 2014). It needs no probabilities and no
//! sums. No gradient flows. It allocates one output and up to three temporaries of the scores' shape.
//!
//! A row is a distribution if its largest score is finite. The op reads the largest score of each row before it draws, so
//! it waits for a GPU. A dry device has no scores to check.
//!
//! The op computes in f64. Draws in f32 are multiples of 2⁻²⁴: they would draw a class of probability 1e-7 a quarter
//! too rarely, and a class of 1e-8 almost never. Added to large scores in f32, the noise would be rounded away.

use super::supported;
use crate::autograd::apply;
use crate::backend::{Distribution, RandomKey, kernels};
use crate::error::{Error, Result};
use crate::op::{Op, OpContext};
use crate::shape::DType;
use crate::tensor::{Rng, Tensor};

#[derive(Debug)]
struct Categorical(RandomKey);

impl Op for Categorical {
    fn name(&self) -> &'static str {
        "categorical"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let (op, scores) = (ctx.op(), inputs[0]);
        check_shape(op, scores)?;
        check_rows(op, scores)?;
        with_noise(ctx, self.0, scores)?.argmax(-1)
    }
}

/// Fails unless the elements are floats, in rows of at least one class.
pub(super) fn check_shape(op: &'static str, rows: &Tensor) -> Result<()> {
    supported(op, rows.dtype(), DType::is_float)?;
    match rows.dims() {
        [] => Err(Error::BadRank { op, expected: "at least one axis", shape: *rows.shape() }),
        [leading @ .., 0] if !leading.contains(&0) => Err(Error::EmptyReduction { op, shape: *rows.shape() }),
        _ => Ok(()),
    }
}

/// Adds independent Gumbel noise to logits, in f64.
pub(super) fn with_noise(ctx: &OpContext<'_>, key: RandomKey, logits: &Tensor) -> Result<Tensor> {
    let mut draws = ctx.temp(logits.shape(), DType::F64)?;
    // A draw of 0 would give a noise of -∞, so zeros are replaced.
    let distribution = Distribution::Uniform { low: f64::MIN_POSITIVE, high: 1.0 };
    ctx.compute(kernels::Random { distribution, key, out: draws.view_mut() })?;
    // Each temporary is dropped once the next one exists.
    let mut noise = draws.finish();
    noise = noise.log()?;
    noise = noise.neg()?;
    noise = noise.log()?;
    logits.to_dtype(DType::F64)?.sub(&noise)
}

/// Reads one value per row; `None` on a dry device, which has no values.
pub(super) fn row_values(values: &Tensor) -> Result<Option<Vec<f64>>> {
    let values = values.to_dtype(DType::F64)?;
    if values.device().is_dry() {
        values.device().backend().simulate_download();
        return Ok(None);
    }
    values.to_vec().map(Some)
}

/// Fails with the first row that is no distribution: with NaN, with ∞, or with -∞ only.
fn check_rows(op: &'static str, scores: &Tensor) -> Result<()> {
    if scores.elements() == 0 {
        return Ok(());
    }
    let Some(largest) = row_values(&scores.max(-1)?)? else { return Ok(()) };
    let Some(row) = largest.iter().position(|score| !score.is_finite()) else { return Ok(()) };
    let only = if largest[row] == f64::NEG_INFINITY { "only " } else { "" };
    let expected = "finite or -inf, and not only -inf in a row";
    let got = format!("{only}{} in row {row} of shape {}", largest[row], scores.shape());
    Err(Error::BadArgument { op, argument: "logits", expected, got })
}

/// # Sample classes
impl Tensor {
    /// Draws one class index (i64) per row of logits, as `torch.distributions.Categorical(logits=..).sample()`.
    ///
    /// The last axis vanishes. Class i is drawn with probability `softmax(row)[i]`; the logits need no normalization. A
    /// class with logit `-inf` is never drawn. [`multinomial`](Self::multinomial) takes probabilities. On a GPU, the method
    /// waits until the device has computed the logits, because it checks them first. A dry run checks no values.
    ///
    /// To change the variety, divide the logits by a temperature. To exclude classes, mask them with `-inf`.
    ///
    /// ```
    /// use highwater::{Device, Rng, Tensor};
    /// let scores = Tensor::from_slice(&Device::cpu()?, &[0.0f32, f32::NEG_INFINITY, 0.0, 40.0, 0.0, 0.0], [2, 3])?;
    /// let drawn = scores.categorical(&Rng::new(0))?.to_vec::<i64>()?;
    /// assert!([0, 2].contains(&drawn[0]));
    /// assert_eq!(drawn[1], 0);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] names the first row that contains NaN or `inf`, or only `-inf`: such a row is no
    /// distribution. [`Error::BadRank`] for a scalar, [`Error::EmptyReduction`] for rows without classes,
    /// [`Error::UnsupportedDType`] unless the elements are floats, [`Error::Allocation`] if there is no memory. After an
    /// error the random generator is unchanged.
    pub fn categorical(&self, rng: &Rng) -> Result<Self> {
        rng.with_keys(|[key]| apply(Categorical(key), &[self]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Runtime};

    fn cpu(threads: usize) -> Device {
        Runtime::builder().threads(threads).build().unwrap().cpu().unwrap()
    }

    #[test]
    fn classes_come_as_often_as_their_odds_say_in_every_type() {
        const ROWS: usize = 40_000;
        let (device, rng) = (cpu(2), Rng::new(7));
        let scores = [0.5f64, -1.0, f64::NEG_INFINITY, 2.0, 0.0];
        let odds = scores.map(f64::exp);
        let all = odds.iter().sum::<f64>();
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let row = Tensor::from_slice(&device, &scores, [1, 5]).unwrap().to_dtype(dtype).unwrap();
            let drawn = row.broadcast_to([ROWS, 5]).unwrap().categorical(&rng).unwrap();
            assert_eq!((drawn.dims(), drawn.dtype()), (&[ROWS][..], DType::I64));
            let mut counts = [0_u32; 5];
            drawn.to_vec::<i64>().unwrap().into_iter().for_each(|class| counts[class as usize] += 1);
            for (class, (count, odds)) in counts.into_iter().zip(odds).enumerate() {
                let (share, p) = (f64::from(count) / ROWS as f64, odds / all);
                // Five standard deviations.
                let bound = 5.0 * (p * (1.0 - p) / ROWS as f64).sqrt();
                assert!((share - p).abs() <= bound, "class {class} of {dtype}: {share} for {p}");
            }
        }
    }

    #[test]
    fn draws_depend_on_the_seed_and_not_on_threads() {
        let drawn = |threads| {
            let (device, rng) = (cpu(threads), Rng::new(3));
            let scores = Tensor::zeros(&device, [50, 4, 300]).unwrap();
            [(); 2].map(|()| {
                let drawn = scores.categorical(&rng).unwrap();
                assert_eq!(drawn.dims(), [50, 4]);
                drawn.to_vec::<i64>().unwrap()
            })
        };
        let [first, second] = drawn(1);
        assert_ne!(first, second);
        assert_eq!(drawn(2), [first, second]);
    }

    #[test]
    fn a_class_that_is_the_only_one_is_always_drawn() {
        let device = cpu(1);
        let mut scores = vec![f32::NEG_INFINITY; 3 * 4];
        (scores[1], scores[4 + 3], scores[2 * 4]) = (-1e30, 1e30, f32::MIN_POSITIVE);
        let scores = Tensor::from_slice(&device, &scores, [3, 4]).unwrap();
        let rng = Rng::new(0);
        for _ in 0..200 {
            assert_eq!(scores.categorical(&rng).unwrap().to_vec::<i64>().unwrap(), [1, 3, 0]);
        }
        assert_eq!(Tensor::zeros(&device, [0, 3]).unwrap().categorical(&rng).unwrap().dims(), [0]);
    }

    #[test]
    fn a_row_that_is_no_distribution_is_an_error_and_draws_no_key() {
        let (device, rng) = (cpu(2), Rng::new(0));
        let before = rng.state();
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let rows = [
            ([nan, nan, nan], "got NaN in row 1"),
            ([0.0, nan, 1.0], "got NaN in row 1"),
            ([inf, nan, -inf], "got NaN in row 1"),
            ([-inf, -inf, -inf], "got only -inf in row 1"),
            ([0.0, inf, -inf], "got inf in row 1"),
        ];
        for (row, got) in rows {
            for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                let scores = [0.0, 1.0, 2.0].into_iter().chain(row).chain(row).collect::<Vec<_>>();
                let scores = Tensor::from_slice(&device, &scores, [3, 3]).unwrap().to_dtype(dtype).unwrap();
                let error = scores.categorical(&rng).unwrap_err();
                assert!(matches!(error, Error::BadArgument { op: "categorical", argument: "logits", .. }));
                assert!(error.to_string().contains(got), "{error}");
                // Each column of the scores has one element of a good row.
                let columns = scores.transpose(0, 1).unwrap().categorical(&Rng::new(0));
                assert_eq!(columns.is_err(), row.iter().any(|&score| score.is_nan() || score == inf));
            }
        }
        let alone = Tensor::full(&device, 4, -inf).unwrap();
        assert!(alone.categorical(&rng).unwrap_err().to_string().contains("only -inf in row 0 of shape [4]"));
        assert_eq!(rng.state(), before);
    }

    #[test]
    fn a_dry_run_checks_no_values_and_requests_the_same_memory() {
        let peak = |device: &Device| {
            let scores = Tensor::zeros(device, [7, 11]).unwrap();
            scores.categorical(&Rng::new(0)).unwrap();
            device.default_allocator().unwrap().stats().peak_bytes_in_use
        };
        assert_eq!(peak(&Device::dry().unwrap()), peak(&cpu(1)));
    }

    #[test]
    fn a_number_added_to_all_scores_changes_nothing() {
        let device = cpu(2);
        let drawn = |shift: f64| {
            let scores = Tensor::full(&device, [400, 2], shift).unwrap();
            scores.categorical(&Rng::new(9)).unwrap().to_vec::<i64>().unwrap()
        };
        // Where neighbours in f32 are 64 apart.
        assert_eq!(drawn(1e9), drawn(0.0));
        assert!(drawn(1e9).contains(&0) && drawn(1e9).contains(&1));
    }

    #[test]
    fn no_gradient_flows_and_the_memory_is_one_op_s() {
        let device = cpu(1);
        let scores = Tensor::zeros(&device, [8, 16]).unwrap().requiring_grad().unwrap();
        let drawn = scores.categorical(&Rng::new(1)).unwrap();
        assert!(!drawn.requires_grad());
        let totals = device.tracker().op_totals();
        assert!(totals.iter().any(|row| row.op == "categorical" && row.totals.calls == 1));
        assert!(totals.iter().all(|row| row.op != "argmax" && row.op != "log"));
    }

    #[test]
    fn what_cannot_be_drawn_from_is_an_error_and_draws_no_key() {
        let (device, rng) = (cpu(1), Rng::new(0));
        let before = rng.state();
        let scalar = Tensor::zeros(&device, ()).unwrap();
        assert!(matches!(scalar.categorical(&rng), Err(Error::BadRank { op: "categorical", .. })));
        let nothing = Tensor::zeros(&device, [2, 0]).unwrap();
        assert!(matches!(nothing.categorical(&rng), Err(Error::EmptyReduction { op: "categorical", .. })));
        let whole = Tensor::zeros_of(&device, [2, 3], DType::I64).unwrap();
        let refused = whole.categorical(&rng);
        assert!(matches!(refused, Err(Error::UnsupportedDType { op: "categorical", dtype: DType::I64 })));
        let small =
            Runtime::builder().pool(bfc_core::Bytes::kib(512)).threads(1).build().unwrap().cpu().unwrap();
        let large = Tensor::zeros(&small, [1, 50_000]).unwrap();
        assert!(large.categorical(&rng).unwrap_err().out_of_memory().is_some());
        assert_eq!(rng.state(), before);
    }
}
