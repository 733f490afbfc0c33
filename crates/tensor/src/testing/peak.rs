//! The most that is in use while something runs.

use std::borrow::Borrow;

use bfc_core::{AllocatorSnapshot, Bytes, Ledger};

use super::growth::Growth;
use crate::device::Device;
use crate::error::Result;

/// Runs a program and fails if more bytes than `limit` were in use on the device at a time, those included that were in use
/// before. Gives what the program gives. A third argument is a block of code or a closure without arguments.
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
/// A failure names who grew:
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
/// If more was in use; if the device's memory cannot be had.
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

/// Runs a program and measures the most that is in use on the device meanwhile. The figures and peaks of the device's pool
/// start over for that.
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
/// If the device's memory cannot be had. What the program gives may be an error too; it is in the measured value.
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

/// The most that was in use while a program ran.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MeasuredPeak<R> {
    /// What the program gave.
    pub value: R,
    /// Bytes that were in use before.
    pub before: u64,
    /// The most bytes that were in use.
    pub peak: u64,
    /// The path of the op whose request raised them to that; empty if the program took nothing.
    pub raised_by: String,
    /// Before and after, with the peak of each owner in between.
    ledgers: Box<(Ledger, Ledger)>,
}

impl<R> MeasuredPeak<R> {
    /// What the program gave, if no more than `limit` was in use.
    ///
    /// # Errors
    /// [`PeakExceeded`], which says who grew.
    pub fn within(self, limit: Bytes) -> std::result::Result<R, PeakExceeded> {
        if self.peak <= limit.get() {
            return Ok(self.value);
        }
        let growth = self.growth();
        Err(PeakExceeded { limit, before: self.before, peak: self.peak, raised_by: self.raised_by, growth })
    }

    /// The most that each op held more than before, not necessarily all at the same moment.
    #[must_use]
    pub fn growth(&self) -> Growth {
        Growth::of_peaks(&self.ledgers.0, &self.ledgers.1)
    }
}

/// More was in use than allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} in use at the peak, {} more than {limit}, raised by {}; {} were in use before\n\n{growth}",
    Bytes(*peak), Bytes(peak.saturating_sub(limit.get())), named(raised_by), Bytes(*before)
)]
#[non_exhaustive]
pub struct PeakExceeded {
    /// What was allowed.
    pub limit: Bytes,
    /// Bytes that were in use before.
    pub before: u64,
    /// The most bytes that were in use.
    pub peak: u64,
    /// The path of the op whose request raised them to that.
    pub raised_by: String,
    /// The most that each op held more than before, not necessarily all at the same moment.
    pub growth: Growth,
}

fn named(path: &str) -> &str {
    if path.is_empty() { "nobody" } else { path }
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
    fn what_was_in_use_before_counts_and_earlier_peaks_do_not() {
        let device = dry();
        drop(Tensor::zeros(&device, [1 << 20]).unwrap());
        let _kept = Tensor::zeros(&device, [1024]).unwrap();
        let step = || Tensor::zeros(&device, [256]).map(drop);
        assert!(measure_peak(&device, step).unwrap().within(Bytes(5120)).unwrap().is_ok());
        let exceeded = measure_peak(&device, step).unwrap().within(Bytes(5119)).unwrap_err();
        assert_eq!((exceeded.before, exceeded.peak), (4096, 5120));
    }

    #[test]
    fn a_failure_names_who_grew_and_who_raised_the_peak() {
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
        for part in ["301.00 KiB", "raised by testing_peak.square", "who grew", "testing_peak.relu"] {
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
