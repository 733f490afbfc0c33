//! Modules (layers) and their building blocks.
//!
//! A [`Module`] maps a tensor to a tensor and lists its parts by path. A walk through the list ([`PartVisitor`]) finds
//! parameters, buffers and random generators, and tells each layer its path. Modules enter their paths in each forward
//! pass. So the module `fc1` of a report holds the parameter `fc1.weight` and the ops of that layer.

/// In place of `#[module]`, for a layer whose `forward` enters its path by [`in_path`] or [`in_layer`]. Names the field with
/// the path.
macro_rules! enters_itself {
    () => {
        fn the_attribute_module_above_this_impl(&self) {}
    };
    ($($path:ident).+) => {
        enters_itself!();

        fn path(&self) -> Option<bfc_core::OwnerId> {
            self.$($path).+.get()
        }
    };
}

#[doc(hidden)]
pub mod activation;
mod activation_options;
pub(crate) mod adapter;
mod batch_norm;
mod cache;
mod chain;
mod checkpointed;
mod conv;
mod debug;
mod dropout;
mod embedding;
mod grouped_attention;
mod init;
mod linear;
mod module;
mod names;
mod norm;
pub(crate) mod outputs;
mod parts;
mod recurrent;
mod resize;
mod rotary;
mod sequential;
mod swiglu;
mod transformer;
mod weight;

pub use activation::*;
pub use activation_options::{Elu, LeakyRelu, LogSoftmax, PRelu, Softmax};
pub use batch_norm::BatchNorm;
pub use cache::{KeyValueCache, KeyValueCacheOptions};
pub use chain::chain;
pub use checkpointed::Checkpointed;
pub use conv::{AvgPool2d, Conv1d, Conv2d, ConvTranspose2d, MaxPool2d};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use grouped_attention::GroupedQueryAttention;
pub use init::{Fans, Init};
pub use linear::{Linear, LinearOptions};
pub use module::Module;
pub use norm::{GroupNorm, InstanceNorm, LayerNorm, RmsNorm};
pub use parts::{ModulePart, PartRef, PartVisitor, Parts};
pub use recurrent::{Gru, Lstm, Nonlinearity, RecurrentOptions, Rnn};
pub use resize::{PixelShuffle, Upsample};
pub use rotary::{Llama3Scaling, RotaryEmbedding, RotaryOptions, RotaryPairs};
pub use sequential::Sequential;
pub use swiglu::SwiGlu;
pub use transformer::{MultiHeadAttention, TransformerBlock};

/// Lets the methods of an `impl` block run in the path of their module: ops in them, their memory, and errors get the path.
///
/// Write it above `impl Module for X`, which does not compile without it, and above `impl X` with methods that compute. It
/// applies to `forward` of the trait, and to each method that borrows `self`, except `async` and `const` ones. Any arguments
/// and results are possible. A method without the attribute runs in the path of its caller.
///
/// ```
/// use highwater::{Device, Result, Rng, Tensor, memory_report};
/// use highwater::nn::{Linear, Module, module};
///
/// #[derive(Debug, Module)]
/// struct Gate {
///     layer: Linear,
/// }
///
/// #[module]
/// impl Gate {
///     fn forward_masked(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
///         self.layer.forward(x)?.sigmoid()?.mul(mask)
///     }
/// }
///
/// #[module]
/// impl Module for Gate {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.layer.forward(x)?.sigmoid()
///     }
/// }
///
/// #[derive(Debug, Module)]
/// struct Net {
///     gates: (Gate, Option<Gate>),
/// }
///
/// #[module]
/// impl Module for Net {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let mask = x.gt(0.0)?.to_dtype(x.dtype())?;
///         self.gates.0.forward_masked(x, &mask)
///     }
/// }
///
/// let device = Device::cpu()?;
/// let net = Net { gates: (Gate { layer: Linear::new(&device, 3, 3, &Rng::new(0))? }, None) };
/// net.forward(&Tensor::ones(&device, [5, 3])?)?;
/// let report = memory_report(&device)?;
/// let paths: Vec<String> = report.places.iter().map(|row| row.path()).collect();
/// assert!(paths.contains(&"gates.0.sigmoid".to_owned()) && paths.contains(&"gates.0.layer.linear".to_owned()));
/// # Ok::<(), highwater::Error>(())
/// ```
pub use highwater_macros::module;
pub use highwater_tensor::Parameter;
use highwater_tensor::{Result, Tensor, is_recording};
pub use highwater_tracking::ModulePath;
use highwater_tracking::{ModuleGuard, Scope, enter_path};
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
