//! Finds the largest batch, or another number, with which a program fits into memory.

use std::fmt;
use std::ops::RangeInclusive;

use super::dry_run::{DryRun, DryRunOptions};
use crate::device::Device;
use crate::error::{Error, Result};

/// Finds the largest number with which a program fits into a device's memory. It uses dry runs, which compute
/// nothing and allocate only addresses.
///
/// The [profile](crate::DeviceProfile) determines the allocation rules: the pool, its limit and the
/// workspaces of kernels. Use the profile of the device that the program will run on.
///
/// Runs the program from the start of the range in doubling steps until it does not fit. Then bisects between
/// the last number that fits and the first that does not. Both the result and the next number were run, so
/// both are exact, even if fragmentation lets a larger number fit again.
///
/// ```
/// use highwater::alloc::Bytes;
/// use highwater::{DeviceProfile, Tensor, largest_fit};
///
/// // Two tensors with rows of 1 KiB, in a pool of 1 MiB on this machine.
/// let profile = DeviceProfile::this_machine().with_limit(Bytes::mib(1));
/// let found = largest_fit(profile, 1..=10_000, |device, rows| {
///     let x = Tensor::zeros(device, [rows as usize, 256])?;
///     x.relu().map(drop)
/// })?;
/// assert_eq!(found.largest, Some(512));
/// assert_eq!(found.failure.as_ref().map(|failure| failure.number), Some(513));
/// println!("{found}");
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// The errors of [`dry_run`](super::dry_run()) and of the program, except errors that mean "does not fit":
/// out of memory, and sizes that exceed the address space.
pub fn largest_fit(
    options: impl Into<DryRunOptions>,
    range: RangeInclusive<u64>,
    mut program: impl FnMut(&Device, u64) -> Result<()>,
) -> Result<LargestFit> {
    let (options, (first, last)) = (options.into(), range.into_inner());
    let mut found = LargestFit { largest: None, run: None, failure: None, runs: 0 };
    let mut step = 0;
    let mut next = (first <= last).then_some(first);
    while let Some(number) = next {
        found.runs += 1;
        match options.run(|device| program(device, number)) {
            Ok(run) => (found.largest, found.run) = (Some(number), Some(run)),
            Err(error) if error.needs_more_memory() => found.failure = Some(FitFailure { number, error }),
            Err(error) => return Err(error),
        }
        next = match (found.largest, &found.failure) {
            (Some(low), Some(failure)) => {
                let middle = low + (failure.number - low) / 2;
                (middle > low).then_some(middle)
            }
            (Some(low), None) => {
                step = if step == 0 { 1 } else { step * 2 };
                (low < last).then(|| low.saturating_add(step).min(last))
            }
            // The start of the range does not fit.
            (None, _) => None,
        };
    }
    Ok(found)
}

/// The largest number that fits, with the runs that prove it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LargestFit {
    /// The largest number; `None` if the start of the range does not fit.
    pub largest: Option<u64>,
    /// The run with that number.
    pub run: Option<DryRun<()>>,
    /// The next number, which does not fit; `None` if the whole range fits.
    pub failure: Option<FitFailure>,
    /// The number of dry runs.
    pub runs: u32,
}

/// A number that does not fit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FitFailure {
    /// The number.
    pub number: u64,
    /// The cause, usually an [out-of-memory error](Error::out_of_memory) with its report.
    pub error: Error,
}

impl fmt::Display for LargestFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.largest, &self.run) {
            (Some(largest), Some(run)) => write!(f, "{largest} fits: {}", run.peak)?,
            _ => f.write_str("nothing fits")?,
        }
        match &self.failure {
            Some(FitFailure { number, error }) => write!(f, "\n{number} does not: {error}"),
            None => f.write_str("; it is the end of the range"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceProfile;
    use crate::tensor::Tensor;
    use bfc_core::{Bytes, Environment};

    fn pool(limit: Bytes) -> DryRunOptions {
        DryRunOptions::new(DeviceProfile::this_machine()).environment(Environment::default()).limit(limit)
    }

    /// Allocates this number of blocks of 1 KiB at once.
    fn blocks(device: &Device, count: u64) -> Result<()> {
        let blocks: Result<Vec<_>> = (0..count).map(|_| Tensor::zeros(device, [256])).collect();
        blocks.map(drop)
    }

    #[test]
    fn the_result_fits_and_the_next_number_does_not() {
        for capacity in [1, 2, 3, 7, 8, 9, 100, 1000] {
            for first in [0, 1, capacity] {
                for last in [capacity, capacity + 1, capacity + 2, 4096] {
                    let found = largest_fit(pool(Bytes::kib(capacity)), first..=last, blocks).unwrap();
                    assert_eq!(found.largest, Some(capacity), "{first}..={last}");
                    let failure = found.failure.as_ref().map(|failure| failure.number);
                    assert_eq!(failure, (last > capacity).then_some(capacity + 1), "{first}..={last}");
                    assert_eq!(found.run.as_ref().unwrap().peak.requested, capacity << 10);
                    assert!(found.runs <= 25, "{found}");
                }
            }
        }
    }

    #[test]
    fn a_range_without_a_fit_returns_the_failure() {
        let found = largest_fit(pool(Bytes::kib(4)), 5..=9, blocks).unwrap();
        assert_eq!((found.largest, found.runs), (None, 1));
        assert_eq!(found.failure.as_ref().unwrap().number, 5);
        assert!(found.to_string().starts_with("nothing fits\n5 does not: zeros: "), "{found}");
        let empty = largest_fit(pool(Bytes::kib(4)), RangeInclusive::new(2, 1), blocks).unwrap();
        assert!(empty.largest.is_none() && empty.failure.is_none() && empty.runs == 0);
    }

    #[test]
    fn huge_sizes_do_not_fit_and_other_errors_are_errors() {
        let wide = |device: &Device, n: u64| Tensor::zeros(device, [1 << 30, n as usize]).map(drop);
        let found = largest_fit(pool(Bytes(1 << 62)), 1..=u64::MAX, wide).unwrap();
        assert!(found.largest.is_some_and(|largest| largest >= 1 << 20), "{found}");
        let error = largest_fit(pool(Bytes::mib(1)), 1..=3, |device, _| {
            Tensor::zeros(device, [2])?.add(&Tensor::zeros(device, [3])?).map(drop)
        });
        assert!(matches!(error, Err(Error::ShapeMismatch { .. })));
    }
}
