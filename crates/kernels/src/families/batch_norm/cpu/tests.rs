//! Tests of batch normalization.

use half::{bf16, f16};

use crate::families;
use crate::shape::{DType, Element};
use crate::testing::{Buffer, assert_close, backends, noise};

const EPSILON: f64 = 1e-3;

/// Shapes `[images, channels, places]`: one place, few, odd numbers, one image, tiles of several and of parts of channels.
const DIMS: &[[usize; 3]] =
    &[[7, 5, 1], [2, 3, 4], [5, 70, 16], [3, 2, 49], [1, 4, 600], [9, 3, 1025], [33, 130, 9], [2, 1, 20_000]];

/// The mean and the variance of each channel.
fn moments([images, channels, places]: [usize; 3], x: &[f64]) -> Vec<[f64; 2]> {
    let count = (images * places) as f64;
    let of_channel = |channel: usize| {
        (0..images).flat_map(move |image| {
            let start = (image * channels + channel) * places;
            x[start..start + places].iter().copied()
        })
    };
    let moments = |channel: usize| {
        let mean = of_channel(channel).sum::<f64>() / count;
        [mean, of_channel(channel).map(|x| (x - mean) * (x - mean)).sum::<f64>() / count]
    };
    (0..channels).map(moments).collect()
}

fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

#[test]
fn channels_are_normalized_for_any_number_of_threads() {
    for &dims in DIMS {
        let [_, channels, places] = dims;
        // Means that are large beside the deviation.
        let x: Vec<f64> = noise(1, dims.iter().product()).iter().map(|x| 100.0 + x).collect();
        let x: Vec<f64> = single(&x).into_iter().map(f64::from).collect();
        let (weight, bias) = (noise(2, channels), noise(3, channels));
        let moments = moments(dims, &x);
        let expected: Vec<f64> = (x.iter().enumerate())
            .map(|(i, x)| {
                let channel = i / places % channels;
                let [mean, variance] = moments[channel];
                (x - mean) / (variance + EPSILON).sqrt() * weight[channel] + bias[channel]
            })
            .collect();
        let input = Buffer::of(&dims, &single(&x));
        let [weight, bias] = [&weight, &bias].map(|values| Buffer::of(&[channels], &single(values)));
        let mut first: Option<Vec<f32>> = None;
        for backend in backends() {
            let mut out = Buffer::output(&dims, DType::F32);
            let mut statistics = Buffer::output(&[channels, 2], DType::F32);
            let mut variance = Buffer::output(&[channels], DType::F32);
            let kernel = families::NormalizeChannels {
                epsilon: EPSILON,
                rectified: false,
                input: input.view(),
                weight: weight.view(),
                bias: bias.view(),
                fixed_mean: None,
                fixed_variance: None,
                residual: None,
                workspace: None,
                out: out.out(),
                statistics: statistics.out(),
                variance: Some(variance.out()),
            };
            backend.run("batch_norm", kernel).unwrap();
            let out = out.values::<f32>();
            assert_close(&out, &expected, 5e-5, "batch_norm");
            let variances: Vec<f64> = moments.iter().map(|[_, variance]| *variance).collect();
            assert_close(&variance.values::<f32>(), &variances, 1e-5, "variance");
            let scales =
                moments.iter().flat_map(|[mean, variance]| [*mean, 1.0 / (variance + EPSILON).sqrt()]);
            assert_close(&statistics.values::<f32>(), &scales.collect::<Vec<_>>(), 2e-5, "statistics");
            assert_eq!(first.get_or_insert_with(|| out.clone()), &out);
        }
    }
}

