//! Arguments and sizes near the largest that can be counted: the right result or an error, and never an overflow.

use std::ops::Bound;

use crate::ops_table::{device, dry_device};
use highwater_tensor::{
    Conv2dOptions, DType, Device, Error, PadMode, Pool1dOptions, Pool2dOptions, Result, SortOrder, Tensor,
};

const MAX: usize = usize::MAX;
const HUGE: usize = 1 << 40;

/// More outputs are not computed here.
const MOST: i128 = 1 << 10;

/// More elements than this are more than can be addressed.
const UNCOUNTABLE: i128 = 1 << 62;

/// A window that slides along an axis, in numbers that do not overflow.
#[derive(Clone, Copy, Debug)]
struct Sliding {
    size: i128,
    stride: i128,
    padding: i128,
    dilation: i128,
}

impl Sliding {
    fn reach(&self) -> i128 {
        (self.size - 1) * self.dilation + 1
    }

    /// Outputs along an axis of `len` elements; none if the window does not fit, or if the padded axis cannot be counted.
    fn outputs(&self, len: usize) -> Option<i128> {
        let padded = len as i128 + 2 * self.padding;
        let fits = padded >= self.reach() && padded <= MAX as i128;
        fits.then(|| (padded - self.reach()) / self.stride + 1)
    }

    /// The element that an output sees as its `tap`-th.
    fn at(&self, output: usize, tap: usize, len: usize) -> Option<usize> {
        let place = output as i128 * self.stride + tap as i128 * self.dilation - self.padding;
        usize::try_from(place).ok().filter(|&place| place < len)
    }
}

fn wave(count: usize) -> Vec<f64> {
    (0..count).map(|i| 1.0 + (i * 5 % 7) as f64 / 4.0).collect()
}

/// `[n, channels, 1, len]` with the same values in each channel.
fn rows(device: &Device, n: usize, channels: usize, values: &[f64]) -> Result<Tensor> {
    let row = Tensor::from_slice(device, values, [1, 1, 1, values.len()])?;
    row.broadcast_to([n, channels, 1, values.len()])?.contiguous()
}

#[track_caller]
fn assert_rows(what: &str, found: &Tensor, expected: &[f64]) {
    let found = found.to_vec::<f64>().unwrap();
    for (place, a) in found.iter().enumerate() {
        let b = expected[place % expected.len()];
        assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{what}, element {place}: {a} instead of {b}");
    }
}

#[track_caller]
fn assert_refused(what: &str, found: Result<Tensor>) {
    let Err(error) = found else { panic!("{what}: not refused") };
    let typed = matches!(error, Error::BadArgument { .. } | Error::TooManyElements { .. });
    assert!(typed, "{what}: {error}");
}

