//! The values of metrics, against values computed by hand.

use highwater::prelude::*;
use highwater::train::{Accuracy, F1, MeanAbsoluteError, Metric, Perplexity, TopK};

use crate::support::cpu;

/// The value after two batches of scores `[n, classes]` and classes.
fn value(metric: &mut dyn Metric, classes: usize, batches: [(&[f32], &[i64]); 2]) -> Option<f64> {
    let device = cpu();
    for (scores, targets) in batches {
        let scores = Tensor::from_slice(&device, scores, [targets.len(), classes]).unwrap();
        metric.update(&scores, &Tensor::from_slice(&device, targets, targets.len()).unwrap()).unwrap();
    }
    metric.value()
}

/// Predictions: 0, 1, 1, then 2. Targets: 0, 1, 0, then 1. Class 3 never occurs.
const SCORES: [(&[f32], &[i64]); 2] = [
    (&[9.0, 1.0, 2.0, 0.0, 1.0, 9.0, 2.0, 0.0, 2.0, 9.0, 1.0, 0.0], &[0, 1, 0]),
    (&[0.0, 1.0, 9.0, 2.0], &[1]),
];

#[test]
fn macro_f1_counts_the_classes_that_occur() {
    // Class 0: 2 · 1 / (1 + 2); class 1: 2 · 1 / (2 + 2); class 2: 0 / (1 + 0).
    let expected = (2.0 / 3.0 + 0.5 + 0.0) / 3.0;
    let found = value(&mut F1::default(), 4, SCORES).unwrap();
    assert!((found - expected).abs() < 1e-12, "{found}");
}

#[test]
fn top_k_counts_targets_among_the_highest_scores() {
    assert_eq!(TopK::new(2).name(), "top2_accuracy");
    // The third target is second, the fourth is third.
    assert_eq!(value(&mut TopK::new(1), 4, SCORES), Some(0.5));
    assert_eq!(value(&mut TopK::new(2), 4, SCORES), Some(0.75));
    assert_eq!(value(&mut TopK::new(3), 4, SCORES), Some(1.0));
}

#[test]
fn equal_scores_have_the_number_of_classes_as_perplexity() {
    let equal: [(&[f32], &[i64]); 2] = [(&[1.0; 10], &[0, 4]), (&[3.0; 5], &[2])];
    let found = value(&mut Perplexity::default(), 5, equal).unwrap();
    assert!((found - 5.0).abs() < 1e-5, "{found}");
}

/// A metric of classes.
type Create = fn() -> Box<dyn Metric>;

#[test]
fn classes_are_on_the_axis_of_cross_entropy() {
    // Two images of 3 classes and 2 × 2 positions; other axes have other values if read as classes.
    let device = cpu();
    let values: Vec<f32> = (0..24).map(|at| ((at * 7) % 24) as f32).collect();
    let scores = Tensor::from_slice(&device, &values, [2, 3, 2, 2]).unwrap();
    let rows = scores.permute([0, 2, 3, 1]).unwrap().reshape([8, 3]).unwrap();
    let targets = Tensor::from_slice(&device, &[0i64, 1, 2, 0, 1, 2, 0, 1], [2, 2, 2]).unwrap();
    let metrics: [Create; 4] = [
        || Box::new(Accuracy::default()),
        || Box::new(TopK::new(2)),
        || Box::new(F1::default()),
        || Box::new(Perplexity::default()),
    ];
    for create in metrics {
        let (mut of_images, mut of_rows) = (create(), create());
        of_images.update(&scores, &targets).unwrap();
        of_rows.update(&rows, &targets.flatten(0, -1).unwrap()).unwrap();
        let (found, expected) = (of_images.value().unwrap(), of_rows.value().unwrap());
        assert!((found - expected).abs() < 1e-6 * expected, "{}: {found} {expected}", of_images.name());
    }
    let message =
        Accuracy::default().update(&scores, &targets.narrow(1, 0, 1).unwrap()).unwrap_err().to_string();
    let expected = "accuracy: shapes [2, 3, 2, 2] and [2, 1, 2] do not match: there must be one target per row of scores, \
                    and per position of [n, classes, ..]";
    assert_eq!(message, expected);
}

#[test]
fn a_metric_without_batches_or_after_a_reset_has_no_value() {
    let mut error = MeanAbsoluteError::default();
    assert_eq!(error.value(), None);
    let device = cpu();
    let tensor = |values: &[f32]| Tensor::from_slice(&device, values, values.len()).unwrap();
    error.update(&tensor(&[1.0, 5.0]), &tensor(&[2.0, 2.0])).unwrap();
    error.update(&tensor(&[0.0]), &tensor(&[2.0])).unwrap();
    assert_eq!(error.value(), Some(2.0));
    error.reset();
    assert_eq!(error.value(), None);
}
