use super::*;
use crate::device::{Device, Runtime};

fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn values(result: Result<Tensor>) -> Vec<f32> {
    result.unwrap().to_vec().unwrap()
}

#[test]
fn axes_vanish_or_stay_with_size_one() {
    let x = Tensor::ones(&cpu(), [2, 3, 4]).unwrap();
    assert_eq!(x.sum(1).unwrap().dims(), [2, 4]);
    assert_eq!(x.mean_keepdim([0, -1]).unwrap().dims(), [1, 3, 1]);
    assert_eq!(x.max(&[0, 1, 2][..]).unwrap().rank(), 0);
    assert_eq!(x.min_all().unwrap().rank(), 0);
    assert_eq!(x.argmax(-1).unwrap().dims(), [2, 3]);
}

#[test]
fn no_axes_fold_nothing() {
    let x = Tensor::from_slice(&cpu(), &[1.0f32, 2.0], 2).unwrap();
    assert_eq!(values(x.sum([])), [1.0, 2.0]);
    assert_eq!(Tensor::scalar(x.device(), 3.0f32).unwrap().sum_all().unwrap().item::<f32>().unwrap(), 3.0);
}

#[test]
fn the_sum_of_no_elements_is_zero_and_their_mean_is_no_number() {
    let none = Tensor::zeros(&cpu(), [2, 0]).unwrap();
    assert_eq!(values(none.sum(1)), [0.0, 0.0]);
    assert_eq!(values(none.sum(0)), [0.0; 0]);
    assert!(values(none.mean(1)).iter().all(|value| value.is_nan()));
    assert!(values(none.mean_all())[0].is_nan());
}

#[test]
fn no_elements_have_no_extreme() {
    let none = Tensor::zeros(&cpu(), [2, 0]).unwrap();
    let error = none.max(1).unwrap_err();
    assert_eq!(error.to_string(), "max: cannot reduce zero elements along an axis of shape [2, 0]");
    assert!(matches!(none.argmin(1), Err(Error::EmptyReduction { op: "argmin", .. })));
    assert!(matches!(none.min_all(), Err(Error::EmptyReduction { op: "min", .. })));
    // No results are wanted of these, so none are missing.
    assert_eq!(none.max(0).unwrap().dims(), [0]);
    assert_eq!(Tensor::zeros(&cpu(), [0, 0]).unwrap().max(1).unwrap().dims(), [0]);
}

#[test]
fn the_mean_of_equal_numbers_is_that_number() {
    // 49 · (1/49) is not 1 in binary, so the sum has to be divided.
    let x = Tensor::ones_of(&cpu(), 49, DType::F64).unwrap();
    assert_eq!(x.mean_all().unwrap().item::<f64>().unwrap(), 1.0);
}

#[test]
fn ties_share_the_gradient_evenly() {
    let x = Tensor::from_slice(&cpu(), &[3.0f32, 1.0, 3.0, 2.0, 2.0, 5.0], [2, 3]).unwrap();
    let x = x.requiring_grad().unwrap();
    let gradient = |y: Result<Tensor>| {
        let gradients = y.unwrap().sum_all().unwrap().backward().unwrap();
        gradients.get(&x).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(gradient(x.max(1)), [0.5, 0.0, 0.5, 0.0, 0.0, 1.0]);
    assert_eq!(gradient(x.min_keepdim(1)), [0.0, 1.0, 0.0, 0.5, 0.5, 0.0]);
}

#[test]
fn the_first_of_equal_extremes_is_found_and_nan_is_both() {
    let x =
        Tensor::from_slice(&cpu(), &[1.0f32, 3.0, 3.0, 1.0, f32::NAN, 9.0, f32::NAN, -9.0], [2, 4]).unwrap();
    assert_eq!(x.argmax(1).unwrap().to_vec::<i64>().unwrap(), [1, 0]);
    assert_eq!(x.argmin(1).unwrap().to_vec::<i64>().unwrap(), [0, 0]);
    assert!(values(x.max(1))[1].is_nan());
}

#[test]
fn argmax_over_several_axes_counts_in_logical_order() {
    let values = [1.0f32, 5.0, 2.0, 0.0, 7.0, -1.0, 7.0, 3.0, -1.0, 2.0, 9.0, 4.0];
    let x = Tensor::from_slice(&cpu(), &values, [2, 3, 2]).unwrap();
    let places =
        |y: Result<Tensor>| (y.as_ref().unwrap().dims().to_vec(), y.unwrap().to_vec::<i64>().unwrap());
    assert_eq!(places(x.argmax([0, 1, 2])), (vec![], vec![10]));
    assert_eq!(places(x.argmin([2, 0, 1])), (vec![], vec![5]));
    assert_eq!(places(x.argmax([0, 2])), (vec![3], vec![2, 0, 2]));
    assert_eq!(places(x.permute([2, 1, 0]).unwrap().argmax([0, 1])), (vec![2], vec![2, 2]));
    // Along no axis each element is the extreme of its own.
    assert_eq!(places(x.argmax([])), (vec![2, 3, 2], vec![0; 12]));
    assert!(matches!(x.argmax([0, -3]), Err(Error::BadArgument { op: "argmax", .. })));
}

#[test]
fn narrow_integers_are_summed_as_i64_and_integers_have_no_mean() {
    let bytes = Tensor::ones_of(&cpu(), 300, DType::U8).unwrap();
    assert_eq!(bytes.sum_all().unwrap().item::<i64>().unwrap(), 300);
    assert_eq!(bytes.max_all().unwrap().item::<u8>().unwrap(), 1);
    let ints = Tensor::arange(&cpu(), 0, 3).unwrap();
    assert_eq!(ints.mean_all().unwrap_err(), Error::UnsupportedDType { op: "mean", dtype: DType::I64 });
}

#[test]
fn the_gradient_of_a_sum_takes_no_memory_of_its_own() {
    let device = cpu();
    let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
    let x = Tensor::ones(&device, 10_000).unwrap().requiring_grad().unwrap();
    let before = in_use();
    let gradients = x.sum_all().unwrap().backward().unwrap();
    assert_eq!(in_use() - before, 256, "the seed, seen 10,000 times");
    assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [1.0; 10_000]);
}

