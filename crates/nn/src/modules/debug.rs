//! How layers print with `{:?}`: their sizes and the options that are not the default, without internals.
//!
//! `{net:#?}` prints a module with parts as a tree, one layer per line.

use std::fmt;

use highwater_tensor::{Conv2dOptions, DType, Padding, Parameter, Pool2dOptions};

/// Writes a layer as `name(parts)`. Omits absent parts.
pub(super) fn layer(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    parts: impl IntoIterator<Item = Option<String>>,
) -> fmt::Result {
    write!(f, "{name}({})", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

/// Returns a part if a condition holds.
pub(super) fn when(condition: bool, part: impl Into<String>) -> Option<String> {
    condition.then(|| part.into())
}

/// The size of an axis of a parameter; 0 if it has no such axis.
pub(super) fn size(parameter: &Parameter, axis: usize) -> usize {
    parameter.value().dims().get(axis).copied().unwrap_or(0)
}

/// The number of inputs and outputs of a layer: `784 -> 256`.
pub(super) fn mapping(inputs: usize, outputs: usize) -> Option<String> {
    Some(format!("{inputs} -> {outputs}"))
}

/// The element type of a parameter, unless it is `f32`.
pub(super) fn dtype(parameter: &Parameter) -> Option<String> {
    let dtype = parameter.value().dtype();
    (dtype != DType::F32).then(|| dtype.to_string())
}

/// The size of a window: `3x3`, or `5` along one axis.
pub(super) fn window(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

/// A pair of options, of which a layer with one axis uses the second: `padding 1`, `stride 2x1`.
fn pair(name: &str, pair: [usize; 2], axes: usize, default: [usize; 2]) -> Option<String> {
    let [of, default] = [&pair, &default].map(|pair| &pair[2_usize.saturating_sub(axes)..]);
    let text = match of {
        [height, width] if height == width => height.to_string(),
        sizes => window(sizes),
    };
    (of != default).then(|| format!("{name} {text}"))
}

/// Writes a convolution with a weight of shape `[outputs, inputs / groups, window..]`, or with the first two axes
/// exchanged for a transposed one.
pub(super) fn convolution(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    weight: &Parameter,
    has_bias: bool,
    options: impl Into<Conv2dOptions>,
) -> fmt::Result {
    let (value, options) = (weight.value(), options.into());
    let [first, second, sizes @ ..] = value.dims() else { return layer(f, name, []) };
    let (grouped, axes) = (second.saturating_mul(options.groups), sizes.len());
    let is_transposed = name.starts_with("ConvTranspose");
    let (inputs, outputs) = if is_transposed { (*first, grouped) } else { (grouped, *first) };
    let option = |name, of: [usize; 2], default| pair(name, of, axes, [default; 2]);
    layer(
        f,
        name,
        [
            mapping(inputs, outputs),
            Some(window(sizes)),
            option("stride", options.stride, 1),
            match options.padding {
                Padding::Zeros(zeros) => option("padding", zeros, 0),
                Padding::Same => Some("padding same".to_owned()),
            },
            option("dilation", options.dilation, 1),
            option("output padding", options.output_padding, 0),
            when(options.groups != 1, format!("groups {}", options.groups)),
            when(!has_bias, "no bias"),
            dtype(weight),
        ],
    )
}

/// Writes a pooling layer.
pub(super) fn pooling(f: &mut fmt::Formatter<'_>, name: &str, options: &Pool2dOptions) -> fmt::Result {
    let parts = [
        Some(window(&options.size)),
        pair("stride", options.stride, 2, options.size),
        pair("padding", options.padding, 2, [0, 0]),
        when(options.ceil_mode, "ceil mode"),
        when(!options.count_include_pad, "without padding in counts"),
    ];
    layer(f, name, parts)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use highwater_tensor::{Activation, Conv1dOptions, Interpolation, Result, Rng, Runtime};

    /// A user's module.
    #[derive(Debug)]
    #[allow(dead_code, reason = "only printed")]
    struct Classifier {
        embed: Embedding,
        blocks: Vec<Sequential>,
        head: Option<Linear>,
    }

    #[test]
    fn layers_print_their_sizes_and_options() {
        let device = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
        let rng = Rng::new(0);
        let linear = |inputs, outputs| Linear::new(&device, inputs, outputs, &rng).unwrap();
        let conv = |options| Conv2d::new(&device, 4, 16, [3, 3], options, &rng).unwrap();
        let half = linear(2, 3).without_bias();
        half.convert(DType::BF16).unwrap();
        let strided = Conv2dOptions { stride: [2, 1], groups: 2, ..Conv2dOptions::padded(1) };
        let sequence = Conv1dOptions { stride: 2, ..Conv1dOptions::padded(3) };
        let larger = Conv2dOptions { stride: [2, 2], output_padding: [1, 1], ..Conv2dOptions::default() };
        let pool =
            Pool2dOptions { stride: [1, 1], padding: [1, 1], ceil_mode: true, ..Pool2dOptions::square(3) };
        let deep = RecurrentOptions { layers: 3, bidirectional: true, dropout: 0.5, ..Default::default() };
        let attention = MultiHeadAttention::new(&device, 8, 2, &rng).unwrap().causal();
        let table = Embedding::new(&device, 100, 8, &rng).unwrap();
        let aligned = Interpolation::Bilinear { align_corners: true };
        let printed: &[(&dyn fmt::Debug, &str)] = &[
            (&linear(784, 256), "Linear(784 -> 256)"),
            (&linear(4, 4).with_activation(Activation::Relu), "Linear(4 -> 4, relu)"),
            (&half, "Linear(2 -> 3, no bias, bf16)"),
            (&conv(Conv2dOptions::default()), "Conv2d(4 -> 16, 3x3)"),
            (&conv(strided).without_bias(), "Conv2d(4 -> 16, 3x3, stride 2x1, padding 1, groups 2, no bias)"),
            (
                &Conv1d::new(&device, 3, 8, 5, sequence, &rng).unwrap(),
                "Conv1d(3 -> 8, 5, stride 2, padding 3)",
            ),
            (
                &ConvTranspose2d::new(&device, 16, 1, [2, 2], larger, &rng).unwrap(),
                "ConvTranspose2d(16 -> 1, 2x2, stride 2, output padding 1)",
            ),
            (&MaxPool2d::new(2), "MaxPool2d(2x2)"),
            (&AvgPool2d::new(pool), "AvgPool2d(3x3, stride 1, padding 1, ceil mode)"),
            (&LayerNorm::new(&device, 8).unwrap(), "LayerNorm(8)"),
            (&RmsNorm::new(&device, 8).unwrap().with_epsilon(0.5), "RmsNorm(8, epsilon 0.5)"),
            (&GroupNorm::new(&device, 2, 8).unwrap(), "GroupNorm(8, groups 2)"),
            (&BatchNorm::new(&device, 8).unwrap().with_momentum(0.5), "BatchNorm(8, momentum 0.5)"),
            (&table, "Embedding(100 -> 8)"),
            (&table.clone().with_padding_idx(3).unwrap(), "Embedding(100 -> 8, padding 3)"),
            (&InstanceNorm::new(8), "InstanceNorm(8)"),
            (&InstanceNorm::new(8).with_affine(&device).unwrap(), "InstanceNorm(8, affine)"),
            (&GlobalAvgPool2d::default(), "GlobalAvgPool2d"),
            (&PixelShuffle::new(2), "PixelShuffle(2)"),
            (&Upsample::new(2.0, Interpolation::Nearest), "Upsample(scale 2, nearest)"),
            (&Upsample::new([8, 9], aligned), "Upsample(8x9, bilinear, align corners)"),
            (&Dropout::new(0.1, &rng).unwrap(), "Dropout(0.1)"),
            (&Elu::default(), "Elu(1)"),
            (&Softmax::new(-1), "Softmax(axis -1)"),
            (&Gru::new(&device, 4, 8, &rng).unwrap(), "Gru(4 -> 8)"),
            (
                &Lstm::with_options(&device, 4, 8, deep, &rng).unwrap(),
                "Lstm(4 -> 8, layers 3, bidirectional, dropout 0.5)",
            ),
            (&Rnn::new(&device, 4, 8, &rng).unwrap(), "Rnn(4 -> 8)"),
            (
                &attention.with_dropout(0.5, &rng).unwrap(),
                "MultiHeadAttention(8, heads 2, causal, dropout 0.5)",
            ),
        ];
        for &(layer, expected) in printed {
            assert_eq!(format!("{layer:?}"), expected);
            assert_eq!(format!("{layer:#?}"), expected);
        }
    }

    #[test]
    fn modules_with_parts_print_as_a_tree() -> Result<()> {
        let device = Runtime::builder().threads(1).build()?.dry()?;
        let rng = Rng::new(0);
        let block = || -> Result<Sequential> {
            Ok(Sequential::new().with("fc1", Linear::new(&device, 64, 256, &rng)?).with("relu", Relu))
        };
        assert_eq!(format!("{:?}", block()?), "Sequential { fc1: Linear(64 -> 256), relu: Relu }");
        let head = Some(Linear::new(&device, 256, 10, &rng)?);
        let net = Classifier { embed: Embedding::new(&device, 9, 64, &rng)?, blocks: vec![block()?], head };
        let expected = "\
Classifier {
    embed: Embedding(9 -> 64),
    blocks: [
        Sequential {
            fc1: Linear(64 -> 256),
            relu: Relu,
        },
    ],
    head: Some(
        Linear(256 -> 10),
    ),
}";
        assert_eq!(format!("{net:#?}"), expected);
        let block = TransformerBlock::new(&device, 8, 2, &rng)?.causal();
        assert_eq!(
            format!("{:?}", Checkpointed::new(block)),
            "Checkpointed(TransformerBlock { norm1: LayerNorm(8), \
             attention: MultiHeadAttention(8, heads 2, causal), norm2: LayerNorm(8), \
             up: Linear(8 -> 32, gelu_tanh), down: Linear(32 -> 8) })"
        );
        Ok(())
    }
}
