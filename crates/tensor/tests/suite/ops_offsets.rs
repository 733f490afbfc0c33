//! Ops on views that start at an offset into their buffer. The elements around them would change the result.
//!
//! Inputs, masks, indices and incoming gradients are such views, and so are the inputs that ops save for backward.

use crate::ops_table::optimizers::{OPTIMIZERS, OptimizerCase};
use crate::ops_table::others::{self, others};
use crate::ops_table::surrounded::Surrounded;
use crate::ops_table::{Case, cases, device, inputs};
use highwater_tensor::Parameter;
use highwater_tensor::{DType, Device, Gradients, Result, Tensor, checkpoint};

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// The values around the elements of a view: one that makes every sum NaN, and one that exceeds all others.
const AROUND: [f64; 2] = [f64::NAN, 1e4];

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Asserts that values are equal except for rounding.
#[track_caller]
fn assert_near(what: &str, found: &Tensor, expected: &Tensor) {
    assert_eq!((found.dims(), found.dtype()), (expected.dims(), expected.dtype()), "{what}");
    let tolerance = match found.dtype() {
        DType::F32 => 1e-5,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 1e-12,
    };
    let (found, expected) = (values(found), values(expected));
    let size = expected.iter().fold(1.0, |size: f64, value| size.max(value.abs()));
    for (place, (a, b)) in found.iter().zip(&expected).enumerate() {
        let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * size;
        assert!(same, "{what}, element {place}: {a} instead of {b}");
    }
}

/// Weights of order one, different for neighbors.
fn weights(count: usize) -> Vec<f64> {
    (0..count).map(|i| 0.5 + (i * 7 % 11) as f64 / 44.0).collect()
}

/// Returns the result and the gradients of the inputs. The gradient of the result has the layout of
/// `gradient`, among copies of a value.
fn run(
    function: impl Fn(&[Tensor]) -> Result<Tensor>,
    leaves: &[Tensor],
    gradient: Option<(Surrounded, f64)>,
) -> Result<Vec<Tensor>> {
    let y = function(leaves)?;
    let weights = weights(y.elements());
    let weighted = match gradient {
        None => y.mul(&Tensor::from_slice(y.device(), &weights, y.dims())?.to_dtype(y.dtype())?)?,
        Some((how, around)) => how.into_larger(&y)?.mul(&how.larger_gradient(&y, &weights, around)?)?,
    };
    let gradients = weighted.sum_all()?.backward()?;
    let gradient = |leaf: &Tensor| gradients.get(leaf).cloned().map_or_else(|| leaf.zeros_like(), Ok);
    let of_leaves = leaves.iter().map(gradient).collect::<Result<Vec<_>>>()?;
    Ok(std::iter::once(y.detach()).chain(of_leaves).collect())
}

/// Returns the inputs of a case as contiguous leaves in separate buffers.
fn plain(case: &Case, device: &Device, dtype: DType) -> Vec<Tensor> {
    let copy = |input: Tensor| {
        Tensor::from_slice(device, &values(&input), input.dims())?.to_dtype(dtype)?.requiring_grad()
    };
    inputs(case, device, dtype).into_iter().map(|input| copy(input).unwrap()).collect()
}

fn surrounded(plain: &[Tensor], how: Surrounded, around: f64) -> Vec<Tensor> {
    let copy = |x: &Tensor| how.copy(&x.detach(), around)?.requiring_grad();
    plain.iter().map(|x| copy(x).unwrap()).collect()
}

fn assert_all_near(what: &str, found: &[Tensor], expected: &[Tensor]) {
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        let part = if number == 0 { "result".into() } else { format!("gradient {}", number - 1) };
        assert_near(&format!("{what}: {part}"), found, expected);
    }
}

#[test]
fn every_op_reads_views_at_their_offset() {
    let device = device();
    for case in &cases() {
        for dtype in FLOATS {
            let plain = plain(case, &device, dtype);
            let expected = run(|x| case.apply(x), &plain, None).unwrap();
            for how in Surrounded::ALL {
                for around in AROUND {
                    let leaves = surrounded(&plain, how, around);
                    let found = run(|x| case.apply(x), &leaves, Some((how, around))).unwrap();
                    let what = format!("{} of {dtype}, {how:?} among {around}", case.name);
                    assert_all_near(&what, &found, &expected);
                }
            }
        }
    }
}

