//! Activations as modules, for use in a [`Sequential`](super::Sequential).

use super::module::Module;
use crate::error::Result;
use crate::tensor::Tensor;

macro_rules! activation {
    ($(#[$doc:meta])* $name:ident, $method:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Module for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                x.$method()
            }
        }
    };
}

activation! {
    /// max(x, 0), see [`Tensor::relu`].
    Relu, relu
}
activation! {
    /// x Φ(x), see [`Tensor::gelu`].
    Gelu, gelu
}
activation! {
    /// tanh x, see [`Tensor::tanh`].
    Tanh, tanh
}
activation! {
    /// 1 / (1 + e⁻ˣ), see [`Tensor::sigmoid`].
    Sigmoid, sigmoid
}
activation! {
    /// x / (1 + e⁻ˣ), see [`Tensor::silu`].
    Silu, silu
}
