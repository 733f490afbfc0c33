//! Shares of correct classes.

use highwater_tensor::{DType, Result, SortOrder, Tensor};

use super::{Mean, Metric, class_axis};

/// The share of samples whose highest score is that of the target's class.
///
/// Expects scores `[n, classes, ..]` and class indices `[n, ..]` (u8, i32, u32 or i64), as [`Tensor::cross_entropy`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Accuracy(Mean);

impl Metric for Accuracy {
    fn name(&self) -> String {
        "accuracy".to_owned()
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let axis = class_axis("accuracy", output, target)?;
        let correct = output.argmax(axis as isize)?.eq(target)?;
        self.0.add_sum(&correct.to_dtype(DType::F64)?.sum_all()?, target.elements())
    }

    fn value(&self) -> Option<f64> {
        self.0.value()
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// The share of samples for which the target's class is among the `k` highest scores.
///
/// Expects scores `[n, classes, ..]` and class indices `[n, ..]` (u8, i32, u32 or i64), as [`Tensor::cross_entropy`]. The name
/// is `top5_accuracy` for k = 5.
#[derive(Clone, Copy, Debug)]
pub struct TopK {
    k: usize,
    share: Mean,
}

impl TopK {
    /// Creates the metric.
    #[must_use]
    pub fn new(k: usize) -> Self {
        Self { k, share: Mean::default() }
    }
}

impl Metric for TopK {
    fn name(&self) -> String {
        format!("top{}_accuracy", self.k)
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let axis = class_axis("top_k accuracy", output, target)? as isize;
        let (_, classes) = output.top_k(self.k, axis, SortOrder::Descending)?;
        let found = classes.eq(&target.unsqueeze(axis)?)?;
        self.share.add_sum(&found.to_dtype(DType::F64)?.sum_all()?, target.elements())
    }

    fn value(&self) -> Option<f64> {
        self.share.value()
    }

    fn reset(&mut self) {
        self.share = Mean::default();
    }
}
