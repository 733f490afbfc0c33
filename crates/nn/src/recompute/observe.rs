//! Measures the blocks of chains while a program runs one step.
//!
//! The program runs with each block of the measured chains recomputed alone, so each block runs twice. The observer notes
//! the memory and the estimated time at the begin and the end of both runs:
//!
//! ```text
//! forward:  Enter  Start 0  End 0  Start 1  End 1  Leave   head and loss
//! backward: AgainStart 1  AgainEnd 1  ..  (backward of 1)  AgainStart 0  AgainEnd 0  ..  (backward of 0)  Back
//! ```
//!
//! Between the second run of a block and its backward pass, the observer drops the output and then the input. So it learns
//! whether the block saved them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bfc_core::OwnerId;
use highwater_tensor::{Device, Op, OpContext, Result, Saved, Tensor, apply, checkpoint};

use super::active::Active;
use super::costs::{self, Observed};
use super::run::{Blocks, Input};

/// Runs a program with one training step, and measures the blocks of its chains at `level`: 0 for chains outside of all
/// others, 1 for chains inside the blocks of these, and so on. Chains with fewer than two blocks do not count.
///
/// Use it in a dry run of its own: it resets the statistics of the device's pool, so peaks that the program itself
/// measures are wrong. If the program runs a chain several times, the last backward pass counts.
///
/// ```
/// use highwater::nn::recompute::{observe, trade_offs};
/// use highwater::nn::{Linear, Module, Relu, Sequential};
/// use highwater::{DeviceProfile, Rng, Tensor, dry_run};
///
/// let run = dry_run(DeviceProfile::this_machine(), |device| {
///     let rng = Rng::new(0);
///     let mut model = Sequential::new();
///     for _ in 0..8 {
///         model = model.with("fc", Linear::new(device, 256, 256, &rng)?).with("relu", Relu);
///     }
///     let x = Tensor::zeros(device, [4096, 256])?;
///     let (result, observed) = observe(0, || model.forward(&x)?.square()?.mean_all()?.backward());
///     result.map(|_gradients| observed)
/// })?;
/// let chain = &run.result.chains[0];
/// assert_eq!((chain.path.as_str(), chain.blocks.len()), ("", 8));
/// let found = trade_offs(&run.result.chains);
/// // From the smallest peak to the plain step.
/// assert!(found.len() > 2 && found[0].bytes < found[found.len() - 1].bytes);
/// assert!(found[found.len() - 1].recompute.is_plain());
/// # Ok::<(), highwater::Error>(())
/// ```
pub fn observe<R>(level: usize, program: impl FnOnce() -> R) -> (R, Observed) {
    let observer = Arc::new(Observer { level, log: Mutex::default() });
    let result = {
        let active = Active { observer: Some(Arc::clone(&observer)), ..Active::now() };
        let _active = active.enter();
        program()
    };
    let mut log = observer.log();
    if let Some(device) = log.device.clone() {
        log.mark(&device, At::Finish);
    }
    (result, costs::observed(level, &log))
}

/// Notes that a batch norm uses and moves the statistics of a batch, if an observer is active.
#[inline]
pub(crate) fn note_batch_norm() {
    if Active::is_any()
        && let Some(observer) = Active::now().observer
    {
        observer.log().has_batch_norm = true;
    }
}

/// The measurements of a program.
#[derive(Debug)]
pub(super) struct Observer {
    level: usize,
    log: Mutex<Log>,
}

/// The measurements of an observer so far.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) marks: Vec<Mark>,
    /// The chains that ran: path and number of blocks.
    pub(super) passes: Vec<(String, usize)>,
    pub(super) has_batch_norm: bool,
    /// The paths of all chains so far.
    paths: Vec<OwnerId>,
    /// Whether a chain ran inside a block of a measured one.
    pub(super) has_deeper_chains: bool,
    device: Option<Device>,
}

/// A moment in a step, and the state of the device at it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) at: At,
    /// Bytes in use.
    pub(super) in_use: u64,
    /// The most bytes in use since the previous mark.
    pub(super) peak: u64,
    /// The estimated time of all kernels so far.
    pub(super) seconds: f64,
}

