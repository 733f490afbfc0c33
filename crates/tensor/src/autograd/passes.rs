//! The ends of backward passes, which show how long the steps of a training program take.

use std::cell::RefCell;
use std::time::Instant;

use crate::backend::StepTime;
use crate::device::Device;

thread_local! {
    /// The passes so far, while a program runs in [`record_passes`].
    static PASSES: RefCell<Option<Vec<PassEnd>>> = const { RefCell::new(None) };
}

/// The end of a backward pass.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PassEnd {
    /// When the device had computed the gradients.
    pub at: Instant,
    /// The estimated time of all kernels so far, on a dry device whose [profile](crate::DeviceProfile) has a speed.
    pub estimated: Option<StepTime>,
}

/// Runs a program, and returns its result and the ends of the backward passes of this thread. Between the ends of two passes
/// lies exactly one step of a training loop that has one pass per step.
///
/// Each pass waits for the device, so steps on a GPU may take longer than usual.
///
/// ```
/// use highwater::tensor::record_passes;
/// use highwater::{Device, Tensor};
/// let device = Device::cpu()?;
/// let x = Tensor::ones(&device, [4])?.requiring_grad()?;
/// let (result, passes) = record_passes(|| {
///     for _ in 0..3 {
///         x.square()?.sum_all()?.backward()?;
///     }
///     Ok::<(), highwater::Error>(())
/// });
/// result?;
/// let steps: Vec<f64> = passes.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
/// assert_eq!(steps.len(), 2);
/// # Ok::<(), highwater::Error>(())
/// ```
pub fn record_passes<R>(program: impl FnOnce() -> R) -> (R, Vec<PassEnd>) {
    // Restores the passes of an enclosing call, also after a panic.
    struct Restore(Option<Vec<PassEnd>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            PASSES.set(self.0.take());
        }
    }
    let _restore = Restore(PASSES.replace(Some(Vec::new())));
    let result = program();
    (result, PASSES.take().unwrap_or_default())
}

/// Notes the end of a pass on this device, if the passes are recorded.
pub(super) fn note_end(device: &Device) {
    // A thread that ends may still run ops in its destructors, when the list is gone.
    if PASSES.try_with(|passes| passes.borrow().is_some()).unwrap_or(false) {
        if let Some(stream) = device.stream() {
            // A later op reports the error of a device that fails here.
            let _ = stream.synchronize();
        }
        let end = PassEnd { at: Instant::now(), estimated: device.estimated_time() };
        PASSES.with_borrow_mut(|passes| passes.iter_mut().for_each(|passes| passes.push(end)));
    }
}
