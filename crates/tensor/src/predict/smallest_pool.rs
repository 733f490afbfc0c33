//! The smallest pool that a program runs in.

use std::fmt;

use bfc_core::Bytes;

use super::dry_run::{DryRun, DryRunOptions};
use super::largest_fit::{Refused, is_refusal};
use crate::device::Device;
use crate::error::Result;

/// How finely pools are told apart, in bytes: what they hand out are multiples of it.
const GRANULE: u64 = 256;

/// Finds the smallest limit of a pool with which a program runs, by dry runs.
///
/// The search begins at the most that the program has in use, which no pool can do without, and doubles its stride until the
/// program fits. The answer was run, and so was the pool of 256 bytes less, in which it does not fit; scattered free memory may
/// make it fail in a larger pool again.
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
/// assert_eq!(found.refused.map(|refused| refused.number), Some(12 * 1024 - 256));
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// What the program returns; also out of memory, if it does not fit into what the options allow.
pub fn smallest_pool(
    options: impl Into<DryRunOptions>,
    mut program: impl FnMut(&Device) -> Result<()>,
) -> Result<SmallestPool> {
    let options = options.into();
    let anywhere = options.run(&mut program)?;
    let (least, most) = (anywhere.peak.in_use, anywhere.peak.limit.unwrap_or(u64::MAX));
    let mut found = SmallestPool { smallest: Bytes(most), run: anywhere, refused: None, runs: 1 };
    if least == 0 {
        return Ok(SmallestPool { smallest: Bytes(0), ..found });
    }
    let mut fits = |limit: u64, found: &mut SmallestPool| {
        found.runs += 1;
        match options.clone().limit(Bytes(limit)).run(&mut program) {
            Ok(run) => (found.smallest, found.run) = (Bytes(limit), run),
            Err(error) if is_refusal(&error) => found.refused = Some(Refused { number: limit, error }),
            Err(error) => return Err(error),
        }
        Ok(found.smallest == Bytes(limit))
    };
    // From what no pool can do without, in strides that double, up to where it fitted at first.
    let mut large = least.next_multiple_of(GRANULE);
    let mut small = large - GRANULE;
    let mut stride = GRANULE;
    while large < most && !fits(large, &mut found)? {
        small = large;
        large = large.saturating_add(stride);
        stride = stride.saturating_mul(2);
    }
    large = large.min(most);
    while large - small > GRANULE {
        let middle = small + (large - small) / 2 / GRANULE * GRANULE;
        if fits(middle, &mut found)? {
            large = middle;
        } else {
            small = middle;
        }
    }
    // One below the least possible was not tried yet: it is refused, and says why.
    if found.refused.as_ref().is_none_or(|refused| refused.number != small) {
        fits(small, &mut found)?;
    }
    Ok(found)
}

/// The smallest pool, and what showed it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SmallestPool {
    /// The limit of the pool.
    pub smallest: Bytes,
    /// The run in it.
    pub run: DryRun<()>,
    /// The next smaller limit in bytes, in which the program does not fit; `None` if it takes nothing.
    pub refused: Option<Refused>,
    /// How many dry runs it took.
    pub runs: u32,
}

impl fmt::Display for SmallestPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { smallest, run, .. } = self;
        write!(f, "{} bytes ({smallest}) are enough: {}", smallest.get(), run.peak)?;
        self.refused
            .as_ref()
            .map_or(Ok(()), |refused| write!(f, "\n{} bytes are not: {}", refused.number, refused.error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceProfile;
    use crate::error::Error;
    use crate::tensor::Tensor;
    use bfc_core::Environment;

    fn anywhere() -> DryRunOptions {
        DryRunOptions::new(DeviceProfile::this_machine()).environment(Environment::default())
    }

    /// Leaves a hole of `hole` floats before the next `rest`.
    fn with_hole(device: &Device, hole: usize, rest: usize) -> Result<()> {
        let first = Tensor::zeros(device, [hole])?;
        let _second = Tensor::zeros(device, [64])?;
        drop(first);
        Tensor::zeros(device, [rest]).map(drop)
    }

    #[test]
    fn the_answer_fits_and_a_granule_less_does_not() {
        for (hole, rest) in [(64, 64), (64, 128), (1000, 5000), (5000, 1000), (1 << 20, (1 << 20) + 1)] {
            let program = |device: &Device| with_hole(device, hole, rest);
            let found = smallest_pool(anywhere(), program).unwrap();
            let refused = found.refused.as_ref().unwrap();
            assert_eq!(refused.number + GRANULE, found.smallest.get());
            assert!(refused.error.out_of_memory().is_some());
            assert!(anywhere().limit(found.smallest).run(program).is_ok());
            assert!(anywhere().limit(Bytes(refused.number)).run(program).is_err());
            assert!(found.run.peak.reserved <= found.smallest.get() && found.runs < 60, "{found}");
        }
    }

    #[test]
    fn an_empty_program_needs_no_pool() {
        let found = smallest_pool(anywhere(), |_| Ok(())).unwrap();
        assert!(found.smallest == Bytes(0) && found.refused.is_none());
        let too_much = |device: &Device| with_hole(device, 1000, 1000);
        let error = smallest_pool(anywhere().limit(Bytes(4096)), too_much).unwrap_err();
        assert!(error.out_of_memory().is_some());
        let error = smallest_pool(anywhere(), |device| {
            Tensor::zeros(device, [2])?.add(&Tensor::zeros(device, [3])?).map(drop)
        });
        assert!(matches!(error, Err(Error::ShapeMismatch { .. })));
    }
}
