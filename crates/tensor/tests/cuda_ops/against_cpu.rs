//! Runs the tests of ops on the emulated CUDA device, and tests cases where kernels and the CPU could differ.

use crate::ops_table::counting::Counting;
use crate::ops_table::others::{self, others};
use crate::ops_table::{Case, cases, computed_by, device, dry_device, inputs, runtime};
use highwater_nn::modules::{Embedding, Linear, Module, Relu, Sequential};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_tensor::backend::{Binary, Compare, Domain, GradReads, Unary};
use highwater_tensor::{DType, Device, Error, Interpolation, Norm, Result, Rng, Tensor};

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Runs the same program on the CPU and on the emulated device. Returns the difference of the results,
/// relative to the larger.
fn difference(program: impl Fn(&Device) -> Result<Tensor>) -> f64 {
    let (here, there) = (runtime().cpu().unwrap(), device());
    let (here, there) = (program(&here).unwrap(), program(&there).unwrap());
    assert_eq!((here.dims(), here.dtype()), (there.dims(), there.dtype()));
    let apart = values(&here).into_iter().zip(values(&there)).map(|(a, b)| {
        if a == b || (a.is_nan() && b.is_nan()) {
            0.0
        } else {
            (a - b).abs() / a.abs().max(b.abs()).max(1e-30)
        }
    });
    apart.fold(0.0, f64::max)
}

/// Returns the result of a case, and the gradients of the inputs for a weighted sum of the result.
fn with_gradients(case: &Case, device: &Device) -> Result<Vec<Tensor>> {
    let leaves: Vec<Tensor> =
        inputs(case, device, DType::F32).into_iter().map(Tensor::requiring_grad).collect::<Result<_>>()?;
    let y = case.apply(&leaves)?;
    let weights: Vec<f32> = (0..y.elements()).map(|i| 0.5 + (i * 7 % 11) as f32 / 44.0).collect();
    let gradients = y.mul(&Tensor::from_slice(device, &weights, y.dims())?)?.sum_all()?.backward()?;
    let of_leaves = leaves.iter().filter_map(|leaf| gradients.get(leaf).cloned());
    Ok(std::iter::once(y.detach()).chain(of_leaves).collect())
}

#[test]
fn every_op_has_the_values_and_gradients_of_the_cpu() {
    let (cpu, gpu) = (runtime().cpu().unwrap(), device());
    for case in &cases() {
        let [here, there] = [&cpu, &gpu].map(|device| with_gradients(case, device).unwrap());
        assert_eq!(here.len(), there.len(), "{}", case.name);
        for (part, (here, there)) in here.iter().zip(&there).enumerate() {
            let (here, there) = (values(here), values(there));
            let size = here.iter().fold(1.0, |size: f64, value| size.max(value.abs()));
            for (a, b) in here.into_iter().zip(there) {
                assert!((a - b).abs() <= 1e-5 * size, "{}, part {part}: {a} and {b}", case.name);
            }
        }
    }
    for (name, function) in others() {
        let apart =
            difference(|device| function.apply(&others::inputs(device, DType::F32)?)?.to_dtype(DType::F64));
        assert!(apart < 1e-5, "{name}: {apart}");
    }
}

type Function = fn(&Tensor) -> Result<Tensor>;

/// Views of a matrix `[6, 50]`: contiguous, strided, with an offset, broadcast, empty.
const VIEWS: &[(&str, Function)] = &[
    ("contiguous", |x| Ok(x.clone())),
    ("transposed", |x| x.t()),
    ("from an offset on", |x| x.slice_step(1, 3.., 2)),
    ("broadcast", |x| x.narrow(0, 1, 1)?.broadcast_to([4, 50])),
    ("empty", |x| x.narrow(1, 7, 0)),
];

/// A matrix `[6, 50]` of numbers in the ranges of a function; for integers, in ranges 20 times as wide.
fn drawn(device: &Device, ranges: &[(f64, f64)], dtype: DType, seed: usize) -> Result<Tensor> {
    let scale = if dtype.is_float() { 1.0 } else { 20.0 };
    let number = |i: usize| {
        let (low, high) = ranges[i % ranges.len()];
        scale * (low + (high - low) * ((i * 37 + seed * 11) % 101) as f64 / 101.0)
    };
    Tensor::from_slice(device, &(0..300).map(number).collect::<Vec<_>>(), [6, 50])?.to_dtype(dtype)
}

