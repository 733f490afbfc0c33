//! Convolutions, pools, norms and attention against plain loops, over random shapes and options.

use crate::ops_table::{Numbers, device};
use highwater_tensor::{
    AttentionOptions, Conv1dOptions, Conv2dOptions, DType, Device, Error, Pool1dOptions, Pool2dOptions,
    Result, Rng, Tensor, no_grad,
};

/// Returns fewer rounds if an emulator runs the kernels.
fn rounds() -> u64 {
    if env!("CARGO_CRATE_NAME").starts_with("cuda") { 12 } else { 60 }
}

/// Returns random values, as a vector and as a tensor.
fn random(device: &Device, numbers: &mut Numbers, dims: &[usize]) -> (Vec<f64>, Tensor) {
    let values: Vec<f64> = (0..dims.iter().product()).map(|_| numbers.unit() * 4.0 - 2.0).collect();
    let tensor = Tensor::from_slice(device, &values, dims).unwrap();
    (values, tensor)
}

#[track_caller]
fn assert_close(result: Result<Tensor>, dims: &[usize], expected: &[f64]) {
    let result = result.unwrap();
    assert_eq!(result.dims(), dims);
    for (place, (left, right)) in result.to_vec::<f64>().unwrap().into_iter().zip(expected).enumerate() {
        assert!((left - right).abs() <= 1e-10 * right.abs().max(1.0), "{left} for {right} at {place}");
    }
}

fn for_each_round(mut check: impl FnMut(&Device, &mut Numbers)) {
    let device = device();
    for seed in 0..rounds() {
        println!("seed {seed}");
        check(&device, &mut Numbers::new(seed));
    }
}

/// Returns the input position that an output reads at this tap, or `None` if it is in the padding.
fn place(output: usize, tap: usize, [stride, padding, dilation]: [usize; 3], len: usize) -> Option<usize> {
    (output * stride + tap * dilation).checked_sub(padding).filter(|&place| place < len)
}

#[test]
fn convolutions_are_sums_over_what_their_windows_see() {
    for_each_round(|device, numbers| {
        let mut some = |most: usize| 1 + numbers.below(most);
        let (groups, [n, inputs, outputs]) = (some(3), [some(4), some(20), some(3)]);
        let (size, stride, dilation) = ([some(3), some(4)], [some(3), some(2)], [some(2), some(3)]);
        let padding = [some(4) - 1, some(3) - 1];
        let reach = |axis: usize| (size[axis] - 1) * dilation[axis] + 1;
        let len = |axis: usize, more: usize| reach(axis).saturating_sub(2 * padding[axis]).max(1) + more;
        let (height, width) = (len(0, some(6) - 1), len(1, some(40) - 1));
        let (channels, filters) = (groups * inputs, groups * outputs);
        let (x, images) = random(device, numbers, &[n, channels, height, width]);
        let (w, weight) = random(device, numbers, &[filters, inputs, size[0], size[1]]);
        let options =
            Conv2dOptions { stride, padding: padding.into(), dilation, groups, ..Conv2dOptions::default() };
        let out = |axis: usize, len: usize| (len + 2 * padding[axis] - reach(axis)) / stride[axis] + 1;
        let (high, wide) = (out(0, height), out(1, width));
        let window = |axis: usize| [stride[axis], padding[axis], dilation[axis]];
        let mut y = vec![0.0; n * filters * high * wide];
        // The transposed convolution of y's shape back to x's, of a y of ones times numbers.
        let (back, upstream) = random(device, numbers, &[n, filters, high, wide]);
        let (mut larger, mut to_weight) = (vec![0.0; x.len()], vec![0.0; w.len()]);
        for (at, y) in y.iter_mut().enumerate() {
            let (ox, oy) = (at % wide, at / wide % high);
            let (o, image) = (at / (wide * high) % filters, at / (wide * high * filters));
            for c in 0..inputs {
                for ky in 0..size[0] {
                    for kx in 0..size[1] {
                        let seen = place(oy, ky, window(0), height).zip(place(ox, kx, window(1), width));
                        let Some((row, column)) = seen else { continue };
                        let channel = o / outputs * inputs + c;
                        let from = ((image * channels + channel) * height + row) * width + column;
                        let filter = ((o * inputs + c) * size[0] + ky) * size[1] + kx;
                        *y += x[from] * w[filter];
                        larger[from] += back[at] * w[filter];
                        to_weight[filter] += back[at] * x[from];
                    }
                }
            }
        }
        let weight = weight.requiring_grad().unwrap();
        let found = images.conv2d(&weight, options).unwrap();
        let gradients = found.mul(&upstream).unwrap().sum_all().unwrap().backward().unwrap();
        assert_close(Ok(found), &[n, filters, high, wide], &y);
        let weight_dims = [filters, inputs, size[0], size[1]];
        assert_close(Ok(gradients.get(&weight).unwrap().clone()), &weight_dims, &to_weight);
        let rest = |axis: usize, len: usize| (len + 2 * padding[axis] - reach(axis)) % stride[axis];
        let options = Conv2dOptions { output_padding: [rest(0, height), rest(1, width)], ..options };
        assert_close(upstream.conv_transpose2d(&weight, options), &[n, channels, height, width], &larger);
    });
}

