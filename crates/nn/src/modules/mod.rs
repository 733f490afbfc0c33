//! Modules (layers) and their building blocks.
//!
//! A [`Module`] maps a tensor to a tensor and lists its [`Parameter`]s by path. The memory accounts use the same paths:
//! the scope `fc1` holds the parameter `fc1.weight` and the ops of that layer.

// First, so that the modules below see its macro.
#[macro_use]
mod parts;

mod activation;
mod batch_norm;
mod checkpointed;
mod conv;
mod debug;
mod dropout;
mod init;
mod linear;
mod module;
mod names;
mod norm;
mod recurrent;
mod sequential;
mod transformer;

pub use activation::{Gelu, Relu, Sigmoid, Silu, Tanh};
pub use batch_norm::BatchNorm;
pub use checkpointed::Checkpointed;
pub use conv::{AvgPool2d, Conv1d, Conv2d, ConvTranspose2d, Flatten, MaxPool2d};
pub use dropout::Dropout;
pub use init::{Fans, Init};
pub use linear::{Linear, LinearOptions};
pub use module::Module;
pub use norm::{GroupNorm, LayerNorm, RmsNorm};
pub use parts::ModulePart;
pub use recurrent::{Gru, Lstm, Nonlinearity, RecurrentOptions, Rnn};
pub use sequential::Sequential;
pub use transformer::{Embedding, MultiHeadAttention, TransformerBlock};

pub use highwater_tensor::Parameter;
use highwater_tensor::{Tensor, is_recording};

/// Returns the result of a module that does nothing. As with all ops, no gradient flows through it while recording is
/// paused.
fn unchanged(x: &Tensor) -> Tensor {
    if is_recording() { x.clone() } else { x.detach() }
}