#[test]
fn each_input_alone_may_be_a_view_with_an_offset() {
    let device = device();
    for case in cases().iter().filter(|case| case.inputs.len() > 1) {
        let plain = plain(case, &device, DType::F64);
        let expected = run(|x| case.apply(x), &plain, None).unwrap();
        for how in Surrounded::ALL {
            let leaves = surrounded(&plain, how, f64::NAN);
            for alone in 0..plain.len() {
                let mut mixed = plain.clone();
                mixed[alone] = leaves[alone].clone();
                let found = run(|x| case.apply(x), &mixed, None).unwrap();
                assert_all_near(&format!("{}, {how:?}, input {alone}", case.name), &found, &expected);
            }
        }
    }
}

#[test]
fn checkpoints_save_and_run_again_views_with_an_offset() {
    let device = device();
    for case in &cases() {
        let plain = plain(case, &device, DType::F64);
        let expected = run(|x| case.apply(x), &plain, None).unwrap();
        for how in Surrounded::ALL {
            let leaves = surrounded(&plain, how, f64::NAN);
            let in_checkpoint = |x: &[Tensor]| {
                let others = x[1..].to_vec();
                let case = case.clone();
                checkpoint(&x[0], move |first| case.apply(&[std::slice::from_ref(first), &others].concat()))
            };
            let found = run(in_checkpoint, &leaves, Some((how, f64::NAN))).unwrap();
            assert_all_near(&format!("{} in a checkpoint, {how:?}", case.name), &found, &expected);
        }
    }
}

#[test]
fn ops_without_gradients_read_views_at_their_offset() {
    let device = device();
    for dtype in FLOATS {
        let plain = others::inputs(&device, dtype).unwrap();
        for (name, function) in others() {
            let expected = function.apply(&plain).unwrap();
            for how in Surrounded::ALL {
                for around in AROUND {
                    let views: Vec<Tensor> = plain.iter().map(|x| how.copy(x, around).unwrap()).collect();
                    let what = format!("{name} of {dtype}, {how:?} among {around}");
                    assert_near(&what, &function.apply(&views).unwrap(), &expected);
                }
            }
        }
    }
}

#[test]
fn the_host_reads_a_view_at_its_offset() {
    let device = device();
    let numbers = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    for how in Surrounded::ALL {
        let view = how.tensor(&device, &numbers, &[2, 3], f32::NAN).unwrap();
        assert_eq!(view.to_vec::<f32>().unwrap(), numbers);
        assert_eq!(view.to_ndarray::<f32>().unwrap().into_raw_vec_and_offset().0, numbers);
        assert_eq!(view.at((1, 1)).unwrap().item::<f32>().unwrap(), 5.0);
        let plain = Tensor::from_slice(&device, &numbers, [2, 3]).unwrap();
        assert_eq!(view.to_string(), plain.to_string());
        let elsewhere = crate::ops_table::runtime().cpu().unwrap();
        assert_eq!(view.to_device(&elsewhere).unwrap().to_vec::<f32>().unwrap(), numbers);
    }
}

