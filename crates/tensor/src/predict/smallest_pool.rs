//! Finds the smallest pool in which a program runs.

use std::fmt;

use bfc_core::Bytes;

use super::dry_run::{DryRun, DryRunOptions};
use super::largest_fit::FitFailure;
use crate::device::Device;
use crate::error::Result;

/// Finds the smallest pool limit with which a program runs, by dry runs.
///
/// The search starts at the program's peak in use, which every pool requires, and doubles its stride until
/// the program fits. The limits that it tries are multiples of 256 bytes, or on a GPU of 2 MiB, which is the size
/// of its smallest region. Both the result and the next smaller limit were run. Fragmentation may make the program
/// fail in a larger pool.
///
/// ```
/// use highwater::alloc::Bytes;
/// use highwater::{DeviceProfile, Tensor, smallest_pool};
///
/// let found = smallest_pool(DeviceProfile::this_machine(), |device| {
///     let x = Tensor::zeros(device, [1024])?;
///     x.relu()?.add(&x).map(drop)
/// })?;
/// assert_eq!(found.smallest, Bytes::kib(12));
/// assert_eq!(found.failure.map(|failure| failure.number), Some(12 * 1024 - 256));
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// The errors of the program. Also out of memory, if it exceeds the limit of the options.
pub fn smallest_pool(
    options: impl Into<DryRunOptions>,
    mut program: impl FnMut(&Device) -> Result<()>,
) -> Result<SmallestPool> {
    let options = options.into();
    let granule = options.profile().rules().region_granularity();
    let unlimited = options.run(&mut program)?;
    let (least, most) = (unlimited.peak.in_use, unlimited.peak.limit.unwrap_or(u64::MAX));
    let mut found = SmallestPool { smallest: Bytes(most), run: unlimited, failure: None, runs: 1 };
    if least == 0 {
        return Ok(SmallestPool { smallest: Bytes(0), ..found });
    }
    let mut fits = |limit: u64, found: &mut SmallestPool| {
        found.runs += 1;
        match options.clone().limit(Bytes(limit)).run(&mut program) {
            Ok(run) => (found.smallest, found.run) = (Bytes(limit), run),
            Err(error) if error.needs_more_memory() => {
                found.failure = Some(FitFailure { number: limit, error })
            }
            Err(error) => return Err(error),
        }
        Ok(found.smallest == Bytes(limit))
    };
    // From the minimum of every pool, in doubling strides, up to the first limit that fits.
    let mut large = least.next_multiple_of(granule);
    let mut small = large - granule;
    let mut stride = granule;
    while large < most && !fits(large, &mut found)? {
        small = large;
        large = large.saturating_add(stride);
        stride = stride.saturating_mul(2);
    }
    large = large.min(most);
    while large - small > granule {
        let middle = small + (large - small) / 2 / granule * granule;
        if fits(middle, &mut found)? {
            large = middle;
        } else {
            small = middle;
        }
    }
    // Runs the limit below the minimum too, for its error.
    if found.failure.as_ref().is_none_or(|failure| failure.number != small) {
        fits(small, &mut found)?;
    }
    Ok(found)
}

/// The smallest pool, with the runs that prove it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SmallestPool {
    /// The limit of the pool.
    pub smallest: Bytes,
    /// The run with this limit.
    pub run: DryRun<()>,
    /// The next smaller limit, which does not fit; `None` if the program allocates nothing.
    pub failure: Option<FitFailure>,
    /// The number of dry runs.
    pub runs: u32,
}

impl fmt::Display for SmallestPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { smallest, run, .. } = self;
        write!(f, "{} bytes ({smallest}) are enough: {}", smallest.get(), run.peak)?;
        self.failure
            .as_ref()
            .map_or(Ok(()), |failure| write!(f, "\n{} bytes are not: {}", failure.number, failure.error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceProfile;
    use crate::error::Error;
    use crate::tensor::Tensor;
    use bfc_core::Environment;

    fn unlimited() -> DryRunOptions {
        DryRunOptions::new(DeviceProfile::this_machine()).environment(Environment::default())
    }

    /// Leaves a hole of `hole` floats before an allocation of `rest` floats.
    fn with_hole(device: &Device, hole: usize, rest: usize) -> Result<()> {
        let first = Tensor::zeros(device, [hole])?;
        let _second = Tensor::zeros(device, [64])?;
        drop(first);
        Tensor::zeros(device, [rest]).map(drop)
    }

    #[test]
    fn the_result_fits_and_one_granule_less_does_not() {
        for (hole, rest) in [(64, 64), (64, 128), (1000, 5000), (5000, 1000), (1 << 20, (1 << 20) + 1)] {
            let program = |device: &Device| with_hole(device, hole, rest);
            let found = smallest_pool(unlimited(), program).unwrap();
            let failure = found.failure.as_ref().unwrap();
            assert_eq!(failure.number + 256, found.smallest.get());
            assert!(failure.error.out_of_memory().is_some());
            assert!(unlimited().limit(found.smallest).run(program).is_ok());
            assert!(unlimited().limit(Bytes(failure.number)).run(program).is_err());
            assert!(found.run.peak.reserved <= found.smallest.get() && found.runs < 60, "{found}");
        }
    }

    #[test]
    fn on_a_gpu_the_result_is_a_multiple_of_two_mebibytes() {
        let granule = 2 << 20;
        let card =
            || DryRunOptions::new(DeviceProfile::gpu("t4").unwrap()).environment(Environment::default());
        for (hole, rest) in [(64, 64), (1 << 19, (1 << 19) + 1), (5_000_000, 1000)] {
            let program = |device: &Device| with_hole(device, hole, rest);
            let found = smallest_pool(card(), program).unwrap();
            let failure = found.failure.as_ref().unwrap();
            assert_eq!((found.smallest.get() % granule, failure.number + granule), (0, found.smallest.get()));
            assert!(card().limit(found.smallest).run(program).is_ok());
            let error = card().limit(Bytes(found.smallest.get() - 1)).run(program).unwrap_err();
            assert!(error.needs_more_memory(), "{error}");
            assert!(found.run.peak.reserved <= found.smallest.get() && found.runs < 20, "{found}");
        }
    }

    #[test]
    fn no_allocation_needs_no_pool_and_no_fit_is_an_error() {
        let found = smallest_pool(unlimited(), |_| Ok(())).unwrap();
        assert!(found.smallest == Bytes(0) && found.failure.is_none());
        let too_much = |device: &Device| with_hole(device, 1000, 1000);
        let error = smallest_pool(unlimited().limit(Bytes(4096)), too_much).unwrap_err();
        assert!(error.out_of_memory().is_some());
        let error = smallest_pool(unlimited(), |device| {
            Tensor::zeros(device, [2])?.add(&Tensor::zeros(device, [3])?).map(drop)
        });
        assert!(matches!(error, Err(Error::ShapeMismatch { .. })));
    }
}
