//! A rate that depends on the size of the work.

use serde::{Deserialize, Serialize};

/// A rate per second by size, between which it is interpolated on logarithmic axes. Without points, work takes no time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Curve(Vec<[f64; 2]>);

impl Curve {
    /// Returns a rate that is equal for all sizes.
    pub(crate) fn constant(rate: f64) -> Self {
        Self::new([[1.0, rate]])
    }

    /// Returns a curve through `[size, rate]`, in any order. Skips points that are not positive and finite.
    pub(crate) fn new(points: impl IntoIterator<Item = [f64; 2]>) -> Self {
        let is_valid = |point: &[f64; 2]| point.iter().all(|&value| value.is_finite() && value > 0.0);
        let mut points: Vec<_> = points.into_iter().filter(is_valid).collect();
        points.sort_by(|a, b| a[0].total_cmp(&b[0]));
        points.dedup_by_key(|point| point[0]);
        Self(points)
    }

    /// Whether all points are valid, as a file may contain any numbers.
    pub(crate) fn is_valid(&self) -> bool {
        *self == Self::new(self.0.iter().copied())
    }

    /// Returns the rate at a size; the nearest one outside of the curve. `None` without points.
    pub(crate) fn rate(&self, size: f64) -> Option<f64> {
        let (first, last) = (self.0.first()?, self.0.last()?);
        if size <= first[0] || self.0.len() == 1 {
            return Some(first[1]);
        }
        if size >= last[0] {
            return Some(last[1]);
        }
        let next = self.0.partition_point(|point| point[0] <= size);
        let ([from, low], [to, high]) = (self.0[next - 1], self.0[next]);
        let share = (size / from).ln() / (to / from).ln();
        Some(low * (high / low).powf(share))
    }

    /// Returns the seconds of an amount of work.
    pub(crate) fn seconds(&self, amount: f64, size: f64) -> f64 {
        if amount <= 0.0 {
            return 0.0;
        }
        self.rate(size).map_or(0.0, |rate| amount / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_between_two_sizes_are_between_theirs() {
        let curve = Curve::new([[100.0, 8.0], [1.0, 2.0]]);
        assert_eq!([0.5, 1.0, 100.0, 1e9].map(|size| curve.rate(size)), [2.0, 2.0, 8.0, 8.0].map(Some));
        assert!((curve.rate(10.0).unwrap() - 4.0).abs() < 1e-9);
        assert_eq!([curve.seconds(16.0, 200.0), curve.seconds(0.0, 1.0)], [2.0, 0.0]);
    }

    #[test]
    fn invalid_points_are_skipped_and_found() {
        assert_eq!(Curve::new([[1.0, f64::NAN], [0.0, 1.0], [1.0, -1.0]]), Curve::default());
        assert_eq!(Curve::default().seconds(1e9, 1.0), 0.0);
        assert!(!Curve(vec![[2.0, 1.0], [1.0, 1.0]]).is_valid() && !Curve(vec![[1.0, 0.0]]).is_valid());
        assert!(Curve::constant(3.0).is_valid() && Curve::default().is_valid());
    }
}