#[test]
fn sums_of_no_elements_along_huge_axes_do_not_overflow() {
    const HUGE: usize = 1 << 40;
    let device = cpu();
    let none = Tensor::zeros(&device, [HUGE, HUGE, 2, 0]).unwrap();
    assert_eq!(none.sum(2).unwrap().dims(), [HUGE, HUGE, 0]);
    assert!(none.sum(3).is_err());
    assert_eq!(none.sum_all().unwrap().item::<f32>().unwrap(), 0.0);
}

#[test]
fn narrow_integers_are_widened_piece_by_piece() {
    let device = cpu();
    let piece = device.backend().rules().chunk_elements();
    // Of several shapes, so that the longest axis is folded or stays, and the last piece is a shorter one.
    for (dims, axes) in [
        ([3, piece + 5], &[1][..]),
        ([3, piece + 5], &[0]),
        ([2 * piece + 1, 2], &[0, 1]),
        ([2 * piece + 1, 2], &[1]),
        ([piece + 7, 3], &[]),
    ] {
        let elements = dims.iter().product::<usize>();
        let wide = Tensor::arange(&device, 0, elements).unwrap().reshape(dims).unwrap();
        let bytes = wide.to_dtype(DType::U8).unwrap();
        let wide = bytes.to_dtype(DType::I64).unwrap();
        let truths = bytes.gt(&Tensor::full_of(&device, 1, 100, DType::U8).unwrap()).unwrap();
        let ints = |result: Result<Tensor>| result.unwrap().to_vec::<i64>().unwrap();
        assert_eq!(ints(bytes.sum(axes)), ints(wide.sum(axes)), "{dims:?} {axes:?}");
        assert_eq!(ints(bytes.t().unwrap().sum_all()), ints(wide.sum_all()));
        assert_eq!(
            ints(truths.sum(axes)),
            ints(truths.to_dtype(DType::I64).unwrap().sum(axes)),
            "{dims:?} {axes:?}"
        );
        let odd = bytes.mul_scalar(2).unwrap().add_scalar(1).unwrap();
        assert_eq!(
            ints(odd.prod(axes)),
            ints(odd.to_dtype(DType::I64).unwrap().prod(axes)),
            "{dims:?} {axes:?}"
        );
    }
    let truths = Tensor::full_of(&device, 64 * piece, true, DType::Bool).unwrap();
    let memory = device.default_allocator().unwrap();
    let before = memory.stats().bytes_in_use;
    memory.clear_stats();
    assert_eq!(truths.sum_all().unwrap().item::<i64>().unwrap(), 64 * piece as i64);
    let extra = memory.stats().peak_bytes_in_use - before;
    assert!(extra <= 9 * piece as u64, "{extra} bytes for {} truth values", 64 * piece);
}
