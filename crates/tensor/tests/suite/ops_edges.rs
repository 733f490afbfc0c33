//! Where ops have an edge: gradients at kinks and zeros, rows that do not count, equals and NaN in order, what is shared and
//! what is taken.

use crate::ops_table::device;
use highwater_tensor::{
    CrossEntropyOptions, DType, Device, IntoAxisIndex, Norm, Pool2dOptions, Reduction, Result, Rng, Runtime,
    SortOrder, Tensor,
};

fn leaf(device: &Device, values: &[f32]) -> Tensor {
    Tensor::from_slice(device, values, values.len()).unwrap().requiring_grad().unwrap()
}

/// The gradient of the sum of a function's values.
fn gradient(x: &Tensor, function: impl Fn(&Tensor) -> Result<Tensor>) -> Vec<f32> {
    let gradients = function(x).unwrap().sum_all().unwrap().backward().unwrap();
    gradients.get(x).unwrap().to_vec().unwrap()
}

#[test]
fn lengths_and_deviations_of_nothing_have_the_gradient_zero() {
    let device = device();
    let zeros = leaf(&device, &[0.0; 3]);
    assert_eq!(gradient(&zeros, |x| x.norm(Norm::L2, 0)), [0.0; 3]);
    assert_eq!(gradient(&zeros, |x| x.norm(Norm::L1, 0)), [0.0; 3]);
    assert_eq!(gradient(&zeros, |x| x.norm(Norm::Max, 0)), [0.0; 3]);
    assert_eq!(gradient(&leaf(&device, &[7.0; 4]), |x| x.std_all(1)), [0.0; 4]);
}

#[test]
fn variance_of_too_few_elements_is_infinite_or_nan() {
    let device = device();
    let of = |values: &[f32], correction| {
        let x = Tensor::from_slice(&device, values, values.len()).unwrap();
        x.var(0, correction).unwrap().item::<f32>().unwrap()
    };
    assert_eq!(of(&[1.0, 2.0], 2), f32::INFINITY);
    assert_eq!(of(&[1.0, 2.0], 5), f32::INFINITY);
    for (values, correction) in [(&[2.0, 2.0][..], 2), (&[7.0], 1), (&[], 0)] {
        assert!(of(values, correction).is_nan(), "{values:?} less {correction}");
    }
}

#[test]
fn the_largest_of_equals_share_the_gradient_of_the_maximum_norm() {
    let x = leaf(&device(), &[3.0, 1.0, -3.0]);
    assert_eq!(gradient(&x, |x| x.norm(Norm::Max, 0)), [0.5, 0.0, -0.5]);
}

#[test]
fn a_product_has_gradients_also_where_elements_are_zero() {
    let device = device();
    assert_eq!(gradient(&leaf(&device, &[2.0, 0.0, 3.0]), Tensor::prod_all), [0.0, 6.0, 0.0]);
    assert_eq!(gradient(&leaf(&device, &[0.0, 0.0, 3.0]), Tensor::prod_all), [0.0; 3]);
    assert_eq!(gradient(&leaf(&device, &[2.0, 4.0]), Tensor::prod_all), [4.0, 2.0]);
}

#[test]
fn logsumexp_of_minus_infinity_has_a_zero_gradient() {
    let x = leaf(&device(), &[f32::NEG_INFINITY; 2]);
    assert_eq!(gradient(&x, |x| x.logsumexp(0)), [0.0; 2]);
}

#[test]
fn zero_to_a_negative_power_is_infinite() {
    let device = device();
    let (zero, exponents) = (leaf(&device, &[0.0]), leaf(&device, &[-1.0, 0.0, 2.0]));
    assert_eq!(gradient(&exponents, |b| zero.pow(b)), [f32::NEG_INFINITY, 0.0, 0.0]);
}

