//! The F1 score.

use highwater_tensor::{DType, Error, Result, Tensor};

use super::{Metric, class_axis};

/// The macro-averaged F1 score: the mean over classes of the harmonic mean of precision and recall.
///
/// Expects scores `[n, classes, ..]` and class indices `[n, ..]` (u8, i32, u32 or i64), as [`Tensor::cross_entropy`]. As in
/// scikit-learn, classes that occur neither in the predictions nor in the targets do not count.
#[derive(Clone, Debug, Default)]
pub struct F1 {
    /// Per class: correct predictions, predictions, targets. Empty before the first batch.
    counts: [Vec<f64>; 3],
    is_dry: bool,
}

impl Metric for F1 {
    fn name(&self) -> String {
        "f1".to_owned()
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let axis = class_axis("f1", output, target)?;
        let classes = output.dims()[axis];
        let one_hot = |indices: &Tensor| indices.flatten(0, -1)?.one_hot(classes);
        let (predicted, actual) = (one_hot(&output.argmax(axis as isize)?)?, one_hot(target)?);
        let sums =
            [&predicted.mul(&actual)?, &predicted, &actual].map(|hot| hot.sum(0)?.to_dtype(DType::F64));
        for (counts, sum) in self.counts.iter_mut().zip(sums) {
            let sum = sum?;
            self.is_dry |= sum.device().is_dry();
            let sum = match sum.to_vec::<f64>() {
                Err(Error::NoData { .. }) => continue,
                read => read?,
            };
            counts.resize(counts.len().max(sum.len()), 0.0);
            counts.iter_mut().zip(sum).for_each(|(count, more)| *count += more);
        }
        Ok(())
    }

    fn value(&self) -> Option<f64> {
        let [correct, predicted, actual] = &self.counts;
        let pairs = correct.iter().zip(predicted.iter().zip(actual));
        let scores: Vec<f64> = pairs
            .map(|(correct, (predicted, actual))| (2.0 * correct, predicted + actual))
            .filter(|(_, occurrences)| *occurrences > 0.0)
            .map(|(twice, occurrences)| twice / occurrences)
            .collect();
        (!self.is_dry && !scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}