#[test]
fn gradients_agree_with_their_formulas() {
    for &dims in DIMS {
        let [images, channels, places] = dims;
        let (x, grad) = (noise(1, dims.iter().product()), noise(2, dims.iter().product()));
        let weight = noise(3, channels);
        let moments = moments(dims, &x);
        let count = (images * places) as f64;
        let normal = |i: usize| {
            let [mean, variance] = moments[i / places % channels];
            (x[i] - mean) / (variance + EPSILON).sqrt()
        };
        let mut sums = [vec![0.0; channels], vec![0.0; channels]];
        for (i, grad) in grad.iter().enumerate() {
            sums[0][i / places % channels] += normal(i) * grad;
            sums[1][i / places % channels] += grad;
        }
        let expected: Vec<f64> = (grad.iter().enumerate())
            .map(|(i, grad)| {
                let channel = i / places % channels;
                let scale = weight[channel] / (moments[channel][1] + EPSILON).sqrt();
                scale * (grad - sums[1][channel] / count - normal(i) * sums[0][channel] / count)
            })
            .collect();
        let statistics: Vec<f64> = (moments.iter())
            .flat_map(|[mean, variance]| [*mean, 1.0 / (variance + EPSILON).sqrt()])
            .collect();
        let [input, grad] = [&x, &grad].map(|values| Buffer::of(&dims, values));
        let (weight, statistics) =
            (Buffer::of(&[channels], &weight), Buffer::of(&[channels, 2], &statistics));
        for backend in backends() {
            for with_input in [true, false] {
                let mut out = Buffer::output(&dims, DType::F64);
                let [mut of_weight, mut of_bias] = [(); 2].map(|()| Buffer::output(&[channels], DType::F64));
                let of = families::Normalized {
                    centered: true,
                    input: input.view(),
                    weight: Some(weight.view()),
                    statistics: statistics.view(),
                };
                let kernel = families::NormalizeChannelsGrad {
                    of_batch: true,
                    of,
                    grad: grad.view(),
                    output: None,
                    workspace: None,
                    out: with_input.then(|| out.out()),
                    residual: None,
                    weight: of_weight.out(),
                    bias: of_bias.out(),
                };
                backend.run("batch_norm", kernel).unwrap();
                assert_close(&of_weight.values::<f64>(), &sums[0], 1e-12, "weight");
                assert_close(&of_bias.values::<f64>(), &sums[1], 1e-12, "bias");
                if with_input {
                    assert_close(&out.values::<f64>(), &expected, 1e-12, "input");
                }
            }
        }
    }
}

/// Normalizes elements of type T with a residual and ReLU, and computes the gradients, for any number of threads.
fn large_means<T: Element + Into<f64>>(round: impl Fn(f64) -> T, [mean, tolerance]: [f64; 2])
where
    T::Raw: PartialEq,
{
    let computed = T::DTYPE.computed_as();
    for &dims in DIMS {
        let ([images, channels, places], elements) = (dims, dims.iter().product());
        let rounded = |values: Vec<f64>| values.into_iter().map(&round).collect::<Vec<T>>();
        let wide = |values: &[T]| values.iter().map(|&x| x.into()).collect::<Vec<f64>>();
        // The first element of each channel, from which sums subtract, is far from the others.
        let far = |i: usize| if i < channels * places && i.is_multiple_of(places) { 20.0 } else { 0.0 };
        let x = noise(1, elements).iter().enumerate().map(|(i, x)| mean + x + far(i)).collect();
        let [x, residual, grad] = [x, noise(2, elements), noise(3, elements)].map(rounded);
        let [weight, bias] = [noise(4, channels), noise(5, channels)].map(rounded);
        let moments = moments(dims, &wide(&x));
        let count = (images * places) as f64;
        let scale = |channel: usize| 1.0 / (moments[channel][1] + EPSILON).sqrt();
        let channel = |i: usize| i / places % channels;
        let normal = |i: usize| (x[i].into() - moments[channel(i)][0]) * scale(channel(i));
        let expected: Vec<f64> = (0..elements)
            .map(|i| normal(i) * weight[channel(i)].into() + bias[channel(i)].into() + residual[i].into())
            .map(|y| y.max(0.0))
            .collect();
        let [x, residual, grad] = [&x, &residual, &grad].map(|values| Buffer::of(&dims, values));
        let [weights, biases] = [&weight, &bias].map(|values| Buffer::of(&[channels], values));
        let mut first: Option<Vec<T>> = None;
        for backend in backends() {
            let [mut out, mut x_grad, mut residual_grad] = [(); 3].map(|()| Buffer::output(&dims, T::DTYPE));
            let mut statistics = Buffer::output(&[channels, 2], computed);
            let [mut variance, mut weight_grad, mut bias_grad] =
                [(); 3].map(|()| Buffer::output(&[channels], computed));
            let kernel = families::NormalizeChannels {
                epsilon: EPSILON,
                rectified: true,
                input: x.view(),
                weight: weights.view(),
                bias: biases.view(),
                fixed_mean: None,
                fixed_variance: None,
                residual: Some(residual.view()),
                workspace: None,
                out: out.out(),
                statistics: statistics.out(),
                variance: Some(variance.out()),
            };
            backend.run("batch_norm", kernel).unwrap();
            let y = out.values::<T>();
            assert_close(&y, &expected, tolerance, "batch_norm");
            let variances: Vec<f64> = moments.iter().map(|[_, variance]| *variance).collect();
            let numbers = |buffer: &Buffer| match computed {
                DType::F64 => buffer.values::<f64>(),
                _ => buffer.values::<f32>().into_iter().map(f64::from).collect(),
            };
            assert_close(&numbers(&variance), &variances, 2e-5, "variance");

            let of = families::Normalized {
                centered: true,
                input: x.view(),
                weight: Some(weights.view()),
                statistics: statistics.view(),
            };
            let kernel = families::NormalizeChannelsGrad {
                of_batch: true,
                of,
                grad: grad.view(),
                output: Some(out.view()),
                workspace: None,
                out: Some(x_grad.out()),
                residual: Some(residual_grad.out()),
                weight: weight_grad.out(),
                bias: bias_grad.out(),
            };
            backend.run("batch_norm", kernel).unwrap();
            let masked: Vec<f64> = wide(&grad.values::<T>())
                .iter()
                .zip(&y)
                .map(|(&g, &y)| if y.into() > 0.0 { g } else { 0.0 })
                .collect();
            assert_close(&residual_grad.values::<T>(), &masked, 0.0, "residual");
            let mut sums = [vec![0.0; channels], vec![0.0; channels]];
            for (i, grad) in masked.iter().enumerate() {
                sums[0][channel(i)] += normal(i) * grad;
                sums[1][channel(i)] += grad;
            }
            // The saved means are rounded: by 2⁻²⁴ of their size in f32.
            let error = if computed == DType::F64 { 1e-9 } else { 1e-3 } * count.sqrt().max(1.0);
            assert_close(&numbers(&weight_grad), &sums[0], error, "weight");
            assert_close(&numbers(&bias_grad), &sums[1], 1e-4, "bias");
            let gradients: Vec<f64> = (0..elements)
                .map(|i| {
                    let (c, share) = (channel(i), 1.0 / count);
                    let along = masked[i] - (sums[1][c] + normal(i) * sums[0][c]) * share;
                    scale(c) * weight[c].into() * along
                })
                .collect();
            assert_close(&x_grad.values::<T>(), &gradients, tolerance.max(1e-2), "input");
            assert_eq!(first.get_or_insert_with(|| y.clone()), &y);
        }
    }
}

