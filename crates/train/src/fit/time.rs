//! The time of a step, from the ends of the backward passes of a trial.
//!
//! A trial of two steps builds the model, allocates the optimizer's state, and ends with an evaluation. Between the ends of the
//! last backward passes of two steps lies exactly one step: an update, and a forward and a backward pass for each micro-batch.

use std::ops::{Add, Sub};

/// Returns the backward passes per micro-batch of a program that has run `steps` steps, such as 2 if it trains a discriminator and
/// a generator. Returns 1 for a program that has run another number of steps.
pub(super) fn passes_per_micro_batch(passes: usize, steps: u64, accumulate: u64) -> usize {
    let micro_batches = usize::try_from(steps.saturating_mul(accumulate)).unwrap_or(usize::MAX);
    if passes > 0 && passes.is_multiple_of(micro_batches) { passes / micro_batches } else { 1 }
}

/// Returns the time of the last step, of which the trial ran `tried` micro-batches and the plan has `planned`, with this number of
/// passes each. `None` without a backward pass.
pub(super) fn last_step<T: Copy + Add<Output = T> + Sub<Output = T>>(
    ends: &[T],
    per_micro_batch: usize,
    tried: u64,
    planned: u64,
) -> Option<T> {
    let (last, before) = ends.split_last()?;
    let back = |micro_batches: u64| {
        let passes = usize::try_from(micro_batches).ok()?.checked_mul(per_micro_batch)?;
        before.len().checked_sub(passes).and_then(|at| before.get(at)).copied()
    };
    // A program with a single step has no end before it; its time includes the construction of the model.
    let step = back(tried).map_or(*last, |previous| *last - previous);
    let missing = planned.saturating_sub(tried);
    match back(1) {
        Some(previous) if tried > 1 => Some((0..missing).fold(step, |sum, _| sum + (*last - previous))),
        _ => Some(step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_lies_between_the_last_passes_of_two_steps() {
        assert_eq!(last_step::<f64>(&[], 1, 1, 1), None);
        // Only the construction and one step.
        assert_eq!(last_step(&[5.0], 1, 1, 1), Some(5.0));
        // Passes of 3 and updates of 1.
        assert_eq!(last_step(&[5.0, 9.0, 13.0], 1, 1, 1), Some(4.0));
        assert_eq!(last_step(&[5.0, 8.0, 12.0, 15.0], 1, 2, 2), Some(7.0));
        assert_eq!(last_step(&[5.0, 8.0, 12.0, 15.0], 1, 2, 6), Some(19.0));
        // Two passes per micro-batch.
        assert_eq!(last_step(&[5.0, 8.0, 12.0, 15.0], 2, 1, 1), Some(7.0));
    }

    #[test]
    fn passes_per_micro_batch_follow_from_the_passes_of_all_steps() {
        assert_eq!(passes_per_micro_batch(8, 2, 2), 2);
        // An epoch has its own number of steps.
        assert_eq!(passes_per_micro_batch(7, 2, 2), 1);
        assert_eq!(passes_per_micro_batch(1, 2, 1), 1);
        assert_eq!(passes_per_micro_batch(0, 2, 2), 1);
    }
}
