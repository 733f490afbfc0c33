//! Ops on 16-bit floats, which compute in f32 and round once, and type promotion between tensors of different
//! types.

use crate::ops_table::{cases, device, inputs, runtime};
use half::{bf16, f16};
use highwater_nn::optim::{Adam, LossScaler, Optimizer, Sgd};
use highwater_tensor::Parameter;
use highwater_tensor::{CrossEntropyOptions, DType, Error, Gradients, Norm, Result, Rng, Runtime, Tensor};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// The distance from 1 to the next representable value.
fn step(dtype: DType) -> f64 {
    if dtype == DType::F16 { 2f64.powi(-10) } else { 2f64.powi(-7) }
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Returns the largest difference, relative to the largest value if that is above 1.
fn apart(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.shape(), expected.shape());
    let (found, expected) = (values(found), values(expected));
    let size = expected.iter().fold(1.0, |size: f64, value| size.max(value.abs()));
    found.iter().zip(&expected).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs() / size))
}

#[test]
fn half_precision_ops_equal_rounded_f32_ops() {
    let device = device();
    for case in cases() {
        for dtype in HALVES {
            let narrow: Vec<Tensor> = inputs(&case, &device, dtype)
                .into_iter()
                .map(|leaf| leaf.requiring_grad().unwrap())
                .collect();
            let wide: Vec<Tensor> = narrow
                .iter()
                .map(|leaf| leaf.detach().to_dtype(DType::F32).unwrap().requiring_grad().unwrap())
                .collect();
            let (y, expected) = (case.apply(&narrow).unwrap(), case.apply(&wide).unwrap());
            let is_number = case.properties.is_loss && y.rank() == 0;
            assert_eq!(y.dtype(), if is_number { DType::F32 } else { dtype }, "{}", case.name);
            // Composed ops round several times. Values near a power of two may differ by one step.
            let most = 8.0 * step(dtype);
            let found = apart(&y, &expected);
            assert!(found <= most, "{} in {dtype}: {found}", case.name);
            let backward = |y: &Tensor| -> Result<Gradients> { y.sum_all()?.backward() };
            let (gradients, exact) = (backward(&y).unwrap(), backward(&expected).unwrap());
            for (leaf, wide) in narrow.iter().zip(&wide) {
                let (gradient, exact) = (gradients.get(leaf).unwrap(), exact.get(wide).unwrap());
                assert_eq!(gradient.dtype(), dtype, "{}", case.name);
                let found = apart(gradient, exact);
                assert!(found <= 2.0 * most, "the gradient of {} in {dtype}: {found}", case.name);
            }
        }
    }
}

