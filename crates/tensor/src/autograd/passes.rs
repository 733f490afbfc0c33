//! The ends of backward passes, which show how long the steps of a training program take.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bfc_core::{ThreadVariable, thread_scoped};

use super::objective::Objective;
use crate::backend::StepTime;
use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;

thread_scoped! {
    /// The passes so far, while a program runs in [`record_passes`].
    static PASSES: Option<Rc<RefCell<Passes>>> = None;
}

#[derive(Default)]
struct Passes {
    ends: Vec<PassEnd>,
    /// Whether a pass runs, which may scale its own gradients.
    is_running: bool,
    /// Whether the ends have objectives.
    has_objectives: bool,
}

/// The end of a backward pass.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PassEnd {
    /// When the device had computed the gradients.
    pub at: Instant,
    /// The estimated time of all kernels so far, on a dry device whose [profile](crate::DeviceProfile) has a speed.
    pub estimated: Option<StepTime>,
    /// How the loss combines the elements of its batch, on a dry device in [`record_objectives`].
    #[doc(hidden)]
    pub objective: Option<Arc<Objective>>,
    /// The factor of the loss in [`backward_scaled`](Tensor::backward_scaled), times the factors of
    /// [`Gradients::scale`](crate::Gradients::scale) after the pass and before the next one.
    #[doc(hidden)]
    pub scale: f64,
    /// Whether the program weighs the loss of each part of a batch by the elements of its terms: see
    /// [`backward_weighed`](Tensor::backward_weighed).
    #[doc(hidden)]
    pub is_weighed: bool,
    /// A hash of the blocks of a dry device's pool at the end of the pass. If two passes have the same, and the program
    /// makes the same requests after both, its memory repeats.
    #[doc(hidden)]
    pub pool: Option<u64>,
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
    record_in(Passes::default(), program)
}

/// As [`record_passes`], with the objectives of all passes on dry devices, which take time.
#[doc(hidden)]
pub fn record_objectives<R>(program: impl FnOnce() -> R) -> (R, Vec<PassEnd>) {
    record_in(Passes { has_objectives: true, ..Passes::default() }, program)
}

fn record_in<R>(passes: Passes, program: impl FnOnce() -> R) -> (R, Vec<PassEnd>) {
    let passes = Rc::new(RefCell::new(passes));
    let result = PASSES.within(Some(Rc::clone(&passes)), program);
    (result, passes.take().ends)
}

/// Calls a function if the passes of this thread are recorded.
fn record(f: impl FnOnce(&mut Passes)) {
    if let Some(passes) = PASSES.read(Clone::clone) {
        f(&mut passes.borrow_mut());
    }
}

/// Notes the start of the backward pass of a loss, if the passes are recorded. Returns the objective if it is recorded.
pub(super) fn begin(loss: &Tensor) -> Result<Option<Arc<Objective>>> {
    let mut has_objective = false;
    record(|passes| (passes.is_running, has_objective) = (true, passes.has_objectives));
    (has_objective && loss.device().is_dry()).then(|| Objective::of(loss).map(Arc::new)).transpose()
}

/// Notes the end of a pass on this device, if the passes are recorded.
pub(super) fn note_end(device: &Device, objective: Option<Arc<Objective>>, (scale, is_weighed): (f64, bool)) {
    record(|passes| {
        if let Some(stream) = device.stream() {
            // A later op reports the error of a device that fails here.
            let _ = stream.synchronize();
        }
        let pool = device.is_dry().then(|| pool_state(device)).flatten();
        let (at, estimated) = (Instant::now(), device.estimated_time());
        passes.ends.push(PassEnd { at, estimated, objective, scale, is_weighed, pool });
        passes.is_running = false;
    });
}

/// Notes that a factor has been applied to the gradients of the last pass, or of several.
pub(super) fn note_scale(factor: f64) {
    record(|passes| {
        if let Some(last) = passes.ends.last_mut().filter(|_| !passes.is_running) {
            last.scale *= factor;
        }
    });
}

/// Hashes the sizes of the live blocks of the device's pool in the order of their addresses, and the sizes of its free memory.
fn pool_state(device: &Device) -> Option<u64> {
    let pool = device.default_allocator().ok()?;
    let (stats, mut hasher) = (pool.stats(), DefaultHasher::new());
    (stats.regions, stats.bytes_reserved, stats.largest_free_block_bytes).hash(&mut hasher);
    pool.live_allocations().iter().for_each(|block| block.bytes.hash(&mut hasher));
    Some(hasher.finish())
}
