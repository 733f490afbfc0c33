//! Files as PyTorch writes them, in networks of ours.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

use highwater_tensor::io::{Array, Checkpoint, SafetensorsLimits};
use highwater_tensor::nn::{BatchNorm, Conv2d, Flatten, Linear, Module, Relu, Sequential};
use highwater_tensor::{Conv2dOptions, Device, Error, Rng, Runtime, Tensor, no_grad};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// An array of a state dictionary: its name, its shape, and its numbers.
type Entry<'a> = (&'a str, &'a [usize], Vec<f32>);

/// Numbers that are all different, small, and exact in f32.
fn numbers(count: usize, from: i32) -> Vec<f32> {
    (from..).take(count).map(|i| (i % 17 - 8) as f32 / 8.0).collect()
}

/// The bytes of `safetensors.torch.save_file(dict, path, metadata={"format": "pt"})`: a header of JSON, padded with spaces to
/// whole words, then the numbers; those of eight bytes first.
fn file(entries: &[Entry<'_>], counters: &[&str]) -> Vec<u8> {
    let (mut header, mut data) = (r#"{"__metadata__":{"format":"pt"}"#.to_owned(), Vec::new());
    let mut add = |name: &str, dtype: &str, shape: &[usize], bytes: &[u8]| {
        let (from, to) = (data.len(), data.len() + bytes.len());
        header +=
            &format!(r#","{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{from},{to}]}}"#);
        data.extend_from_slice(bytes);
    };
    counters.iter().for_each(|name| add(name, "I64", &[], &7_i64.to_le_bytes()));
    for (name, shape, values) in entries {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        add(name, "F32", shape, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    }
    header += "}";
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn load(entries: &[Entry<'_>], counters: &[&str]) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, file(entries, counters)).unwrap();
    Checkpoint::load(&path, &SafetensorsLimits::default()).unwrap()
}

/// What `nn.Linear` computes of a row: W·x + b, with W as it lies in the file.
fn linear(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let row = |(row, bias): (&[f32], &f32)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() + bias;
    weight.chunks(x.len()).zip(bias).map(row).collect()
}

fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{found} instead of {expected}");
    }
}

fn is_matrix(_name: &str, array: &Array) -> bool {
    array.shape().rank() == 2
}

#[test]
fn a_multilayer_perceptron_computes_what_it_computed() {
    let device = device();
    // nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)): a square weight fits either way, and one way is wrong.
    let [w0, b0, w2, b2] = [numbers(9, 0), numbers(3, 9), numbers(6, 20), numbers(2, 4)];
    let entries: [Entry<'_>; 4] = [
        ("0.bias", &[3], b0.clone()),
        ("0.weight", &[3, 3], w0.clone()),
        ("2.bias", &[2], b2.clone()),
        ("2.weight", &[2, 3], w2.clone()),
    ];
    let checkpoint = load(&entries, &[]);
    let checkpoint =
        checkpoint.renamed(|name| Some(format!("fc{name}"))).unwrap().transposed(is_matrix).unwrap();
    let rng = Rng::new(0);
    let net = Sequential::new()
        .with("fc0", Linear::new(&device, 3, 3, &rng).unwrap())
        .with("relu", Relu)
        .with("fc2", Linear::new(&device, 3, 2, &rng).unwrap());
    checkpoint.restore(&net).unwrap();

    let x = [0.5f32, -1.0, 2.0];
    let y = net.forward(&Tensor::from_slice(&device, &x, [1, 3]).unwrap()).unwrap();
    let hidden: Vec<f32> = linear(&x, &w0, &b0).iter().map(|h| h.max(0.0)).collect();
    assert_near(&y.to_vec::<f32>().unwrap(), &linear(&hidden, &w2, &b2));
    // And back: what is written for PyTorch is what was read.
    let back = Checkpoint::of(&net).unwrap().transposed(is_matrix).unwrap();
    assert_eq!(back.parameters()["fc2.weight"].bytes(), bytemuck::cast_slice::<f32, u8>(&w2));
    assert_eq!(back.parameters()["fc2.weight"].shape().dims(), [2, 3]);
}

#[test]
fn a_convolutional_network_computes_what_it_computed() {
    let device = device();
    // nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)) on images of 3 by 3.
    let [kernel, kernel_bias, w, b] = [numbers(8, 3), numbers(2, 0), numbers(24, 5), numbers(3, 1)];
    let (gain, shift, mean, var) = ([1.5f32, -0.5], [0.25f32, 1.0], [0.5f32, -0.25], [2.0f32, 0.5]);
    let entries: [Entry<'_>; 8] = [
        ("0.bias", &[2], kernel_bias.clone()),
        ("0.weight", &[2, 1, 2, 2], kernel.clone()),
        ("1.bias", &[2], shift.to_vec()),
        ("1.running_mean", &[2], mean.to_vec()),
        ("1.running_var", &[2], var.to_vec()),
        ("1.weight", &[2], gain.to_vec()),
        ("3.bias", &[3], b.clone()),
        ("3.weight", &[3, 8], w.clone()),
    ];
    let checkpoint = load(&entries, &["1.num_batches_tracked"]);
    let rename = |name: &str| (!name.ends_with("num_batches_tracked")).then(|| format!("layer{name}"));
    let checkpoint = checkpoint.renamed(rename).unwrap().transposed(is_matrix).unwrap();
    let rng = Rng::new(0);
    let net = Sequential::new()
        .with("layer0", Conv2d::new(&device, 1, 2, [2, 2], Conv2dOptions::default(), &rng).unwrap())
        .with("layer1", BatchNorm::new(&device, 2).unwrap())
        .with("layer2", Flatten)
        .with("layer3", Linear::new(&device, 8, 3, &rng).unwrap());
    checkpoint.restore(&net).unwrap();

    let image = numbers(9, 2);
    let x = Tensor::from_slice(&device, &image, [1, 1, 3, 3]).unwrap();
    let y = no_grad(|| net.forward(&x)).unwrap();
    let mut features = Vec::new();
    for channel in 0..2 {
        for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let taps = [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().zip(&kernel[channel * 4..]);
            let sum: f32 =
                taps.map(|((down, right), tap)| tap * image[(row + down) * 3 + column + right]).sum();
            let normed = (sum + kernel_bias[channel] - mean[channel]) / (var[channel] + 1e-5).sqrt();
            features.push(normed * gain[channel] + shift[channel]);
        }
    }
    assert_near(&y.to_vec::<f32>().unwrap(), &linear(&features, &w, &b));
}

#[test]
fn what_is_no_matrix_is_not_transposed() {
    let checkpoint = load(&[("bias", &[2], vec![1.0, 2.0])], &[]);
    let error = checkpoint.clone().transposed(|_, _| true).unwrap_err();
    assert!(matches!(error, Error::BadRank { op: "transposed", .. }), "{error}");
    assert_eq!(checkpoint.clone().transposed(|_, _| false).unwrap(), checkpoint);
}

#[test]
fn matrices_of_every_width_of_element_and_of_no_elements_are_transposed() {
    let check = |array: Array, expected: Array| {
        assert_eq!(array.transposed().unwrap(), expected);
        assert_eq!(expected.transposed().unwrap(), array);
    };
    macro_rules! of {
        ($($number:ty)*) => {$(
            let numbers = |values: [u8; 6]| values.map(<$number>::from);
            check(
                Array::from_slice(&numbers([1, 2, 3, 4, 5, 6]), [2, 3]).unwrap(),
                Array::from_slice(&numbers([1, 4, 2, 5, 3, 6]), [3, 2]).unwrap(),
            );
        )*};
    }
    of!(u8 half::f16 i32 f32 i64 f64);
    check(Array::from_slice::<f32>(&[], [0, 3]).unwrap(), Array::from_slice::<f32>(&[], [3, 0]).unwrap());
}