#[test]
fn means_that_are_large_beside_the_deviation_cost_no_accuracy() {
    large_means::<f32>(|x| x as f32, [1e4, 1e-4]);
    large_means::<f64>(|x| x, [1e4, 1e-9]);
    large_means::<bf16>(bf16::from_f64, [1e4, 1e-2]);
    large_means::<f16>(f16::from_f64, [1e4, 2e-3]);
    large_means::<bf16>(bf16::from_f64, [0.0, 1e-2]);
}

#[test]
fn given_statistics_are_constants() {
    let (dims, channels) = ([3, 5, 7], 5);
    let [x, grad] = [1, 2].map(|seed| Buffer::of(&dims, &noise(seed, 105)));
    let [weight, bias, mean] = [3, 4, 5].map(|seed| Buffer::of(&[channels], &noise(seed, channels)));
    let variance = Buffer::of(&[channels], &[0.5, 1.0, 2.0, 3.0, 4.0]);
    for backend in backends() {
        let [mut out, mut x_grad] = [(); 2].map(|()| Buffer::output(&dims, DType::F64));
        let mut statistics = Buffer::output(&[channels, 2], DType::F64);
        let [mut of_weight, mut of_bias] = [(); 2].map(|()| Buffer::output(&[channels], DType::F64));
        let kernel = families::NormalizeChannels {
            epsilon: EPSILON,
            rectified: true,
            input: x.view(),
            weight: weight.view(),
            bias: bias.view(),
            fixed_mean: Some(mean.view()),
            fixed_variance: Some(variance.view()),
            residual: None,
            workspace: None,
            out: out.out(),
            statistics: statistics.out(),
            variance: None,
        };
        backend.run("batch_norm", kernel).unwrap();
        let of = families::Normalized {
            centered: true,
            input: x.view(),
            weight: Some(weight.view()),
            statistics: statistics.view(),
        };
        let kernel = families::NormalizeChannelsGrad {
            of_batch: false,
            of,
            grad: grad.view(),
            output: Some(out.view()),
            workspace: None,
            out: Some(x_grad.out()),
            residual: None,
            weight: of_weight.out(),
            bias: of_bias.out(),
        };
        backend.run("batch_norm", kernel).unwrap();
        let of_channels = [&weight, &bias, &mean, &variance].map(|buffer| buffer.values::<f64>());
        let (x, grad) = (x.values::<f64>(), grad.values::<f64>());
        let expected: Vec<[f64; 2]> = (0..105)
            .map(|i| {
                let [weight, bias, mean, variance] = of_channels.each_ref().map(|all| all[i / 7 % 5]);
                let factor = weight / (variance + EPSILON).sqrt();
                let y = (x[i] - mean) * factor + bias;
                if y > 0.0 { [y, grad[i] * factor] } else { [0.0; 2] }
            })
            .collect();
        let column = |n: usize| expected.iter().map(|pair| pair[n]).collect::<Vec<_>>();
        assert_close(&out.values::<f64>(), &column(0), 1e-12, "batch_norm");
        assert_close(&x_grad.values::<f64>(), &column(1), 1e-12, "gradient");
    }
}