#[test]
fn powers_of_a_half_are_roots_at_the_ends_too() {
    let x = leaf(&device(), &[f32::NEG_INFINITY, -0.0, f32::INFINITY]);
    let [root, inverse] = [0.5, -0.5].map(|c| x.powf(c).unwrap().to_vec::<f32>().unwrap());
    assert!(root[0].is_nan() && root[1] == 0.0 && root[1].is_sign_negative() && root[2] == f32::INFINITY);
    assert!(inverse[0].is_nan() && inverse[1..] == [f32::NEG_INFINITY, 0.0]);
    let slope = gradient(&x, |x| x.powf(1.5));
    assert!(slope[0].is_nan() && slope[1] == 0.0 && slope[2] == f32::INFINITY);
}

#[test]
fn a_triangle_may_lie_beyond_all_corners() {
    let ones = Tensor::ones(&device(), [2, 3]).unwrap();
    for (diagonal, lower, upper) in
        [(isize::MAX, 1.0, 0.0), (isize::MIN, 0.0, 1.0), (7, 1.0, 0.0), (-7, 0.0, 1.0)]
    {
        assert_eq!(ones.tril(diagonal).unwrap().to_vec::<f32>().unwrap(), [lower; 6], "{diagonal}");
        assert_eq!(ones.triu(diagonal).unwrap().to_vec::<f32>().unwrap(), [upper; 6], "{diagonal}");
    }
}

#[test]
fn the_least_integer_taken_from_a_float_makes_it_larger() {
    let x = leaf(&device(), &[0.0]);
    assert_eq!(x.sub_scalar(i64::MIN).unwrap().to_vec::<f32>().unwrap(), [9_223_372_036_854_775_808.0]);
}

#[test]
fn clamp_compares_integer_bounds_exactly() {
    let x = Tensor::from_slice(&device(), &[i64::MAX], 1).unwrap();
    assert_eq!(x.clamp(i64::MAX - 2, i64::MAX - 1).unwrap().to_vec::<i64>().unwrap(), [i64::MAX - 1]);
    assert!(x.clamp(i64::MAX - 1, i64::MAX - 2).is_err());
}

#[test]
fn the_first_none_in_order_are_none() {
    let x = leaf(&device(), &[3.0, 1.0, 2.0]);
    assert_eq!(x.top_k(0, 0, SortOrder::Descending).unwrap().0.dims(), [0]);
}

#[test]
fn variances_of_large_numbers_keep_their_digits() {
    let x = Tensor::from_slice(&device(), &[1e6f32, 1e6 + 1.0, 1e6 + 2.0], 3).unwrap();
    assert_eq!(x.var_all(1).unwrap().item::<f32>().unwrap(), 1.0);
}

#[test]
fn rows_that_are_ignored_count_for_nothing() {
    let device = device();
    let logits = leaf(&device, &[1.0, 2.0, 3.0, 4.0, f32::NAN, 0.0]).reshape([3, 2]).unwrap().detach();
    let logits = logits.requiring_grad().unwrap();
    let targets = Tensor::from_slice(&device, &[1i64, 0, -100], 3).unwrap();
    for label_smoothing in [0.0, 0.1] {
        let options = CrossEntropyOptions { ignore_index: Some(-100), label_smoothing, ..Default::default() };
        let loss = logits.cross_entropy_with(&targets, options).unwrap();
        let two = logits.slice(0, ..2).unwrap();
        let options = CrossEntropyOptions { label_smoothing, ..Default::default() };
        let expected = two.cross_entropy_with(&targets.slice(0, ..2).unwrap(), options).unwrap();
        assert_eq!(loss.item::<f32>().unwrap(), expected.item::<f32>().unwrap());
    }
    let options = CrossEntropyOptions { ignore_index: Some(-100), ..Default::default() };
    let finite = Tensor::ones(&device, [3, 2]).unwrap().requiring_grad().unwrap();
    let gradients = finite.cross_entropy_with(&targets, options).unwrap().backward().unwrap();
    assert_eq!(
        gradients.get(&finite).unwrap().to_vec::<f32>().unwrap(),
        [0.25, -0.25, -0.25, 0.25, 0.0, 0.0]
    );
}

