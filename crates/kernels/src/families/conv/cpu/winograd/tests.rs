//! Compares convolutions with direct sums in f64.

use super::*;
use crate::testing::noise;
use crate::window::Convolution;

/// The sizes of a convolution of `images` images.
fn sizes(images: usize, channels: [usize; 2], from: [usize; 2], padding: [usize; 2]) -> Sizes {
    let windows = padding.map(|padding| Window { padding, ..Window::new(3) });
    let to = [0, 1].map(|axis| windows[axis].outputs(from[axis]).unwrap());
    let [inputs, outputs] = channels;
    Sizes { conv: Convolution { windows, groups: 1 }, images, groups: 1, inputs, outputs, from, to }
}

/// Odd sizes, all paddings, tiles of one and of several images in a panel, and both kinds of tasks.
fn cases() -> Vec<Sizes> {
    vec![
        sizes(1, [1, 1], [3, 3], [0, 0]),
        sizes(1, [5, 7], [7, 5], [1, 1]),
        sizes(3, [20, 33], [7, 5], [0, 2]),
        sizes(2, [13, 25], [8, 3], [2, 0]),
        sizes(19, [17, 40], [4, 4], [1, 1]),
        sizes(1, [3, 14], [70, 9], [1, 2]),
        sizes(2, [2, 13], [5, 71], [1, 1]),
        sizes(9, [12, 24], [32, 32], [1, 1]),
        sizes(3, [520, 12], [4, 4], [1, 1]),
        sizes(3, [12, 130], [6, 6], [1, 1]),
        sizes(4, [40, 13], [30, 28], [1, 1]),
    ]
}

/// The operands of a convolution, and what its three passes compute from them.
struct Direct {
    image: Vec<f64>,
    weight: Vec<f64>,
    grad: Vec<f64>,
    out: Vec<f64>,
    image_grad: Vec<f64>,
    weight_grad: Vec<f64>,
}

impl Direct {
    fn new(sizes: &Sizes) -> Self {
        let [height, width] = sizes.from;
        let inputs = sizes.images * sizes.inputs * height * width;
        let outputs = sizes.images * sizes.outputs * sizes.places();
        let mut of = Self {
            image: noise(1, inputs),
            weight: noise(2, sizes.weights()),
            grad: noise(3, outputs),
            out: vec![0.0; outputs],
            image_grad: vec![0.0; inputs],
            weight_grad: vec![0.0; sizes.weights()],
        };
        for output in 0..outputs {
            let (place, plane) = (output % sizes.places(), output / sizes.places());
            let (row, column) = (place / sizes.to[1], place % sizes.to[1]);
            let (image, filter) = (plane / sizes.outputs, plane % sizes.outputs);
            for channel in 0..sizes.inputs {
                for tap in 0..TAPS {
                    let [down, across] = sizes.conv.windows;
                    let seen = down.at(row, tap / 3, height).zip(across.at(column, tap % 3, width));
                    let Some((row, column)) = seen else { continue };
                    let input = ((image * sizes.inputs + channel) * height + row) * width + column;
                    let weight = (filter * sizes.inputs + channel) * TAPS + tap;
                    of.out[output] += of.image[input] * of.weight[weight];
                    of.image_grad[input] += of.grad[output] * of.weight[weight];
                    of.weight_grad[weight] += of.grad[output] * of.image[input];
                }
            }
        }
        of
    }
}

/// The results of `run` with 1, 2 and 3 threads, which must be equal. `run` gets operands, a workspace and an output.
fn run<T: Element>(
    operands: [&[f64]; 2],
    [workspace, outputs]: [usize; 2],
    run: impl Fn(&Workers, [&[T]; 2], &mut [T], &mut [T]),
) -> Vec<T> {
    let values = |values: &[f64]| values.iter().map(|&value| T::from_f64(value)).collect::<Vec<T>>();
    let operands = operands.map(values);
    let [first, others @ ..] = [1, 2, 3].map(|threads| {
        let mut workspace = values(&vec![f64::NAN; workspace]);
        let mut out = values(&vec![f64::NAN; outputs]);
        run(
            &Workers::new(threads).unwrap(),
            operands.each_ref().map(Vec::as_slice),
            &mut workspace,
            &mut out,
        );
        out
    });
    assert!(others.iter().all(|other| *other == first));
    first
}

/// Asserts that two results agree to within `tolerance`, relative to the largest value.
fn assert_near<T: Element + Into<f64>>(actual: &[T], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    for (&actual, &expected) in actual.iter().zip(expected) {
        let actual: f64 = actual.into();
        let error = (actual - expected).abs();
        assert!(error <= tolerance * largest, "{what}: {actual} instead of {expected}");
    }
}

