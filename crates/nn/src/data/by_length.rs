//! An order of samples in which those of a step have similar lengths, so that batches need little padding.
//!
//! ```text
//! random order → windows of up to 50 steps → each sorted by length → cut into steps → steps in random order
//! ```
//!
//! The second step has the longest sample. The optimizer has its state from then on, so a run of two steps reaches the peak
//! of all epochs.

use std::cmp::Reverse;

use super::shuffle::permutation;

/// The most steps of a window. `transformers` uses the same number for `group_by_length`.
const WINDOW: usize = 50;

/// The fewest windows of a pass with enough steps.
const WINDOWS: usize = 4;

/// The order of a pass, and the lengths to which its steps are padded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ByLength {
    pub(super) order: Vec<usize>,
    /// The length of the longest sample of each step.
    pub(super) lengths: Vec<usize>,
    /// The samples of a step; the last step may have fewer.
    pub(super) step: usize,
    /// The step with the longest sample of all. It has no fewer samples than any other.
    pub(super) longest: usize,
}

/// Groups samples of these lengths into steps of `step` samples, at least 1. Without a seed and the number of a pass, the
/// order is by falling length, except that the first two steps change places. Returns `None` if host memory runs out.
pub(super) fn by_length(lengths: &[usize], step: usize, shuffle: Option<(u64, u64)>) -> Option<ByLength> {
    let (count, full) = (lengths.len(), lengths.len() / step);
    let mut order = match shuffle {
        Some((seed, epoch)) => permutation(count, seed, epoch)?,
        None => (0..count).collect(),
    };
    let window = if shuffle.is_some() { (full / WINDOWS).clamp(1, WINDOW) } else { full.max(1) };
    // The last window has the rest, so that it has a full step, which begins with its longest sample.
    let windows = (full / window).max(1);
    for number in 0..windows {
        let end = if number + 1 == windows { count } else { (number + 1) * window * step };
        order[number * window * step..end].sort_by_key(|&sample| Reverse(lengths[sample]));
    }
    let mut steps = match shuffle {
        // The complement of the seed, so that the order of steps does not follow that of the samples.
        Some((seed, epoch)) => permutation(full, !seed, epoch)?,
        None => (0..full).collect(),
    };
    let longest_of = |number: usize| order.get(number * step).map_or(0, |&sample| lengths[sample]);
    let longest = full.saturating_sub(1).min(1);
    if let Some(at) = (0..full).max_by_key(|&at| (longest_of(steps[at]), Reverse(at))) {
        steps.swap(at, longest);
    }
    let mut grouped = Vec::new();
    grouped.try_reserve_exact(count).ok()?;
    let has_rest = full * step < count;
    steps.extend(has_rest.then_some(full));
    for &number in &steps {
        grouped.extend_from_slice(&order[number * step..((number + 1) * step).min(count)]);
    }
    let lengths = steps.iter().map(|&number| longest_of(number)).collect();
    Some(ByLength { order: grouped, lengths, step, longest })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths from 1 to 97 without an order.
    fn lengths(count: usize) -> Vec<usize> {
        (0..count).map(|at| 1 + at * 7919 % 97).collect()
    }

    #[test]
    fn every_sample_comes_once_and_the_longest_in_the_second_step() {
        for count in [0, 1, 7, 8, 9, 16, 17, 100, 1003, 5000] {
            let lengths = lengths(count);
            for shuffle in [None, Some((3, 0)), Some((3, 1)), Some((4, 0))] {
                let found = by_length(&lengths, 8, shuffle).unwrap();
                let mut all = found.order.clone();
                all.sort_unstable();
                assert_eq!(all, (0..count).collect::<Vec<_>>());
                assert_eq!(found.lengths.len(), count.div_ceil(8));
                for (step, length) in found.order.chunks(8).zip(&found.lengths) {
                    assert_eq!(step.iter().map(|&sample| lengths[sample]).max(), Some(*length));
                }
                assert_eq!(found.lengths.get(found.longest).copied(), lengths.iter().copied().max());
                assert_eq!(found.longest, usize::from(count >= 16), "{count}");
                assert_eq!(found, by_length(&lengths, 8, shuffle).unwrap());
            }
        }
    }

    #[test]
    fn seed_and_epoch_decide_the_order() {
        let order = |shuffle| by_length(&lengths(200), 8, Some(shuffle)).unwrap().order;
        assert_ne!(order((3, 0)), order((3, 1)));
        assert_ne!(order((3, 0)), order((4, 0)));
    }

    #[test]
    fn steps_have_similar_lengths() {
        let lengths = lengths(4000);
        let padding = |order: &[usize]| {
            let steps = order.chunks(8).map(|step| {
                let longest = step.iter().map(|&sample| lengths[sample]).max().unwrap();
                step.iter().map(|&sample| longest - lengths[sample]).sum::<usize>()
            });
            steps.sum::<usize>() as f64 / lengths.iter().sum::<usize>() as f64
        };
        assert!(padding(&by_length(&lengths, 8, Some((3, 0))).unwrap().order) < 0.02);
        assert!(padding(&permutation(4000, 3, 0).unwrap()) > 0.5);
    }
}