/// Asserts that a program has the same results on both devices, except for the rounding of a function.
#[track_caller]
fn assert_same(what: &str, dtype: DType, program: impl Fn(&Device) -> Result<Tensor>) {
    let (here, there) = (program(&runtime().cpu().unwrap()).unwrap(), program(&device()).unwrap());
    assert_eq!((here.dims(), here.dtype()), (there.dims(), there.dtype()), "{what}");
    let tolerance = match dtype {
        DType::F64 => 1e-14,
        DType::F32 => 2e-6,
        DType::F16 => 2e-3,
        DType::BF16 => 2e-2,
        _ => 0.0,
    };
    for (a, b) in values(&here).into_iter().zip(values(&there)) {
        let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * a.abs().max(1.0);
        assert!(same, "{what} of {dtype}: {b} on the device instead of {a}");
    }
}

#[test]
fn every_unary_function_and_its_gradient_are_those_of_the_cpu() {
    for &f in Unary::ALL {
        let types = DType::ALL
            .into_iter()
            .filter(|&dtype| dtype.is_float() || f.domain() == Domain::Numbers && dtype != DType::Bool);
        for dtype in types {
            for (name, view) in VIEWS {
                let what = format!("{}, {name},", f.name());
                assert_same(&what, dtype, |device| view(&drawn(device, f.smooth(), dtype, 0)?)?.unary(f));
                if !dtype.is_float() || f.grad_reads() == GradReads::Flat {
                    continue;
                }
                assert_same(&format!("the gradient of {what}"), dtype, |device| {
                    let x = drawn(device, f.smooth(), dtype, 0)?.requiring_grad()?;
                    let y = view(&x)?.unary(f)?;
                    let weights = view(&drawn(device, &[(0.5, 1.5)], dtype, 1)?)?;
                    Ok(y.mul(&weights)?.sum_all()?.backward()?.take(&x).unwrap())
                });
            }
        }
    }
}

#[test]
fn every_binary_function_and_comparison_is_that_of_the_cpu() {
    for dtype in DType::ALL {
        for (name, view) in VIEWS {
            let supports = |f: Binary| match f.domain() {
                Domain::Floats => dtype.is_float(),
                Domain::Numbers | Domain::FloatsAndIntegers => dtype != DType::Bool,
            };
            for f in Binary::ALL.iter().copied().filter(|&f| supports(f)) {
                let [of_a, of_b] = f.smooth();
                assert_same(&format!("{}, {name},", f.name()), dtype, |device| {
                    let (a, b) = (drawn(device, of_a, dtype, 0)?, drawn(device, of_b, dtype, 1)?);
                    view(&a)?.binary(f, &view(&b)?.narrow(0, 0, 1)?)
                });
            }
            for &f in Compare::ALL {
                assert_same(&format!("{}, {name},", f.name()), dtype, |device| {
                    let (a, b) =
                        (drawn(device, &[(-2.0, 2.0)], dtype, 0)?, drawn(device, &[(-2.0, 2.0)], dtype, 1)?);
                    view(&a)?.compare(f, &view(&b)?)
                });
            }
        }
    }
}