fn passes_equal_direct_sums<T: Element + Into<f64>>(tolerance: f64) {
    let mut shared = Vec::new();
    for sizes in cases() {
        let direct = Direct::new(&sizes);
        let (image, weight, grad) = (&direct.image, &direct.weight, &direct.grad);
        let forward = Winograd::new(&sizes).unwrap();
        let out =
            run::<T>([image, weight], [forward.workspace(), direct.out.len()], |workers, of, space, out| {
                forward.convolve(workers, of, space, out);
            });
        assert_near(&out, &direct.out, tolerance, &format!("{forward:?}"));
        let backward = forward.backward();
        let size = [backward.workspace(), image.len()];
        let image_grad = run::<T>([grad, weight], size, |workers, of, space, out| {
            backward.convolve(workers, of, space, out);
        });
        assert_near(&image_grad, &direct.image_grad, tolerance, &format!("{backward:?}"));
        let size = [forward.weight_grad_workspace(), weight.len()];
        let weight_grad = run::<T>([image, grad], size, |workers, of, space, out| {
            forward.weight_grad(workers, of, space, out);
        });
        assert_near(&weight_grad, &direct.weight_grad, tolerance, &format!("{forward:?}, weight"));
        shared.extend([forward.shared(), backward.shared()]);
    }
    assert!(shared.contains(&Shared::Filters) && shared.contains(&Shared::Tiles));
}

#[test]
fn all_passes_of_f32_equal_direct_sums() {
    passes_equal_direct_sums::<f32>(4e-6);
}

#[test]
fn all_passes_of_f64_equal_direct_sums() {
    passes_equal_direct_sums::<f64>(8e-15);
}

/// Asserts that all passes read elements of type `S` as the `f32` values that they stand for.
fn assert_converts<S: PackInto<f32>>(convert: impl Fn(f64) -> (S, f32)) {
    let sizes = sizes(3, [40, 33], [7, 6], [1, 1]);
    let workers = Workers::new(1).unwrap();
    let forward = Winograd::new(&sizes).unwrap();
    let pairs = |seed, len| noise(seed, len).into_iter().map(&convert).unzip::<S, f32, Vec<S>, Vec<f32>>();
    let (image, weight) = (sizes.images * sizes.image_in(), sizes.weights());
    let (image, weight) = (pairs(1, image), pairs(2, weight));
    let places = sizes.images * sizes.image_out();
    let outputs = |len: usize, run: &dyn Fn(&mut [f32], &mut [f32])| {
        let mut out = vec![0.0; len];
        run(&mut vec![0.0; forward.workspace().max(forward.weight_grad_workspace())], &mut out);
        out
    };
    let stored = outputs(places, &|space, out| {
        forward.convolve(&workers, [&image.0, &weight.0], space, out);
    });
    let single = outputs(places, &|space, out| {
        forward.convolve(&workers, [&image.1, &weight.1], space, out);
    });
    assert!(stored == single);
    let grad = pairs(3, places);
    let stored = outputs(sizes.weights(), &|space, out| {
        forward.weight_grad(&workers, [&image.0, &grad.0], space, out);
    });
    let single = outputs(sizes.weights(), &|space, out| {
        forward.weight_grad(&workers, [&image.1, &grad.1], space, out);
    });
    assert!(stored == single);
}

#[test]
fn sixteen_bit_operands_are_converted_exactly() {
    use half::{bf16, f16};
    assert_converts(|value| (f16::from_f64(value), f16::from_f64(value).to_f32()));
    assert_converts(|value| (bf16::from_f64(value), bf16::from_f64(value).to_f32()));
}

#[test]
fn only_large_plain_windows_are_fast() {
    let resnet = sizes(8, [64, 64], [8, 8], [1, 1]);
    let selects = |sizes: &Sizes| {
        let both = [Winograd::forward(sizes).is_some(), Winograd::input_grad(sizes).is_some()];
        assert_eq!(both[0], both[1]);
        both[0]
    };
    assert!(selects(&resnet));
    let others = [
        Window { stride: 2, ..resnet.conv.windows[0] },
        Window { dilation: 2, ..resnet.conv.windows[0] },
        Window { size: 5, ..resnet.conv.windows[0] },
        Window { padding: 3, ..resnet.conv.windows[0] },
    ];
    for window in others {
        let to = [window.outputs(8).unwrap(), 8];
        let conv = Convolution { windows: [window, resnet.conv.windows[1]], groups: 1 };
        assert!(!selects(&Sizes { conv, to, ..resnet }), "{window:?}");
    }
    assert!(!selects(&Sizes { groups: 2, ..resnet }));
    let slow = [
        sizes(8, [64, 31], [8, 8], [1, 1]),
        sizes(8, [31, 64], [8, 8], [1, 1]),
        sizes(1, [64, 64], [8, 8], [1, 1]),
        sizes(64, [64, 64], [3, 3], [1, 1]),
    ];
    assert!(slow.iter().all(|slow| !selects(slow)));
}
