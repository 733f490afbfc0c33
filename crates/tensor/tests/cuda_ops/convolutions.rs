//! Convolutions on the emulated CUDA device, by tiles and by single threads, beside those of the CPU.

use crate::ops_table::counting::Counting;
use crate::ops_table::{Numbers, computed_by, device, runtime};
use highwater_tensor::{Conv2dOptions, DType, Device, Result, Rng, Tensor};

/// A convolution of `[n, channels, h, w]` by filters `[out channels, channels of a group, kh, kw]`.
#[derive(Clone, Copy, Debug)]
struct Case {
    images: [usize; 4],
    filters: [usize; 4],
    options: Conv2dOptions,
}

const PLAIN: Conv2dOptions = Conv2dOptions::padded(0);

const fn case(images: [usize; 4], filters: [usize; 4], options: Conv2dOptions) -> Case {
    Case { images, filters, options }
}

/// The output, and the gradients of the images and of the filters. All terms are positive, so that none of a sum is lost in rounding.
fn results(device: &Device, case: &Case, dtype: DType) -> Result<[Tensor; 3]> {
    let rng = Rng::new(11);
    let leaf = |shape: [usize; 4]| Tensor::uniform(device, shape, 0.5, 1.5, &rng)?.to_dtype(dtype);
    let (x, w) = (leaf(case.images)?.requiring_grad()?, leaf(case.filters)?.requiring_grad()?);
    let y = x.conv2d(&w, case.options)?;
    let upstream = Tensor::uniform(device, y.dims(), 0.5, 1.5, &rng)?.to_dtype(dtype)?;
    let gradients = y.mul(&upstream)?.sum_all()?.backward()?;
    Ok([y.detach(), gradients.get(&x).unwrap().clone(), gradients.get(&w).unwrap().clone()])
}

/// Asserts that a device computes what the CPU does.
fn assert_as_on_the_cpu(device: &Device, case: &Case, dtype: DType, tolerance: f64) {
    let here = results(&runtime().cpu().unwrap(), case, dtype).unwrap();
    let there = results(device, case, dtype).unwrap();
    for (what, (here, there)) in ["output", "images", "filters"].iter().zip(here.iter().zip(&there)) {
        assert_eq!((here.dims(), here.dtype()), (there.dims(), there.dtype()));
        let values = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
        for (i, (a, b)) in values(here).into_iter().zip(values(there)).enumerate() {
            assert!((a - b).abs() <= tolerance * a.abs(), "{case:?} {dtype}, {what} {i}: {a} and {b}");
        }
    }
}

#[test]
fn sizes_around_tile_edges_are_complete() {
    let device = device();
    for outputs in [1, 15, 63, 64, 65] {
        for channels in [1, 16, 65] {
            for wide in [1, 63, 65] {
                let case = case([1, channels, 1, wide], [outputs, channels, 1, 1], PLAIN);
                assert_as_on_the_cpu(&device, &case, DType::F32, 1e-5);
            }
        }
    }
    for [channels, outputs, pixels] in [[64, 64, 64], [17, 130, 66], [130, 15, 127]] {
        let case = case([2, channels, 1, pixels], [outputs, channels, 1, 1], PLAIN);
        assert_as_on_the_cpu(&device, &case, DType::F32, 1e-5);
    }
}

/// The kernels that compute a convolution and its gradients.
fn kernels(case: &Case) -> Vec<&'static str> {
    let compute = Counting::new(false);
    results(&computed_by(compute.clone()), case, DType::F32).unwrap();
    let mut launched = compute.launched();
    launched.retain(|name| name.starts_with("conv2d"));
    launched.sort_unstable();
    launched
}

const TILED: [&str; 3] = ["conv2d_input_grad_tiled", "conv2d_tiled", "conv2d_weight_grad_tiled"];