#[test]
fn no_gradient_flows_to_what_is_ignored_whatever_it_holds() {
    let device = device();
    for wild in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let logits = [[0.0, 0.0], [wild, 0.0], [0.0, wild], [wild, wild]].concat();
        let logits = Tensor::from_slice(&device, &logits, [4, 2]).unwrap().requiring_grad().unwrap();
        let targets = Tensor::from_slice(&device, &[1i64, -100, -100, -100], 4).unwrap();
        for label_smoothing in [0.0, 0.2] {
            for reduction in [Reduction::Mean, Reduction::Sum] {
                let ignore_index = Some(-100);
                let options =
                    CrossEntropyOptions { ignore_index, label_smoothing, reduction, ..Default::default() };
                let loss = logits.cross_entropy_with(&targets, options).unwrap();
                assert!((loss.item::<f32>().unwrap() - 2f32.ln()).abs() < 1e-6);
                let gradient = loss.backward().unwrap().get(&logits).unwrap().to_vec::<f32>().unwrap();
                assert!(gradient[0] > 0.2 && gradient[1] < -0.2, "{gradient:?}");
                assert_eq!(gradient[2..], [0.0; 6]);
            }
        }
    }
    // A mean over nothing is no number, and still nothing flows to what is ignored.
    let logits = leaf(&device, &[1.0, 2.0]).reshape([1, 2]).unwrap().detach().requiring_grad().unwrap();
    let targets = Tensor::from_slice(&device, &[-100i64], 1).unwrap();
    let options = CrossEntropyOptions { ignore_index: Some(-100), ..Default::default() };
    let gradients = logits.cross_entropy_with(&targets, options).unwrap().backward().unwrap();
    assert_eq!(gradients.get(&logits).unwrap().to_vec::<f32>().unwrap(), [0.0; 2]);
}

#[test]
fn without_options_cross_entropy_is_the_plain_one() {
    let device = device();
    let logits = Tensor::normal(&device, [6, 4], 0.0, 2.0, &Rng::new(4)).unwrap();
    let targets = Tensor::from_slice(&device, &[2i64, 0, 1, 1, 3, 3], 6).unwrap();
    let plain = logits.cross_entropy(&targets).unwrap().item::<f32>().unwrap();
    let with = logits.cross_entropy_with(&targets, CrossEntropyOptions::default()).unwrap();
    assert!((with.item::<f32>().unwrap() - plain).abs() < 1e-6);
}

#[test]
fn losses_of_certain_predictions_stay_finite() {
    let device = device();
    let logits = leaf(&device, &[-500.0, 500.0]);
    let wrong = Tensor::from_slice(&device, &[1.0f32, 0.0], 2).unwrap();
    let losses = logits.bce_with_logits_with(&wrong, Reduction::None).unwrap();
    assert_eq!(losses.to_vec::<f32>().unwrap(), [500.0, 500.0]);
    assert_eq!(gradient(&logits, |x| x.bce_with_logits_with(&wrong, Reduction::Sum)), [-1.0, 1.0]);
}

#[test]
fn what_is_no_number_is_sorted_as_the_largest() {
    let device = device();
    let x = Tensor::from_slice(&device, &[1.0f32, f32::NAN, f32::INFINITY, -1.0, f32::NAN, 1.0], 6).unwrap();
    let order = |order| x.argsort(0, order).unwrap().to_vec::<i64>().unwrap();
    assert_eq!(order(SortOrder::Ascending), [3, 0, 5, 2, 1, 4]);
    assert_eq!(order(SortOrder::Descending), [1, 4, 2, 0, 5, 3]);
}

#[test]
fn sorting_equals_the_standard_library_on_any_thread_count() {
    let mut results = Vec::new();
    for threads in [1, 3] {
        let device = Runtime::builder().threads(threads).build().unwrap().cpu().unwrap();
        let x = Tensor::uniform(&device, [5, 10_007], 0.0, 50.0, &Rng::new(8)).unwrap();
        // Many equals.
        let x = x.to_dtype(DType::I64).unwrap();
        let values = x.to_vec::<i64>().unwrap();
        let order = x.argsort(1, SortOrder::Ascending).unwrap().to_vec::<i64>().unwrap();
        for (line, order) in values.chunks(10_007).zip(order.chunks(10_007)) {
            let mut expected: Vec<i64> = (0..10_007).collect();
            expected.sort_by_key(|&i| line[i as usize]);
            assert_eq!(order, expected);
        }
        results.push(order);
    }
    assert_eq!(results[0], results[1]);
}

