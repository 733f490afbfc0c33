//! 16-bit floats on the emulated CUDA device. Kernels load them directly, compute in f32, and round once.

use crate::ops_table::counting::Counting;
use crate::ops_table::optimizers::{OPTIMIZERS, OptimizerCase};
use crate::ops_table::{cases, computed_by, device, runtime};
use highwater_nn::modules::{LayerNorm, Linear, Module, Parameter};
use highwater_nn::optim::{AdamW, Ema, Optimizer};
use highwater_tensor::{Conv2dOptions, DType, Device, Pool2dOptions, Result, Rng, SortOrder, Tensor};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Values between 0.5 and 1.5, so that rounding does not lose any term of a sum.
fn numbers(device: &Device, dims: &[usize], dtype: DType, seed: u64) -> Tensor {
    Tensor::uniform(device, dims, 0.5, 1.5, &Rng::new(seed)).unwrap().to_dtype(dtype).unwrap()
}

/// An op on two matrices.
type Program = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// One kernel each.
const PROGRAMS: &[(&str, Program)] = &[
    ("add", |x, y| x.add(y)),
    ("a transposed operand", |x, y| x.t()?.mul(&y.t()?)),
    ("a repeated operand", |x, y| x.sub(&y.narrow(0, 1, 1)?)),
    ("div", |x, y| x.div(y)),
    ("pow", |x, y| x.pow(y)),
    ("a scalar", |x, _| x.mul_scalar(0.3)),
    ("clamp", |x, _| x.clamp(0.7, 1.1)),
    ("exp", |x, _| x.exp()),
    ("gelu", |x, _| x.gelu()),
    ("greater", |x, y| x.gt(y)),
    ("sum of rows", |x, _| x.sum(1)),
    ("sum of columns", |x, _| x.sum(0)),
    ("mean", |x, _| x.mean_all()),
    ("max", |x, _| x.max(1)),
    ("argmax", |x, _| x.argmax(0)),
    ("cumsum", |x, _| x.cumsum(1)),
    ("order", |x, _| x.argsort(0, SortOrder::Descending)),
    ("softmax", |x, _| x.softmax(1)),
    ("log_softmax", |x, _| x.log_softmax(1)),
    ("layer_norm", |x, _| x.layer_norm(None, 1e-5)),
    ("max_pool2d", |x, _| x.reshape([1, 1, x.dims()[0], x.dims()[1]])?.max_pool2d(Pool2dOptions::square(3))),
    ("avg_pool2d", |x, _| x.reshape([1, 1, x.dims()[0], x.dims()[1]])?.avg_pool2d(Pool2dOptions::square(2))),
];

#[test]
fn an_op_of_halves_changes_nothing_to_floats_and_back() {
    for dtype in HALVES {
        for &(name, program) in PROGRAMS {
            let compute = Counting::new(false);
            let device = computed_by(compute.clone());
            let (x, y) = (numbers(&device, &[12, 70], dtype, 1), numbers(&device, &[12, 70], dtype, 2));
            let before = compute.launched().len();
            program(&x, &y).unwrap();
            let launched = &compute.launched()[before..];
            assert!(!launched.is_empty(), "{name}");
            assert!(!launched.iter().any(|kernel| kernel.starts_with("to_")), "{dtype} {name}: {launched:?}");
        }
    }
}

#[test]
fn an_op_of_halves_gives_what_the_cpu_gives() {
    let (here, there) = (runtime().cpu().unwrap(), device());
    for dtype in HALVES {
        // One step of the last place, because functions and the order of sums differ.
        let tolerance = if dtype == DType::F16 { 1e-3 } else { 8e-3 };
        for &(name, program) in PROGRAMS {
            // Longer than a block, and cut into slabs.
            for dims in [[5, 7], [3, 5000], [5000, 3]] {
                let on = |device| {
                    let (x, y) = (numbers(device, &dims, dtype, 1), numbers(device, &dims, dtype, 2));
                    program(&x, &y).unwrap()
                };
                if name.contains("pool") && dims.contains(&3) {
                    continue;
                }
                let (a, b) = (on(&here), on(&there));
                assert_eq!((a.dims(), a.dtype()), (b.dims(), b.dtype()), "{dtype} {name}");
                for (i, (a, b)) in values(&a).into_iter().zip(values(&b)).enumerate() {
                    let apart = (a - b).abs();
                    assert!(apart <= tolerance * a.abs(), "{dtype} {name} {dims:?}, {i}: {a} and {b}");
                }
            }
        }
    }
}

