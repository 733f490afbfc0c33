//! Steps that leave nothing behind.

use std::borrow::Borrow;

use bfc_core::{AllocatorSnapshot, Bytes};

use super::growth::Growth;
use crate::device::Device;
use crate::error::{Error, Result};

/// Runs `steps` steps and fails if, after one behind the first `warm` ones, more or fewer bytes are in use on the device than
/// right after those: memory that grows by the step is a leak, as when a loss is kept with its graph.
///
/// The last argument takes the number of the step, from 0, and returns a [`Result`](crate::Result).
///
/// ```
/// use highwater::{Runtime, Tensor, assert_flat_after};
/// let device = Runtime::builder().build()?.dry()?;
/// assert_flat_after!(device, 1, 10, |_step| Tensor::zeros(&device, [100])?.relu().map(drop));
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// A failure names who grew:
///
/// ```should_panic
/// # use highwater::{Runtime, Tensor, assert_flat_after};
/// # let device = Runtime::builder().build()?.dry()?;
/// let mut history = Vec::new();
/// // step 1 left 512 B more in use than there were after 1 steps ... zeros ...
/// assert_flat_after!(device, 1, 10, |_step| {
///     history.push(Tensor::zeros(&device, [100])?);
///     Ok(())
/// });
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Panics
/// With [`NotFlat`](crate::testing::NotFlat).
#[macro_export]
macro_rules! assert_flat_after {
    ($device:expr, $warm:expr, $steps:expr, $step:expr $(,)?) => {
        if let Err(error) = $crate::testing::check_flat_after(&$device, $warm, $steps, $step) {
            panic!("{error}");
        }
    };
}

/// Runs `steps` steps, the first `warm` of which may leave something behind, as optimiser state, and the others not a byte.
///
/// # Errors
/// [`NotFlat`] for the first step that left more or fewer bytes in use, or failed.
pub fn check_flat_after(
    device: &impl Borrow<Device>,
    warm: usize,
    steps: usize,
    mut step: impl FnMut(usize) -> Result<()>,
) -> std::result::Result<(), NotFlat> {
    let mut run = |number| step(number).map_err(|error| NotFlat::failed(number, error));
    for number in 0..warm.min(steps) {
        run(number)?;
    }
    let pool = device.borrow().default_allocator().map_err(|error| NotFlat::failed(0, error))?;
    let AllocatorSnapshot { stats, ledger } = pool.snapshot();
    let before = stats.bytes_in_use;
    for number in warm..steps {
        run(number)?;
        let AllocatorSnapshot { stats, ledger: now } = pool.snapshot();
        let after = stats.bytes_in_use;
        if after != before {
            let growth = Growth::of_live(&ledger, &now);
            return Err(NotFlat::Changed { step: number, warm, before, after, growth });
        }
    }
    Ok(())
}

/// A step that did not leave memory as it was.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotFlat {
    /// Other bytes are in use after it.
    #[error(
        "step {step} left {} in use, where there were {} after {warm} steps\n\n{growth}",
        Bytes(*after), Bytes(*before)
    )]
    Changed {
        /// The step, from 0.
        step: usize,
        /// How many steps were let off.
        warm: usize,
        /// Bytes in use after those.
        before: u64,
        /// Bytes in use after this one.
        after: u64,
        /// Who holds more than after those.
        growth: Growth,
    },
    /// It failed.
    #[error("step {step} failed: {error}")]
    Failed {
        /// The step, from 0.
        step: usize,
        /// Why.
        error: Box<Error>,
    },
}

impl NotFlat {
    fn failed(step: usize, error: Error) -> Self {
        Self::Failed { step, error: Box::new(error) }
    }
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
    fn warm_steps_may_leave_something_behind_and_later_ones_may_not() {
        let device = dry();
        let leak = |warm, until| {
            let mut kept = Vec::new();
            check_flat_after(&device, warm, 10, |step| {
                let _scope = module("testing_flat");
                let x = Tensor::zeros(&device, [64])?;
                if step < until {
                    kept.push(x);
                }
                Ok(())
            })
        };
        assert_eq!(leak(3, 3), Ok(()));
        let Err(NotFlat::Changed { step, before, after, growth, .. }) = leak(3, 5) else {
            panic!("it leaks")
        };
        assert_eq!((step, before, after), (3, 768, 1024));
        assert_eq!((growth.holders.len(), growth.holders[0].path.as_str()), (1, "testing_flat.zeros"));
        assert_eq!((growth.holders[0].before, growth.holders[0].after), (768, 1024));
        // More warm steps than steps: nothing to compare.
        assert_eq!(leak(20, 20), Ok(()));
    }

    #[test]
    fn a_decrease_is_not_flat_and_a_failing_step_is_named() {
        let device = dry();
        let mut kept = vec![Tensor::zeros(&device, [64]).unwrap(); 1];
        let error = check_flat_after(&device, 1, 4, |step| {
            if step == 2 {
                kept.clear();
            }
            Ok(())
        });
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "step 2 left 0 B in use, where there were 256 B after 1 steps\n\nnobody grew");
        let error = check_flat_after(&device, 1, 4, |step| {
            Tensor::zeros(&device, [step])?.add(&Tensor::zeros(&device, [step + 2])?).map(drop)
        });
        assert!(error.unwrap_err().to_string().starts_with("step 0 failed: add: shapes [0] and [2]"));
    }
}
