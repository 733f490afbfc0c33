//! A training loop, and the parts that it consists of.
//!
//! [`Trainer`] runs epochs: forward, backward, update, evaluation, early stopping, checkpoints and a save on a signal. Its
//! parts also work in a loop of your own: [`Output`] shows and logs steps, [`metrics`] measure, [`EarlyStopping`] decides,
//! [`StopSignal`] notices Ctrl-C, and a [`Checkpoint`](highwater_nn::checkpoint::Checkpoint) saves.
//!
//! ```
//! use highwater::prelude::*;
//! use highwater::train::{Accuracy, ProgressBar, Trainer, evaluate};
//!
//! let (device, rng) = (Device::cpu()?, Rng::new(0));
//! let data = ArrayDataset::new(vec![0.0, 0.1, 0.2, 0.8, 0.9, 1.0], vec![0, 0, 0, 1, 1, 1], 1)?;
//! let model = Linear::new(&device, 1, 2, &rng)?;
//! let mut optimizer = AdamW::new(model.parameters(), 0.1)?;
//! let outcome = Trainer::new(&model, &mut optimizer)
//!     .epochs(20)
//!     .observe(ProgressBar::new())
//!     .evaluate(|| {
//!         evaluate(data.batches(6, &device)?, |x| model.forward(x), &mut [&mut Accuracy::default()])
//!     })
//!     .train(
//!         |epoch| Ok(data.batches(2, &device)?.shuffled(0, epoch)),
//!         |(x, y)| model.forward(x)?.cross_entropy(y),
//!     )?;
//! assert_eq!(outcome.figures.get("accuracy"), Some(1.0));
//! # Ok::<(), highwater::Error>(())
//! ```
//!
//! A loop needs none of this. These are all its lines:
//!
//! ```
//! use highwater::prelude::*;
//! # fn main() -> highwater::Result<()> {
//! let (device, rng) = (Device::cpu()?, Rng::new(0));
//! let data = ArrayDataset::new(vec![0.0, 0.1, 0.9, 1.0], vec![0, 0, 1, 1], 1)?;
//! let model = Linear::new(&device, 1, 2, &rng)?;
//! let mut optimizer = AdamW::new(model.parameters(), 0.1)?;
//! for epoch in 0..20 {
//!     for batch in data.batches(2, &device)?.shuffled(0, epoch) {
//!         let (x, y) = batch?;
//!         let loss = model.forward(&x)?.cross_entropy(&y)?;
//!         optimizer.step(loss.backward()?)?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cli")]
mod cli;
mod figures;
pub mod fit;
pub mod metrics;
mod output;
mod position;
mod saves;
mod stop;
mod trainer;

#[cfg(feature = "cli")]
pub use cli::{FitOptions, Options, Run, RunError, SaveOptions, output_path};
pub use figures::Figures;
pub use fit::fit;
pub use metrics::{Accuracy, F1, Loss, Mean, MeanAbsoluteError, Metric, Perplexity, TopK, evaluate};
pub use output::{JsonLog, Observer, Output, ProgressBar, RunStart, StepRecord, TensorBoard, write_run_page};
pub use position::{Every, Position};
pub use saves::Saves;
pub use stop::{Direction, EarlyStopping, StopSignal};
pub use trainer::{Ended, Outcome, Trainer};