#[test]
fn convolutions_take_any_stride_padding_and_dilation() {
    let (device, dry) = (device(), dry_device());
    let mut computed = 0;
    // By single threads of a GPU, and by tiles.
    for [n, channels, filters] in [[2, 1, 1], [8, 64, 64]] {
        for (len, taps) in [(1, 1), (3, 1), (1, 2), (5, 3)] {
            for stride in [1, 2, 1 << 62, 3 << 61, MAX - 1, MAX] {
                for padding in [0, 1, 1 << 61, 1 << 62, 3 << 61, MAX / 2, MAX] {
                    for dilation in [1, 2, 1 << 62, MAX / 2, 3 << 62, MAX] {
                        let what = format!(
                            "{taps} taps on {len}, stride {stride}, padding {padding}, dilation {dilation}"
                        );
                        let options = Conv2dOptions {
                            stride: [1, stride],
                            padding: [0, padding].into(),
                            dilation: [1, dilation],
                            ..Conv2dOptions::default()
                        };
                        let window = Sliding {
                            size: taps as i128,
                            stride: stride as i128,
                            padding: padding as i128,
                            dilation: dilation as i128,
                        };
                        let (x, w) = (wave(len), wave(taps));
                        let run = |device: &Device| {
                            let leaf = |n, channels, values: &[f64]| {
                                rows(device, n, channels, values).unwrap().requiring_grad().unwrap()
                            };
                            let (x, w) = (leaf(n, channels, &x), leaf(filters, channels, &w));
                            let y = x.conv2d(&w, options);
                            (x, w, y)
                        };
                        let outputs = match window.outputs(len) {
                            Some(outputs) if outputs <= MOST => outputs as usize,
                            Some(outputs) if outputs < UNCOUNTABLE => continue,
                            _ => {
                                assert_refused(&what, run(&device).2);
                                assert_refused(&what, run(&dry).2);
                                continue;
                            }
                        };
                        computed += 1;
                        assert_eq!(run(&dry).2.unwrap().dims(), [n, filters, 1, outputs], "{what}");
                        let (x_leaf, w_leaf, y) = run(&device);
                        let (y, upstream) = (y.unwrap(), wave(outputs));
                        let mut expected = vec![0.0; outputs];
                        let (mut to_x, mut to_w) = (vec![0.0; len], vec![0.0; taps]);
                        for (output, up) in upstream.iter().enumerate() {
                            for tap in 0..taps {
                                if let Some(place) = window.at(output, tap, len) {
                                    expected[output] += channels as f64 * x[place] * w[tap];
                                    to_x[place] += filters as f64 * up * w[tap];
                                    to_w[tap] += n as f64 * up * x[place];
                                }
                            }
                        }
                        assert_rows(&what, &y, &expected);
                        let up = rows(&device, n, filters, &upstream).unwrap();
                        let gradients = y.mul(&up).unwrap().sum_all().unwrap().backward().unwrap();
                        assert_rows(&format!("{what}, images"), gradients.get(&x_leaf).unwrap(), &to_x);
                        assert_rows(&format!("{what}, filters"), gradients.get(&w_leaf).unwrap(), &to_w);
                    }
                }
            }
        }
    }
    assert!(computed > 200, "{computed}");
}

#[test]
fn transposed_convolutions_take_any_options() {
    let device = device();
    let mut computed = 0;
    for (len, taps) in [(1, 1), (1, 3), (2, 2)] {
        for stride in [1, 3, 1 << 62, MAX] {
            for padding in [0, 1, 1 << 62, MAX / 2, MAX] {
                for dilation in [1, 1 << 62, MAX - 1, MAX] {
                    for output_padding in [0, 1, MAX - 1] {
                        let options = Conv2dOptions {
                            stride: [1, stride],
                            padding: [0, padding].into(),
                            dilation: [1, dilation],
                            output_padding: [0, output_padding],
                            groups: 1,
                        };
                        let (x, w) = (wave(len), wave(taps));
                        let leaf =
                            |values: &[f64]| rows(&device, 1, 1, values).unwrap().requiring_grad().unwrap();
                        let (x_leaf, w_leaf) = (leaf(&x), leaf(&w));
                        let y = x_leaf.conv_transpose2d(&w_leaf, options);
                        let what = format!("{taps} taps on {len}, {options:?}");
                        let (stride, padding, dilation) = (stride as i128, padding as i128, dilation as i128);
                        let whole = (len as i128 - 1) * stride + (taps as i128 - 1) * dilation + 1;
                        let size = whole + output_padding as i128 - 2 * padding;
                        let uncountable =
                            whole + output_padding as i128 > MAX as i128 || 2 * padding > MAX as i128;
                        let bad = output_padding as i128 >= stride.max(dilation) || size <= 0 || uncountable;
                        if bad || size >= UNCOUNTABLE {
                            assert_refused(&what, y);
                            continue;
                        }
                        if size > MOST {
                            continue;
                        }
                        computed += 1;
                        let (y, upstream) = (y.unwrap(), wave(size as usize));
                        let (mut expected, mut to_x, mut to_w) =
                            (vec![0.0; size as usize], vec![0.0; len], vec![0.0; taps]);
                        for (i, value) in x.iter().enumerate() {
                            for (tap, weight) in w.iter().enumerate() {
                                let place = i as i128 * stride + tap as i128 * dilation - padding;
                                let place =
                                    usize::try_from(place).ok().filter(|&place| place < expected.len());
                                if let Some(place) = place {
                                    expected[place] += value * weight;
                                    to_x[i] += upstream[place] * weight;
                                    to_w[tap] += upstream[place] * value;
                                }
                            }
                        }
                        assert_rows(&what, &y, &expected);
                        let up = rows(&device, 1, 1, &upstream).unwrap();
                        let gradients = y.mul(&up).unwrap().sum_all().unwrap().backward().unwrap();
                        assert_rows(&format!("{what}, images"), gradients.get(&x_leaf).unwrap(), &to_x);
                        assert_rows(&format!("{what}, filters"), gradients.get(&w_leaf).unwrap(), &to_w);
                    }
                }
            }
        }
    }
    assert!(computed > 20, "{computed}");
}

