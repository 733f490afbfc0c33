//! Reverse-mode differentiation by recording: each op that takes part leaves a node with what its backward reads.
//!
//! A node's number grows with the order of creation, and an op's inputs exist before its output, so descending numbers
//! are an order in which gradients are complete when they are used: backward needs no search and no recursion.

mod apply;
mod backward;
mod check;
mod checkpoint;
mod gradients;
mod node;
mod parameter;
mod purpose;
pub(crate) mod version;

pub use apply::apply;
pub(crate) use apply::apply_builtin;
pub use check::{GradCheck, GradCheckError, check_gradients};
pub use checkpoint::checkpoint;
pub(crate) use gradients::Cursor;
pub use gradients::Gradients;
pub(crate) use node::record;
pub use parameter::Parameter;
pub use purpose::{evaluating, is_training, training};