/// Pools a tensor of shape `[.., 2, 2]` to one element for each image.
type Pool = (&'static str, fn(&Tensor) -> Result<Tensor>);

const POOLS: [Pool; 3] = [
    ("max_pool1d", |x| x.reshape([x.dims()[0], 1, 4])?.max_pool1d(4)),
    ("max_pool2d", |x| x.max_pool2d(2)),
    ("adaptive_max_pool2d", |x| x.adaptive_max_pool2d([1, 1])),
];

#[test]
fn gradients_of_max_pools_go_to_the_largest_of_a_view() {
    let device = device();
    for dtype in FLOATS {
        for (name, pool) in POOLS {
            let whole = Tensor::from_slice(&device, &[9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0], [2, 1, 2, 2]);
            let whole = whole.unwrap().to_dtype(dtype).unwrap();
            let leaf = whole.detach().requiring_grad().unwrap();
            let of = |loss: Tensor, x: &Tensor| {
                let gradients = loss.sum_all().unwrap().backward().unwrap();
                values(gradients.get(x).unwrap())
            };
            // The view itself is the leaf.
            let part = whole.narrow(0, 1, 1).unwrap().requiring_grad().unwrap();
            let y = pool(&part).unwrap();
            assert_eq!(values(&y), [5.0], "{name} of {dtype}");
            assert_eq!(of(y, &part), [0.0, 0.0, 0.0, 1.0], "{name} of {dtype}");
            let y = checkpoint(&part, pool).unwrap();
            assert_eq!(of(y, &part), [0.0, 0.0, 0.0, 1.0], "{name} of {dtype} in a checkpoint");
            // Parts of a leaf, as micro-batches are.
            let second = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
            let narrowed = pool(&leaf.narrow(0, 1, 1).unwrap()).unwrap();
            assert_eq!(of(narrowed, &leaf), second, "{name} of {dtype} of a narrowed tensor");
            let split = leaf.split(0, 1).unwrap();
            assert_eq!(of(pool(&split[1]).unwrap(), &leaf), second, "{name} of {dtype} of a split tensor");
            let split = leaf.split(0, 1).unwrap();
            let both = pool(&split[0]).unwrap().add(&pool(&split[1]).unwrap()).unwrap();
            let expected = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
            assert_eq!(of(both, &leaf), expected, "{name} of {dtype} of both parts");
        }
    }
}

/// The gradients of a parameter by Σ weights · p, which are views of a larger gradient unless `how` is none.
fn gradients(parameter: &Parameter, how: Option<Surrounded>, round: usize) -> Gradients {
    let p = parameter.tensor();
    let weights: Vec<f64> =
        weights(p.elements()).iter().map(|weight| weight * (round + 1) as f64 - 1.0).collect();
    let loss = match how {
        None => {
            p.mul(&Tensor::from_slice(p.device(), &weights, p.dims()).unwrap().to_dtype(p.dtype()).unwrap())
        }
        Some(how) => {
            let larger = how.larger_gradient(&p, &weights, f64::NAN).unwrap();
            how.into_larger(&p).unwrap().mul(&larger)
        }
    };
    let gradients = loss.unwrap().sum_all().unwrap().backward().unwrap();
    let gradient = gradients.get(&p).unwrap();
    assert_eq!(how.is_some(), gradient.layout().offset() > 0);
    gradients
}

#[test]
fn optimizers_read_gradients_and_parameters_at_their_offset() {
    let device = device();
    let numbers: Vec<f64> = (0..12).map(|i| f64::from(i) / 8.0 - 0.6).collect();
    for dtype in FLOATS {
        for OptimizerCase { name, make, .. } in OPTIMIZERS {
            let train = |how: Option<Surrounded>| {
                let start = Tensor::from_slice(&device, &numbers, [3, 4]).unwrap().to_dtype(dtype).unwrap();
                let start = how.map_or(start.clone(), |how| how.copy(&start, f64::NAN).unwrap());
                let parameter = Parameter::new(start).unwrap();
                let mut optimizer = make(vec![("p".into(), parameter.clone())]).unwrap();
                for round in 0..3 {
                    let mut gradients = gradients(&parameter, how, round);
                    gradients.clip_norm(4.0).unwrap();
                    gradients.scale(0.9).unwrap();
                    optimizer.step(gradients).unwrap();
                }
                parameter.tensor().detach()
            };
            let expected = train(None);
            for how in Surrounded::ALL {
                assert_near(&format!("{name} of {dtype}, {how:?}"), &train(Some(how)), &expected);
            }
        }
    }
}

#[test]
fn sums_and_bounds_of_gradients_read_them_at_their_offset() {
    let device = device();
    for dtype in FLOATS {
        let start = Tensor::ones_of(&device, [3, 4], dtype).unwrap();
        let parameter = Parameter::new(start).unwrap();
        let run = |hows: [Option<Surrounded>; 2]| {
            let [mut first, mut second] = [0, 1].map(|round| gradients(&parameter, hows[round], round));
            let norm = first.norm().unwrap();
            first.accumulate(&mut second).unwrap();
            let read = first.clip_norm_unread(2.0).unwrap().unwrap().item::<f64>().unwrap();
            first.clip_value(0.5).unwrap();
            (norm, read, first.get(&parameter.tensor()).unwrap().clone())
        };
        let (norm, unread, expected) = run([None; 2]);
        for how in Surrounded::ALL {
            for hows in [[Some(how), None], [None, Some(how)], [Some(how); 2]] {
                let (found_norm, found_unread, found) = run(hows);
                assert!((found_norm - norm).abs() < 1e-2 && (found_unread - unread).abs() < 1e-2, "{hows:?}");
                assert_near(&format!("{dtype}, {hows:?}"), &found, &expected);
            }
        }
    }
}