#[test]
fn gradients_of_halves_are_those_of_the_cpu() {
    let (here, there) = (runtime().cpu().unwrap(), device());
    for dtype in HALVES {
        let tolerance = if dtype == DType::F16 { 4e-3 } else { 3e-2 };
        // Gradients of a sum of these results cancel out almost completely, which leaves rounding errors. Other tests
        // compare gradients of weighted sums.
        let cancels =
            |name: &str| ["attention", "batch_norm", "instance_norm"].iter().any(|op| name.contains(op));
        for case in cases().iter().filter(|case| !cancels(&case.name)) {
            let on = |device: &Device| -> Option<Vec<Tensor>> {
                let leaves: Vec<Tensor> = (case.inputs.iter().enumerate())
                    .map(|(seed, (dims, ..))| {
                        numbers(device, dims, dtype, seed as u64).requiring_grad().unwrap()
                    })
                    .collect();
                // Both devices reject the same values that are out of an op's range.
                let y = case.apply(&leaves).ok()?;
                let gradients = y.sum_all().unwrap().backward().unwrap();
                Some(leaves.iter().filter_map(|leaf| gradients.get(leaf).cloned()).collect())
            };
            let (Some(a), Some(b)) = (on(&here), on(&there)) else { continue };
            assert_eq!(a.len(), b.len(), "{}", case.name);
            for (a, b) in a.iter().zip(&b) {
                let (a, b) = (values(a), values(b));
                let largest = a.iter().fold(0.0_f64, |most, a| most.max(a.abs()));
                for (a, b) in a.into_iter().zip(b) {
                    let close = (a - b).abs() <= tolerance * largest || (a.is_nan() && b.is_nan());
                    assert!(close, "{dtype} {}: {a} and {b}", case.name);
                }
            }
        }
    }
}

#[test]
fn an_op_of_halves_takes_its_output_and_no_memory_beside_it() {
    let device = device();
    for dtype in HALVES {
        let (x, y) =
            (numbers(&device, &[1 << 10, 256], dtype, 1), numbers(&device, &[1 << 10, 256], dtype, 2));
        let programs: &[(&str, Program)] = &[
            ("add", |x, y| x.add(y)),
            ("exp", |x, _| x.exp()),
            ("softmax", |x, _| x.softmax(1)),
            ("cumsum", |x, _| x.cumsum(1)),
            ("clamp", |x, _| x.clamp(0.0, 1.0)),
        ];
        for &(name, program) in programs {
            let before = device.default_allocator().unwrap().stats().bytes_in_use;
            device.reset_peak_memory_stats().unwrap();
            let out = program(&x, &y).unwrap();
            let taken = device.default_allocator().unwrap().stats().peak_bytes_in_use - before;
            assert_eq!(taken, 2 * out.elements() as u64, "{dtype} {name}");
        }
    }
}

#[test]
fn random_halves_are_those_of_the_cpu() {
    let (here, there) = (runtime().cpu().unwrap(), device());
    for dtype in HALVES {
        let uniform = |device: &Device| {
            values(&Tensor::uniform_of(device, [3, 1001], -3.0, 200.0, &Rng::new(7), dtype).unwrap())
        };
        assert_eq!(uniform(&here), uniform(&there), "{dtype}");
        let dropped = |device: &Device| {
            let ones = Tensor::ones_of(device, [3, 1001], dtype).unwrap();
            values(&ones.dropout(0.3, &Rng::new(8)).unwrap())
        };
        assert_eq!(dropped(&here), dropped(&there), "{dtype}");
        let normal = |device: &Device| {
            values(&Tensor::normal_of(device, [1003], 100.0, 2.0, &Rng::new(9), dtype).unwrap())
        };
        for (a, b) in normal(&here).into_iter().zip(normal(&there)) {
            assert!((a - b).abs() <= 8e-3 * a, "{dtype}: {a} and {b}");
        }
    }
}