/// A depthwise convolution equals a full convolution with weights of 0 between different channels.
#[test]
fn depthwise_convolutions_equal_masked_dense_ones() {
    const CHANNELS: usize = 3;
    for_each_round(|device, numbers| {
        let mut some = |most: usize| 1 + numbers.below(most);
        // In most cases the rows keep their length, so the op sums shifted planes.
        let (half, dilation) = (some(3) - 1, [some(2), some(2)]);
        let size = [some(4), if some(4) == 1 { some(4) } else { 2 * half + 1 }];
        let padding = [some(4) - 1, dilation[1] * (size[1] / 2)];
        let stride = [1 + some(8) / 8, 1];
        let reach = (size[0] - 1) * dilation[0] + 1;
        let [height, width] =
            [reach.saturating_sub(2 * padding[0]).max(1) + some(7) - 1, some(9) * some(3) + 1];
        let (_, images) = random(device, numbers, &[2, CHANNELS, height, width]);
        let (_, weight) = random(device, numbers, &[CHANNELS, 1, size[0], size[1]]);
        let own = Tensor::arange(device, 0, CHANNELS).unwrap().one_hot(CHANNELS).unwrap();
        let own = own.to_dtype(DType::F64).unwrap().reshape([CHANNELS, CHANNELS, 1, 1]).unwrap();

        let gradients = |groups: usize| {
            let options = Conv2dOptions {
                stride,
                padding: padding.into(),
                dilation,
                groups,
                ..Conv2dOptions::default()
            };
            let [x, w] = [&images, &weight].map(|of| of.detach().requiring_grad().unwrap());
            let filters = if groups == 1 { w.mul(&own).unwrap() } else { w.clone() };
            let y = x.conv2d(&filters, options).unwrap();
            // Each position has another weight.
            let shares = Tensor::arange(device, 0, y.elements()).unwrap().reshape(y.dims()).unwrap();
            let gradients = y.mul(&shares.to_dtype(DType::F64).unwrap().sin().unwrap()).unwrap();
            let gradients = gradients.sum_all().unwrap().backward().unwrap();
            [y, gradients.get(&x).unwrap().clone(), gradients.get(&w).unwrap().clone()]
        };
        for (depthwise, dense) in gradients(CHANNELS).into_iter().zip(gradients(1)) {
            let (dims, expected) = (dense.dims().to_vec(), dense.to_vec::<f64>().unwrap());
            assert_close(Ok(depthwise), &dims, &expected);
        }
    });
}

/// A window of one element equals a window of nine elements with zeros around the middle.
#[test]
fn pointwise_convolutions_equal_zero_padded_wider_ones() {
    for_each_round(|device, numbers| {
        let mut some = |most: usize| 1 + numbers.below(most);
        let (n, groups, inputs, outputs, height, width) =
            (some(10), some(2), some(3), some(3), some(5), some(6));
        let (_, images) = random(device, numbers, &[n, groups * inputs, height, width]);
        let (_, weight) = random(device, numbers, &[groups * outputs, inputs, 1, 1]);
        let results = |padding: usize| {
            let options = Conv2dOptions { groups, ..Conv2dOptions::padded(padding) };
            let [x, w] = [&images, &weight].map(|of| of.detach().requiring_grad().unwrap());
            let window = w.pad([(0, 0), (0, 0), (padding, padding), (padding, padding)], 0.0).unwrap();
            let y = x.conv2d(&window, options).unwrap();
            let shares = Tensor::arange(device, 0, y.elements()).unwrap().reshape(y.dims()).unwrap();
            let loss =
                y.mul(&shares.to_dtype(DType::F64).unwrap().sin().unwrap()).unwrap().sum_all().unwrap();
            let gradients = loss.backward().unwrap();
            [y, gradients.get(&x).unwrap().clone(), gradients.get(&w).unwrap().clone()]
        };
        for (pointwise, wide) in results(0).into_iter().zip(results(1)) {
            let (dims, expected) = (wide.dims().to_vec(), wide.to_vec::<f64>().unwrap());
            assert_close(Ok(pointwise), &dims, &expected);
        }
    });
}

