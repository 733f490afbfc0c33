//! Losses over an evaluation.

use std::fmt;

use highwater_tensor::{DType, Result, Tensor};

use super::{Mean, Metric};

/// A loss of an output and its target.
type LossFunction<'a> = Box<dyn FnMut(&Tensor, &Tensor) -> Result<Tensor> + 'a>;

/// The mean loss. Each batch counts by its number of samples, which is the size of the target's first axis.
pub struct Loss<'a> {
    name: String,
    loss: LossFunction<'a>,
    mean: Mean,
}

impl<'a> Loss<'a> {
    /// Creates the metric from a loss that is a mean over samples. Its name is `loss`.
    #[must_use]
    pub fn new(loss: impl FnMut(&Tensor, &Tensor) -> Result<Tensor> + 'a) -> Self {
        Self { name: "loss".to_owned(), loss: Box::new(loss), mean: Mean::default() }
    }

    /// Changes the name, for example to `validation_loss`.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

impl fmt::Debug for Loss<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loss").field("name", &self.name).field("mean", &self.mean).finish_non_exhaustive()
    }
}

impl Metric for Loss<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let samples = target.dims().first().copied().unwrap_or(1);
        let loss = (self.loss)(output, target)?;
        self.mean.add(&loss, samples)
    }

    fn value(&self) -> Option<f64> {
        self.mean.value()
    }

    fn reset(&mut self) {
        self.mean = Mean::default();
    }
}

/// The perplexity: e to the mean cross-entropy.
///
/// Expects scores `[n, classes, ..]` and class indices `[n, ..]` (u8, i32, u32 or i64), as [`Tensor::cross_entropy`], for
/// example those of next tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Perplexity(Mean);

impl Metric for Perplexity {
    fn name(&self) -> String {
        "perplexity".to_owned()
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        self.0.add(&output.to_dtype(DType::F32)?.cross_entropy(target)?, target.elements())
    }

    fn value(&self) -> Option<f64> {
        self.0.value().map(f64::exp)
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}