#[test]
fn pools_take_any_size_stride_and_padding() {
    let device = device();
    let mut computed = 0;
    for len in [1, 2, 5] {
        for size in [1, 2, 3, 1 << 62, MAX / 2, MAX - 1, MAX] {
            for stride in [1, 2, 1 << 32, (1 << 32) + 1, 1 << 62, MAX - 1, MAX] {
                for padding in [0, 1, size / 2] {
                    let x = wave(len);
                    let leaf = rows(&device, 2, 1, &x).unwrap().requiring_grad().unwrap();
                    let options = Pool2dOptions {
                        size: [1, size],
                        stride: [1, stride],
                        padding: [0, padding],
                        ..Pool2dOptions::square(1)
                    };
                    let (largest, mean) = (leaf.max_pool2d(options), leaf.avg_pool2d(options));
                    let row = leaf.max_pool1d(Pool1dOptions { stride, padding, ..Pool1dOptions::new(size) });
                    let what = format!("{options:?} on {len}");
                    let window = Sliding {
                        size: size as i128,
                        stride: stride as i128,
                        padding: padding as i128,
                        dilation: 1,
                    };
                    let outputs = match window.outputs(len).filter(|_| padding <= size / 2) {
                        Some(outputs) if outputs <= MOST => outputs as usize,
                        Some(outputs) if outputs < UNCOUNTABLE => continue,
                        _ => {
                            assert_refused(&what, largest);
                            assert_refused(&what, mean);
                            assert_refused(&what, row);
                            continue;
                        }
                    };
                    computed += 1;
                    let upstream = wave(outputs);
                    let (mut best, mut means) = (vec![f64::NEG_INFINITY; outputs], vec![0.0; outputs]);
                    let (mut of_best, mut of_means) = (vec![0.0; len], vec![0.0; len]);
                    for output in 0..outputs {
                        let start = output as i128 * window.stride - window.padding;
                        let seen = |place: &usize| (start..start + window.size).contains(&(*place as i128));
                        let mut at = 0;
                        for place in (0..len).filter(seen) {
                            if x[place] > best[output] {
                                (best[output], at) = (x[place], place);
                            }
                            means[output] += x[place] / size as f64;
                            of_means[place] += upstream[output] / size as f64;
                        }
                        of_best[at] += upstream[output];
                    }
                    let up = rows(&device, 2, 1, &upstream).unwrap();
                    for (y, values, gradient) in
                        [(largest, &best, &of_best), (mean, &means, &of_means), (row, &best, &of_best)]
                    {
                        let y = y.unwrap();
                        assert_rows(&what, &y, values);
                        let gradients = y.mul(&up).unwrap().sum_all().unwrap().backward().unwrap();
                        assert_rows(&format!("{what}, gradient"), gradients.get(&leaf).unwrap(), gradient);
                    }
                }
            }
        }
    }
    assert!(computed > 100, "{computed}");
}

