//! Normalization of features to mean 0 and standard deviation 1.

use highwater_tensor::{Error, Result};

use super::array_dataset::ArrayDataset;

const OP: &str = "normalize";

/// Means and standard deviations per channel, measured on training data and applied to all data.
///
/// A row consists of `channels` parts of equal length: the channels of an image, or the individual features.
///
/// ```
/// use highwater::data::{ArrayDataset, Normalize};
/// let train = ArrayDataset::new(vec![1.0, 10.0, 3.0, 30.0], vec![], 2)?;
/// let test = ArrayDataset::new(vec![2.0, 20.0], vec![], 2)?;
/// let normalize = Normalize::of(&train, 2)?;
/// assert_eq!(train.normalized(&normalize)?.features(), [-1.0, -1.0, 1.0, 1.0]);
/// assert_eq!(test.normalized(&normalize)?.features(), [0.0, 0.0]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    mean: Vec<f32>,
    deviation: Vec<f32>,
}

impl Normalize {
    /// Creates a normalization from the mean and the standard deviation of each channel.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless both have the same length and all deviations are above 0.
    pub fn new(mean: Vec<f32>, deviation: Vec<f32>) -> Result<Self> {
        let finite = mean.iter().chain(&deviation).all(|number| number.is_finite());
        if mean.is_empty() || mean.len() != deviation.len() || !finite || deviation.iter().any(|&d| d <= 0.0)
        {
            let expected = "finite numbers, one of each for each channel, deviations above 0";
            let got = format!("means {mean:?} and deviations {deviation:?}");
            return Err(Error::BadArgument { op: OP, argument: "mean and deviation", expected, got });
        }
        Ok(Self { mean, deviation })
    }

    /// Measures the channels of a data set. A constant channel is only shifted.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without rows, and unless `channels` divides the width of a row.
    pub fn of(data: &ArrayDataset, channels: usize) -> Result<Self> {
        let places = places(data, channels)?;
        let count = (data.rows() * places) as f64;
        if data.rows() == 0 {
            let (argument, expected) = ("data", "one row or more");
            return Err(Error::BadArgument { op: OP, argument, expected, got: "none".to_owned() });
        }
        // Two passes keep the accuracy if the mean is large.
        let sums = |term: &dyn Fn(usize, f64) -> f64| {
            let mut sums = vec![0.0; channels];
            for (part, features) in data.features().chunks_exact(places).enumerate() {
                let channel = part % channels;
                sums[channel] += features.iter().map(|&x| term(channel, f64::from(x))).sum::<f64>();
            }
            sums
        };
        let mean: Vec<f64> = sums(&|_, x| x).into_iter().map(|sum| sum / count).collect();
        let squares = sums(&|channel, x| (x - mean[channel]).powi(2));
        let deviation = squares.into_iter().map(|sum| match (sum / count).sqrt() as f32 {
            0.0 => 1.0,
            deviation => deviation,
        });
        Self::new(mean.iter().map(|&mean| mean as f32).collect(), deviation.collect())
    }
}

/// Returns the number of features per channel.
fn places(data: &ArrayDataset, channels: usize) -> Result<usize> {
    if channels > 0 && data.width() > 0 && data.width().is_multiple_of(channels) {
        return Ok(data.width() / channels);
    }
    let got = format!("{channels} for rows of {}", data.width());
    Err(Error::BadArgument { op: OP, argument: "channels", expected: "a divisor of the width", got })
}

impl ArrayDataset {
    /// Subtracts the mean of each channel and divides by its standard deviation.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the number of channels divides the width of a row.
    pub fn normalized(mut self, normalize: &Normalize) -> Result<Self> {
        let channels = normalize.mean.len();
        let places = places(&self, channels)?;
        for (part, features) in self.features_mut().chunks_exact_mut(places).enumerate() {
            let (mean, deviation) = (normalize.mean[part % channels], normalize.deviation[part % channels]);
            features.iter_mut().for_each(|x| *x = (*x - mean) / deviation);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_parts_of_a_row() {
        let data = ArrayDataset::new(vec![1.0, 3.0, 5.0, 5.0, 1.0, 3.0, 5.0, 5.0], vec![], 4).unwrap();
        let normalize = Normalize::of(&data, 2).unwrap();
        assert_eq!(normalize, Normalize::new(vec![2.0, 5.0], vec![1.0, 1.0]).unwrap());
        let normalized = data.normalized(&normalize).unwrap();
        assert_eq!(normalized.features(), [-1.0, 1.0, 0.0, 0.0, -1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_large_mean_costs_no_digits() {
        let data = ArrayDataset::new(vec![16_777_210.0, 16_777_212.0], vec![], 1).unwrap();
        assert_eq!(Normalize::of(&data, 1).unwrap(), Normalize::new(vec![16_777_211.0], vec![1.0]).unwrap());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let data = ArrayDataset::new(vec![1.0; 6], vec![], 3).unwrap();
        for channels in [0, 2, 4] {
            assert!(matches!(Normalize::of(&data, channels), Err(Error::BadArgument { .. })));
        }
        let two = Normalize::new(vec![0.0; 2], vec![1.0; 2]).unwrap();
        assert!(matches!(data.normalized(&two), Err(Error::BadArgument { argument: "channels", .. })));
        let none = ArrayDataset::new(vec![], vec![], 3).unwrap();
        assert!(matches!(Normalize::of(&none, 1), Err(Error::BadArgument { argument: "data", .. })));
        for (mean, deviation) in [(vec![], vec![]), (vec![0.0], vec![0.0]), (vec![f32::NAN], vec![1.0])] {
            assert!(Normalize::new(mean, deviation).is_err());
        }
    }
}
