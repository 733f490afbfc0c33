//! Results of ops against ndarray, over random shapes (scalars and empty ones included) and layouts.

use crate::ops_table::{Numbers, device};
use highwater_tensor::{DType, Device, Element, Result, Tensor};
use ndarray::{ArrayD, Axis, Dimension, IxDyn, Slice, Zip};

const ROUNDS: u64 = 200;

/// The same array as a tensor, in some layout, and as ndarray has it.
struct Twin<T> {
    tensor: Tensor,
    array: ArrayD<T>,
}

/// A tensor of this shape that lies in its buffer permuted, with gaps, or repeated, as chance has it.
fn twin<T: Element>(
    device: &Device,
    numbers: &mut Numbers,
    dims: &[usize],
    mut value: impl FnMut(&mut Numbers) -> T,
) -> Twin<T> {
    let rank = dims.len();
    let mut axes: Vec<usize> = (0..rank).collect();
    numbers.shuffle(&mut axes);
    // Axis i of the result is axis `axes[i]` of the source.
    let mut source = vec![0; rank];
    let (mut starts, mut steps, mut repeated) = (vec![0; rank], vec![1; rank], vec![false; rank]);
    for (to, &from) in axes.iter().enumerate() {
        repeated[from] = numbers.below(6) == 0 && dims[to] > 0;
        if repeated[from] {
            source[from] = 1;
        } else {
            (starts[from], steps[from]) = (numbers.below(3), 1 + numbers.below(3));
            source[from] = starts[from] + dims[to] * steps[from];
        }
    }
    let count: usize = source.iter().product();
    let values: Vec<T> = (0..count).map(|_| value(numbers)).collect();
    let mut array = ArrayD::from_shape_vec(source.clone(), values).unwrap();
    let mut tensor = Tensor::from_ndarray(device, &array).unwrap();
    let mut full = source.clone();
    for (to, &from) in axes.iter().enumerate() {
        full[from] = if repeated[from] { dims[to] } else { source[from] };
    }
    tensor = tensor.broadcast_to(&full[..]).unwrap();
    array = array.broadcast(full).unwrap().to_owned();
    for from in (0..rank).filter(|&from| !repeated[from]) {
        tensor = tensor.slice_step(from as isize, starts[from].., steps[from]).unwrap();
        let slice = Slice::new(starts[from] as isize, None, steps[from] as isize);
        array = array.slice_axis(Axis(from), slice).to_owned();
    }
    let order: Vec<isize> = axes.iter().map(|&axis| axis as isize).collect();
    let twin = Twin { tensor: tensor.permute(&order).unwrap(), array: array.permuted_axes(axes) };
    assert_eq!(twin.tensor.dims(), dims);
    twin
}

fn floats(device: &Device, numbers: &mut Numbers, dims: &[usize]) -> Twin<f64> {
    twin(device, numbers, dims, |numbers| numbers.unit() * 4.0 - 2.0)
}

fn dims(numbers: &mut Numbers, most: usize) -> Vec<usize> {
    (0..numbers.below(most + 1)).map(|_| [0, 1, 2, 3, 5, 17][numbers.below(6)]).collect()
}

/// Shapes that broadcast to `dims`.
fn shrunk(numbers: &mut Numbers, dims: &[usize]) -> Vec<usize> {
    let first = numbers.below(dims.len() + 1);
    dims[first..].iter().map(|&size| if numbers.below(3) == 0 { 1 } else { size }).collect()
}

fn for_each_round(mut check: impl FnMut(&Device, &mut Numbers)) {
    let device = device();
    for seed in 0..ROUNDS {
        println!("seed {seed}");
        check(&device, &mut Numbers::new(seed));
    }
}

#[track_caller]
fn assert_close(result: Result<Tensor>, expected: &ArrayD<f64>) {
    let result = result.unwrap().to_ndarray::<f64>().unwrap();
    assert_eq!(result.shape(), expected.shape());
    for (left, right) in result.iter().zip(expected) {
        let same = left == right || left.is_nan() && right.is_nan();
        assert!(same || (left - right).abs() <= 1e-12 * right.abs().max(1.0), "{left} for {right}");
    }
}

