//! Modules (layers) and their building blocks.
//!
//! A [`Module`] maps a tensor to a tensor and lists its parts by path. A walk through the list ([`PartVisitor`]) finds
//! parameters, buffers and random generators, and tells each layer its path. Layers enter their paths in each forward
//! pass. So the module `fc1` of a report holds the parameter `fc1.weight` and the ops of that layer.

// First, so that the modules below see its macro.
#[macro_use]
mod parts;

#[doc(hidden)]
pub mod activation;
mod activation_options;
mod batch_norm;
mod chain;
mod checkpointed;
mod conv;
mod debug;
mod dropout;
mod embedding;
mod init;
mod linear;
mod module;
mod names;
mod norm;
pub(crate) mod outputs;
mod recurrent;
mod resize;
mod sequential;
mod transformer;

pub use activation::*;
pub use activation_options::{Elu, LeakyRelu, LogSoftmax, PRelu, Softmax};
pub use batch_norm::BatchNorm;
pub use chain::chain;
pub use checkpointed::Checkpointed;
pub use conv::{AvgPool2d, Conv1d, Conv2d, ConvTranspose2d, MaxPool2d};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use init::{Fans, Init};
pub use linear::{Linear, LinearOptions};
pub use module::Module;
pub use norm::{GroupNorm, InstanceNorm, LayerNorm, RmsNorm};
pub use parts::{ModulePart, PartVisitor, Visited};
pub use recurrent::{Gru, Lstm, Nonlinearity, RecurrentOptions, Rnn};
pub use resize::{PixelShuffle, Upsample};
pub use sequential::Sequential;
pub use transformer::{MultiHeadAttention, TransformerBlock};

pub use highwater_tensor::Parameter;
use highwater_tensor::{Result, Tensor, is_recording};
use highwater_tracking::{ModuleGuard, ModulePath, Scope, enter_path};
use outputs::output;

/// Computes the forward pass of a layer in its path, and adds the path to errors.
#[inline]
fn in_path(path: &ModulePath, forward: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    let _scope = path.enter();
    output(forward())
}

/// As [`in_path`], for a layer with this weight. Notes a layer without a path, so that reports warn about it.
#[inline]
fn in_layer(
    path: &ModulePath,
    weight: &Parameter,
    forward: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    let _scope = match path.get() {
        Some(path) => enter_path(path),
        None => enter_unlisted(weight),
    };
    output(forward())
}

#[cold]
fn enter_unlisted(weight: &Parameter) -> ModuleGuard {
    let scope = Scope::now();
    // Without gradients, a program may have no reason to list its parameters.
    if is_recording() && !weight.is_frozen() {
        let value = weight.value();
        let layer = || format!("a layer with the weight {}", value.shape());
        value.device().tracker().note_unlisted(weight.address(), scope.place.module, layer);
    }
    scope.enter()
}

/// Returns the result of a module that does nothing. As with all ops, no gradient flows through it while recording is
/// paused.
fn unchanged(x: &Tensor) -> Tensor {
    if is_recording() { x.clone() } else { x.detach() }
}
