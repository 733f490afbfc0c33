//! Activations as modules, for use in a [`Sequential`](super::Sequential).

use highwater_tensor::{Activation, Result, Tensor};

use super::module::Module;

macro_rules! activation {
    ($(#[$doc:meta])* $name:ident, $method:ident, $activation:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Module for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                x.$method()
            }

            fn as_activation(&self) -> Option<Activation> {
                $activation
            }
        }
    };
}

activation! {
    /// ReLU activation max(x, 0); see [`Tensor::relu`].
    Relu, relu, Some(Activation::Relu)
}
activation! {
    /// GELU activation x Φ(x); see [`Tensor::gelu`].
    Gelu, gelu, Some(Activation::Gelu)
}
activation! {
    /// Hyperbolic tangent; see [`Tensor::tanh`].
    Tanh, tanh, None
}
activation! {
    /// Sigmoid 1 / (1 + e⁻ˣ); see [`Tensor::sigmoid`].
    Sigmoid, sigmoid, None
}
activation! {
    /// SiLU (swish) activation x / (1 + e⁻ˣ); see [`Tensor::silu`].
    Silu, silu, Some(Activation::Silu)
}
activation! {
    /// Mish activation x tanh(ln(1 + eˣ)); see [`Tensor::mish`].
    Mish, mish, None
}
activation! {
    /// Hardswish activation x min(max(x + 3, 0), 6) / 6; see [`Tensor::hardswish`].
    Hardswish, hardswish, None
}
