//! Layers with quantized weights: values, gradients, paths, memory and checkpoints.

use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::modules::{Embedding, Linear, Module, Parameter, Relu, Sequential};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_nn::summary;
use highwater_tensor::{
    Activation, BlockFormat, DType, Device, DeviceProfile, Error, QuantizedMatrix, Rng, Runtime, Tensor,
};
use highwater_tracking::Report;

fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn noise(device: &Device, dims: &[usize], seed: u64) -> Tensor {
    Tensor::uniform(device, dims, -1.0, 1.0, &Rng::new(seed)).unwrap()
}

fn assert_close(a: &Tensor, b: &Tensor, what: &str) {
    assert_eq!(a.dims(), b.dims(), "{what}");
    let (a, b) = (a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0)), "{what}");
}

/// A quantized layer below a dense one.
fn net(device: &Device, format: BlockFormat, seed: u64) -> Sequential {
    let rng = Rng::new(seed);
    let first = Linear::new(device, 64, 128, &rng).unwrap().quantized(format).unwrap();
    Sequential::new()
        .with("fc1", first)
        .with("relu", Relu)
        .with("fc2", Linear::new(device, 128, 3, &rng).unwrap())
}

#[test]
fn quantized_layers_compute_as_dense_layers_of_the_dequantized_weight() {
    let device = cpu();
    let bias = || Some(Parameter::new(noise(&device, &[70], 1)).unwrap());
    for format in BlockFormat::ALL {
        let matrix = QuantizedMatrix::quantize(&noise(&device, &[70, 64], 0), format).unwrap();
        let dense = Parameter::new(matrix.dequantize().unwrap()).unwrap();
        let (x, tokens) =
            (noise(&device, &[4, 64], 2), Tensor::from_slice(&device, &[3i64, 69, 3], [3]).unwrap());
        for activation in [None, Some(Activation::Relu), Some(Activation::Silu)] {
            for has_bias in [false, true] {
                let bias = bias().filter(|_| has_bias);
                let quantized = Linear::from_quantized(matrix.clone(), bias.clone()).unwrap();
                let expected = Linear::from_pytorch_parameters(dense.clone(), bias).unwrap();
                let [quantized, expected] = [quantized, expected].map(|layer| match activation {
                    Some(activation) => layer.with_activation(activation),
                    None => layer,
                });
                let [y, expected] = [quantized.forward(&x).unwrap(), expected.forward(&x).unwrap()];
                assert_close(&y, &expected, &format!("{format}, {activation:?}"));
            }
        }
        let (table, expected) =
            (Embedding::from_quantized(&matrix), Embedding::from_parameter(dense).unwrap());
        assert_close(&table.forward(&tokens).unwrap(), &expected.forward(&tokens).unwrap(), "embedding");
        assert_close(&table.logits(&x).unwrap(), &expected.logits(&x).unwrap(), "logits");
        assert_eq!((table.dtype(), table.weight().value().dtype()), (DType::F32, DType::U8));
        let refused = table.with_padding_idx(0).unwrap_err();
        assert_eq!(refused, Error::UnsupportedDType { op: "embedding", dtype: DType::U8 });
    }
}

#[test]
fn layers_are_quantized_from_both_shapes_of_weights() {
    let device = cpu();
    let weight = noise(&device, &[6, 64], 0);
    let turned = Parameter::new(weight.t().unwrap().contiguous().unwrap()).unwrap();
    let pytorch = Linear::from_pytorch_parameters(Parameter::new(weight).unwrap(), None).unwrap();
    let own = Linear::from_parameters(turned, None).unwrap();
    let x = noise(&device, &[2, 64], 1);
    for format in BlockFormat::ALL {
        let [a, b] = [&pytorch, &own].map(|layer| layer.quantized(format).unwrap());
        assert_close(&a.forward(&x).unwrap(), &b.forward(&x).unwrap(), format.name());
        assert_eq!(format!("{a:?}"), format!("Linear(64 -> 6, no bias, {format})"));
        let again = a.quantized(format).unwrap();
        assert_close(&again.forward(&x).unwrap(), &a.forward(&x).unwrap(), format.name());
    }
    let narrow = Linear::new(&device, 60, 4, &Rng::new(0)).unwrap();
    assert!(matches!(narrow.quantized(BlockFormat::Q8_0), Err(Error::BadArgument { op: "quantize", .. })));
}

