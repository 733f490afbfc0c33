//! Reverse-mode differentiation: each recorded op adds a node with the tensors that its backward pass reads.
//!
//! Nodes are numbered in the order of creation, and the inputs of an op precede its output. So a backward
//! pass visits nodes by descending number. Each gradient is complete when its node is visited, without a
//! search or recursion.

mod apply;
mod backward;
mod check;
mod checkpoint;
mod gradients;
mod hooks;
mod mixed;
mod node;
mod objective;
mod parameter;
mod passes;
mod training_mode;
pub(crate) mod version;

pub use apply::apply;
pub use check::{GradCheck, GradCheckError, check_gradients};
pub use checkpoint::checkpoint;
pub use gradients::Gradients;
pub(crate) use gradients::LeafCursor;
pub use hooks::{GradientHook, GradientPass, HookGuard, hook_gradients};
pub use mixed::{MixedGuard, mixed};
pub(crate) use node::{Node, record};
#[doc(hidden)]
pub use objective::{LossOp, LossTerm, Objective};
pub use parameter::Parameter;
#[doc(hidden)]
pub use passes::record_objectives;
pub use passes::{PassEnd, record_passes};
pub use training_mode::{TrainingGuard, evaluating, evaluating_guard, is_training, training, training_guard};
