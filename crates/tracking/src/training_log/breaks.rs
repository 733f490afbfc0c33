//! Finds missing steps in a curve.

use super::CurvePoint;

/// Returns the indices of points after missing steps. A step is missing where the distance grows although the two
/// distances before and the two after are equal. A curve with irregular distances, such as powers of two, has no
/// missing steps.
pub(super) fn missing_steps(points: &[CurvePoint]) -> impl Iterator<Item = usize> {
    points.windows(6).enumerate().filter_map(|(first, points)| {
        let [a, b, here, d, e] = std::array::from_fn(|index| points[index + 1].step - points[index].step);
        (a > 0 && a == b && a == d && a == e && here > a).then_some(first + 3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(steps: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let point = |step| CurvePoint { at_ns: 0, step, value: 0.0 };
        missing_steps(&steps.into_iter().map(point).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn a_longer_gap_between_equal_steps_is_a_break() {
        assert_eq!(missing((0..10).chain(20..30)), [10]);
        assert_eq!(missing((0..3).chain(4..7).chain(9..12)), [3, 6]);
        assert_eq!(missing((0..10).chain(14..30).map(|epoch| epoch * 94)), [10]);
    }

    #[test]
    fn a_curve_that_is_told_at_other_distances_misses_no_step() {
        assert!(missing(0..100).is_empty());
        assert!(missing((0..100).map(|epoch| epoch * 94)).is_empty());
        assert!(missing((0..60).map(|power| 1 << power)).is_empty());
        // Every step at first, and then every tenth.
        assert!(missing((0..10).chain((10..200).step_by(10))).is_empty());
        // Every hundredth, and at the ends of epochs of 150.
        assert!(missing((0..3000).filter(|step| step % 100 == 0 || step % 150 == 0)).is_empty());
        // Several points for each step.
        assert!(missing((0..60).map(|line| line / 3)).is_empty());
        assert!(missing([0, 1, 2, 50]).is_empty());
    }
}
