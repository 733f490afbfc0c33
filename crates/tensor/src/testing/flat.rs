//! Asserts that memory stays constant after some steps.

use std::borrow::Borrow;

use bfc_core::{AllocatorSnapshot, Bytes};

use super::growth::Growth;
use crate::device::Device;
use crate::error::{Error, Result};

/// Runs `steps` steps and fails if the bytes in use on the device change after the first `warm` ones. Growing
/// memory is a leak, for instance of a loss with its graph.
///
/// The last argument receives the number of the step, from 0, and returns a [`Result`](crate::Result).
///
/// ```
/// use highwater::{Runtime, Tensor, assert_flat_after};
/// let device = Runtime::builder().build()?.dry()?;
/// assert_flat_after!(device, 1, 10, |_step| Tensor::zeros(&device, [100])?.relu().map(drop));
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// A failure names the ops that grew:
///
/// ```should_panic
/// # use highwater::{Runtime, Tensor, assert_flat_after};
/// # let device = Runtime::builder().build()?.dry()?;
/// let mut history = Vec::new();
/// // step 1 left 1.00 KiB in use, expected 512 B as after 1 steps ... zeros ...
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

/// Runs `steps` steps and checks that memory stays constant after the first `warm` ones, which may for
/// instance allocate optimizer state.
///
/// # Errors
/// [`NotFlat`] for the first step that failed or changed the bytes in use.
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

/// A step that failed or changed the bytes in use.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotFlat {
    /// The step changed the bytes in use.
    #[error(
        "step {step} left {} in use, expected {} as after {warm} steps\n\n{growth}",
        Bytes(*after), Bytes(*before)
    )]
    Changed {
        /// The step, from 0.
        step: usize,
        /// The number of warm-up steps.
        warm: usize,
        /// Bytes in use after the warm-up.
        before: u64,
        /// Bytes in use after this step.
        after: u64,
        /// The owners whose memory grew since the warm-up.
        growth: Growth,
    },
    /// The step failed.
    #[error("step {step} failed: {error}")]
    Failed {
        /// The step, from 0.
        step: usize,
        /// The cause.
        error: Box<Error>,
    },
}

bfc_core::debug_as_message!(NotFlat);

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
    fn memory_may_grow_only_in_warm_up_steps() {
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
            panic!("a leak was expected")
        };
        assert_eq!((step, before, after), (3, 768, 1024));
        assert_eq!((growth.holders.len(), growth.holders[0].path.as_str()), (1, "testing_flat.zeros"));
        assert_eq!((growth.holders[0].before, growth.holders[0].after), (768, 1024));
        // No step follows the warm-up, so there is nothing to compare.
        assert_eq!(leak(20, 20), Ok(()));
    }

    #[test]
    fn shrinking_memory_and_failing_steps_are_errors() {
        let device = dry();
        let mut kept = vec![Tensor::zeros(&device, [64]).unwrap(); 1];
        let error = check_flat_after(&device, 1, 4, |step| {
            if step == 2 {
                kept.clear();
            }
            Ok(())
        });
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "step 2 left 0 B in use, expected 256 B as after 1 steps\n\nno owner grew");
        let error = check_flat_after(&device, 1, 4, |step| {
            Tensor::zeros(&device, [step])?.add(&Tensor::zeros(&device, [step + 2])?).map(drop)
        });
        assert!(error.unwrap_err().to_string().starts_with("step 0 failed: add: shapes [0] and [2]"));
    }
}
