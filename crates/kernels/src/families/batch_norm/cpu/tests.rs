//! Tests of batch normalization.

use crate::families;
use crate::shape::DType;
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
                input: input.view(),
                weight: weight.view(),
                bias: bias.view(),
                out: out.out(),
                statistics: statistics.out(),
                variance: variance.out(),
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
                    of,
                    grad: grad.view(),
                    out: with_input.then(|| out.out()),
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
