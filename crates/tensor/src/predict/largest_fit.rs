//! The largest batch, or any other number that a program takes, that a memory has room for.

use std::fmt;
use std::ops::RangeInclusive;

use super::dry_run::{DryRun, DryRunOptions};
use crate::device::Device;
use crate::error::{Error, Result};

/// Finds the largest number with which a program fits into a device's memory, by dry runs: nothing is computed, and no memory
/// runs out but that of addresses.
///
/// The [profile](crate::DeviceProfile) names the device and so the allocation rules: the pool, its limit and the
/// workspaces of kernels. Use the profile of the device that the program will run on.
///
/// The program is run at numbers of the range from its start on, in steps that double, until one is refused, and then between
/// the last that fitted and the first that did not. So the answer was run, and so was the number after it, which was refused:
/// both are exact even where scattered free memory makes a larger number fit again.
///
/// ```
/// use highwater::alloc::Bytes;
/// use highwater::{DeviceProfile, Tensor, largest_fit};
///
/// // Rows of 1 KiB, twice, in a pool of 1 MiB on this machine.
/// let profile = DeviceProfile::this_machine().with_limit(Bytes::mib(1));
/// let found = largest_fit(profile, 1..=10_000, |device, rows| {
///     let x = Tensor::zeros(device, [rows as usize, 256])?;
///     x.relu().map(drop)
/// })?;
/// assert_eq!(found.largest, Some(512));
/// assert_eq!(found.refused.as_ref().map(|refused| refused.number), Some(513));
/// println!("{found}");
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// What the program returns, but for out of memory and for sizes that no memory has: those are refusals. Those of
/// [`dry_run`](super::dry_run()).
pub fn largest_fit(
    options: impl Into<DryRunOptions>,
    range: RangeInclusive<u64>,
    mut program: impl FnMut(&Device, u64) -> Result<()>,
) -> Result<LargestFit> {
    let (options, (first, last)) = (options.into(), range.into_inner());
    let mut found = LargestFit { largest: None, run: None, refused: None, runs: 0 };
    let mut step = 0;
    let mut next = (first <= last).then_some(first);
    while let Some(number) = next {
        found.runs += 1;
        match options.run(|device| program(device, number)) {
            Ok(run) => (found.largest, found.run) = (Some(number), Some(run)),
            Err(error) if is_refusal(&error) => found.refused = Some(Refused { number, error }),
            Err(error) => return Err(error),
        }
        next = match (found.largest, &found.refused) {
            (Some(low), Some(refused)) => {
                let middle = low + (refused.number - low) / 2;
                (middle > low).then_some(middle)
            }
            (Some(low), None) => {
                step = if step == 0 { 1 } else { step * 2 };
                (low < last).then(|| low.saturating_add(step).min(last))
            }
            // Not even the first.
            (None, _) => None,
        };
    }
    Ok(found)
}

/// Whether the program did not fit; else it failed.
pub(super) fn is_refusal(error: &Error) -> bool {
    error.out_of_memory().is_some() || matches!(error, Error::TooManyElements { .. })
}

/// The largest number that fits, and what showed it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LargestFit {
    /// The largest number; `None` if not even the first of the range fits.
    pub largest: Option<u64>,
    /// The run at that number.
    pub run: Option<DryRun<()>>,
    /// The next number, which does not fit; `None` if all of the range does.
    pub refused: Option<Refused>,
    /// How many dry runs it took.
    pub runs: u32,
}

/// A number that does not fit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Refused {
    /// The number.
    pub number: u64,
    /// Why not: as a rule an [out-of-memory error](Error::out_of_memory) with its report.
    pub error: Error,
}

impl fmt::Display for LargestFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.largest, &self.run) {
            (Some(largest), Some(run)) => write!(f, "{largest} fits: {}", run.peak)?,
            _ => f.write_str("nothing fits")?,
        }
        match &self.refused {
            Some(Refused { number, error }) => write!(f, "\n{number} does not: {error}"),
            None => f.write_str("; no larger one was asked for"),
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

    /// Takes so many blocks of 1 KiB at once.
    fn blocks(device: &Device, count: u64) -> Result<()> {
        let blocks: Result<Vec<_>> = (0..count).map(|_| Tensor::zeros(device, [256])).collect();
        blocks.map(drop)
    }

    #[test]
    fn the_largest_fit_is_exact_in_any_range() {
        for capacity in [1, 2, 3, 7, 8, 9, 100, 1000] {
            for first in [0, 1, capacity] {
                for last in [capacity, capacity + 1, capacity + 2, 4096] {
                    let found = largest_fit(pool(Bytes::kib(capacity)), first..=last, blocks).unwrap();
                    assert_eq!(found.largest, Some(capacity), "{first}..={last}");
                    let refused = found.refused.as_ref().map(|refused| refused.number);
                    assert_eq!(refused, (last > capacity).then_some(capacity + 1), "{first}..={last}");
                    assert_eq!(found.run.as_ref().unwrap().peak.requested, capacity << 10);
                    assert!(found.runs <= 25, "{found}");
                }
            }
        }
    }

    #[test]
    fn a_range_of_which_nothing_fits_has_no_answer_but_a_reason() {
        let found = largest_fit(pool(Bytes::kib(4)), 5..=9, blocks).unwrap();
        assert_eq!((found.largest, found.runs), (None, 1));
        assert_eq!(found.refused.as_ref().unwrap().number, 5);
        assert!(found.to_string().starts_with("nothing fits\n5 does not: zeros: "), "{found}");
        let empty = largest_fit(pool(Bytes::kib(4)), RangeInclusive::new(2, 1), blocks).unwrap();
        assert!(empty.largest.is_none() && empty.refused.is_none() && empty.runs == 0);
    }

    #[test]
    fn impossible_sizes_do_not_fit() {
        let wide = |device: &Device, n: u64| Tensor::zeros(device, [1 << 30, n as usize]).map(drop);
        let found = largest_fit(pool(Bytes(1 << 62)), 1..=u64::MAX, wide).unwrap();
        assert!(found.largest.is_some_and(|largest| largest >= 1 << 20), "{found}");
        let error = largest_fit(pool(Bytes::mib(1)), 1..=3, |device, _| {
            Tensor::zeros(device, [2])?.add(&Tensor::zeros(device, [3])?).map(drop)
        });
        assert!(matches!(error, Err(Error::ShapeMismatch { .. })));
    }
}