/// 2/√π Σ (-1)ⁿ x²ⁿ⁺¹ / (n! (2n+1)): enough terms for |x| < 2.
fn erf(x: f64) -> f64 {
    let (mut power, mut sum) = (x, 0.0);
    for n in 0..60 {
        sum += power / f64::from(2 * n + 1);
        power *= -x * x / f64::from(n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn functions_of_one_number_are_those_of_the_standard_library() {
    type Function = (fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64);
    let functions: &[Function] = &[
        (Tensor::neg, |x| -x),
        (Tensor::abs, f64::abs),
        (Tensor::square, |x| x * x),
        (Tensor::exp, f64::exp),
        (Tensor::log, f64::ln),
        (Tensor::sqrt, f64::sqrt),
        (Tensor::relu, |x| x.max(0.0)),
        (Tensor::gelu, |x| x * 0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))),
        (Tensor::tanh, f64::tanh),
        (Tensor::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (Tensor::recip, f64::recip),
        (Tensor::rsqrt, |x| 1.0 / x.sqrt()),
        (Tensor::sign, |x| if x == 0.0 { 0.0 } else { x.signum() }),
        (Tensor::sin, f64::sin),
        (Tensor::cos, f64::cos),
        (Tensor::silu, |x| x / (1.0 + (-x).exp())),
        (Tensor::softplus, |x| (1.0 + x.exp()).ln()),
        (|x| x.leaky_relu(0.01), |x| if x < 0.0 { 0.01 * x } else { x }),
        (|x| x.elu(1.5), |x| if x > 0.0 { x } else { 1.5 * x.exp_m1() }),
        (Tensor::mish, |x| x * x.exp().ln_1p().tanh()),
        (Tensor::hardswish, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
        (|x| x.powf(2.5), |x| x.powf(2.5)),
        (|x| x.clamp(-0.5, 1.5), |x| x.clamp(-0.5, 1.5)),
        (|x| x.add_scalar(0.3), |x| x + 0.3),
        (|x| x.sub_scalar(0.3), |x| x - 0.3),
        (|x| x.mul_scalar(0.3), |x| x * 0.3),
        (|x| x.div_scalar(0.3), |x| x / 0.3),
    ];
    for_each_round(|device, numbers| {
        let dims = dims(numbers, 4);
        let x = floats(device, numbers, &dims);
        for &(op, function) in functions {
            assert_close(op(&x.tensor), &x.array.mapv(function));
        }
    });
}

#[test]
fn arithmetic_and_comparisons_broadcast_as_in_numpy() {
    type Arithmetic = (fn(&Tensor, &Tensor) -> Result<Tensor>, fn(f64, f64) -> f64);
    let arithmetic: &[Arithmetic] = &[
        (Tensor::add, |a, b| a + b),
        (Tensor::sub, |a, b| a - b),
        (Tensor::mul, |a, b| a * b),
        (Tensor::div, |a, b| a / b),
        (Tensor::pow, f64::powf),
        (Tensor::maximum, f64::max),
        (Tensor::minimum, f64::min),
    ];
    type Comparison = (fn(&Tensor, &Tensor) -> Result<Tensor>, fn(&f64, &f64) -> bool);
    let comparisons: &[Comparison] = &[
        (|a, b| a.eq(b), PartialEq::eq),
        (|a, b| a.ne(b), PartialEq::ne),
        (|a, b| a.lt(b), PartialOrd::lt),
        (|a, b| a.le(b), PartialOrd::le),
        (|a, b| a.gt(b), PartialOrd::gt),
        (|a, b| a.ge(b), PartialOrd::ge),
    ];
    for_each_round(|device, numbers| {
        let shape = dims(numbers, 4);
        let (lhs_dims, rhs_dims) = (shape.clone(), shrunk(numbers, &shape));
        // Few different values, so that there are ties.
        let mut few = |dims: &[usize]| twin(device, numbers, dims, |n| n.below(5) as f64 - 2.0);
        let (lhs, rhs) = (few(&lhs_dims), few(&rhs_dims));
        let wide = rhs.array.broadcast(shape.clone()).unwrap();
        for &(op, function) in arithmetic {
            let expected = Zip::from(&lhs.array).and(&wide).map_collect(|&a, &b| function(a, b));
            assert_close(op(&lhs.tensor, &rhs.tensor), &expected);
            let expected = Zip::from(&wide).and(&lhs.array).map_collect(|&b, &a| function(b, a));
            assert_close(op(&rhs.tensor, &lhs.tensor), &expected);
        }
        for &(op, function) in comparisons {
            let expected = Zip::from(&lhs.array).and(&wide).map_collect(function);
            let result = op(&lhs.tensor, &rhs.tensor).unwrap();
            assert_eq!(result.to_ndarray::<bool>().unwrap(), expected);
        }
        let condition = lhs.tensor.lt(&rhs.tensor).unwrap();
        let least = condition.where_(&lhs.tensor, &rhs.tensor);
        assert_close(least, &Zip::from(&lhs.array).and(&wide).map_collect(|&a, &b| a.min(b)));
    });
}

#[test]
fn integer_arithmetic_wraps_as_in_the_standard_library() {
    for_each_round(|device, numbers| {
        let dims = dims(numbers, 3);
        let mut ints = || twin(device, numbers, &dims, |n| (n.next() as i64) >> [0, 32, 62][n.below(3)]);
        let (a, b) = (ints(), ints());
        let check = |result: Result<Tensor>, function: fn(i64, i64) -> i64| {
            let expected = Zip::from(&a.array).and(&b.array).map_collect(|&a, &b| function(a, b));
            assert_eq!(result.unwrap().to_ndarray::<i64>().unwrap(), expected);
        };
        check(a.tensor.add(&b.tensor), i64::wrapping_add);
        check(a.tensor.sub(&b.tensor), i64::wrapping_sub);
        check(a.tensor.mul(&b.tensor), i64::wrapping_mul);
        check(a.tensor.div(&b.tensor), |a, b| if b == 0 { 0 } else { a.wrapping_div(b) });
        check(a.tensor.maximum(&b.tensor), i64::max);
        let sum = a.array.iter().fold(0, |sum: i64, &value| sum.wrapping_add(value));
        assert_eq!(a.tensor.sum_all().unwrap().item::<i64>().unwrap(), sum);
    });
}

#[test]
fn reductions_fold_the_axes_named() {
    for_each_round(|device, numbers| {
        let dims = dims(numbers, 4);
        let x = floats(device, numbers, &dims);
        let axes: Vec<isize> = (0..dims.len() as isize).filter(|_| numbers.below(2) == 0).collect();
        let folded = |start: f64, f: fn(&f64, &f64) -> f64| {
            axes.iter()
                .rev()
                .fold(x.array.clone(), |array, &axis| array.fold_axis(Axis(axis as usize), start, f))
        };
        let sum = folded(0.0, |a, b| a + b);
        let count: usize = axes.iter().map(|&axis| dims[axis as usize]).product();
        assert_close(x.tensor.sum(&axes[..]), &sum);
        assert_close(x.tensor.mean(&axes[..]), &(&sum / count as f64));
        let kept: Vec<usize> = (0..dims.len())
            .map(|axis| if axes.contains(&(axis as isize)) { 1 } else { dims[axis] })
            .collect();
        let kept_sum = axes.iter().fold(sum, |array, &axis| array.insert_axis(Axis(axis as usize)));
        assert_close(x.tensor.sum_keepdim(&axes[..]), &kept_sum);
        assert_close(x.tensor.sum_to(kept), &kept_sum);
        if count > 0 {
            assert_close(x.tensor.max(&axes[..]), &folded(f64::NEG_INFINITY, |a, b| a.max(*b)));
            assert_close(x.tensor.min(&axes[..]), &folded(f64::INFINITY, |a, b| a.min(*b)));
        }
        for axis in (0..dims.len()).filter(|&axis| dims[axis] > 0) {
            let first = x.array.map_axis(Axis(axis), |lane| {
                (0..lane.len()).rev().max_by(|&i, &j| lane[i].total_cmp(&lane[j])).unwrap() as i64
            });
            let result = x.tensor.argmax(axis as isize).unwrap();
            assert_eq!(result.to_ndarray::<i64>().unwrap(), first);
            let negated = x.tensor.neg().unwrap().argmin(axis as isize).unwrap();
            assert_eq!(negated.to_ndarray::<i64>().unwrap(), first);
        }
    });
}

#[test]
fn matrix_products_are_sums_of_products() {
    for_each_round(|device, numbers| {
        let leading = dims(numbers, 2);
        let [m, k, n] = [(); 3].map(|()| [0, 1, 3, 8, 33][numbers.below(5)]);
        let lhs = floats(device, numbers, &[&leading[..], &[m, k]].concat());
        let rhs_dims = [&shrunk(numbers, &leading)[..], &[k, n]].concat();
        let rhs = floats(device, numbers, &rhs_dims);
        let wide = rhs.array.broadcast([&leading[..], &[k, n]].concat()).unwrap();
        let expected = ArrayD::from_shape_fn([&leading[..], &[m, n]].concat(), |index| {
            let (stack, [i, j]) = (&index.slice()[..leading.len()], [leading.len(), leading.len() + 1]);
            let at = |matrix: &[usize]| IxDyn(&[stack, matrix].concat());
            (0..k).map(|l| lhs.array[at(&[index[i], l])] * wide[at(&[l, index[j]])]).sum()
        });
        assert_close(lhs.tensor.matmul(&rhs.tensor), &expected);
    });
}

#[test]
fn softmax_is_a_quotient_of_exponentials() {
    for_each_round(|device, numbers| {
        let dims = dims(numbers, 3);
        let x = floats(device, numbers, &dims);
        for axis in 0..dims.len() {
            let exp = x.array.mapv(f64::exp);
            let expected = &exp / &exp.sum_axis(Axis(axis)).insert_axis(Axis(axis));
            assert_close(x.tensor.softmax(axis as isize), &expected);
            assert_close(x.tensor.log_softmax(axis as isize), &expected.mapv(f64::ln));
        }
    });
}

#[test]
fn shapes_change_as_in_ndarray() {
    for_each_round(|device, numbers| {
        let mut shape = dims(numbers, 3);
        shape.push(3);
        let [a, b] = [(); 2].map(|()| floats(device, numbers, &shape));
        let axis = numbers.below(shape.len());
        let both = ndarray::concatenate(Axis(axis), &[a.array.view(), b.array.view()]).unwrap();
        assert_close(Tensor::concat(&[&a.tensor, &b.tensor], axis as isize), &both);
        let stacked = ndarray::stack(Axis(axis), &[a.array.view(), b.array.view()]).unwrap();
        assert_close(Tensor::stack(&[&a.tensor, &b.tensor], axis as isize), &stacked);
        let mut turned = shape.clone();
        turned.reverse();
        let reshaped = ArrayD::from_shape_vec(turned.clone(), a.array.iter().copied().collect()).unwrap();
        assert_close(a.tensor.reshape(turned), &reshaped);
        assert_close(a.tensor.contiguous(), &a.array);
        if let [.., before, last] = (0..shape.len()).collect::<Vec<_>>()[..] {
            let mut transposed = a.array.clone();
            transposed.swap_axes(before, last);
            assert_close(a.tensor.t(), &transposed);
        }
    });
}

#[test]
fn picked_elements_are_those_at_the_indices() {
    for_each_round(|device, numbers| {
        let mut shape = dims(numbers, 2);
        shape.push(4);
        let axis = shape.len() - 1;
        let x = floats(device, numbers, &shape);
        let count = numbers.below(7);
        let picked = twin(device, numbers, &[count], |n| n.below(4) as i64);
        let places: Vec<usize> = picked.array.iter().map(|&index| index as usize).collect();
        assert_close(x.tensor.index_select(-1, &picked.tensor), &x.array.select(Axis(axis), &places));
        let indices = twin(device, numbers, &shape, |n| n.below(4) as i64);
        let expected = ArrayD::from_shape_fn(shape.clone(), |mut index| {
            index[axis] = indices.array[index.clone()] as usize;
            x.array[index]
        });
        assert_close(x.tensor.gather(axis as isize, &indices.tensor), &expected);
        let hot = indices.tensor.one_hot(4).unwrap().to_dtype(DType::F64);
        let expected = ArrayD::from_shape_fn([&shape[..], &[4]].concat(), |index| {
            let at = IxDyn(&index.slice()[..=axis]);
            f64::from(u8::from(indices.array[at] as usize == index[axis + 1]))
        });
        assert_close(hot, &expected);
    });
}