#[test]
fn the_first_few_in_order_keep_no_memory_for_the_others() {
    let device = device();
    let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
    let x = Tensor::uniform(&device, [4, 10_000], 0.0, 1.0, &Rng::new(8)).unwrap();
    let before = in_use();
    let (values, indices) = x.top_k(3, 1, SortOrder::Descending).unwrap();
    assert_eq!((values.dims(), indices.dims()), (&[4, 3][..], &[4, 3][..]));
    assert!(in_use() - before <= 1024, "{}", in_use() - before);
}

#[test]
fn gradients_of_what_was_sorted_go_back_to_where_it_stood() {
    let x = leaf(&device(), &[3.0, 1.0, 2.0]);
    let weights = Tensor::from_slice(x.device(), &[10.0f32, 20.0, 30.0], 3).unwrap();
    let sorted = |x: &Tensor| x.sort(0, SortOrder::Ascending)?.0.mul(&weights);
    assert_eq!(gradient(&x, sorted), [30.0, 10.0, 20.0]);
    let largest = |x: &Tensor| Ok(x.top_k(1, 0, SortOrder::Descending)?.0);
    assert_eq!(gradient(&x, largest), [1.0, 0.0, 0.0]);
}

#[test]
fn parts_are_views_of_the_same_buffer() {
    let x = Tensor::arange(&device(), 0, 24).unwrap().reshape([2, 3, 4]).unwrap();
    let parts: Vec<usize> = vec![1, 2];
    let row = x.at([parts[0], parts[1]]).unwrap();
    assert_eq!(row.to_vec::<i64>().unwrap(), [20, 21, 22, 23]);
    let part = x.at((.., -1, (1..).every(2))).unwrap();
    assert_eq!((part.dims(), part.to_vec::<i64>().unwrap()), (&[2, 2][..], vec![9, 11, 21, 23]));
    for part in
        [&row, &part, &x.at((.., ..)).unwrap(), &x.split(2, 3).unwrap()[1], &x.chunk(0, 2).unwrap()[1]]
    {
        assert!(part.shares_buffer_with(&x));
    }
    assert_eq!(x.at((0, ..=1, 4..)).unwrap().dims(), [2, 0]);
    assert_eq!(x.at((0, 1, ..=-1)).unwrap().to_vec::<i64>().unwrap(), [4, 5, 6, 7]);
}

#[test]
fn what_changes_nothing_takes_nothing() {
    let device = device();
    let x = Tensor::ones(&device, [2, 3]).unwrap();
    for same in [x.pad([(0, 0); 2], 1), x.roll(6, 1), x.tile([1, 1]), x.flip([0isize; 0])] {
        assert!(same.unwrap().shares_buffer_with(&x));
    }
}

#[test]
fn padding_and_rolling_all_axes_allocate_one_output() {
    let device = device();
    let x = Tensor::ones(&device, [100, 100]).unwrap();
    let pool = device.default_allocator().unwrap();
    let before = pool.stats().bytes_in_use;
    for made in [|x: &Tensor| x.pad([(1, 1); 2], 0.0), |x: &Tensor| x.flip([0, 1])] {
        pool.clear_stats();
        let output = made(&x).unwrap();
        let peak = pool.stats().peak_bytes_in_use - before;
        assert!(peak <= (output.elements() * 4) as u64 + 256, "{peak}");
    }
}