#[test]
fn adaptive_pools_refuse_outputs_that_cannot_be_counted() {
    let device = device();
    for dims in [[1, 4, 4], [0, 4, 4], [0, HUGE, HUGE]] {
        let x = Tensor::zeros(&device, dims).unwrap();
        for outputs in [MAX, MAX / 2, 1 << 62] {
            assert_refused("adaptive_max_pool2d", x.adaptive_max_pool2d([1, outputs]));
            assert_refused("adaptive_avg_pool2d", x.adaptive_avg_pool2d([outputs, 1]));
        }
    }
}

#[test]
fn windows_over_no_images_may_be_of_any_size() {
    let device = device();
    let images = Tensor::zeros(&device, [0, HUGE, HUGE]).unwrap().requiring_grad().unwrap();
    let has_no_gradient = |y: Result<Tensor>, dims: &[usize]| {
        let y = y.unwrap();
        assert_eq!(y.dims(), dims);
        let gradients = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(gradients.get(&images).unwrap().dims(), images.dims());
    };
    has_no_gradient(images.max_pool2d(2), &[0, HUGE / 2, HUGE / 2]);
    has_no_gradient(images.avg_pool2d(HUGE), &[0, 1, 1]);
    has_no_gradient(images.adaptive_max_pool2d([3, 5]), &[0, 3, 5]);
    has_no_gradient(images.max_pool1d(2), &[0, HUGE, HUGE / 2]);

    // Images of no columns, whose padding has two: rows may be more than can be counted with channels.
    let (channels, rows) = (1 << 13, 1 << 52);
    let x = Tensor::zeros(&device, [1, channels, rows, 0]).unwrap().requiring_grad().unwrap();
    let w = Tensor::ones(&device, [1, channels, 1, 1]).unwrap().requiring_grad().unwrap();
    let options = Conv2dOptions { padding: [0, 1].into(), stride: [rows / 2, 1], ..Conv2dOptions::default() };
    let y = x.conv2d(&w, options).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [0.0; 4]);
    let gradients = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&x).unwrap().dims(), x.dims());
    assert!(gradients.get(&w).unwrap().to_vec::<f32>().unwrap().iter().all(|&value| value == 0.0));
}

#[test]
fn tensors_without_elements_may_have_any_other_sizes() {
    let device = device();
    let zeros = |dims: &[usize]| Tensor::zeros(&device, dims).unwrap();
    let x = zeros(&[HUGE, HUGE, 0, 3]);
    assert_eq!(x.matmul(&zeros(&[3, 5])).unwrap().dims(), [HUGE, HUGE, 0, 5]);
    assert_eq!(x.matmul(&zeros(&[HUGE, HUGE, 3, 0])).unwrap().dims(), [HUGE, HUGE, 0, 0]);
    let y = zeros(&[HUGE, HUGE, 5, 0]);
    for axis in 0..3 {
        let expected: Vec<usize> =
            (0..4).filter(|&other| other != axis).map(|other| y.dims()[other]).collect();
        assert_eq!(y.argmax(axis as isize).unwrap().dims(), expected);
        assert_eq!(y.sum(axis as isize).unwrap().dims(), expected);
        assert_eq!(y.cumsum(axis as isize).unwrap().dims(), y.dims());
        assert_eq!(y.softmax(axis as isize).unwrap().dims(), y.dims());
        assert_eq!(y.argsort(axis as isize, SortOrder::Ascending).unwrap().dims(), y.dims());
        assert_eq!(y.flip(axis as isize).unwrap().dims(), y.dims());
        assert_eq!(y.roll(-1, axis as isize).unwrap().dims(), y.dims());
    }
    let places = Tensor::zeros_of(&device, [HUGE, HUGE, 2, 0], DType::I64).unwrap();
    let leaf = y.requiring_grad().unwrap();
    let picked = leaf.gather(2, &places).unwrap();
    assert_eq!(picked.dims(), places.dims());
    let gradients = picked.sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&leaf).unwrap().dims(), leaf.dims());
    let source = zeros(places.dims());
    assert_eq!(leaf.scatter_add(2, &places, &source).unwrap().dims(), leaf.dims());
    assert_eq!(places.one_hot(3).unwrap().dims(), [HUGE, HUGE, 2, 0, 3]);
}

