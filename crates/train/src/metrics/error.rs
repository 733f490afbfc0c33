//! The distance of predictions from their targets.

use highwater_tensor::{DType, Result, Tensor};

use super::{Mean, Metric};

/// The mean absolute difference of outputs and targets, which have the same shape.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanAbsoluteError(Mean);

impl Metric for MeanAbsoluteError {
    fn name(&self) -> String {
        "mean_absolute_error".to_owned()
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let sum = output.sub(target)?.abs()?.to_dtype(DType::F64)?.sum_all()?;
        self.0.add_sum(&sum, target.elements())
    }

    fn value(&self) -> Option<f64> {
        self.0.value()
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}
