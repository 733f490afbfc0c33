//! A weighted mean of values on a device.

use highwater_tensor::{DType, Error, Result, Tensor};

/// A mean of values on a device, weighted by the number of samples that each stands for.
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::train::Mean;
/// let device = Device::cpu()?;
/// let mut mean = Mean::default();
/// mean.add(&Tensor::full(&device, (), 1.0)?, 3)?;
/// mean.add(&Tensor::full(&device, (), 5.0)?, 1)?;
/// assert_eq!(mean.value(), Some(2.0));
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    samples: u64,
    is_dry: bool,
}

impl Mean {
    /// Adds the mean of a batch: a tensor with one element.
    ///
    /// # Errors
    /// See [`Tensor::item`].
    pub fn add(&mut self, mean: &Tensor, samples: usize) -> Result<()> {
        let value = read(mean)?;
        self.count(value.map(|value| value * samples as f64), samples);
        Ok(())
    }

    /// Adds the sum of a batch.
    pub(super) fn add_sum(&mut self, sum: &Tensor, samples: usize) -> Result<()> {
        let sum = read(sum)?;
        self.count(sum, samples);
        Ok(())
    }

    fn count(&mut self, sum: Option<f64>, samples: usize) {
        self.is_dry |= sum.is_none();
        self.sum += sum.unwrap_or(0.0);
        self.samples += samples as u64;
    }

    /// Returns the mean; `None` without samples, and on a dry device.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        (!self.is_dry && self.samples > 0).then(|| self.sum / self.samples as f64)
    }
}

/// Returns the value of a tensor with one element; `None` on a dry device.
///
/// A dry device is read too: a read also decides when its uploads are freed.
pub(crate) fn read(value: &Tensor) -> Result<Option<f64>> {
    let read = match value.dtype() {
        DType::F32 => value.item::<f32>().map(f64::from),
        DType::F64 => value.item(),
        _ => value.to_dtype(DType::F64)?.item(),
    };
    match read {
        Ok(read) => Ok((!value.device().is_dry()).then_some(read)),
        Err(Error::NoData { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
