//! Compares ops and their gradients with PyTorch, whose results `reference/make_pytorch.py` wrote.

use crate::ops_table::device;
use highwater_tensor::{
    Conv2dOptions, DType, Device, Interpolation, OutputSize, Pool2dOptions, Reduction, Result, Tensor,
};
use serde_json::Value;

const CASES: &str = include_str!("../reference/pytorch.json");

fn numbers(json: &Value) -> Vec<f64> {
    json.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn tensor(device: &Device, json: &Value) -> Tensor {
    let shape: Vec<usize> = numbers(&json[0]).into_iter().map(|size| size as usize).collect();
    Tensor::from_slice(device, &numbers(&json[1]), shape).unwrap()
}

fn pool(options: &Value) -> Pool2dOptions {
    let pair = |index: usize| [options[index].as_u64().unwrap() as usize; 2];
    let flag = |index: usize| options[index].as_bool().unwrap();
    Pool2dOptions {
        size: pair(0),
        stride: pair(1),
        padding: pair(2),
        ceil_mode: flag(3),
        count_include_pad: flag(4),
    }
}

/// The interpolation and the size of its result.
fn interpolation(options: &Value) -> (OutputSize, Interpolation) {
    let interpolation = match options[0].as_str().unwrap() {
        "nearest" => Interpolation::Nearest,
        _ => Interpolation::Bilinear { align_corners: options[1].as_bool().unwrap() },
    };
    let to = [3, 4].map(|index: usize| options[index].as_f64().unwrap());
    match options[2].as_str().unwrap() {
        "size" => (to.map(|size| size as usize).into(), interpolation),
        _ => (to.into(), interpolation),
    }
}

fn computed(name: &str, options: &Value, x: &[Tensor]) -> Result<Tensor> {
    let number = || options[0].as_f64().unwrap();
    let size = |index: usize| options[index].as_f64().unwrap() as usize;
    match name {
        "elu" => x[0].elu(number()),
        "mish" => x[0].mish(),
        "hardswish" => x[0].hardswish(),
        "softmax" => x[0].softmax(number() as isize),
        "log softmax" => x[0].log_softmax(number() as isize),
        "prelu" => x[0].prelu(&x[1]),
        "max pool" => x[0].max_pool2d(pool(options)),
        "avg pool" => x[0].avg_pool2d(pool(options)),
        "conv same" => {
            x[0].conv2d(&x[1], Conv2dOptions { dilation: [number() as usize; 2], ..Conv2dOptions::same() })
        }
        "clamp" => {
            let bound = |index: usize| options[index].as_str().unwrap().parse::<f64>().unwrap();
            x[0].clamp(bound(0), bound(1))
        }
        "relu" => x[0].relu(),
        "leaky relu" => x[0].leaky_relu(number()),
        "abs" => x[0].abs(),
        "maximum" => x[0].maximum(&x[1]),
        "minimum" => x[0].minimum(&x[1]),
        "max" => x[0].reshape([2, 3])?.max(number() as isize),
        "min" => x[0].reshape([2, 3])?.min(number() as isize),
        "l1 loss" => x[0].l1_loss_with(&x[1], Reduction::None),
        "huber loss" => x[0].huber_loss_with(&x[1], number(), Reduction::None),
        "unfold" => x[0].unfold(number() as isize, size(1), size(2)),
        "unfold2d" => {
            let [stride, dilation] = [size(2), size(4)].map(|number| [number; 2]);
            let options = Conv2dOptions { stride, dilation, ..Conv2dOptions::padded(size(3)) };
            x[0].unfold2d([size(0), size(1)], options)
        }
        "pixel shuffle" => x[0].pixel_shuffle(size(0)),
        "pixel unshuffle" => x[0].pixel_unshuffle(size(0)),
        "interpolate" => {
            let (to, interpolation) = interpolation(options);
            x[0].interpolate(to, interpolation)
        }
        "instance norm" => x[0].instance_norm(x.get(1).zip(x.get(2)), 1e-5),
        "cosine similarity" => x[0].cosine_similarity(&x[1], number() as isize, 1e-8),
        other => panic!("no op for {other}"),
    }
}

#[test]
fn values_and_gradients_are_those_of_pytorch() {
    let device = device();
    let cases: Value = serde_json::from_str(CASES).unwrap();
    for case in cases.as_array().unwrap() {
        let (name, options) = (case[0].as_str().unwrap(), &case[1]);
        let inputs: Vec<Tensor> = case[2]
            .as_array()
            .unwrap()
            .iter()
            .map(|input| tensor(&device, input).requiring_grad().unwrap())
            .collect();
        let y = computed(name, options, &inputs).unwrap();
        let factors =
            Tensor::from_slice(&device, &(0..y.elements()).map(|i| i as f64).collect::<Vec<_>>(), y.dims());
        let gradients = y.mul(&factors.unwrap()).unwrap().sum_all().unwrap().backward().unwrap();
        let found = [&y].into_iter().chain(inputs.iter().map(|input| gradients.get(input).unwrap()));
        for (found, expected) in found.zip(case[3].as_array().unwrap()) {
            let expected = tensor(&device, expected);
            assert_eq!(found.dims(), expected.dims(), "{name} {options}");
            let values = found.to_vec::<f64>().unwrap().into_iter().zip(expected.to_vec::<f64>().unwrap());
            for (found, expected) in values {
                let apart = (found - expected).abs();
                assert!(apart <= 1e-12 * (1.0 + expected.abs()), "{name} {options}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn a_clamped_infinity_or_nan_has_no_gradient() {
    let (device, inf) = (device(), f64::INFINITY);
    for bounds in [[-1.0, 1.0], [-inf, 1.0], [-1.0, inf], [-inf, inf]] {
        let x = Tensor::from_slice(&device, &[inf, -inf, f64::NAN], 3).unwrap().requiring_grad().unwrap();
        let gradients = x.clamp(bounds[0], bounds[1]).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f64>().unwrap(), [0.0; 3], "{bounds:?}");
    }
    // The slope of infinite elements is that of finite ones, and no other element changes their gradient.
    let x = Tensor::from_slice(&device, &[inf, -inf, 0.0], 3).unwrap().requiring_grad().unwrap();
    let slope = Tensor::full_of(&device, 1, 0.25, DType::F64).unwrap();
    let gradients = x.prelu(&slope).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&x).unwrap().to_vec::<f64>().unwrap(), [1.0, 0.25, 0.25]);
}

#[test]
fn the_gradient_of_clamp_is_0_at_the_bounds_in_every_type() {
    let device = device();
    // Bounds that 16-bit floats round up and down.
    for bound in [0.1, 0.3, 0.7, 1.0] {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let x = Tensor::from_slice(&device, &[-bound, bound, bound / 2.0, -2.0 * bound], 4).unwrap();
            let x = x.to_dtype(dtype).unwrap().requiring_grad().unwrap();
            let y = x.clamp(-bound, bound).unwrap();
            let gradients = y.sum_all().unwrap().backward().unwrap();
            let gradient = gradients.get(&x).unwrap().to_dtype(DType::F64).unwrap();
            assert_eq!(gradient.to_vec::<f64>().unwrap(), [0.0, 0.0, 1.0, 0.0], "{bound} in {dtype}");
        }
    }
}