/// A moment in the pass of this number through a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// The chain begins.
    Enter { pass: usize },
    /// The first run of a block begins.
    Start { pass: usize, block: usize },
    /// The first run of a block ends.
    End { pass: usize, block: usize },
    /// The chain ends.
    Leave { pass: usize },
    /// The second run of a block begins.
    AgainStart { pass: usize, block: usize },
    /// The second run of a block ends.
    AgainEnd { pass: usize, block: usize },
    /// A small tensor stands for the output of the second run.
    Replaced { pass: usize, block: usize },
    /// The output of the second run has been dropped, unless the block saved it.
    Dropped { pass: usize, block: usize },
    /// The input and the small tensor have been dropped too, and the backward pass of the block begins.
    Backward { pass: usize, block: usize },
    /// The backward pass of the chain has ended.
    Back { pass: usize },
    /// The program ends.
    Finish,
}

impl Observer {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the observer measures the chain with this path and number of blocks. Its level is the number of chains
    /// that have run before with a path above it.
    pub(super) fn measures(&self, path: OwnerId, blocks: usize) -> bool {
        if blocks < 2 {
            return false;
        }
        let mut log = self.log();
        let level = log.paths.iter().filter(|&&other| path != other && path.is_below(other)).count();
        if !log.paths.contains(&path) {
            log.paths.push(path);
        }
        log.has_deeper_chains |= level > self.level;
        level == self.level
    }

    fn mark(&self, device: &Device, at: At) {
        self.log().mark(device, at);
    }
}

impl Log {
    fn mark(&mut self, device: &Device, at: At) {
        // Without memory, the program fails by itself.
        let Ok(pool) = device.default_allocator() else { return };
        let stats = pool.stats();
        pool.clear_stats();
        let (in_use, peak) = (stats.bytes_in_use, stats.peak_bytes_in_use);
        self.marks.push(Mark { at, in_use, peak, seconds: estimated_seconds(device) });
        self.device.get_or_insert_with(|| device.clone());
    }
}

/// Returns the estimated time of all kernels of a dry device so far; 0 if its speed is unknown.
fn estimated_seconds(device: &Device) -> f64 {
    device.estimated_time().map_or(0.0, |time| time.seconds)
}

/// Runs each block of a chain in a checkpoint of its own, and measures both runs.
pub(super) fn measure<B: Send + Sync + 'static>(
    path: OwnerId,
    active: &Active,
    observer: &Arc<Observer>,
    chain: &Blocks<B>,
    x: &Tensor,
) -> Result<Tensor> {
    let pass = {
        let mut log = observer.log();
        log.passes.push((path.path(), chain.len()));
        log.passes.len() - 1
    };
    observer.mark(x.device(), At::Enter { pass });
    let mut result = twice(observer, x, move |observer, x, is_second| {
        if is_second {
            observer.mark(x.device(), At::Back { pass });
        }
        Ok(x.clone())
    })?;
    for block in 0..chain.len() {
        let (chain, active) = (chain.clone(), active.clone());
        result = twice(observer, &result, move |observer, x, is_second| {
            let _active = active.clone().enter();
            let run = || chain.run(block..block + 1, Input::Borrowed(x));
            if !is_second {
                observer.mark(x.device(), At::Start { pass, block });
                let y = run()?;
                observer.mark(y.device(), At::End { pass, block });
                return Ok(y);
            }
            observer.mark(x.device(), At::AgainStart { pass, block });
            let y = run()?;
            observer.mark(y.device(), At::AgainEnd { pass, block });
            // The backward pass needs the graph of the output, but no value.
            let replaced = Replace { observer: Arc::clone(observer), backward: At::Backward { pass, block } };
            let stand_in = apply(replaced, &[&y])?;
            observer.mark(y.device(), At::Replaced { pass, block });
            drop(y);
            observer.mark(stand_in.device(), At::Dropped { pass, block });
            Ok(stand_in)
        })?;
    }
    observer.mark(result.device(), At::Leave { pass });
    Ok(result)
}

/// Runs a program in a checkpoint, and tells it which of both runs it is in.
fn twice(
    observer: &Arc<Observer>,
    x: &Tensor,
    program: impl Fn(&Arc<Observer>, &Tensor, bool) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let (observer, runs) = (Arc::clone(observer), AtomicUsize::new(0));
    checkpoint(x, move |x| program(&observer, x, runs.fetch_add(1, Ordering::Relaxed) > 0))
}

/// Replaces a tensor by zeros of one element, broadcast to its shape. Its backward pass only marks its begin.
#[derive(Debug)]
struct Replace {
    observer: Arc<Observer>,
    backward: At,
}

impl Op for Replace {
    fn name(&self) -> &'static str {
        "observe"
    }

    fn forward(&self, _ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        Tensor::zeros_of(x.device(), (), x.dtype())?.broadcast_to(x.shape())
    }

    fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        self.observer.mark(grad.device(), self.backward);
        Ok(vec![Some(grad)])
    }
}