#[test]
fn sums_go_where_indices_say_in_their_order() {
    let device = device();
    let x = leaf(&device, &[1.0, 2.0]);
    let source = leaf(&device, &[10.0, 20.0, 30.0]);
    let places = Tensor::from_slice(&device, &[1i64, 1, 0], 3).unwrap();
    let sums = x.scatter_add(0, &places, &source).unwrap();
    assert_eq!(sums.to_vec::<f32>().unwrap(), [31.0, 32.0]);
    let weights = Tensor::from_slice(&device, &[5.0f32, 7.0], 2).unwrap();
    let gradients = sums.mul(&weights).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [5.0, 7.0]);
    assert_eq!(gradients.get(&source).unwrap().to_vec::<f32>().unwrap(), [7.0, 7.0, 5.0]);
}

#[test]
fn copies_of_a_tensor_of_full_rank_are_those_of_its_matrix() {
    let device = device();
    let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let matrix = Tensor::from_slice(&device, &values, [2, 3]).unwrap();
    let full = Tensor::from_slice(&device, &values, [1, 2, 1, 1, 1, 3, 1, 1]).unwrap();
    let swapped = full.reshape([1, 3, 1, 1, 1, 2, 1, 1]).unwrap().transpose(1, 5).unwrap();
    let of_swapped = matrix.reshape([3, 2]).unwrap().t().unwrap();
    for (full, matrix) in [(full, matrix), (swapped, of_swapped)] {
        for (copies, of_matrix, dims) in [
            (full.tile([1, 1, 1, 1, 1, 2, 1, 1]), matrix.tile([1, 2]), [1, 2, 1, 1, 1, 6, 1, 1]),
            (full.tile([1, 3, 1, 1, 1, 2, 1, 1]), matrix.tile([3, 2]), [1, 6, 1, 1, 1, 6, 1, 1]),
            (full.tile([1, 0, 1, 1, 1, 1, 1, 1]), matrix.tile([0, 1]), [1, 0, 1, 1, 1, 3, 1, 1]),
            (full.repeat_interleave(1, 2), matrix.repeat_interleave(0, 2), [1, 4, 1, 1, 1, 3, 1, 1]),
            (full.repeat_interleave(5, 2), matrix.repeat_interleave(1, 2), [1, 2, 1, 1, 1, 6, 1, 1]),
        ] {
            let (copies, of_matrix) = (copies.unwrap(), of_matrix.unwrap());
            assert_eq!(copies.dims(), dims);
            assert_eq!(copies.to_vec::<f32>().unwrap(), of_matrix.to_vec::<f32>().unwrap());
        }
    }
    let matrix = Tensor::ones(&device, [2, 3]).unwrap();
    assert!(matches!(matrix.tile([2; 9]), Err(highwater_tensor::Error::RankTooLarge { rank: 9, .. })));
}

#[test]
fn copies_of_nothing_are_nothing_whatever_the_other_sizes() {
    let huge = 1 << 40;
    let x = Tensor::zeros(&device(), [huge, huge, 0, 1, 1, 2, huge, huge]).unwrap();
    assert_eq!(x.repeat_interleave(5, 3).unwrap().dims(), [huge, huge, 0, 1, 1, 6, huge, huge]);
    assert_eq!(x.tile([1, 1, 2, 1, 1, 1, 1, 1]).unwrap().dims(), x.dims());
}

#[test]
fn pooling_time_depends_only_on_elements_in_bounds() {
    let device = device();
    let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [1, 1, 2, 2]).unwrap();
    let x = x.requiring_grad().unwrap();
    for [high, wide] in [[60, 0], [0, 60], [60, 60]] {
        let options = Pool2dOptions {
            size: [(1 << high) + 1, (1 << wide) + 1],
            padding: [(1 << high) / 2, (1 << wide) / 2],
            stride: [1, 1],
            ..Pool2dOptions::square(1)
        };
        let largest = x.max_pool2d(options).unwrap();
        let values = largest.to_vec::<f32>().unwrap();
        assert_eq!((values.last(), largest.dims()[..2].to_vec()), (Some(&4.0), vec![1, 1]));
        let gradients = largest.sum_all().unwrap().backward().unwrap();
        let count = gradients.get(&x).unwrap().sum_all().unwrap().item::<f32>().unwrap();
        assert_eq!(count, values.len() as f32);
        let mean = x.avg_pool2d(options).unwrap().to_vec::<f32>().unwrap()[0];
        let expected = 10.0 / (options.size[0] as f64 * options.size[1] as f64);
        assert!((f64::from(mean) / expected - 1.0).abs() < 1e-6, "{mean}");
    }
}

