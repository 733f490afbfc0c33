//! Layers in mixed precision: 16-bit results near those of f32, and an f32 gradient for each parameter.

use highwater_nn::modules::{
    BatchNorm, Checkpointed, Conv1d, Conv2d, ConvTranspose2d, Dropout, Embedding, Gelu, GroupNorm,
    GroupedQueryAttention, Gru, InstanceNorm, LayerNorm, Linear, Lstm, Module, MultiHeadAttention, PRelu,
    Relu, RmsNorm, Rnn, RotaryEmbedding, RotaryOptions, Sequential, SwiGlu, TransformerBlock,
};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_tensor::{
    Conv1dOptions, Conv2dOptions, DType, Device, Result, Rng, Runtime, Tensor, mixed, no_grad,
};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// A layer with its name and a shape of its input; an empty shape stands for tokens.
type Case = (&'static str, Vec<usize>, Box<dyn Module>);

fn layers(device: &Device) -> Result<Vec<Case>> {
    let rng = Rng::new(3);
    let rotary = RotaryEmbedding::new(device, 8, 6, RotaryOptions::default())?;
    let attention = GroupedQueryAttention::new(device, 16, [2, 1, 8], &rng)?.with_rotary(rotary);
    let network = Sequential::new()
        .with("in", Linear::new(device, 16, 16, &rng)?)
        .with("gelu", Gelu)
        .with("drop", Dropout::new(0.5, &rng)?)
        .with("again", Checkpointed::new(TransformerBlock::new(device, 16, 2, &rng)?));
    let convolutions = Sequential::new()
        .with("conv", Conv2d::new(device, 4, 6, [3, 3], Conv2dOptions::default(), &rng)?.without_bias())
        .with("norm", BatchNorm::new(device, 6)?)
        .with("relu", Relu);
    let (tokens, images) = (vec![2, 5, 16], vec![2, 4, 6, 6]);
    Ok(vec![
        ("linear", tokens.clone(), Box::new(Linear::new(device, 16, 8, &rng)?)),
        ("linear without bias", tokens.clone(), Box::new(Linear::new(device, 16, 8, &rng)?.without_bias())),
        ("embedding", vec![], Box::new(Embedding::new(device, 7, 16, &rng)?)),
        ("conv1d", tokens.clone(), Box::new(Conv1d::new(device, 5, 4, 3, Conv1dOptions::default(), &rng)?)),
        ("conv2d and batch norm", images.clone(), Box::new(convolutions)),
        (
            "conv_transpose2d",
            images.clone(),
            Box::new(ConvTranspose2d::new(device, 4, 3, [2, 2], Conv2dOptions::default(), &rng)?),
        ),
        ("layer norm", tokens.clone(), Box::new(LayerNorm::new(device, 16)?)),
        ("rms norm", tokens.clone(), Box::new(RmsNorm::new(device, 16)?)),
        ("group norm", images.clone(), Box::new(GroupNorm::new(device, 2, 4)?)),
        ("instance norm", images, Box::new(InstanceNorm::new(4).with_affine(device)?)),
        ("prelu", tokens.clone(), Box::new(PRelu::new(device)?)),
        ("rnn", tokens.clone(), Box::new(Rnn::new(device, 16, 8, &rng)?)),
        ("lstm", tokens.clone(), Box::new(Lstm::new(device, 16, 8, &rng)?)),
        ("gru", tokens.clone(), Box::new(Gru::new(device, 16, 8, &rng)?)),
        ("attention", tokens.clone(), Box::new(MultiHeadAttention::new(device, 16, 2, &rng)?)),
        ("grouped attention", tokens.clone(), Box::new(attention)),
        ("swiglu", tokens.clone(), Box::new(SwiGlu::new(device, 16, 24, &rng)?)),
        ("a network", tokens, Box::new(network)),
    ])
}

fn input(device: &Device, shape: &[usize]) -> Tensor {
    match shape {
        [] => Tensor::from_slice(device, &[3i64, 0, 6, 3], [2, 2]).unwrap(),
        shape => Tensor::normal(device, shape, 0.0, 1.0, &Rng::new(1)).unwrap(),
    }
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// The distance of two vectors, relative to the length of the second.
fn distance(found: &Tensor, expected: &Tensor) -> f64 {
    let (found, expected) = (values(found), values(expected));
    assert_eq!(found.len(), expected.len());
    let apart: f64 = found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum();
    (apart / expected.iter().map(|b| b * b).sum::<f64>().max(1e-6)).sqrt()
}

#[test]
fn layers_return_16_bits_near_f32_and_gradients_in_f32() {
    let device = device();
    // The same random masks for both.
    let [plain, rounded] = [layers(&device).unwrap(), layers(&device).unwrap()];
    for ((name, shape, plain), (_, _, rounded)) in plain.iter().zip(&rounded) {
        let x = input(&device, shape);
        let upstream = |y: &Tensor| {
            let weights = Tensor::normal(&device, y.dims(), 0.0, 1.0, &Rng::new(2)).unwrap();
            y.mul(&weights).unwrap().sum_all().unwrap().backward().unwrap()
        };
        let expected = plain.forward(&x).unwrap();
        let exact = upstream(&expected);
        let _mixed = mixed(DType::BF16).unwrap();
        let found = rounded.forward(&x).unwrap();
        assert_eq!(found.dtype(), DType::BF16, "{name}");
        let apart = distance(&found, &expected);
        assert!(apart < 0.03, "{name}: {apart}");
        let gradients = upstream(&found);
        for ((path, parameter), (_, of_plain)) in rounded.parameters().iter().zip(plain.parameters()) {
            let gradient = gradients.get(&parameter.tensor()).unwrap();
            assert_eq!(gradient.dtype(), DType::F32, "{path} of {name}");
            let apart = distance(gradient, exact.get(&of_plain.tensor()).unwrap());
            assert!(apart < 0.06, "{path} of {name}: {apart}");
        }
        assert_eq!(no_grad(|| rounded.forward(&x)).unwrap().dtype(), DType::BF16, "{name}");
    }
}

#[test]
fn parameters_learn_what_16_bits_would_lose() {
    let device = device();
    let layer = Linear::new(&device, 4, 4, &Rng::new(3)).unwrap();
    let before = layer.weight().value().add_scalar(0.0).unwrap();
    let mut optimizer = AdamW::new(layer.parameters(), 1e-6).unwrap();
    let _mixed = mixed(DType::BF16).unwrap();
    for _ in 0..8 {
        let loss = layer.forward(&Tensor::ones(&device, [2, 4]).unwrap()).unwrap();
        optimizer.step(loss.sum_all().unwrap().backward().unwrap()).unwrap();
    }
    let moved = before.sub(&layer.weight().value()).unwrap();
    // Each step is about the learning rate, less than half a step of bf16.
    assert!(values(&moved).iter().all(|moved| (7e-6..9e-6).contains(moved)), "{moved}");
}