#[test]
fn sizes_that_cannot_be_counted_are_errors() {
    let device = device();
    for dims in [[2, 3], [0, 3]] {
        let x = Tensor::zeros(&device, dims).unwrap();
        let too_many = |what: &str, found: Result<Tensor>| {
            assert!(matches!(found, Err(Error::TooManyElements { .. })), "{what} of {dims:?}: {found:?}");
        };
        for widths in [(MAX, 0), (0, MAX), (MAX / 2, MAX / 2), (MAX - 3, 1), (MAX, MAX)] {
            too_many("pad", x.pad([(0, 0), widths], 0.0));
            too_many("pad_with", x.pad_with([(0, 0), widths], PadMode::Replicate));
        }
        for times in [MAX, MAX / 2, MAX / 3 + 1] {
            too_many("tile", x.tile([1, times]));
            too_many("repeat_interleave", x.repeat_interleave(1, times));
        }
    }
    // As many as can be counted.
    let none = Tensor::zeros(&device, [0, 3]).unwrap();
    assert_eq!(none.pad([(0, 0), (MAX - 4, 1)], 0.0).unwrap().dims(), [0, MAX]);
    assert_eq!(none.tile([1, MAX / 3]).unwrap().dims(), [0, MAX]);
    let wide = none.tile([1, MAX / 3]).unwrap();
    assert!(matches!(Tensor::concat(&[&wide, &none], 1), Err(Error::TooManyElements { .. })));
    assert!(Tensor::arange(&device, 0, MAX).is_err());
    assert!(
        matches!(wide.broadcast_to([HUGE, 0, MAX]).map(|x| x.dims().to_vec()), Ok(dims) if dims == [HUGE, 0, MAX])
    );
}

#[test]
fn ranges_that_cannot_be_counted_leave_the_axis() {
    let device = device();
    let few = Tensor::zeros(&device, [0, 3]).unwrap();
    // The longest axis that there can be.
    let long = Tensor::zeros(&device, [0, MAX]).unwrap();
    for x in [few, long] {
        for (start, len) in [(1, MAX), (MAX, 1), (MAX - 1, 2), (MAX, MAX)] {
            let part = x.narrow(1, start, len);
            assert!(matches!(part, Err(Error::RangeOutOfBounds { .. })), "{start}, {len}: {part:?}");
        }
        assert!(matches!(x.slice(1, ..=MAX), Err(Error::RangeOutOfBounds { .. })));
        let behind = (Bound::Excluded(MAX), Bound::Unbounded);
        assert!(matches!(x.slice(1, behind), Err(Error::RangeOutOfBounds { .. })));
        assert_eq!(x.slice_step(1, .., MAX).unwrap().dims(), [0, 1]);
        assert_eq!(x.slice_step(1, 1..3, MAX - 1).unwrap().dims(), [0, 1]);
        assert_eq!(x.roll(isize::MIN, 1).unwrap().dims(), x.dims());
        assert!(x.split_sizes(1, [MAX, MAX]).is_err());
    }
    let row = Tensor::arange(&device, 0, 5).unwrap();
    assert_eq!(row.slice_step(0, 1.., MAX).unwrap().to_vec::<i64>().unwrap(), [1]);
    assert_eq!(
        row.roll(isize::MIN, 0).unwrap().to_vec::<i64>().unwrap(),
        row.roll(2, 0).unwrap().to_vec::<i64>().unwrap()
    );
}
