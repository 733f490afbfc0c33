//! Metrics: figures that sum up over the batches of an evaluation.
//!
//! Metrics compute with tensor ops and read one number per batch. On a dry device they run the same ops and have no value.

mod accuracy;
mod error;
mod f1;
mod loss;
mod mean;

pub use accuracy::{Accuracy, TopK};
pub use error::MeanAbsoluteError;
pub use f1::F1;
pub use loss::{Loss, Perplexity};
pub use mean::Mean;
pub(crate) use mean::read;

use std::fmt;

use highwater_tensor::{Error, Result, ShapeRule, Tensor, no_grad};

use crate::figures::Figures;

/// A figure that is accumulated over batches of model outputs and targets.
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::train::{Accuracy, Metric};
/// let device = Device::cpu()?;
/// let mut accuracy = Accuracy::default();
/// let scores = Tensor::from_slice(&device, &[0.9f32, 0.1, 0.3, 0.7, 0.6, 0.4], [3, 2])?;
/// let classes = Tensor::from_slice(&device, &[0i64, 1, 1], [3])?;
/// accuracy.update(&scores, &classes)?;
/// accuracy.update(&scores, &classes)?;
/// assert_eq!(accuracy.value(), Some(4.0 / 6.0));
/// # Ok::<(), highwater::Error>(())
/// ```
pub trait Metric: fmt::Debug {
    /// Returns the name under which the value is logged.
    fn name(&self) -> String;

    /// Adds a batch.
    ///
    /// # Errors
    /// Errors about shapes and element types that do not fit the metric, and [`Error::Allocation`] if
    /// there is no memory.
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()>;

    /// Returns the value over all batches since the start; `None` without any, and on a dry device.
    fn value(&self) -> Option<f64>;

    /// Forgets all batches.
    fn reset(&mut self);
}

/// Returns the axis of the classes in scores, as in [`Tensor::cross_entropy`]: the second one, or the only one.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless there is one target for all scores of a position.
fn class_axis(metric: &'static str, scores: &Tensor, targets: &Tensor) -> Result<usize> {
    const TARGETS: &ShapeRule =
        &ShapeRule::Other("there must be one target per row of scores, and per position of [n, classes, ..]");
    let axis = usize::from(scores.rank() > 1);
    let positions = scores.dims().iter().enumerate().filter(|(at, _)| *at != axis).map(|(_, size)| size);
    if scores.rank() > 0 && positions.eq(targets.dims()) {
        return Ok(axis);
    }
    let (lhs, rhs) = (*scores.shape(), *targets.shape());
    Err(Error::ShapeMismatch { op: metric, lhs, rhs, rule: TARGETS })
}

/// Runs a model over batches without gradients and in evaluation mode, and returns the metrics.
///
/// Resets the metrics first. `forward` computes the output that the metrics compare with the targets.
///
/// ```
/// use highwater::prelude::*;
/// use highwater::train::{Accuracy, Loss, evaluate};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let data = ArrayDataset::new(vec![0.0, 0.1, 0.9, 1.0], vec![0, 0, 1, 1], 1)?;
/// let model = Linear::new(&device, 1, 2, &rng)?;
/// let mut loss = Loss::new(|scores, classes| scores.cross_entropy(classes));
/// let mut accuracy = Accuracy::default();
/// let figures = evaluate(data.batches(4, &device)?, |x| model.forward(x), &mut [&mut loss, &mut accuracy])?;
/// assert!(figures.get("loss").is_some() && figures.get("accuracy").is_some());
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// The errors of the batches, of `forward` and of the metrics.
pub fn evaluate(
    batches: impl IntoIterator<Item = Result<(Tensor, Tensor)>>,
    mut forward: impl FnMut(&Tensor) -> Result<Tensor>,
    metrics: &mut [&mut dyn Metric],
) -> Result<Figures> {
    metrics.iter_mut().for_each(|metric| metric.reset());
    no_grad(|| {
        for batch in batches {
            let (input, target) = batch?;
            let output = forward(&input)?;
            metrics.iter_mut().try_for_each(|metric| metric.update(&output, &target))?;
        }
        Ok::<_, highwater_tensor::Error>(())
    })?;
    Ok(metrics.iter().map(|metric| (metric.name(), metric.value())).collect())
}