#[test]
fn convolutions_of_halves_cut_into_parts_are_summed_in_floats() {
    let (here, there) = (runtime().cpu().unwrap(), device());
    let on = |device: &Device| {
        let x = numbers(device, &[2, 16, 32, 32], DType::F16, 1);
        let w = numbers(device, &[16, 16, 1, 1], DType::F16, 2).requiring_grad().unwrap();
        let y = x.conv2d(&w, Conv2dOptions::default()).unwrap();
        let gradients = y.mean_all().unwrap().backward().unwrap();
        (values(&y), values(gradients.get(&w).unwrap()))
    };
    let ((y, slope), (same, also)) = (on(&here), on(&there));
    for (a, b) in y.into_iter().zip(same).chain(slope.into_iter().zip(also)) {
        assert!((a - b).abs() <= 1e-3 * a.abs(), "{a} and {b}");
    }
}

#[test]
fn optimizers_update_half_precision_parameters_in_place_with_f32_states() {
    for dtype in HALVES {
        let tolerance = if dtype == DType::F16 { 1e-3 } else { 8e-3 };
        for OptimizerCase { name, make, .. } in OPTIMIZERS {
            let stepped = |device: &Device| {
                let weight = Parameter::new(numbers(device, &[300], dtype, 3)).unwrap();
                let mut optimizer = make(vec![("w".to_owned(), weight.clone())]).unwrap();
                for _ in 0..3 {
                    let loss = weight.tensor().square().unwrap().sum_all().unwrap();
                    optimizer.step(loss.backward().unwrap()).unwrap();
                }
                weight.tensor().detach()
            };
            let compute = Counting::new(false);
            let (a, b) = (stepped(&runtime().cpu().unwrap()), stepped(&computed_by(compute.clone())));
            for (a, b) in values(&a).into_iter().zip(values(&b)) {
                assert!((a - b).abs() <= tolerance * a.abs(), "{dtype} {name}: {a} and {b}");
            }
        }
    }
}

#[test]
fn averages_of_halves_are_f32() {
    for dtype in HALVES {
        let averaged = |device: &Device| {
            let weight = Parameter::new(numbers(device, &[300], dtype, 3)).unwrap();
            let mut ema = Ema::new(vec![("w".to_owned(), weight.clone())], 0.9).unwrap();
            for seed in 4..7 {
                weight.set(&numbers(device, &[300], dtype, seed)).unwrap();
                ema.update().unwrap();
            }
            let average = &ema.state().unwrap()["w.average"];
            assert_eq!(average.dtype(), DType::F32);
            average.to_vec::<f32>().unwrap()
        };
        let (a, b) = (averaged(&runtime().cpu().unwrap()), averaged(&device()));
        assert_eq!(a.len(), 300);
        for (a, b) in a.into_iter().zip(b) {
            // 16-bit floats would differ by 5e-4.
            assert!((a - b).abs() <= 1e-6 * a, "{dtype}: {a} and {b}");
        }
    }
}

#[test]
fn a_half_precision_training_step_has_the_expected_bytes() {
    let compute = Counting::new(false);
    let device = computed_by(compute.clone());
    let (rng, dtype) = (Rng::new(1), DType::BF16);
    let model = highwater_nn::modules::Sequential::new()
        .with("norm", LayerNorm::new(&device, 64).unwrap())
        .with("head", Linear::new(&device, 64, 10, &rng).unwrap());
    model.convert(dtype).unwrap();
    let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
    let x = numbers(&device, &[32, 64], dtype, 1);
    let targets = Tensor::from_slice(&device, &[3_i64; 32], 32).unwrap();
    let before = compute.launched().len();
    let loss = model.forward(&x).unwrap().cross_entropy(&targets).unwrap();
    optimizer.step(loss.backward().unwrap()).unwrap();
    let changed: Vec<&str> =
        compute.launched()[before..].iter().copied().filter(|kernel| kernel.starts_with("to_")).collect();
    // The gradient of the loss is one element. Kernels sum the gradients of the norm's weight and of both
    // biases in f32.
    assert!(changed.len() <= 4, "{changed:?}");
}