/// Numbers far from 0, kinks, and numbers that are none.
const ENDS: &[f64] = &[
    0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    3.0,
    -3.0,
    4.0,
    -4.0,
    20.0,
    -20.0,
    100.0,
    -100.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

#[test]
fn functions_far_from_zero_are_those_of_the_cpu() {
    let ends = |device: &Device, dtype| Tensor::from_slice(device, ENDS, [ENDS.len()])?.to_dtype(dtype);
    for dtype in [DType::F32, DType::F64] {
        for &f in Unary::ALL {
            let what = format!("{}, far from 0,", f.name());
            assert_same(&what, dtype, |device| ends(device, dtype)?.unary(f));
        }
        for &f in Binary::ALL {
            let what = format!("{}, far from 0,", f.name());
            assert_same(&what, dtype, |device| {
                ends(device, dtype)?.unsqueeze(1)?.binary(f, &ends(device, dtype)?)
            });
        }
    }
}

#[test]
fn uniform_random_numbers_are_those_of_the_cpu_to_the_bit() {
    for dtype in [DType::F32, DType::F64] {
        let rng = Rng::new(7);
        let apart =
            difference(|device| Tensor::uniform_of(device, [3, 1001], -3.0, 200.0, &rng.fork(1), dtype));
        assert_eq!(apart, 0.0, "{dtype}");
    }
}

#[test]
fn normal_numbers_equal_those_of_the_cpu() {
    // See `Tensor::normal_of`. A 16-bit float is a rounded f32: the two devices may round to neighbors.
    for (dtype, most, neighbour) in [
        (DType::F32, 4e-6, 0.0),
        (DType::F64, 1e-14, 0.0),
        (DType::F16, 4e-6, 2f64.powi(-10)),
        (DType::BF16, 4e-6, 2f64.powi(-7)),
    ] {
        let drawn = |device: &Device| {
            values(&Tensor::normal_of(device, [100_003], 0.0, 1.0, &Rng::new(9).fork(1), dtype).unwrap())
        };
        let (here, there) = (drawn(&runtime().cpu().unwrap()), drawn(&device()));
        for (a, b) in here.into_iter().zip(there) {
            assert!((a - b).abs() <= most + neighbour * a.abs().max(b.abs()), "{dtype}: {a} and {b}");
        }
    }
}

/// Runs a few training steps. Returns the figures of the device and the last loss.
fn train(device: &Device) -> (bfc_core::Stats, Option<f64>) {
    let rng = Rng::new(1);
    let model = Sequential::new()
        .with("first", Linear::new(device, 20, 32, &rng).unwrap())
        .with("relu", Relu)
        .with("second", Linear::new(device, 32, 5, &rng).unwrap());
    let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
    let x = Tensor::uniform(device, [64, 20], -1.0, 1.0, &rng).unwrap();
    let classes: Vec<i64> = (0..64).map(|row| row * 7 % 5).collect();
    let y = Tensor::from_slice(device, &classes, 64).unwrap();
    let mut last = None;
    for _ in 0..10 {
        let loss = model.forward(&x).unwrap().cross_entropy(&y).unwrap();
        let gradients = loss.backward().unwrap();
        optimizer.step(gradients).unwrap();
        last = loss.item::<f32>().ok().map(f64::from);
    }
    (device.default_allocator().unwrap().stats(), last)
}

#[test]
fn training_has_dry_run_requests_and_cpu_results() {
    let (_, here) = train(&runtime().cpu().unwrap());
    let (dry, _) = train(&dry_device());
    let (there, learned) = train(&device());
    let figures =
        |stats: &bfc_core::Stats| (stats.num_allocs, stats.peak_bytes_in_use, stats.bytes_requested);
    assert_eq!(figures(&there), figures(&dry));
    let (here, learned) = (here.unwrap(), learned.unwrap());
    assert!((here - learned).abs() < 1e-4 * here, "{here} and {learned}");
}

#[test]
fn sums_over_any_axes_equal_those_of_the_cpu() {
    for (dims, axes) in [
        (vec![3, 70_000], vec![1]),
        (vec![70_000, 3], vec![0]),
        (vec![300, 40], vec![0]),
        (vec![40, 300], vec![1]),
        (vec![20, 30, 40], vec![0, 2]),
        (vec![200_000], vec![0]),
        // More slabs than a thread folds in order.
        (vec![10_000, 5], vec![0]),
        (vec![12, 5, 40, 33], vec![0, 2, 3]),
        (vec![3, 1, 40, 130], vec![0, 1, 3]),
    ] {
        for dtype in [DType::F32, DType::F64] {
            let apart = difference(|device| {
                let x = Tensor::uniform(device, &dims[..], 0.5, 1.5, &Rng::new(3))?.to_dtype(dtype)?;
                x.sum(&axes[..])
            });
            assert!(apart < 1e-5, "{dims:?} over {axes:?} in {dtype}: {apart}");
            for norm in [Norm::L1, Norm::L2] {
                let apart = difference(|device| {
                    let x = Tensor::uniform(device, &dims[..], -1.0, 1.0, &Rng::new(3))?.to_dtype(dtype)?;
                    x.norm(norm, &axes[..])
                });
                assert!(apart < 1e-5, "{norm:?} of {dims:?} over {axes:?} in {dtype}: {apart}");
            }
        }
    }
}

#[test]
fn argmax_and_argmin_find_the_first_of_equal_elements() {
    for length in [1, 64, 65, 256, 257, 5000] {
        for axis in [0, 1] {
            let dims = if axis == 0 { [length, 3] } else { [3, length] };
            for dtype in [DType::F32, DType::F64, DType::I64, DType::I32, DType::U32, DType::U8] {
                for largest in [true, false] {
                    // Each value occurs many times.
                    let apart = difference(|device| {
                        let x = Tensor::uniform(device, dims, 0.0, 20.0, &Rng::new(4))?.to_dtype(dtype)?;
                        let x = x.to_dtype(DType::I64)?.to_dtype(dtype)?;
                        if largest { x.argmax(axis as isize) } else { x.argmin(axis as isize) }
                    });
                    assert_eq!(apart, 0.0, "{dims:?} along {axis} in {dtype}");
                }
            }
        }
    }
}

#[test]
fn logic_of_truth_values_is_that_of_the_cpu() {
    type Logic = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let ops: &[Logic] = &[
        Tensor::logical_and,
        Tensor::logical_or,
        Tensor::logical_xor,
        |a, _| a.logical_not(),
        |a, _| a.any([0]),
        |a, _| a.all([1]),
        |a, _| a.narrow(1, 0, 0)?.all([1]),
        |a, _| a.narrow(1, 0, 0)?.any([1]),
    ];
    for (number, logic) in ops.iter().enumerate() {
        for dims in [[3, 5], [700, 2], [2, 700]] {
            let apart = difference(|device| {
                let random = |seed| Tensor::uniform(device, dims, -1.0, 1.0, &Rng::new(seed));
                let zero = Tensor::scalar(device, 0.0f32)?;
                logic(&random(1)?.gt(&zero)?, &random(2)?.gt(&zero)?)
            });
            assert_eq!(apart, 0.0, "op {number} of {dims:?}");
        }
    }
}

#[test]
fn the_first_nan_of_a_long_sequence_is_its_largest_and_smallest() {
    let mut values = vec![1.0_f32; 3000];
    values[2999] = f32::INFINITY;
    for nan in [[700_usize, 701], [255, 256], [2998, 2999]] {
        let mut values = values.clone();
        nan.into_iter().for_each(|place| values[place] = f32::NAN);
        let x = Tensor::from_slice(&device(), &values, values.len()).unwrap();
        for found in [x.argmax(0), x.argmin(0)] {
            assert_eq!(found.unwrap().item::<i64>().unwrap(), nan[0] as i64);
        }
    }
}

#[test]
fn long_sums_of_equal_floats_keep_their_digits() {
    let tenth = Tensor::full(&device(), [16, 1], 0.1).unwrap();
    let sums = tenth.broadcast_to([16, 1_000_000]).unwrap().sum(1).unwrap();
    let expected = 1e6 * f64::from(0.1f32);
    assert!(values(&sums).iter().all(|sum| (sum / expected - 1.0).abs() < 5e-6), "{:?}", values(&sums));
}

#[test]
fn products_larger_than_a_tile_are_those_of_the_cpu() {
    for (m, k, n) in [(65, 33, 130), (1, 200, 64), (128, 1, 3), (70, 0, 5)] {
        let apart = difference(|device| {
            let rng = Rng::new(5);
            let x = Tensor::uniform(device, [2, m, k], 0.5, 1.5, &rng)?;
            let y = Tensor::uniform(device, [n, k], 0.5, 1.5, &rng)?.t()?;
            x.matmul(&y)
        });
        assert!(apart < 1e-5, "{m} {k} {n}: {apart}");
    }
}

#[test]
fn conversions_between_all_types_are_those_of_the_cpu() {
    let hard = [0.0, -0.0, 0.9, -0.9, 1.5, 254.9, 255.5, 300.0, -300.0, 1e19, -1e19, f64::NAN, f64::INFINITY];
    for from in DType::ALL {
        for to in DType::ALL {
            let apart = difference(|device| {
                Tensor::from_slice(device, &hard, hard.len())?.to_dtype(from)?.to_dtype(to)
            });
            assert_eq!(apart, 0.0, "{from} to {to}");
        }
    }
}

#[test]
fn elements_in_packs_and_beside_them_are_computed_alike() {
    // Lengths that fill packs or not, with one or several iterations per thread, from aligned and unaligned
    // offsets.
    for (length, start) in
        [(1, 0), (3, 0), (4, 0), (8, 1), (16, 0), (17, 0), (33, 8), (40, 16), (20_011, 0), (20_011, 3)]
    {
        for dtype in DType::ALL {
            let apart = difference(|device| {
                let wave = |step: f64| {
                    let numbers: Vec<f64> =
                        (0..start + length).map(|i| 100.0 * (i as f64 * step).sin()).collect();
                    Tensor::from_slice(device, &numbers, numbers.len())?.to_dtype(dtype)?.slice(0, start..)
                };
                let (x, y) = (wave(0.37)?, wave(0.51)?);
                let mut all = vec![x.lt(&y)?, x.contiguous()?, y.ones_like()?];
                for to in DType::ALL {
                    all.push(x.to_dtype(to)?);
                }
                if dtype != DType::Bool {
                    all.extend([x.maximum(&y)?, x.sub(&y)?.mul(&y)?, y.abs()?]);
                }
                let all = all.iter().map(|tensor| tensor.to_dtype(DType::F64)).collect::<Result<Vec<_>>>()?;
                Tensor::concat(&all.iter().collect::<Vec<_>>(), 0)
            });
            assert_eq!(apart, 0.0, "{length} of {dtype} from {start} on");
        }
    }
}

#[test]
fn running_sums_and_products_of_long_and_short_lines_are_those_of_the_cpu() {
    for [length, lines] in [[511, 3], [512, 3], [1024, 1], [3001, 2]] {
        for axis in [0, 1] {
            let dims = if axis == 0 { [length, lines] } else { [lines, length] };
            for (dtype, most) in
                [(DType::F32, 1e-5), (DType::F64, 1e-13), (DType::F16, 1e-3), (DType::I64, 0.0)]
            {
                let apart = difference(|device| {
                    let x = Tensor::uniform(device, dims, 1.0, 9.0, &Rng::new(3))?.to_dtype(dtype)?;
                    let there = x.cumsum(axis as isize)?;
                    if !dtype.is_float() {
                        return Ok(there);
                    }
                    // Factors near 1, whose products stay in range.
                    let products = x.mul_scalar(1e-4)?.add_scalar(0.9995)?.cumprod(axis as isize)?;
                    // The gradient of a sum runs back.
                    let x = x.requiring_grad()?;
                    let gradients = x.cumsum(axis as isize)?.mul(&x.detach())?.sum_all()?.backward()?;
                    Tensor::concat(&[&there, &products, gradients.get(&x).unwrap()], 0)
                });
                assert!(apart <= most, "{dims:?} along {axis} in {dtype}: {apart}");
            }
        }
    }
}

#[test]
fn repeated_rows_are_summed_in_the_order_of_the_cpu() {
    // Sums of floats depend on their order. The cases have sorted and unsorted indices, equal for all columns
    // or not.
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I64] {
        for (tokens, width, rows) in [(31, 5, 7), (32, 1, 1), (500, 5, 7), (257, 33, 90), (1000, 3, 2)] {
            let apart = difference(|device| {
                let rng = Rng::new(5);
                let indices =
                    Tensor::uniform(device, [tokens], 0.0, rows as f64, &rng)?.to_dtype(DType::I64)?;
                let values =
                    Tensor::uniform(device, [tokens, width], -1000.0, 1000.0, &rng)?.to_dtype(dtype)?;
                let by_row = indices.reshape([tokens, 1])?.broadcast_to([tokens, width])?;
                let zeros = Tensor::zeros(device, [rows, width])?.to_dtype(dtype)?;
                let by_rows = zeros.scatter_add(0, &by_row, &values)?;
                let by_columns = zeros.t()?.scatter_add(1, &by_row.t()?, &values.t()?)?;
                let apart = zeros.scatter_add(0, &by_row.contiguous()?, &values)?;
                Tensor::concat(&[&by_rows, &by_columns.t()?, &apart], 0)
            });
            assert_eq!(apart, 0.0, "{tokens} rows of {width} in {dtype}");
        }
    }
}