#[test]
fn pools_are_the_largest_and_the_mean_of_their_windows() {
    for_each_round(|device, numbers| {
        let mut some = |most: usize| 1 + numbers.below(most);
        let size = [some(4), some(3)];
        let stride = [some(3), some(3)];
        let padding = [some(size[0] / 2 + 1) - 1, some(size[1] / 2 + 1) - 1];
        let [n, height, width] = [some(5), size[0] + some(6), size[1] + some(6)];
        let asked = [some(7), some(7)];
        let (x, images) = random(device, numbers, &[n, height, width]);
        let out = |axis: usize, len: usize| (len + 2 * padding[axis] - size[axis]) / stride[axis] + 1;
        let (high, wide) = (out(0, height), out(1, width));
        let (mut largest, mut mean) = (Vec::new(), Vec::new());
        for at in 0..n * high * wide {
            let (ox, oy, image) = (at % wide, at / wide % high, at / (wide * high));
            let taps = (0..size[0]).flat_map(|ky| (0..size[1]).map(move |kx| (ky, kx)));
            let seen: Vec<f64> = taps
                .filter_map(|(ky, kx)| {
                    let row = place(oy, ky, [stride[0], padding[0], 1], height)?;
                    let column = place(ox, kx, [stride[1], padding[1], 1], width)?;
                    Some(x[(image * height + row) * width + column])
                })
                .collect();
            largest.push(seen.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            mean.push(seen.iter().sum::<f64>() / (size[0] * size[1]) as f64);
        }
        let options = Pool2dOptions { size, stride, padding, ..Pool2dOptions::square(1) };
        assert_close(images.max_pool2d(options), &[n, high, wide], &largest);
        assert_close(images.avg_pool2d(options), &[n, high, wide], &mean);
        let rows = |pooled: highwater_tensor::Result<Tensor>| pooled.unwrap().to_vec::<f64>().unwrap();
        let flat =
            Pool2dOptions { size: [1, size[1]], stride: [1, stride[1]], padding: [0, padding[1]], ..options };
        let along_rows =
            Pool1dOptions { stride: stride[1], padding: padding[1], ..Pool1dOptions::new(size[1]) };
        assert_eq!(rows(images.max_pool1d(along_rows)), rows(images.max_pool2d(flat)));
        assert_eq!(rows(images.avg_pool1d(along_rows)), rows(images.avg_pool2d(flat)));
        let (mut adaptive, mut largest) = (Vec::new(), Vec::new());
        for at in 0..n * asked[0] * asked[1] {
            let (ox, oy, image) = (at % asked[1], at / asked[1] % asked[0], at / (asked[0] * asked[1]));
            let range = |o: usize, len: usize, outs: usize| o * len / outs..((o + 1) * len).div_ceil(outs);
            let mut seen = Vec::new();
            for row in range(oy, height, asked[0]) {
                for column in range(ox, width, asked[1]) {
                    seen.push(x[(image * height + row) * width + column]);
                }
            }
            adaptive.push(seen.iter().sum::<f64>() / seen.len() as f64);
            largest.push(seen.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        }
        assert_close(images.adaptive_avg_pool2d(asked), &[n, asked[0], asked[1]], &adaptive);
        assert_close(images.adaptive_max_pool2d(asked), &[n, asked[0], asked[1]], &largest);
    });
}

#[test]
fn an_image_without_rows_or_columns_has_no_windows() {
    let options = Pool2dOptions { padding: [1, 1], ..Pool2dOptions::square(2) };
    for dims in [[1, 1, 0, 4], [1, 1, 4, 0]] {
        let image = Tensor::zeros(&device(), dims).unwrap();
        for result in [image.max_pool2d(options), image.avg_pool2d(options)] {
            assert!(matches!(result, Err(Error::BadArgument { argument: "options", .. })), "{result:?}");
        }
    }
}

#[test]
fn a_query_that_sees_nothing_gets_zero_whatever_the_values_are() {
    let device = device();
    let of = |values: &[f32]| Tensor::from_slice(&device, values, [2, 2]).unwrap().requiring_grad().unwrap();
    let (query, key) = (of(&[1.0; 4]), of(&[1.0; 4]));
    let value = of(&[f32::INFINITY, f32::NAN, 1.0, 2.0]);
    let mask = Tensor::from_slice(&device, &[false, false, false, true], [2, 2]).unwrap();
    let options = AttentionOptions::default();
    let seen = query.attention(&key, &value, Some(&mask), options).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(seen[..2], [0.0; 2]);
    // Where all scores are -∞, the result and the gradients are 0.
    let (query, key, value) = (of(&[1e30; 4]), of(&[-1e30; 4]), of(&[1.0; 4]));
    let result = query.attention(&key, &value, None, options).unwrap();
    assert_eq!(result.to_vec::<f32>().unwrap(), [0.0; 4]);
    let gradients = result.sum_all().unwrap().backward().unwrap();
    for leaf in [&query, &key, &value] {
        assert_eq!(gradients.get(leaf).unwrap().to_vec::<f32>().unwrap(), [0.0; 4]);
    }
}

#[test]
fn sizes_beyond_all_memory_are_refused_and_not_multiplied_out() {
    let device = device();
    let zeros = |dims: &[usize]| Tensor::zeros(&device, dims).unwrap();
    let huge = Conv2dOptions { groups: usize::MAX, ..Conv2dOptions::default() };
    assert!(zeros(&[1, 4, 5, 5]).conv2d(&zeros(&[2, 3, 3, 3]), huge).is_err());
    let nothing = zeros(&[1 << 40, 1 << 40, 0]);
    assert_eq!(nothing.group_norm(1 << 40, None, 1e-5).unwrap().dims(), nothing.dims());
}

#[test]
fn a_pool_passes_nan_on() {
    let device = device();
    let x = Tensor::from_slice(&device, &[1.0f32, f32::NAN, 3.0, 4.0], [1, 2, 2]).unwrap();
    assert!(x.max_pool2d(Pool2dOptions::square(2)).unwrap().to_vec::<f32>().unwrap()[0].is_nan());
}

#[test]
fn norms_bring_rows_to_their_scale() {
    for_each_round(|device, numbers| {
        let dims = [1 + numbers.below(5), 1 + numbers.below(300)];
        let (x, rows) = random(device, numbers, &dims);
        let (w, weight) = random(device, numbers, &dims[1..]);
        let (b, bias) = random(device, numbers, &dims[1..]);
        let count = dims[1] as f64;
        let normed = |centered: bool| -> Vec<f64> {
            x.chunks(dims[1])
                .flat_map(|row| {
                    let mean = if centered { row.iter().sum::<f64>() / count } else { 0.0 };
                    let square = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                    row.iter().map(move |x| (x - mean) / (square + 1e-3).sqrt())
                })
                .collect()
        };
        let scaled: Vec<f64> =
            normed(true).iter().enumerate().map(|(i, x)| x * w[i % dims[1]] + b[i % dims[1]]).collect();
        assert_close(rows.layer_norm(None, 1e-3), &dims, &normed(true));
        assert_close(rows.layer_norm(Some((&weight, &bias)), 1e-3), &dims, &scaled);
        assert_close(rows.rms_norm(None, 1e-3), &dims, &normed(false));
    });
}

/// Against Σ x̂ g and Σ g, which other ops make: rows that are cut into slabs, parameters that fill no tile or several, of one
/// place or of several, operands that lie across.
#[test]
fn the_gradients_of_a_norms_parameters_are_sums_over_all_rows() {
    let (device, rng) = (device(), Rng::new(4));
    let positive = |dims: &[usize]| {
        Tensor::uniform(&device, dims, 0.5, 1.5, &rng).unwrap().to_dtype(DType::F64).unwrap()
    };
    let close = |sum: &Tensor, expected: Result<Tensor>| {
        let expected = expected.unwrap().reshape([sum.elements()]).unwrap().to_vec::<f64>().unwrap();
        assert_close(sum.reshape([sum.elements()]), &[sum.elements()], &expected);
    };
    let small = [[1, 3], [17, 64], [200, 130]];
    let large = [[3000, 70], [1037, 130], [5, 2100], [70_000, 2]];
    let emulated = env!("CARGO_CRATE_NAME").starts_with("cuda");
    for &[rows, width] in small.iter().chain(if emulated { &[][..] } else { &large }) {
        for across in [false, true] {
            let random = |rows: usize, width: usize| match across {
                false => positive(&[rows, width]),
                true => positive(&[width, rows]).t().unwrap(),
            };
            let (x, g) = (random(rows, width), random(rows, width));
            let [w, b] = [1, 2].map(|_| positive(&[width]).requiring_grad().unwrap());
            let y = x.layer_norm(Some((&w, &b)), 1e-5).unwrap();
            let gradients = y.mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
            let normal = x.layer_norm(None, 1e-5).unwrap();
            close(gradients.get(&w).unwrap(), normal.mul(&g).unwrap().sum(0));
            close(gradients.get(&b).unwrap(), g.sum(0));
            // Only the weight requires a gradient.
            let fixed = b.detach();
            let y = x.layer_norm(Some((&w, &fixed)), 1e-5).unwrap();
            let alone = y.mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
            assert_eq!(alone.get(&w).unwrap().to_vec::<f64>(), gradients.get(&w).unwrap().to_vec::<f64>());
            assert_eq!(alone.len(), 1);
            let y = x.rms_norm(Some(&w), 1e-5).unwrap();
            let gradients = y.mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
            close(gradients.get(&w).unwrap(), x.rms_norm(None, 1e-5).unwrap().mul(&g).unwrap().sum(0));
        }
    }
    for [n, groups, of_group, places] in [[3, 2, 5, 1], [100, 4, 20, 1], [3, 2, 5, 700], [40, 1, 3, 9]] {
        let channels = groups * of_group;
        let (x, g) = (positive(&[n, channels, places]), positive(&[n, channels, places]));
        let [w, b] = [1, 2].map(|_| positive(&[channels]).requiring_grad().unwrap());
        let y = x.group_norm(groups, Some((&w, &b)), 1e-5).unwrap();
        let gradients = y.mul(&g).unwrap().sum_all().unwrap().backward().unwrap();
        let normal = x.group_norm(groups, None, 1e-5).unwrap();
        close(gradients.get(&w).unwrap(), normal.mul(&g).unwrap().sum([0, 2]));
        close(gradients.get(&b).unwrap(), g.sum([0, 2]));
    }
}

#[test]
fn attention_is_a_softmax_over_the_keys_that_are_seen() {
    for_each_round(|device, numbers| {
        let [heads, queries, keys, width, values] = [3, 150, 150, 5, 4].map(|most| 1 + numbers.below(most));
        let causal = numbers.below(2) == 0;
        let masked = numbers.below(2) == 0;
        let (q, query) = random(device, numbers, &[heads, queries, width]);
        let (k, key) = random(device, numbers, &[heads, keys, width]);
        let (v, value) = random(device, numbers, &[heads, keys, values]);
        let allowed: Vec<bool> = (0..queries * keys).map(|_| !masked || numbers.below(3) > 0).collect();
        let mask = Tensor::from_slice(device, &allowed, [queries, keys]).unwrap();
        let mut expected = Vec::new();
        for row in 0..heads * queries {
            let (head, i) = (row / queries, row % queries);
            let sees = |j: &usize| allowed[i * keys + j] && (!causal || *j + queries <= i + keys);
            let score = |j: usize| -> f64 {
                let pairs = (0..width).map(|e| q[row * width + e] * k[(head * keys + j) * width + e]);
                pairs.sum::<f64>() / (width as f64).sqrt()
            };
            let weights: Vec<(usize, f64)> = (0..keys).filter(sees).map(|j| (j, score(j).exp())).collect();
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            for e in 0..values {
                let total: f64 = weights.iter().map(|(j, p)| p * v[(head * keys + j) * values + e]).sum();
                expected.push(if weights.is_empty() { 0.0 } else { total / sum });
            }
        }
        let options = AttentionOptions { causal, ..AttentionOptions::default() };
        let result = query.attention(&key, &value, masked.then_some(&mask), options);
        assert_close(result, &[heads, queries, values], &expected);
        // The mask adds -∞ to hidden scores and one constant to all others. Each head has its own mask.
        let hidden: Vec<f64> =
            allowed.iter().map(|&allowed| if allowed { 3.5 } else { f64::NEG_INFINITY }).collect();
        let added = Tensor::from_slice(device, &hidden, [queries, keys]).unwrap();
        let added = Tensor::stack(&vec![&added; heads], 0).unwrap();
        let result = query.attention(&key, &value, Some(&added), options);
        assert_close(result, &[heads, queries, values], &expected);
    });
}

#[test]
fn causal_attention_of_new_queries_sees_all_earlier_keys() {
    let device = device();
    let options = AttentionOptions { causal: true, scale: None };
    // With equal scores and the identity as values, a row has 1 / n at each of the n keys that a query sees.
    let weights = |queries: usize, keys: usize| {
        let query = Tensor::zeros_of(&device, [1, queries, 2], DType::F64).unwrap();
        let key = Tensor::zeros_of(&device, [1, keys, 2], DType::F64).unwrap();
        let value = Tensor::arange(&device, 0, keys).unwrap().one_hot(keys).unwrap();
        let value = value.to_dtype(DType::F64).unwrap().unsqueeze(0).unwrap();
        let tiled = query.attention(&key, &value, None, options).unwrap().to_vec::<f64>().unwrap();
        let rng = Rng::new(0);
        let whole = query.attention_with_dropout(&key, &value, None, options, 1e-12, &rng).unwrap();
        assert_close(Ok(whole), &[1, queries, keys], &tiled);
        tiled
    };
    let row = |seen: usize, keys: usize| {
        (0..keys).map(move |key| if key < seen { 1.0 / seen as f64 } else { 0.0 }).collect::<Vec<_>>()
    };
    for (queries, keys) in [(1, 6), (3, 6), (6, 6), (70, 130), (1, 65)] {
        let expected: Vec<f64> = (0..queries).flat_map(|i| row(keys - queries + i + 1, keys)).collect();
        for (got, expected) in weights(queries, keys).into_iter().zip(expected) {
            assert!((got - expected).abs() < 1e-12, "{queries} queries, {keys} keys");
        }
    }
    // The first queries see no key if there are fewer keys.
    assert_eq!(weights(3, 2), [0.0, 0.0, 1.0, 0.0, 0.5, 0.5]);
    let before = weights(130, 1);
    assert!(before[..129].iter().all(|&weight| weight == 0.0) && before[129] == 1.0);
}

#[test]
fn heads_of_keys_can_serve_several_heads_of_queries() {
    let device = device();
    let numbers = &mut Numbers::new(17);
    for (queries, keys, causal) in
        [(5, 5, true), (1, 9, true), (70, 66, false), (66, 140, true), (140, 66, true)]
    {
        let leaf = |numbers: &mut Numbers, dims: &[usize]| {
            random(&device, numbers, dims).1.requiring_grad().unwrap()
        };
        let query = leaf(numbers, &[2, 6, queries, 4]);
        let (key, value) = (leaf(numbers, &[2, 2, keys, 4]), leaf(numbers, &[2, 2, keys, 3]));
        let added = leaf(numbers, &[2, 6, queries, keys]);
        let (_, upstream) = random(&device, numbers, &[2, 6, queries, 3]);
        let options = AttentionOptions { causal, scale: Some(0.6) };
        let outcome = |key: &Tensor, value: &Tensor, mask: Option<&Tensor>| {
            let y = query.attention(key, value, mask, options).unwrap();
            let gradients = y.mul(&upstream).unwrap().sum_all().unwrap().backward().unwrap();
            (y, gradients)
        };
        for mask in [None, Some(&added)] {
            let (y, gradients) = outcome(&key, &value, mask);
            let [key_copies, value_copies] = [&key, &value].map(|part| part.repeat_interleave(1, 3).unwrap());
            let (expected, by_copies) = outcome(&key_copies, &value_copies, mask);
            assert_eq!(y.to_vec::<f64>().unwrap(), expected.to_vec::<f64>().unwrap());
            for leaf in [&query, &key, &value, &added].into_iter().take(if mask.is_some() { 4 } else { 3 }) {
                let expected = by_copies.get(leaf).unwrap().to_vec::<f64>().unwrap();
                assert_close(Ok(gradients.get(leaf).unwrap().clone()), leaf.dims(), &expected);
            }
            let rng = Rng::new(2);
            let state = rng.state();
            let dropped = query.attention_with_dropout(&key, &value, mask, options, 0.3, &rng).unwrap();
            rng.set_state(state);
            let copies = [&key_copies, &value_copies];
            let expected =
                query.attention_with_dropout(copies[0], copies[1], mask, options, 0.3, &rng).unwrap();
            assert_eq!(dropped.to_vec::<f64>().unwrap(), expected.to_vec::<f64>().unwrap());
        }
    }
    let heads = |count: usize| Tensor::zeros(&device, [2, count, 5, 4]).unwrap();
    let error = heads(6).attention(&heads(4), &heads(4), None, AttentionOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "attention: shapes [2, 6, 5, 4] and [2, 4, 5, 4] do not match: the heads of keys must divide those of queries"
    );
    for key_heads in [0, 12] {
        let keys = heads(key_heads);
        assert!(heads(6).attention(&keys, &keys, None, AttentionOptions::default()).is_err());
    }
}

#[test]
fn keys_in_a_larger_buffer_are_not_copied() {
    let device = device();
    let numbers = &mut Numbers::new(23);
    let (_, room) = random(&device, numbers, &[3, 2, 100, 4]);
    let (_, query) = random(&device, numbers, &[3, 4, 2, 4]);
    let keys = room.slice(2, 10..80).unwrap();
    let apart = keys.contiguous().unwrap();
    let options = AttentionOptions { causal: true, scale: None };
    let allocator = device.default_allocator().unwrap();
    let peak = |keys: &Tensor| {
        assert!(allocator.clear_stats());
        let before = allocator.stats().bytes_in_use;
        let y = no_grad(|| query.attention(keys, keys, None, options)).unwrap();
        (allocator.stats().peak_bytes_in_use - before, y)
    };
    let ((of_view, y), (of_copy, expected)) = (peak(&keys), peak(&apart));
    assert_eq!(of_view, of_copy);
    assert_eq!(y.to_vec::<f64>().unwrap(), expected.to_vec::<f64>().unwrap());
    // Rows that are not contiguous are copied.
    let across = keys.transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap();
    let again = query.attention(&across, &across, None, options).unwrap();
    assert_eq!(again.to_vec::<f64>().unwrap(), y.to_vec::<f64>().unwrap());
}

#[test]
fn tiled_attention_has_the_composed_gradient() {
    for (queries, keys) in [(130, 130), (3, 130), (70, 200), (130, 67)] {
        composed_gradient_of_attention(queries, keys);
    }
}

fn composed_gradient_of_attention(queries: usize, keys: usize) {
    let device = device();
    let numbers = &mut Numbers::new(5);
    let leaves: Vec<Tensor> = [[2, queries, 3], [2, keys, 3], [2, keys, 2], [1, queries, keys]]
        .iter()
        .map(|dims| random(&device, numbers, dims).1.requiring_grad().unwrap())
        .collect();
    let (_, upstream) = random(&device, numbers, &[2, queries, 2]);
    let ones = Tensor::ones_of(&device, [queries, keys], DType::F64).unwrap();
    let later: Vec<bool> = (0..queries * keys).map(|at| at % keys + queries > at / keys + keys).collect();
    let later = Tensor::from_slice(&device, &later, [queries, keys]).unwrap();
    // The first queries see no key if there are fewer keys: their result and gradients are 0.
    let sees = Tensor::arange(&device, 0, queries).unwrap().ge(queries.saturating_sub(keys)).unwrap();
    let upstream = upstream.mul(&sees.to_dtype(DType::F64).unwrap().unsqueeze(1).unwrap()).unwrap();
    let fused = leaves[0]
        .attention(
            &leaves[1],
            &leaves[2],
            Some(&leaves[3]),
            AttentionOptions { causal: true, scale: Some(0.5) },
        )
        .unwrap();
    let scores = leaves[0].matmul(&leaves[1].t().unwrap()).unwrap().mul_scalar(0.5).unwrap();
    let scores = scores.add(&leaves[3]).unwrap();
    let hidden = later.where_(&ones.mul_scalar(-1e30).unwrap(), &scores).unwrap();
    let parts = hidden.softmax(-1).unwrap().matmul(&leaves[2]).unwrap();
    let [fused, parts] =
        [fused, parts].map(|y| y.mul(&upstream).unwrap().sum_all().unwrap().backward().unwrap());
    for leaf in &leaves {
        let expected = parts.get(leaf).unwrap().to_vec::<f64>().unwrap();
        assert_close(Ok(fused.get(leaf).unwrap().clone()), leaf.dims(), &expected);
    }
}

#[test]
fn weights_of_attention_are_dropped_or_scaled() {
    let device = device();
    let numbers = &mut Numbers::new(8);
    let (_, query) = random(&device, numbers, &[20, 30, 4]);
    let (_, key) = random(&device, numbers, &[20, 40, 4]);
    // With these values the results are the weights.
    let value = Tensor::arange(&device, 0, 40).unwrap().one_hot(40).unwrap().to_dtype(DType::F64).unwrap();
    let value = value.broadcast_to([20, 40, 40]).unwrap();
    let (options, rng) = (AttentionOptions { causal: true, scale: None }, Rng::new(1));
    let weights = query.attention(&key, &value, None, options).unwrap().to_vec::<f64>().unwrap();
    let dropped = query.attention_with_dropout(&key, &value, None, options, 0.25, &rng).unwrap();
    let (mut visible, mut kept) = (0, 0);
    for (weight, dropped) in weights.into_iter().zip(dropped.to_vec::<f64>().unwrap()) {
        assert!(dropped == 0.0 || (dropped - weight / 0.75).abs() < 1e-12, "{weight} became {dropped}");
        visible += usize::from(weight != 0.0);
        kept += usize::from(dropped != 0.0);
    }
    // The last query sees all 40 keys.
    assert_eq!(visible, 20 * (11..=40).sum::<usize>());
    assert!((72 * visible..78 * visible).contains(&(100 * kept)), "{kept} of {visible} at p = 1/4");

    let before = rng.state();
    let none = query.attention_with_dropout(&key, &value, None, options, 0.0, &rng).unwrap();
    let plain = query.attention(&key, &value, None, options).unwrap();
    assert_eq!(none.to_vec::<f64>().unwrap(), plain.to_vec::<f64>().unwrap());
    for p in [1.0, -0.1, f64::NAN] {
        let refused = query.attention_with_dropout(&key, &value, None, options, p, &rng).unwrap_err();
        let op = "attention_with_dropout";
        assert!(
            matches!(refused, Error::BadArgument { op: name, argument: "p", .. } if name == op),
            "{refused}"
        );
    }
    assert!(query.attention_with_dropout(&value, &key, None, options, 0.5, &rng).is_err());
    assert_eq!(rng.state(), before, "nothing was drawn");
}

#[test]
fn an_additive_mask_hides_keys_and_has_a_gradient() {
    let device = device();
    let numbers = &mut Numbers::new(9);
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        let make =
            |numbers: &mut Numbers, dims: &[usize]| random(&device, numbers, dims).1.to_dtype(dtype).unwrap();
        let (query, key) = (make(numbers, &[2, 3, 4]), make(numbers, &[2, 5, 4]));
        let value = make(numbers, &[2, 5, 2]);
        // The mask hides all keys from the last query.
        let seen: Vec<bool> = (0..15).map(|place| place < 10 && place % 4 != 1).collect();
        let seen = Tensor::from_slice(&device, &seen, [3, 5]).unwrap();
        let zeros = Tensor::zeros_of(&device, [3, 5], dtype).unwrap();
        let added = seen.where_(&zeros, &zeros.add_scalar(f64::NEG_INFINITY).unwrap()).unwrap();
        let added = added.requiring_grad().unwrap();
        let options = AttentionOptions::default();
        let chosen = query.attention(&key, &value, Some(&seen), options).unwrap();
        let summed = query.attention(&key, &value, Some(&added), options).unwrap();
        let [chosen, result] =
            [&chosen, &summed].map(|y| y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap());
        let digits = if dtype == DType::F64 { 1e-12 } else { 0.05 };
        for (a, b) in result.iter().zip(&chosen) {
            assert!((a - b).abs() <= digits, "{dtype}: {a} and {b}");
        }
        assert_eq!(result[4..6], [0.0, 0.0]);
        let gradients = summed.square().unwrap().sum_all().unwrap().backward().unwrap();
        let to_mask = gradients.get(&added).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
        for (place, slope) in to_mask.into_iter().enumerate() {
            let hidden = place >= 10 || place % 4 == 1;
            assert!(slope.is_finite() && (slope == 0.0) == hidden, "{dtype}, {place}: {slope}");
        }
    }
    let x = Tensor::zeros(&device, [2, 3]).unwrap();
    let other = Tensor::zeros_of(&device, [2, 2], DType::F64).unwrap();
    assert_eq!(
        x.attention(&x, &x, Some(&other), AttentionOptions::default()).unwrap_err().to_string(),
        "attention: mask must be of type bool, or of the queries' type to be added, got f64 of shape [2, 2] for a tensor of shape [2, 3]"
    );
}

#[test]
fn attention_memory_is_linear_in_the_sequence_length() {
    let device = device();
    let peak = |len: usize, mask: Option<DType>| {
        let x = Tensor::zeros(&device, [3, 1, len, 8]).unwrap().requiring_grad().unwrap();
        let allocator = device.default_allocator().unwrap();
        assert!(allocator.clear_stats());
        let before = allocator.stats().bytes_in_use;
        // The mask is broadcast over the queries.
        let mask = mask.map(|dtype| Tensor::ones_of(&device, [3, 1, 1, len], dtype).unwrap());
        let y = x.attention(&x, &x, mask.as_ref(), AttentionOptions::default()).unwrap();
        drop(y.sum_all().unwrap().backward().unwrap());
        allocator.stats().peak_bytes_in_use - before
    };
    for mask in [None, Some(DType::Bool), Some(DType::F32)] {
        let (short, long) = (peak(512, mask), peak(2048, mask));
        assert!(long < 5 * short, "with a mask {mask:?} {short} bytes became {long}");
    }
}

#[test]
fn operands_that_do_not_fit_are_named() {
    let device = device();
    let zeros = |dims: &[usize]| Tensor::zeros(&device, dims).unwrap();
    let plain = Conv2dOptions::default();
    let message = |result: Result<Tensor>| result.unwrap_err().to_string();
    let image = zeros(&[1, 4, 5, 5]);
    assert_eq!(
        message(image.conv2d(&zeros(&[2, 3, 3, 3]), plain)),
        "conv2d: shapes [1, 4, 5, 5] and [2, 3, 3, 3] do not match: the channels must be groups times those of the weight, \
         and the groups must divide its filters"
    );
    assert_eq!(
        message(image.conv2d(&zeros(&[2, 4, 6, 3]), plain)),
        "conv2d: weight must be a window that fits into the padded image, got a window of [6, 3] on [5, 5] with padding \
         [0, 0] (shapes [1, 4, 5, 5] and [2, 4, 6, 3])"
    );
    let wide = Conv2dOptions { dilation: [1, 3], ..Conv2dOptions::padded(0) };
    assert!(
        message(image.conv2d(&zeros(&[2, 4, 3, 3]), wide))
            .contains("[3, 3] on [5, 5] with padding [0, 0] and dilation [1, 3] (")
    );
    assert!(
        message(zeros(&[1, 4, 5]).conv1d(&zeros(&[2, 4, 8]), Conv1dOptions::padded(1)))
            .ends_with("a window of [8] on [5] with padding [1] (shapes [1, 4, 5] and [2, 4, 8])")
    );
    assert!(
        message(zeros(&[1, 4, 2, 2]).conv_transpose2d(&zeros(&[4, 2, 2, 2]), Conv2dOptions::padded(2)))
            .contains("a window that gives an output, got a window of [2, 2] on [2, 2] with padding [2, 2], moved by [1, 1]")
    );
    let still = Conv2dOptions { stride: [0, 1], ..plain };
    assert_eq!(
        message(image.conv2d(&zeros(&[2, 4, 3, 3]), still)),
        "conv2d: stride must be at least 1, got [0, 1]"
    );
    assert!(matches!(
        image.conv1d(&image, Conv1dOptions::default()),
        Err(Error::BadRank { op: "conv1d", .. })
    ));
    assert!(matches!(
        image.max_pool2d(Pool2dOptions { padding: [2, 0], ..Pool2dOptions::square(3) }),
        Err(Error::BadArgument { op: "max_pool2d", .. })
    ));
    assert!(matches!(
        image.avg_pool2d(Pool2dOptions::square(6)),
        Err(Error::BadArgument { op: "avg_pool2d", .. })
    ));
    assert_eq!(
        message(image.layer_norm(Some((&zeros(&[4]), &zeros(&[5]))), 1e-5)),
        "layer_norm: shapes [1, 4, 5, 5] and [4] do not match: a parameter must have one element per element of a row"
    );
    assert_eq!(
        message(image.group_norm(3, None, 1e-5)),
        "group_norm: groups must be a divisor of the number of channels, got 3 for 4 channels"
    );
    let options = AttentionOptions::default();
    assert_eq!(
        message(image.attention(&zeros(&[1, 4, 5, 6]), &image, None, options)),
        "attention: shapes [1, 4, 5, 5] and [1, 4, 5, 6] do not match: queries must be [.., queries, width], keys [.., keys, width], and values [.., keys, _]"
    );
    assert_eq!(image.conv2d(&zeros(&[2, 4, 3, 3]), plain).unwrap().dims(), [1, 2, 3, 3]);
}

#[test]
fn batches_of_nothing_have_results_of_nothing() {
    let device = device();
    let zeros = |dims: &[usize]| Tensor::zeros(&device, dims).unwrap().requiring_grad().unwrap();
    let (images, weight) = (zeros(&[0, 2, 4, 4]), zeros(&[3, 2, 3, 3]));
    let y = images.conv2d(&weight, Conv2dOptions::default()).unwrap();
    assert_eq!(y.dims(), [0, 3, 2, 2]);
    let gradients = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&weight).unwrap().to_vec::<f32>().unwrap(), [0.0; 54]);
    assert_eq!(images.max_pool2d(Pool2dOptions::square(2)).unwrap().dims(), [0, 2, 2, 2]);
    let rows = zeros(&[0, 7]);
    assert_eq!(rows.layer_norm(None, 1e-5).unwrap().dims(), [0, 7]);
    let heads = zeros(&[0, 3, 4]);
    assert_eq!(heads.attention(&heads, &heads, None, AttentionOptions::default()).unwrap().dims(), [0, 3, 4]);
}