#[test]
fn training_changes_the_dense_layers_only() {
    let device = cpu();
    let net = net(&device, BlockFormat::Nf4, 0);
    assert_eq!(
        net.parameters().into_iter().map(|(path, _)| path).collect::<Vec<_>>(),
        ["fc1.bias", "fc2.weight", "fc2.bias"]
    );
    let buffers = net.buffers();
    assert_eq!(buffers[0].0, "fc1.weight");
    let before = buffers[0].1.value().to_vec::<u8>().unwrap();
    net.unfreeze();
    assert!(buffers[0].1.is_frozen() && buffers[0].1.is_constant());
    let mut optimizer = AdamW::new(net.parameters(), 0.1).unwrap();
    let x = noise(&device, &[5, 64], 3);
    let loss = || net.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
    let first = loss().item::<f32>().unwrap();
    for _ in 0..5 {
        let gradients = loss().backward().unwrap();
        assert_eq!(gradients.len(), 3);
        optimizer.step(gradients).unwrap();
    }
    assert!(loss().item::<f32>().unwrap() < first);
    assert_eq!(buffers[0].1.value().to_vec::<u8>().unwrap(), before);
    net.convert(DType::F64).unwrap();
    assert_eq!(buffers[0].1.value().dtype(), DType::U8);
    assert_eq!(net.forward(&x.to_dtype(DType::F64).unwrap()).unwrap().dtype(), DType::F64);
}

#[test]
fn checkpoints_store_the_blocks() {
    let (device, folder) = (cpu(), tempfile::tempdir().unwrap());
    let path = folder.path().join("run.safetensors");
    let (saved, other) = (net(&device, BlockFormat::Q4_1, 0), net(&device, BlockFormat::Q4_1, 1));
    Checkpoint::of(&saved).unwrap().save(&path).unwrap();
    let checkpoint = Checkpoint::load(&path).unwrap();
    checkpoint.restore(&other).unwrap();
    let x = noise(&device, &[2, 64], 2);
    assert_eq!(
        other.forward(&x).unwrap().to_vec::<f32>().unwrap(),
        saved.forward(&x).unwrap().to_vec::<f32>().unwrap()
    );
    // Blocks of another format have other bytes.
    assert!(checkpoint.restore(&net(&device, BlockFormat::Q4_0, 1)).is_err());
}

#[test]
fn reports_have_the_bytes_of_the_blocks_at_the_path_of_the_layer() {
    let build = |device: &Device| (net(device, BlockFormat::Q4_0, 0), noise(device, &[2, 64], 1));
    let device = cpu();
    let (model, x) = build(&device);
    let pools = [device.default_allocator().unwrap().clone()];
    model.forward(&x).unwrap();
    let report = Report::new(device.tracker(), &pools);
    let scope = report.scopes.iter().find(|row| row.scope == "fc1").unwrap();
    // 128 rows of 36 bytes, and a bias.
    let held = 128 * 36 + 512;
    assert_eq!(scope.live_bytes, held);
    let rows: Vec<String> = report.places.iter().map(|row| row.path()).collect();
    assert!(rows.contains(&"fc1.linear_quantized".to_owned()), "{rows:?}");

    let summary = summary(DeviceProfile::this_machine(), |device| Ok(build(device))).unwrap();
    let layer = summary.layers.iter().find(|layer| layer.path == "fc1").unwrap();
    assert_eq!((layer.parameters, layer.parameter_bytes), (128, held));
    assert_eq!(summary.parameter_bytes, held + (128 * 3 + 3 + 61) * 4);
}