#[test]
fn rows_give_the_same_whether_32_threads_share_one_or_a_block() {
    // 32 threads share a row if rows are short, or long and many. Some rows do not fill the last block.
    for [rows, width] in [[7, 128], [7, 129], [4099, 130], [3, 1100]] {
        let apart = difference(|device| {
            let rng = Rng::new(5);
            let x = Tensor::uniform(device, [rows, width], -2.0, 2.0, &rng)?.requiring_grad()?;
            let targets: Vec<i64> = (0..rows as i64).map(|row| row * 7 % width as i64).collect();
            let targets = Tensor::from_slice(device, &targets, rows)?;
            let normal = x.layer_norm(None, 1e-5)?;
            let loss = normal.cross_entropy(&targets)?.add(&x.softmax(1)?.square()?.sum_all()?)?;
            let gradient = loss.backward()?.get(&x).unwrap().clone();
            // Where gradients nearly vanish, only rounding errors remain.
            gradient.abs()?.add_scalar(1e-3)
        });
        assert!(apart < 2e-4, "{rows} rows of {width}: {apart}");
    }
}

#[test]
fn threads_that_check_indices_at_once_each_get_their_own_answer() {
    const TURNS: usize = 300;
    let device = device();
    // Counts how often the op rejects one index among many. The device computes the indices, since the host
    // knows its own. The op compares the index without following it, in case the check accepts it.
    let refusals = |index: i64| {
        let mut indices = vec![-1; 20_000];
        indices[0] = index - 1;
        let indices = Tensor::from_slice(&device, &indices, indices.len()).unwrap().add_scalar(1).unwrap();
        (0..TURNS).filter(|_| indices.one_hot(3).is_err()).count()
    };
    std::thread::scope(|scope| {
        let (good, bad) = (scope.spawn(|| refusals(2)), scope.spawn(|| refusals(3)));
        assert_eq!((good.join().unwrap(), bad.join().unwrap()), (0, TURNS));
    });
}