#[test]
fn rounding_goes_to_whole_numbers_and_no_gradient_through_it() {
    let device = device();
    let x = leaf(&device, &[-2.5, -1.5, -0.5, -0.2, 0.0, 0.5, 1.5, 2.5, 1e9, f32::INFINITY]);
    let values = |y: Result<Tensor>| y.unwrap().to_vec::<f32>().unwrap();
    let inf = f32::INFINITY;
    assert_eq!(values(x.floor()), [-3.0, -2.0, -1.0, -1.0, 0.0, 0.0, 1.0, 2.0, 1e9, inf]);
    assert_eq!(values(x.ceil()), [-2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 1e9, inf]);
    assert_eq!(values(x.round()), [-2.0, -2.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 1e9, inf]);
    for rounded in [Tensor::floor, Tensor::ceil, Tensor::round] {
        let gradients = rounded(&x).unwrap().add(&x).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [1.0; 10]);
        for dtype in [DType::F64, DType::F16, DType::BF16] {
            let short = x.narrow(0, 0, 8).unwrap().detach();
            let wide = rounded(&short.to_dtype(dtype).unwrap()).unwrap().to_dtype(DType::F32);
            assert_eq!(values(wide), values(rounded(&short)), "{dtype}");
        }
        assert!(rounded(&Tensor::arange(&device, 0, 3).unwrap()).is_err());
    }
}

#[test]
fn what_is_no_number_or_infinite_is_found_in_every_type() {
    let device = device();
    let truths = |y: Result<Tensor>| y.unwrap().to_vec::<bool>().unwrap();
    let x = leaf(&device, &[1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0]);
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let x = x.to_dtype(dtype).unwrap();
        assert_eq!(truths(x.is_nan()), [false, true, false, false, false], "{dtype}");
        assert_eq!(truths(x.is_finite()), [true, false, false, false, true], "{dtype}");
    }
    let whole = Tensor::arange(&device, 0, 2).unwrap();
    for whole in [whole.to_dtype(DType::Bool).unwrap(), whole] {
        assert_eq!((truths(whole.is_nan()), truths(whole.is_finite())), (vec![false; 2], vec![true; 2]));
    }
}

#[test]
fn the_slope_of_gelu_is_that_of_a_line_far_from_0() {
    let device = device();
    for gelu in [Tensor::gelu, Tensor::gelu_tanh] {
        let x = leaf(&device, &[-1.2e34, -1e19, -50.0, 50.0, 1e19, 1.2e34]);
        let gradients = gelu(&x).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    }
}

#[test]
fn an_equation_of_one_operand_takes_every_type() {
    let device = device();
    let counted = Tensor::arange(&device, 0, 6).unwrap().reshape([2, 3]).unwrap();
    for dtype in DType::ALL {
        let x = counted.to_dtype(dtype).unwrap();
        let as_i64 = |y: Tensor| y.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap();
        let turned = Tensor::einsum("ij->ji", &[&x]).unwrap();
        assert_eq!((turned.dtype(), turned.dims()), (dtype, &[3, 2][..]));
        assert_eq!(as_i64(turned), as_i64(x.t().unwrap()), "{dtype}");
        let sums = Tensor::einsum("ij->i", &[&x]).unwrap();
        assert_eq!(as_i64(sums), if dtype == DType::Bool { [2, 3] } else { [3, 12] }, "{dtype}");
    }
    let truths = counted.to_dtype(DType::Bool).unwrap();
    let refused = Tensor::einsum("ij,kj->ik", &[&truths, &truths]).unwrap_err().to_string();
    assert_eq!(refused, "einsum: does not support element type bool; convert with `to_dtype`");
}
