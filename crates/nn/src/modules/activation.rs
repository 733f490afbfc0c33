//! Layers without parameters and options, for use in a [`Sequential`](super::Sequential). A layer is one row of
//! `plain_layers`.

use std::fmt;

use highwater_tensor::{Activation, Result, Tensor};
use highwater_tracking::ModulePath;

use super::in_path;
use super::module::Module;

/// Defines layers without options: their documentation, their name, and what they compute. `fused` names the activation
/// that a preceding layer may fuse.
macro_rules! plain_layers {
    ($($(#[$doc:meta])* $name:ident: |$x:ident| $forward:expr $(, fused $activation:expr)?;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Default)]
        pub struct $name {
            path: ModulePath,
        }

        /// The layer as a value. Each use of the constant is another layer.
        #[expect(non_upper_case_globals, reason = "it has the name of its type, as a struct without fields does")]
        #[expect(clippy::declare_interior_mutable_const, reason = "each use needs a path of its own")]
        pub const $name: $name = $name { path: ModulePath::new() };

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        impl Module for $name {
            fn forward(&self, $x: &Tensor) -> Result<Tensor> {
                in_path(&self.path, || $forward)
            }

            $(
                fn as_activation(&self) -> Option<Activation> {
                    Some($activation)
                }
            )?

            visit_parts!(path);
        }
    )*};
}

plain_layers! {
    /// ReLU activation max(x, 0); see [`Tensor::relu`].
    Relu: |x| x.relu(), fused Activation::Relu;
    /// ReLU6 activation min(max(x, 0), 6); see [`Tensor::relu6`].
    Relu6: |x| x.relu6();
    /// GELU activation x Φ(x); see [`Tensor::gelu`].
    Gelu: |x| x.gelu(), fused Activation::Gelu;
    /// Hyperbolic tangent; see [`Tensor::tanh`].
    Tanh: |x| x.tanh();
    /// Clamps to the range from -1 to 1; see [`Tensor::clamp`].
    Hardtanh: |x| x.clamp(-1, 1);
    /// Sigmoid 1 / (1 + e⁻ˣ); see [`Tensor::sigmoid`].
    Sigmoid: |x| x.sigmoid();
    /// Logarithm of the sigmoid; see [`Tensor::logsigmoid`].
    LogSigmoid: |x| x.logsigmoid();
    /// SiLU (swish) activation x / (1 + e⁻ˣ); see [`Tensor::silu`].
    Silu: |x| x.silu(), fused Activation::Silu;
    /// Softplus ln(1 + eˣ); see [`Tensor::softplus`].
    Softplus: |x| x.softplus();
    /// Softsign activation x / (1 + |x|); see [`Tensor::softsign`].
    Softsign: |x| x.softsign();
    /// Mish activation x tanh(ln(1 + eˣ)); see [`Tensor::mish`].
    Mish: |x| x.mish();
    /// Hardswish activation x min(max(x + 3, 0), 6) / 6; see [`Tensor::hardswish`].
    Hardswish: |x| x.hardswish();
    /// Flattens all axes but the first into one: from images to the input of a linear layer.
    Flatten: |x| x.flatten_from(1);
    /// Global average pooling: images `[n, channels, h, w]` to the means of their channels, `[n, channels]`. The same as
    /// PyTorch's `AdaptiveAvgPool2d(1)` and `Flatten`; see also [`Tensor::adaptive_avg_pool2d`].
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// use highwater::nn::{GlobalAvgPool2d, Module};
    /// let y = GlobalAvgPool2d::default().forward(&Tensor::ones(&Device::cpu()?, [8, 16, 7, 7])?)?;
    /// assert_eq!(y.dims(), [8, 16]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    GlobalAvgPool2d: |x| x.dims4().and_then(|_| x.mean([2, 3]));
}