/// Asserts that each element is right, by its place and value.
#[track_caller]
fn assert_right(x: &Tensor, what: &str, is_right: impl Fn(usize, f64) -> bool) {
    let values = x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    for (place, value) in values.into_iter().enumerate() {
        assert!(is_right(place, value), "{what} of {}: {value} at {place}", x.dtype());
    }
}

#[test]
fn convolutions_with_infinities_and_nan_are_direct_sums() {
    const CHANNELS: usize = 32;
    const SIZE: usize = 12;
    let device = device();
    let options = Conv2dOptions::padded(1);
    // One element at row 7 and column 4 of channel 5.
    let place = (5 * SIZE + 7) * SIZE + 4;
    let image = |value: f64| {
        let mut values = vec![1.0; CHANNELS * SIZE * SIZE];
        values[place] = value;
        Tensor::from_slice(&device, &values, [1, CHANNELS, SIZE, SIZE]).unwrap()
    };
    let is_near = |place: usize| {
        let (row, column) = (place / SIZE % SIZE, place % SIZE);
        (6..=8).contains(&row) && (3..=5).contains(&column)
    };
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for value in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            let is_value = |found: f64| found == value || found.is_nan() && value.is_nan();
            let of_type = |x: Tensor| x.to_dtype(dtype).unwrap().requiring_grad().unwrap();
            let weight = of_type(Tensor::full(&device, [CHANNELS, CHANNELS, 3, 3], 0.5).unwrap());
            // Each output that reads the element has its value.
            let x = of_type(image(value));
            let y = x.conv2d(&weight, options).unwrap();
            let is_right =
                |place: usize, found: f64| if is_near(place) { is_value(found) } else { found.is_finite() };
            assert_right(&y, "output", is_right);
            // The weight's gradient: each tap of channel 5 reads the element.
            let gradients = y.sum_all().unwrap().backward().unwrap();
            let is_right = |place: usize, found: f64| {
                if place / 9 % CHANNELS == 5 { is_value(found) } else { found.is_finite() }
            };
            assert_right(gradients.get(&weight).unwrap(), "weight", is_right);
            assert_right(gradients.get(&x).unwrap(), "input", |_, found| found.is_finite());
            // A gradient of the output that is not finite, in channel 5.
            let x = of_type(image(1.0));
            let y = x.conv2d(&weight, options).unwrap();
            let gradients =
                y.mul(&image(value).to_dtype(dtype).unwrap()).unwrap().sum_all().unwrap().backward();
            let gradients = gradients.unwrap();
            let is_right =
                |place: usize, found: f64| if is_near(place) { is_value(found) } else { found.is_finite() };
            assert_right(gradients.get(&x).unwrap(), "input of a gradient", is_right);
            let is_right = |place: usize, found: f64| {
                if place / (9 * CHANNELS) == 5 { is_value(found) } else { found.is_finite() }
            };
            assert_right(gradients.get(&weight).unwrap(), "weight of a gradient", is_right);
        }
    }
}