#[test]
fn tiled_and_scalar_convolution_kernels_agree() {
    let of = |channels, groups| {
        let options = Conv2dOptions { groups, ..Conv2dOptions::padded(1) };
        kernels(&case([2, channels, 8, 8], [channels, channels / groups, 3, 3], options))
    };
    assert_eq!(of(16, 1), TILED);
    assert_eq!(of(16, 2), TILED);
    assert_eq!(of(16, 16), ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"]);
    assert_eq!(of(4, 1), ["conv2d_input_grad_tiled", "conv2d_tiled", "conv2d_weight_grad"]);
}

#[test]
fn convolutions_of_all_options_equal_those_of_the_cpu() {
    let device = device();
    let window = |size: [usize; 2], stride, padding: [usize; 2], dilation| {
        let options = Conv2dOptions { stride, padding: padding.into(), dilation, ..PLAIN };
        case([16, 17, 13, 11], [18, 17, size[0], size[1]], options)
    };
    for case in [
        window([3, 3], [1, 1], [1, 1], [1, 1]),
        window([3, 3], [2, 2], [1, 1], [1, 1]),
        window([3, 2], [2, 3], [0, 2], [1, 1]),
        window([1, 1], [2, 2], [0, 0], [1, 1]),
        window([3, 4], [1, 1], [4, 3], [3, 2]),
        // Strides and dilations with a common factor: some pixels no tap sees.
        window([3, 3], [2, 4], [3, 2], [2, 2]),
        window([3, 3], [6, 3], [5, 4], [4, 3]),
        window([3, 1], [4, 1], [2, 0], [6, 1]),
        // Moved by more than the image has.
        window([2, 11], [20, 30], [1, 0], [1, 1]),
        // Most of what is seen is padding.
        window([13, 11], [1, 2], [5, 6], [1, 1]),
    ] {
        assert_eq!(kernels(&case), TILED, "{case:?}");
        assert_as_on_the_cpu(&device, &case, DType::F64, 1e-13);
    }
}

#[test]
fn convolutions_of_any_sizes_are_those_of_the_cpu() {
    let (device, mut numbers) = (device(), Numbers::new(3));
    for _ in 0..30 {
        let mut some = |least: usize, most: usize| least + numbers.below(most - least + 1);
        let groups = some(1, 3);
        let [images, channels, outputs] = [some(1, 6), some(3, 20), some(3, 70)];
        let pair =
            |least, most, some: &mut dyn FnMut(usize, usize) -> usize| [0, 1].map(|_| some(least, most));
        let size = pair(1, 4, &mut some);
        let options = Conv2dOptions {
            stride: pair(1, 5, &mut some),
            padding: pair(0, 4, &mut some).into(),
            dilation: pair(1, 4, &mut some),
            groups,
            ..PLAIN
        };
        let [high, wide] = [0, 1].map(|axis| (size[axis] - 1) * options.dilation[axis] + some(1, 9));
        let filters = [groups * outputs, channels, size[0], size[1]];
        let case = case([images, groups * channels, high, wide], filters, options);
        assert_as_on_the_cpu(&device, &case, DType::F64, 1e-13);
    }
}

#[test]
fn each_group_of_channels_sees_its_own() {
    let device = device();
    let options = |groups| Conv2dOptions { groups, stride: [2, 1], ..Conv2dOptions::padded(1) };
    for (channels, outputs, groups) in [(24, 16, 2), (21, 36, 3), (140, 130, 2), (12, 12, 12), (5, 15, 5)] {
        let filters = [outputs, channels / groups, 3, 3];
        assert_as_on_the_cpu(
            &device,
            &case([2, channels, 9, 8], filters, options(groups)),
            DType::F64,
            1e-13,
        );
    }
}

#[test]
fn all_float_types_are_summed_as_on_the_cpu() {
    let device = device();
    for (dtype, tolerance) in
        [(DType::F32, 1e-5), (DType::F64, 1e-13), (DType::F16, 2e-3), (DType::BF16, 1e-2)]
    {
        for (filters, groups) in [([66, 10, 3, 3], 1), ([10, 1, 3, 3], 10)] {
            let options = Conv2dOptions { groups, ..Conv2dOptions::padded(1) };
            assert_as_on_the_cpu(&device, &case([2, 10, 9, 9], filters, options), dtype, tolerance);
        }
    }
}

#[test]
fn split_weight_gradient_sums_are_complete() {
    let device = device();
    // Two parts, seven, and 74, which is more than one thread adds up. The last are shorter than the others.
    for images in [[1, 17, 23, 23], [5, 17, 20, 19], [4, 16, 70, 71]] {
        let case = case(images, [20, images[1], 1, 1], PLAIN);
        assert_as_on_the_cpu(&device, &case, DType::F32, 2e-5);
        assert_as_on_the_cpu(&device, &case, DType::F16, 2e-3);
        let twice = [0, 1].map(|_| results(&device, &case, DType::F32).unwrap()[2].to_vec::<f32>().unwrap());
        assert_eq!(twice[0], twice[1]);
    }
}

#[test]
fn convolutions_of_nothing_are_empty_or_zero() {
    let device = device();
    for (images, filters) in [
        ([0, 16, 5, 5], [16, 16, 3, 3]),
        ([2, 0, 5, 5], [16, 0, 3, 3]),
        ([2, 16, 5, 5], [0, 16, 3, 3]),
        ([0, 1, 5, 5], [1, 1, 3, 3]),
    ] {
        assert_as_on_the_cpu(&device, &case(images, filters, PLAIN), DType::F32, 0.0);
    }
}

#[test]
fn infinity_stays_infinity_where_a_step_is_longer_than_the_sum() {
    let device = device();
    let mut taps = [1.0_f32; 20 * 17];
    taps[0] = f32::INFINITY;
    let x = Tensor::ones(&device, [1, 17, 1, 70]).unwrap().requiring_grad().unwrap();
    let w = Tensor::from_slice(&device, &taps, [20, 17, 1, 1]).unwrap();
    let y = x.conv2d(&w, PLAIN).unwrap();
    let gradients = y.sum_all().unwrap().backward().unwrap();
    // The first channel of each, and the others.
    for (values, others) in [(y.to_vec::<f32>(), 17.0), (gradients.get(&x).unwrap().to_vec::<f32>(), 20.0)] {
        let values = values.unwrap();
        assert!(values[..70].iter().all(|&value| value == f32::INFINITY));
        assert!(values[70..].iter().all(|&value| value == others));
    }
}
