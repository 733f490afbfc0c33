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
        #[derive(Clone, Default, Module)]
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
            enters_itself!(path);

            fn forward(&self, $x: &Tensor) -> Result<Tensor> {
                in_path(&self.path, || $forward)
            }

            $(
                fn as_activation(&self) -> Option<Activation> {
                    Some($activation)
                }
            )?
        }
    )*

        /// The name and the constructor of each layer.
        #[cfg(test)]
        const PLAIN_LAYERS: &[(&str, fn() -> Box<dyn Module>)] =
            &[$((stringify!($name), || Box::new($name::default()))),*];
    };
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use highwater_tensor::backend::Unary;
    use highwater_tensor::{Rng, Runtime};

    use super::*;

    /// Computes the op with the name of a layer, or the op of a layer with another name.
    fn op(layer: &str, x: &Tensor) -> Result<Tensor> {
        match layer {
            "Relu6" => x.clamp(0, 6),
            "Hardtanh" => x.clamp(-1, 1),
            "Flatten" => x.reshape([2, 12]),
            "GlobalAvgPool2d" => x.reshape([2, 3, 4])?.mean(2),
            name => {
                let function = Unary::ALL.iter().find(|f| f.name() == name.to_lowercase());
                x.unary(
                    *function.unwrap_or_else(|| panic!("add {name} to this test: no function has its name")),
                )
            }
        }
    }

    #[test]
    fn layers_without_options_are_their_ops() -> Result<()> {
        let device = Runtime::builder().threads(1).build()?.cpu()?;
        let x = Tensor::uniform(&device, [2, 3, 2, 2], -8.0, 8.0, &Rng::new(0))?;
        for (name, make) in PLAIN_LAYERS {
            let (layer, expected) = (make(), op(name, &x)?);
            let y = layer.forward(&x)?;
            assert_eq!(
                (y.dims(), y.to_vec::<f32>()?),
                (expected.dims(), expected.to_vec::<f32>()?),
                "{name}"
            );
            assert_eq!((format!("{layer:?}"), layer.parameter_count()), ((*name).to_owned(), 0));
        }
        Ok(())
    }

    #[test]
    fn the_docs_list_the_layers_without_options() {
        for file in ["docs/training.md", "CHANGELOG.md"] {
            let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            // The chapter names layers in programs.
            let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
            let names = PLAIN_LAYERS.iter().map(|(name, _)| *name);
            let missing: Vec<_> = names.filter(|name| !words.contains(name)).collect();
            assert!(missing.is_empty(), "{file} does not list {missing:?}");
        }
    }
}
