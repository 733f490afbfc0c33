//! The curves of a training log for the page, downsampled so that each interval keeps its highest and lowest point.

use std::cmp::Reverse;

use serde::Serialize;

use super::data::steps_up;
use crate::training_log::{Curve, CurvePoint, NonFinite, TrainingLog};

/// The most intervals of a curve.
const MAX_INTERVALS: usize = 4096;

#[derive(Debug, Serialize)]
pub(super) struct CurvesData<'a> {
    lines: u64,
    cut: bool,
    non_finite: Option<&'a NonFinite>,
    curves: Vec<CurveData<'a>>,
}

#[derive(Debug, Serialize)]
struct CurveData<'a> {
    name: &'a str,
    /// The number of points before downsampling.
    points: usize,
    /// Nanoseconds, as differences.
    at_ns: Vec<u64>,
    /// As differences.
    steps: Vec<u64>,
    values: Vec<f64>,
    /// The indices of points before which the line breaks, as differences.
    breaks: Vec<u64>,
}

impl<'a> CurvesData<'a> {
    pub(super) fn of(log: &'a TrainingLog) -> Self {
        let curves = log.curves().iter().map(CurveData::of).collect();
        Self { lines: log.lines(), cut: log.is_cut(), non_finite: log.non_finite(), curves }
    }
}

impl<'a> CurveData<'a> {
    fn of(curve: &'a Curve) -> Self {
        let (kept, breaks) = downsample(curve, MAX_INTERVALS);
        Self {
            name: &curve.name,
            points: curve.points.len(),
            at_ns: steps_up(kept.iter().map(|point| point.at_ns)),
            steps: steps_up(kept.iter().map(|point| point.step)),
            values: kept.iter().map(|point| point.value).collect(),
            breaks: steps_up(breaks.into_iter().map(|index| index as u64)),
        }
    }
}

/// Selects points in order: the first and the last, the lowest and highest of each interval, and both ends of the
/// longest breaks. Also returns before which of these points the line breaks.
pub(super) fn downsample(curve: &Curve, intervals: usize) -> (Vec<CurvePoint>, Vec<usize>) {
    let points = &curve.points;
    let length = points.len().div_ceil(intervals).max(1);
    let mut kept = Vec::new();
    for (number, interval) in points.chunks(length).enumerate() {
        let first = number * length;
        let by_value =
            |&(_, a): &(usize, &CurvePoint), &(_, b): &(usize, &CurvePoint)| a.value.total_cmp(&b.value);
        let lowest = interval.iter().enumerate().min_by(by_value);
        let highest = interval.iter().enumerate().max_by(by_value);
        kept.extend([lowest, highest].into_iter().flatten().map(|(index, _)| first + index));
    }
    kept.extend(points.first().map(|_| 0));
    kept.extend(points.len().checked_sub(1));
    let breaks = longest(&curve.breaks, points, intervals);
    kept.extend(breaks.iter().flat_map(|&index| [index - 1, index]));
    kept.sort_unstable();
    kept.dedup();
    let places = breaks.into_iter().map(|index| kept.partition_point(|&other| other < index)).collect();
    (kept.into_iter().map(|index| points[index]).collect(), places)
}

/// Returns this many of the longest breaks, in order.
fn longest(breaks: &[usize], points: &[CurvePoint], most: usize) -> Vec<usize> {
    let mut breaks = breaks.to_vec();
    if breaks.len() > most {
        breaks.sort_by_key(|&index| Reverse(points[index].at_ns - points[index - 1].at_ns));
        breaks.truncate(most);
        breaks.sort_unstable();
    }
    breaks
}