#[test]
fn the_host_waits_for_the_device_only_where_it_reads_a_value() {
    let compute = Counting::new(false);
    let device = computed_by(compute.clone());
    let rng = Rng::new(1);
    let model = Sequential::new()
        .with("table", Embedding::new(&device, 11, 6, &rng).unwrap())
        .with("head", Linear::new(&device, 6, 5, &rng).unwrap());
    let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
    for step in 0..3_u8 {
        let words = Tensor::from_slice(&device, &[u32::from(step), 10, 3, 7], 4).unwrap();
        let targets = Tensor::from_slice(&device, &[4, step, 0, 1], 4).unwrap();
        let loss = model.forward(&words).unwrap().cross_entropy(&targets).unwrap();
        optimizer.step(loss.backward().unwrap()).unwrap();
        assert_eq!(compute.waits(), usize::from(step));
        assert!(loss.item::<f32>().unwrap() > 0.0);
        assert_eq!(compute.waits(), usize::from(step) + 1);
    }
    // The op checks indices that the device computed before it follows them.
    let x = Tensor::from_slice(&device, &[1.0_f32, 3.0, 2.0], 3).unwrap();
    let (before, largest) = (compute.waits(), x.argmax(0).unwrap());
    assert_eq!(x.index_select(0, &largest.reshape([1]).unwrap()).unwrap().to_vec::<f32>().unwrap(), [3.0]);
    assert_eq!(compute.waits(), before + 2);
    let (before, clamped) = (compute.waits(), largest.reshape([1]).unwrap().clamp(0, 2).unwrap());
    assert_eq!(x.index_select(0, &clamped).unwrap().to_vec::<f32>().unwrap(), [3.0]);
    assert_eq!(compute.waits(), before + 1);
    let image = Tensor::ones(&device, [1, 2, 3, 4]).unwrap().requiring_grad().unwrap();
    for interpolation in [Interpolation::Nearest, Interpolation::Bilinear { align_corners: false }] {
        let before = compute.waits();
        let larger = image.interpolate([6, 8], interpolation).unwrap();
        let gradients = larger.sum_all().unwrap().backward().unwrap();
        assert_eq!(compute.waits(), before, "{interpolation:?}");
        assert_eq!(values(&gradients.get(&image).unwrap().sum_all().unwrap()), [96.0]);
    }
    let beyond = Tensor::from_slice(&device, &[0_i64, 2], 2).unwrap().add_scalar(1).unwrap();
    assert!(matches!(x.index_select(0, &beyond), Err(Error::IndexOutOfRange { index: 3, len: 3, .. })));
}
