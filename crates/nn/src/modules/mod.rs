//! Modules: functions with parameters, and what they are built from.
//!
//! A [`Module`] maps a tensor to a tensor and can name its [`Parameter`]s. Names form paths, and the memory accounts
//! use the same paths: the parameter `fc1.weight` is held in the scope `fc1`, where the ops of that layer ran too.

mod activation;
mod batch_norm;
mod checkpointed;
mod conv;
mod dropout;
mod init;
mod linear;
mod module;
mod names;
mod norm;
mod parts;
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
pub use parts::Part;
pub use recurrent::{Gru, Lstm, Nonlinearity, RecurrentOptions, Rnn};
pub use sequential::Sequential;
pub use transformer::{Embedding, MultiHeadAttention, TransformerBlock};

pub use highwater_tensor::Parameter;
use highwater_tensor::{Tensor, is_recording};

/// The result of a module that does nothing. As with other ops' results, no gradient flows through it if it is computed while
/// recording is paused.
fn unchanged(x: &Tensor) -> Tensor {
    if is_recording() { x.clone() } else { x.detach() }
}