#[test]
fn results_are_rounded_once() {
    let device = device();
    let mut faults = Vec::new();
    for case in cases().iter().filter(|case| case.properties.rounds_once) {
        for dtype in HALVES {
            let narrow = inputs(case, &device, dtype);
            let wide: Vec<Tensor> = narrow.iter().map(|x| x.to_dtype(DType::F32).unwrap()).collect();
            let found = case.apply(&narrow).unwrap();
            let expected = case.apply(&wide).unwrap().to_dtype(found.dtype()).unwrap();
            // Strides may change the order of a sum, and so its last bit before rounding: at most one step.
            let same = values(&found)
                .iter()
                .zip(values(&expected))
                .all(|(&a, b)| (a - b).abs() <= b.abs() * step(dtype));
            if !same {
                faults.push(format!("{} in {dtype}: {found} instead of {expected}", case.name));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn half_precision_sums_accumulate_in_f32() {
    let device = device();
    // f16 cannot represent 2048 + 1, and bf16 cannot represent 256 + 1.
    for (dtype, count) in [(DType::F16, 4096), (DType::BF16, 1024)] {
        let ones = Tensor::ones_of(&device, count, dtype).unwrap();
        assert_eq!(values(&ones.sum_all().unwrap()), [f64::from(count as u32)]);
    }
    let many = Tensor::full_of(&device, [300, 300], 2.0, DType::F16).unwrap();
    assert_eq!(values(&many.mean_all().unwrap()), [2.0]);
    assert_eq!(values(&many.sum_all().unwrap()), [f64::INFINITY]);
    let large = Tensor::full_of(&device, [4], 300.0, DType::F16).unwrap();
    let zeros = large.zeros_like().unwrap();
    // The squares exceed the range of f16. Their mean is f32.
    assert_eq!(values(&large.mse_loss(&zeros).unwrap()), [90_000.0]);
    let mut one = vec![f16::ZERO; 400];
    one[7] = f16::from_f32(300.0);
    let one = Tensor::from_slice(&device, &one, 400).unwrap();
    assert_eq!(values(&one.mse_loss(&one.zeros_like().unwrap()).unwrap()), [225.0]);
    let rows = large.reshape([1, 4]).unwrap().layer_norm(None, 0.5).unwrap();
    assert_eq!(values(&rows), [0.0; 4]);
}

#[test]
fn gradients_of_overlapping_windows_are_summed_in_f32() {
    let device = device();
    for dtype in HALVES {
        // Element i of the first half is in i + 1 windows, of the second half in as many as its mirror image. Each has a
        // gradient of 1 and the smallest step.
        let (size, len, slope) = (512, 1023, 1.0 + step(dtype));
        let x = Tensor::zeros_of(&device, len, dtype).unwrap().requiring_grad().unwrap();
        let windows = x.unfold(0, size, 1).unwrap();
        let loss = windows.mul_scalar(slope).unwrap().sum_all().unwrap();
        let gradient = loss.backward().unwrap().take(&x).unwrap();
        let sums: Vec<f64> = (0..len).map(|i| (i + 1).min(len - i) as f64 * slope).collect();
        let expected = Tensor::from_slice(&device, &sums, len).unwrap().to_dtype(dtype).unwrap();
        assert_eq!((gradient.dtype(), values(&gradient)), (dtype, values(&expected)));
    }
}

#[test]
fn what_is_made_of_several_steps_is_rounded_after_the_last() {
    type Function = fn(&Tensor) -> Result<Tensor>;
    let one_in = |count: usize, value| (0..count).map(|i| if i == 7 { value } else { 0.0 }).collect();
    // This count exceeds the largest f16.
    let many = || vec![1.0f32; 70_000];
    let cases: [(&str, Vec<f32>, Function); 11] = [
        ("norm, L2", vec![300.0, 400.0], |x| x.norm(Norm::L2, 0)),
        ("norm, Max", many(), |x| x.norm(Norm::Max, 0)),
        ("var", one_in(100, 300.0), |x| x.var(0, 0)),
        ("std", one_in(100, 300.0), |x| x.std(0, 1)),
        ("logsumexp", many(), |x| x.logsumexp(0)),
        ("logsumexp, of large numbers", vec![1000.2, 999.5, 998.0], |x| x.logsumexp(0)),
        ("max", many(), |x| x.max(0)),
        ("min", many(), |x| x.min(0)),
        ("prod", vec![300.0, 300.0, 1.0], |x| x.prod(0)),
        ("huber_loss", one_in(400, 400.0), |x| x.huber_loss(&x.zeros_like()?, 1000.0)),
        ("cross_entropy_with", [many(), many()].concat(), |x| {
            let targets = Tensor::zeros_of(x.device(), 70_000, DType::I64)?;
            let options = CrossEntropyOptions { label_smoothing: 0.1, ..Default::default() };
            x.reshape([70_000, 2])?.cross_entropy_with(&targets, options)
        }),
    ];
    // The CUDA emulator would take minutes for this number of rows.
    let device = runtime().cpu().unwrap();
    for (name, numbers, function) in cases {
        let narrow =
            Tensor::from_slice(&device, &numbers, numbers.len()).unwrap().to_dtype(DType::F16).unwrap();
        let wide = narrow.to_dtype(DType::F32).unwrap();
        let [(found, gradient), (exact, exact_gradient)] = [narrow, wide].map(|x| {
            let x = x.requiring_grad().unwrap();
            let y = function(&x).unwrap();
            (y.clone(), y.backward().unwrap().take(&x).unwrap())
        });
        let dtype =
            if name.starts_with("huber") || name.starts_with("cross") { DType::F32 } else { DType::F16 };
        assert_eq!((found.dtype(), gradient.dtype()), (dtype, DType::F16), "{name}");
        assert_eq!(values(&found), values(&exact.to_dtype(dtype).unwrap()), "{name}");
        let exact_gradient = exact_gradient.to_dtype(DType::F16).unwrap();
        assert!(values(&gradient) == values(&exact_gradient), "{name}: {gradient}, not {exact_gradient}");
    }
}

#[test]
fn the_share_of_a_row_in_a_loss_is_not_rounded_on_its_way() {
    let device = device();
    for rows in [700, 701, 703, 707, 709] {
        let gradient = |dtype: DType| {
            let logits = Tensor::zeros_of(&device, [rows, 3], DType::F16).unwrap().to_dtype(dtype).unwrap();
            let logits = logits.requiring_grad().unwrap();
            let targets = Tensor::zeros_of(&device, rows, DType::I64).unwrap();
            let mut gradients = logits.cross_entropy(&targets).unwrap().backward().unwrap();
            gradients.take(&logits).unwrap()
        };
        let exact = gradient(DType::F32).to_dtype(DType::F16).unwrap();
        assert_eq!(values(&gradient(DType::F16)), values(&exact), "{rows} rows");
    }
}

#[test]
fn random_halves_stay_in_their_range() {
    let device = device();
    for dtype in HALVES {
        for (low, high) in [(0.0, 1.0), (-3.0, 200.0), (-1.0, 0.0), (-2.0, -1.0), (0.1, 0.3)] {
            let drawn = Tensor::uniform_of(&device, 20_000, low, high, &Rng::new(5), dtype).unwrap();
            let drawn = values(&drawn);
            let least = low - f64::abs(low) * step(dtype);
            assert!(drawn.iter().all(|&x| (least..high).contains(&x)), "{dtype} from {low} to {high}");
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            assert!((mean - (low + high) / 2.0).abs() < (high - low) * 0.02, "{dtype}: {mean}");
        }
        let normal = values(&Tensor::normal_of(&device, 20_000, 1.0, 2.0, &Rng::new(6), dtype).unwrap());
        assert!((normal.iter().sum::<f64>() / 20_000.0 - 1.0).abs() < 0.1, "{dtype}");
    }
}

#[test]
fn tensors_of_different_types_meet_in_the_type_of_the_table() {
    let device = device();
    for a in DType::ALL {
        for b in DType::ALL {
            let (x, y) =
                (Tensor::ones_of(&device, [2, 1], a).unwrap(), Tensor::ones_of(&device, 3, b).unwrap());
            let product = x.mul(&y);
            if a.promote(b) == DType::Bool {
                assert_eq!(product.unwrap_err(), Error::UnsupportedDType { op: "mul", dtype: DType::Bool });
            } else {
                let product = product.unwrap();
                assert_eq!((product.dtype(), values(&product)), (a.promote(b), vec![1.0; 6]), "{a} and {b}");
            }
            assert_eq!(x.eq(&y).unwrap().to_vec::<bool>().unwrap(), [true; 6], "{a} and {b}");
            let chosen = x.eq(&x).unwrap().where_(&x, &y).unwrap();
            assert_eq!(chosen.dtype(), a.promote(b));
            let joined = Tensor::concat(&[&x.reshape(2).unwrap(), &y], 0).unwrap();
            assert_eq!((joined.dtype(), joined.dims()), (a.promote(b), &[5][..]));
        }
    }
    let whole = Tensor::from_slice(&device, &[7i32, -7], 2).unwrap();
    let by = Tensor::scalar(&device, bf16::from_f32(2.0)).unwrap();
    assert_eq!(values(&whole.div(&by).unwrap()), [3.5, -3.5]);
    assert_eq!(values(&(&whole / &Tensor::scalar(&device, 2i64).unwrap()).unwrap()), [3.0, -3.0]);
}

#[test]
fn a_promoted_operand_gets_its_gradient_in_its_own_type() {
    let device = device();
    let x = Tensor::from_slice(&device, &[f16::from_f32(3.0)], 1).unwrap().requiring_grad().unwrap();
    let y = Tensor::from_slice(&device, &[1.0f64 / 3.0], 1).unwrap().requiring_grad().unwrap();
    let counts = Tensor::from_slice(&device, &[2i64], 1).unwrap();
    let product = x.mul(&y).unwrap().mul(&counts).unwrap();
    assert_eq!(product.dtype(), DType::F64);
    let gradients = product.sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&x).unwrap().to_vec::<f16>().unwrap(), [f16::from_f64(2.0 / 3.0)]);
    assert_eq!(gradients.get(&y).unwrap().to_vec::<f64>().unwrap(), [6.0]);
    assert_eq!(gradients.len(), 2);
}

#[test]
fn optimizers_keep_f32_states_of_half_precision_parameters() {
    let device = device();
    for dtype in HALVES {
        let weight = Tensor::from_slice(&device, &[0.5f32, -1.0], 2).unwrap().to_dtype(dtype).unwrap();
        let parameter = Parameter::new(weight).unwrap();
        let wide = Parameter::new(parameter.tensor().detach().to_dtype(DType::F32).unwrap()).unwrap();
        let list = |parameter: &Parameter| vec![("w".to_owned(), parameter.clone())];
        let mut optimizers: [Box<dyn Optimizer>; 2] = [
            Box::new(Adam::new(list(&parameter), 0.1).unwrap()),
            Box::new(Adam::new(list(&wide), 0.1).unwrap()),
        ];
        for (optimizer, parameter) in optimizers.iter_mut().zip([&parameter, &wide]) {
            let gradients = parameter.tensor().square().unwrap().sum_all().unwrap().backward().unwrap();
            optimizer.step(gradients).unwrap();
        }
        let [state, exact] = optimizers.map(|optimizer| optimizer.state().unwrap());
        assert_eq!(state["w.mean"].dtype(), DType::F32);
        assert_eq!(state, exact, "the first step's gradients are whole numbers");
        let rounded = wide.tensor().detach().to_dtype(dtype).unwrap();
        assert_eq!(values(&parameter.tensor()), values(&rounded));

        let mut sgd = Sgd::new(list(&parameter), 0.25).unwrap().with_momentum(0.5).unwrap();
        for _ in 0..3 {
            let gradients = parameter.tensor().square().unwrap().sum_all().unwrap().backward().unwrap();
            sgd.step(gradients).unwrap();
        }
        assert_eq!(parameter.tensor().dtype(), dtype);
        assert_eq!(sgd.state().unwrap().values().filter(|array| array.dtype() == DType::F32).count(), 1);
    }
}

#[test]
fn a_half_precision_step_allocates_nothing() {
    let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
    let parameter = Parameter::new(Tensor::ones_of(&device, [50 << 10], DType::F16).unwrap()).unwrap();
    let mut sgd = Sgd::new(vec![("own".to_owned(), parameter.clone())], 0.25).unwrap();
    let gradients = parameter.tensor().sum_all().unwrap().backward().unwrap();
    let memory = || device.default_allocator().unwrap().stats();
    device.reset_peak_memory_stats().unwrap();
    let before = memory().bytes_in_use;
    sgd.step(gradients).unwrap();
    assert_eq!(memory().peak_bytes_in_use, before);
    assert!(parameter.tensor().to_vec::<f16>().unwrap().iter().all(|value| value.to_f32() == 0.75));
}

#[test]
fn a_scaled_step_on_two_devices_is_taken_on_both_or_on_neither() {
    let device = || Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
    let [a, b] = [device(), device()]
        .map(|device| Parameter::new(Tensor::ones_of(&device, 3, DType::F16).unwrap()).unwrap());
    let mut sgd = Sgd::new(vec![("a".to_owned(), a.clone()), ("b".to_owned(), b.clone())], 0.25).unwrap();
    let mut scaler = LossScaler::dynamic_from(1024.0, 100).unwrap();
    let first = || [&a, &b].map(|p| p.tensor().to_vec::<f16>().unwrap()[0].to_f32());
    for (slope, after) in [(f64::INFINITY, 1.0), (1.0, 0.75)] {
        let of = |p: &Parameter, slope: f64| {
            let loss = p.tensor().mul_scalar(slope).unwrap().sum_all().unwrap();
            scaler.scale(&loss).unwrap().backward().unwrap()
        };
        let (mut gradients, mut more) = (of(&a, 1.0), of(&b, slope));
        gradients.accumulate(&mut more).unwrap();
        assert_eq!(scaler.step(&mut sgd, gradients).unwrap().is_taken(), after < 1.0);
        assert_eq!(first(), [after; 2]);
    }
}

#[test]
fn large_half_precision_ops_use_no_temporaries() {
    let device = device();
    // Not a whole number of blocks.
    let elements = (1 << 19) + 5;
    let wide = Tensor::uniform(&device, [elements], 0.5, 2.0, &Rng::new(3)).unwrap();
    let x = wide.to_dtype(DType::F16).unwrap();
    let wide = x.to_dtype(DType::F32).unwrap();
    let half = Tensor::scalar(&device, f16::from_f32(0.5)).unwrap();
    let rounded = |y: Tensor| y.to_dtype(DType::F16).unwrap().to_vec::<f16>().unwrap();
    let memory = || device.default_allocator().unwrap();
    let before = memory().stats().bytes_in_use;
    device.reset_peak_memory_stats().unwrap();
    let root = x.sqrt().unwrap();
    let taken = memory().stats().peak_bytes_in_use - before;
    assert_eq!(taken, (2 * elements as u64).next_multiple_of(256));
    assert!(root.to_vec::<f16>().unwrap() == rounded(wide.sqrt().unwrap()));
    let product = x.mul(&half).unwrap();
    assert!(product.to_vec::<f16>().unwrap() == rounded(wide.mul_scalar(0.5).unwrap()));
    let quotient = half.div(&x).unwrap();
    assert!(quotient.to_vec::<f16>().unwrap() == rounded(wide.recip().unwrap().mul_scalar(0.5).unwrap()));
    let leaf = x.requiring_grad().unwrap();
    let gradients = leaf.square().unwrap().sum_all().unwrap().backward().unwrap();
    let gradient = gradients.get(&leaf).unwrap().to_vec::<f16>().unwrap();
    assert!(gradient == rounded(wide.mul_scalar(2.0).unwrap()));
}
