//! Measures and bounds the peak of bytes in use while a program runs.

use std::borrow::Borrow;

use bfc_core::{AllocatorSnapshot, Bytes, Ledger, printable};

use super::growth::Growth;
use crate::device::Device;
use crate::error::Result;

/// Runs a program and fails if the bytes in use on the device exceed `limit`, including those in use before.
/// Returns the result of the program. The third argument is a block of code or a closure without arguments.
///
/// ```
/// use highwater::alloc::Bytes;
/// use highwater::{Runtime, Tensor, assert_peak};
/// let device = Runtime::builder().build()?.dry()?;
/// let x = assert_peak!(device, Bytes::kib(4), || Tensor::zeros(&device, [1000]))?;
/// # drop(x);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// A failure names the ops that grew:
///
/// ```should_panic
/// # use highwater::alloc::Bytes;
/// # use highwater::{Runtime, Tensor, assert_peak};
/// # let device = Runtime::builder().build()?.dry()?;
/// // 8.00 KiB in use at the peak, 4.00 KiB more than 4.00 KiB, raised by relu ...
/// assert_peak!(device, Bytes::kib(4), || Tensor::zeros(&device, [1024])?.relu())?;
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Panics
/// If the peak exceeds the limit, or the device's memory is unavailable.
#[macro_export]
macro_rules! assert_peak {
    ($device:expr, $limit:expr, $program:expr $(,)?) => {
        match $crate::testing::measure_peak(&$device, $program) {
            Ok(measured) => match measured.within($limit) {
                Ok(value) => value,
                Err(exceeded) => panic!("{exceeded}"),
            },
            Err(error) => panic!("{error}"),
        }
    };
}

/// Runs a program and measures the peak of bytes in use on the device. Resets the statistics and peaks of the
/// device's pool first.
///
/// ```
/// use highwater::alloc::Bytes;
/// use highwater::{Runtime, Tensor};
/// use highwater::testing::measure_peak;
/// let device = Runtime::builder().build()?.dry()?;
/// let measured = measure_peak(&device, || Tensor::zeros(&device, [1024])?.relu())?;
/// assert_eq!(measured.peak, 8192);
/// assert!(measured.within(Bytes::kib(4)).is_err());
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// If the device's memory is unavailable. An error of the program is part of the measured value.
pub fn measure_peak<R>(device: &impl Borrow<Device>, program: impl FnOnce() -> R) -> Result<MeasuredPeak<R>> {
    let pool = device.borrow().default_allocator()?;
    pool.clear_stats();
    let before = pool.snapshot();
    let value = program();
    let AllocatorSnapshot { stats, ledger } = pool.snapshot();
    Ok(MeasuredPeak {
        value,
        before: before.stats.bytes_in_use,
        peak: stats.peak_bytes_in_use,
        raised_by: stats.peak_tag.owner.path(),
        ledgers: Box::new((before.ledger, ledger)),
    })
}

/// The measured peak of a program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MeasuredPeak<R> {
    /// The result of the program.
    pub value: R,
    /// Bytes in use before the program.
    pub before: u64,
    /// The most bytes in use during the program.
    pub peak: u64,
    /// The path of the op that reached the peak; empty if the program allocated nothing.
    pub raised_by: String,
    /// The ledgers before and after the program, with the peaks of all owners.
    ledgers: Box<(Ledger, Ledger)>,
}

impl<R> MeasuredPeak<R> {
    /// Returns the result of the program if the peak is at most `limit`.
    ///
    /// # Errors
    /// [`PeakExceeded`], which lists the owners that grew.
    pub fn within(self, limit: Bytes) -> std::result::Result<R, PeakExceeded> {
        if self.peak <= limit.get() {
            return Ok(self.value);
        }
        let growth = self.growth();
        Err(PeakExceeded { limit, before: self.before, peak: self.peak, raised_by: self.raised_by, growth })
    }

    /// Returns the largest growth of each op, not necessarily at the same moment.
    #[must_use]
    pub fn growth(&self) -> Growth {
        Growth::of_peaks(&self.ledgers.0, &self.ledgers.1)
    }
}

/// The peak exceeds the limit.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} in use at the peak, {} more than {limit}, raised by {}; {} in use before\n\n{growth}",
    Bytes(*peak), Bytes(peak.saturating_sub(limit.get())), printable(named(raised_by)), Bytes(*before)
)]
#[non_exhaustive]
pub struct PeakExceeded {
    /// The limit.
    pub limit: Bytes,
    /// Bytes in use before the program.
    pub before: u64,
    /// The most bytes in use during the program.
    pub peak: u64,
    /// The path of the op that reached the peak.
    pub raised_by: String,
    /// The largest growth of each op, not necessarily at the same moment.
    pub growth: Growth,
}

bfc_core::debug_as_message!(PeakExceeded);

fn named(path: &str) -> &str {
    if path.is_empty() { "no op" } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;
    use crate::tensor::Tensor;
    use highwater_tracking::module;

    fn dry() -> Device {
        let builder = Runtime::builder().environment(bfc_core::Environment::default());
        builder.build().unwrap().dry().unwrap()
    }

    #[test]
    fn the_peak_includes_live_bytes_but_no_earlier_peaks() {
        let device = dry();
        drop(Tensor::zeros(&device, [1 << 20]).unwrap());
        let _kept = Tensor::zeros(&device, [1024]).unwrap();
        let step = || Tensor::zeros(&device, [256]).map(drop);
        assert!(measure_peak(&device, step).unwrap().within(Bytes(5120)).unwrap().is_ok());
        let exceeded = measure_peak(&device, step).unwrap().within(Bytes(5119)).unwrap_err();
        assert_eq!((exceeded.before, exceeded.peak), (4096, 5120));
    }

    #[test]
    fn a_failure_names_the_growing_ops_and_the_peak_op() {
        let device = dry();
        let x = Tensor::zeros(&device, [256]).unwrap();
        let exceeded = measure_peak(&device, || {
            let _scope = module("testing_peak");
            let wide = x.broadcast_to([100, 256])?.contiguous()?;
            wide.relu()?.square()
        });
        let exceeded = exceeded.unwrap().within(Bytes::kib(100)).unwrap_err();
        assert_eq!(exceeded.raised_by, "testing_peak.square");
        let paths: Vec<&str> = exceeded.growth.holders.iter().map(|holder| holder.path.as_str()).collect();
        assert_eq!(paths.len(), 3, "{paths:?}");
        assert!(paths.contains(&"testing_peak.relu") && paths.contains(&"testing_peak.square"), "{paths:?}");
        assert!(exceeded.growth.holders.iter().all(|holder| holder.growth() == 100 << 10));
        let message = exceeded.to_string();
        for part in ["301.00 KiB", "raised by testing_peak.square", "owner", "testing_peak.relu"] {
            assert!(message.contains(part), "{part:?} is not in\n{message}");
        }
    }

    #[test]
    #[should_panic(expected = "raised by zeros")]
    fn the_macro_panics_with_the_reason() {
        let device = dry();
        let _ = crate::assert_peak!(&device, Bytes(100), || Tensor::zeros(&device, [100]));
    }
}
