//! Finds the fastest way to train a model on a device, by dry runs.
//!
//! A program passes its training step as a closure over a [`Plan`]: the micro-batch, the accumulation, the blocks that are recomputed
//! in the backward pass, the precision, and the ranks. [`fit`](fit()) runs the closure on a dry device with the plans of a [`Space`]. It returns
//! the plans of which no other one has both a lower peak and a faster step, the fastest first, with exact peaks and estimated
//! times.
//!
//! ```text
//! Space ─ plans ─┬ survey   each plan without recomputation; models of its variants that recompute
//!                ├ search   dry runs with the limit, and rehearsals                     → Fit
//!                └ measure  a few real steps of the fastest plans, on a present device
//! ```

mod error;
mod found;
mod measure;
mod objective;
mod plan;
mod pool;
mod search;
mod space;
mod survey;
mod time;
mod trial;

use highwater_distributed::World;
use highwater_tensor::{Device, DryRunOptions, Result};

pub use error::{FitError, NothingFits};
pub use found::{Candidate, Fit};
pub use objective::Indivisible;
pub use plan::{Extent, Plan, PlanGuard};
pub use space::Space;

#[cfg(feature = "cli")]
pub(crate) use trial::exchange_seconds;

use search::Search;

/// Finds the fastest plan of a space with which a program trains on a device, by dry runs.
///
/// The program builds its model, and trains it for [`plan.steps`](Plan::steps) steps with the plan's micro-batch and accumulation.
/// The recomputation and the precision of the plan are in force while it runs. To train, run the same program on the real device
/// under [`Plan::enter`]: its peak is the predicted one, to the byte. [`Trainer::plan`](crate::Trainer::plan) does all this for a
/// training loop.
///
/// ```
/// use highwater::fit::{Plan, Space, fit};
/// use highwater::prelude::*;
///
/// fn train(device: &Device, plan: &Plan) -> highwater::Result<()> {
///     let rng = Rng::new(0);
///     let mut model = Sequential::new();
///     for layer in 0..8 {
///         model = model.with(&format!("block{layer}"), TransformerBlock::new(device, 512, 8, &rng)?);
///     }
///     let mut optimizer = AdamW::new(model.parameters(), 1e-3)?;
///     for _ in 0..plan.steps(1_000) {
///         let mut gradients = Gradients::default();
///         for _ in 0..plan.accumulate {
///             let x = Tensor::zeros(device, [plan.micro_batch, 256, 512])?;
///             let mut more = model.forward(&x)?.square()?.mean_all()?.backward()?;
///             gradients.accumulate(&mut more)?;
///         }
///         gradients.scale(1.0 / plan.accumulate as f64)?;
///         optimizer.step(gradients)?;
///     }
///     Ok(())
/// }
///
/// let card: DeviceProfile = "rtx-4090,limit=2GiB".parse()?;
/// let found = fit(card, &Space::new(32), train)?;
/// println!("{found}");
/// assert!(found.chosen().peak_bytes <= 2 << 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The loss must be a mean over examples. Otherwise all plans keep the batch in one piece, and [`Fit::indivisible`] says why.
///
/// # Errors
/// [`FitError::NothingFits`] says what would be necessary. [`FitError::NoSpeed`] for a device without a
/// [speed](highwater_tensor::DeviceProfile::speed), such as this machine's CPU before
/// [`DeviceSpeed::of_this_machine`](highwater_tensor::DeviceSpeed::of_this_machine). Errors of the program.
pub fn fit(
    options: impl Into<DryRunOptions>,
    space: &Space,
    mut program: impl FnMut(&Device, &Plan) -> Result<()>,
) -> Result<Fit, FitError> {
    Search::new(options.into(), false, |device: &Device, plan: &Plan, _: &World| program(device, plan))?
        .run(space)
}

/// Finds a plan as [`fit`](fit()) does, for a program with several ranks. The program receives the world of each rank.
///
/// # Errors
/// See [`fit`](fit()).
pub fn fit_ranks(
    options: impl Into<DryRunOptions>,
    space: &Space,
    program: impl FnMut(&Device, &Plan, &World) -> Result<()>,
) -> Result<Fit, FitError> {
    Search::new(options.into(), true, program)?.run(space)
}
