//! Compares boolean ops with plain loops.

use highwater_tensor::{DType, Device, Error, Result, Rng, Runtime, Tensor};

fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn truths(result: Result<Tensor>) -> Vec<bool> {
    let tensor = result.unwrap();
    assert_eq!(tensor.dtype(), DType::Bool);
    tensor.to_vec().unwrap()
}

fn random(device: &Device, dims: &[usize], seed: u64) -> Tensor {
    let x = Tensor::uniform(device, dims, -1.0, 1.0, &Rng::new(seed)).unwrap();
    x.gt(&Tensor::scalar(device, 0.0f32).unwrap()).unwrap()
}

#[test]
fn two_truth_values_give_what_logic_says_for_any_layouts() {
    let device = cpu();
    let a = random(&device, &[5, 7], 1);
    let row = random(&device, &[7], 2);
    let crossed = random(&device, &[7, 5], 3).transpose(0, 1).unwrap();
    type Op = fn(&Tensor, &Tensor) -> Result<Tensor>;
    type Says = fn(bool, bool) -> bool;
    let ops: [(Op, Says); 3] = [
        (Tensor::logical_and, |a, b| a && b),
        (Tensor::logical_or, |a, b| a || b),
        (Tensor::logical_xor, |a, b| a != b),
    ];
    for (op, says) in ops {
        for b in [&row, &crossed, &a] {
            let values = |x: &Tensor| x.broadcast_to([5, 7]).unwrap().to_vec::<bool>().unwrap();
            let expected: Vec<bool> =
                values(&a).into_iter().zip(values(b)).map(|(a, b)| says(a, b)).collect();
            assert_eq!(truths(op(&a, b)), expected);
        }
    }
    let expected: Vec<bool> = a.to_vec::<bool>().unwrap().into_iter().map(|a| !a).collect();
    assert_eq!(truths(a.logical_not()), expected);
}

#[test]
fn numbers_convert_to_booleans_and_nan_is_true() {
    let device = cpu();
    let x = Tensor::from_slice(&device, &[0.0f32, -0.0, 0.25, f32::NAN, f32::NEG_INFINITY], [5]).unwrap();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let x = x.to_dtype(dtype).unwrap();
        assert_eq!(truths(x.logical_not()), [true, true, false, false, false], "{dtype}");
        assert_eq!(truths(x.logical_and(&x)), [false, false, true, true, true], "{dtype}");
    }
    let whole = Tensor::from_slice(&device, &[0i64, 256, -1], [3]).unwrap();
    assert_eq!(truths(whole.logical_or(&whole)), [false, true, true]);
    assert_eq!(
        truths(
            whole.logical_xor(&random(&device, &[], 1).logical_not().unwrap().logical_and(&whole).unwrap())
        )
        .len(),
        3
    );
    // No gradient flows, and the op records none.
    let leaf = x.requiring_grad().unwrap();
    assert!(!leaf.logical_not().unwrap().requires_grad() && !leaf.any([0]).unwrap().requires_grad());
}

#[test]
fn any_and_all_look_along_axes() {
    let device = cpu();
    for dims in [&[3, 4, 5][..], &[1, 300], &[300, 2], &[70_000]] {
        let x = random(&device, dims, 4);
        let rank = dims.len() as isize;
        for axis in 0..rank {
            // Computes the counts by sums.
            let counts = x.sum([axis]).unwrap();
            let size = dims[axis as usize] as i64;
            let expected = |says: &dyn Fn(i64) -> bool| -> Vec<bool> {
                counts.to_vec::<i64>().unwrap().into_iter().map(says).collect()
            };
            assert_eq!(truths(x.any([axis])), expected(&|count| count > 0));
            assert_eq!(truths(x.all([axis])), expected(&|count| count == size));
            assert_eq!(truths(x.all_keepdim([axis])), truths(x.all([axis])));
        }
    }
    let x = random(&device, &[3, 4], 5);
    assert_eq!(x.any_keepdim([1]).unwrap().dims(), [3, 1]);
    assert_eq!(x.all([0, 1]).unwrap().dims(), [] as [usize; 0]);
}

#[test]
fn of_nothing_none_holds_and_each_does() {
    let device = cpu();
    let nothing = Tensor::zeros(&device, [2, 0]).unwrap();
    assert_eq!((truths(nothing.any([1])), truths(nothing.all([1]))), (vec![false; 2], vec![true; 2]));
    assert!(truths(nothing.any([0])).is_empty());
    assert!(truths(nothing.logical_and(&nothing)).is_empty());
}

#[test]
fn operands_that_do_not_fit_are_named_with_the_op() {
    let device = cpu();
    let (a, b) = (random(&device, &[2, 3], 6), random(&device, &[2], 7));
    assert_eq!(
        a.logical_and(&b).unwrap_err().to_string(),
        "logical_and: shapes [2, 3] and [2] do not match: axis -1 has sizes 3 and 2, which must be equal, or one of them 1"
    );
    assert!(matches!(a.any([2]), Err(Error::AxisOutOfRange { op: "any", axis: 2, .. })));
    assert!(matches!(a.all([0, 0]), Err(Error::BadArgument { op: "all", .. })));
}