#[test]
fn ops_read_windows_that_overlap_as_they_read_copies() {
    let device = device();
    let x = Tensor::randn(&device, [3, 40], &Rng::new(1)).unwrap();
    type Function = fn(&Tensor) -> Result<Tensor>;
    let functions: &[(&str, Function)] = &[
        ("exp", |x| x.exp()),
        ("sum", |x| x.sum([0, 2])),
        ("max", |x| x.max(1)),
        ("cumsum", |x| x.cumsum(-1)),
        ("softmax", |x| x.softmax(-1)),
        ("layer_norm", |x| x.layer_norm(None, 1e-5)),
        ("matmul, batched", |x| x.matmul(&x.transpose(1, 2)?)),
        ("matmul", |x| x.at(0)?.t()?.matmul(&x.at(1)?)),
        ("concat", |x| Tensor::concat(&[x, x], 1)),
    ];
    for (size, step) in [(2, 1), (9, 1), (8, 4), (33, 1)] {
        let windows = x.unfold(1, size, step).unwrap();
        let copies = windows.contiguous().unwrap();
        for &(name, function) in functions {
            let values = |x: &Tensor| function(x).unwrap().to_vec::<f32>().unwrap();
            let pairs = values(&windows).into_iter().zip(values(&copies));
            let largest = pairs.map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max);
            assert!(largest < 1e-5, "{name} of {size} by {step}: {largest}");
        }
    }
}
