//! Products and powers of integers against plain loops: they stay in their type, and wrap.

use crate::ops_table::{device, dry_device};
use highwater_tensor::{Activation, DType, Device, Error, IntoAxisIndex, Result, Tensor};

const INTEGERS: [DType; 4] = [DType::I64, DType::I32, DType::U32, DType::U8];

/// Numbers over the whole range of i64, and the same ones in every run.
fn numbers(count: usize, seed: u64) -> Vec<i64> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state ^ (state >> 29)).cast_signed()
    };
    (0..count).map(|_| next()).collect()
}

/// The number as an integer type keeps it.
fn wrapped(value: i64, dtype: DType) -> i64 {
    match dtype {
        DType::I32 => i64::from(value as i32),
        DType::U32 => i64::from(value as u32),
        DType::U8 => i64::from(value as u8),
        _ => value,
    }
}

fn tensor(device: &Device, values: &[i64], dims: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::from_slice(device, values, dims)?.to_dtype(dtype)
}

fn random(device: &Device, dims: &[usize], seed: u64, dtype: DType) -> Tensor {
    let values = numbers(dims.iter().product(), seed);
    tensor(device, &values, dims, dtype).unwrap()
}

fn values(tensor: &Tensor) -> Vec<i64> {
    tensor.to_dtype(DType::I64).unwrap().to_vec().unwrap()
}

/// The product of two stacks of matrices of the same leading axes, number by number.
fn product(lhs: &Tensor, rhs: &Tensor) -> Vec<i64> {
    let ([.., m, k], [.., n]) = (lhs.dims(), rhs.dims()) else { panic!("matrices") };
    let (m, k, n) = (*m, *k, *n);
    let stacks = lhs.dims()[..lhs.rank() - 2].iter().product::<usize>();
    let (a, b) = (values(lhs), values(rhs));
    let mut out = Vec::new();
    for stack in 0..stacks {
        for i in 0..m {
            for j in 0..n {
                let terms =
                    (0..k).map(|l| a[(stack * m + i) * k + l].wrapping_mul(b[(stack * k + l) * n + j]));
                out.push(wrapped(terms.fold(0, i64::wrapping_add), lhs.dtype()));
            }
        }
    }
    out
}

#[test]
fn products_are_sums_that_wrap_however_the_factors_lie() {
    let device = device();
    let sizes = [
        [1, 1, 1],
        [3, 5, 2],
        [4, 16, 16],
        [7, 9, 33],
        [5, 40, 17],
        [1, 200, 64],
        [70, 3, 1],
        [33, 130, 29],
        [65, 70, 66],
        [0, 3, 2],
        [3, 0, 2],
        [3, 2, 0],
    ];
    for dtype in INTEGERS {
        for [m, k, n] in sizes {
            let plain = |rows, columns, seed| random(&device, &[rows, columns], seed, dtype);
            let turned = |rows, columns, seed| plain(columns, rows, seed).t().unwrap();
            // Every second column of every third row.
            let apart = |rows: usize, columns: usize, seed| {
                plain(3 * rows, 2 * columns, seed).at(((..).every(3), (..).every(2))).unwrap()
            };
            type Layouts<'a> = [&'a dyn Fn(usize, usize, u64) -> Tensor; 3];
            let layouts: Layouts<'_> = [&plain, &turned, &apart];
            for (number, left) in layouts.iter().enumerate() {
                for (other, right) in layouts.iter().enumerate() {
                    let (lhs, rhs) = (left(m, k, 1), right(k, n, 2));
                    let y = lhs.matmul(&rhs).unwrap();
                    assert_eq!((y.dtype(), y.dims()), (dtype, &[m, n][..]));
                    let name = format!("{m} {k} {n} of {dtype}, as {number} and {other}");
                    assert_eq!(values(&y), product(&lhs, &rhs), "{name}");
                }
            }
        }
    }
}

#[test]
fn large_products_are_made_in_panels_of_the_same_numbers() {
    let device = device();
    for dtype in [DType::I32, DType::U32, DType::U8] {
        let (lhs, rhs) = (random(&device, &[310, 270], 3, dtype), random(&device, &[210, 270], 4, dtype));
        let rhs = rhs.t().unwrap();
        assert_eq!(values(&lhs.matmul(&rhs).unwrap()), product(&lhs, &rhs), "{dtype}");
    }
}

#[test]
fn stacks_and_vectors_are_multiplied_as_those_of_floats() {
    let device = device();
    for dtype in INTEGERS {
        let of = |dims: &[usize], seed| random(&device, dims, seed, dtype);
        let (lhs, rhs) = (of(&[2, 1, 4, 3], 5), of(&[5, 3, 6], 6));
        let spread = [
            lhs.broadcast_to([2, 5, 4, 3]).unwrap().contiguous().unwrap(),
            rhs.broadcast_to([2, 5, 3, 6]).unwrap().contiguous().unwrap(),
        ];
        let y = lhs.matmul(&rhs).unwrap();
        assert_eq!(y.dims(), [2, 5, 4, 6]);
        assert_eq!(values(&y), product(&spread[0], &spread[1]));
        // A stack of transposed matrices that are too large to be copied aside.
        let (lhs, rhs) = (of(&[2, 20, 70], 7), of(&[2, 30, 70], 8).transpose(-1, -2).unwrap());
        assert_eq!(values(&lhs.matmul(&rhs).unwrap()), product(&lhs, &rhs));
        let (row, matrix) = (of(&[3], 9), of(&[3, 4], 10));
        assert_eq!(values(&row.matmul(&matrix).unwrap()), product(&row.unsqueeze(0).unwrap(), &matrix));
    }
}

#[test]
fn linear_maps_and_equations_are_the_same_products() {
    let device = device();
    for dtype in INTEGERS {
        let of = |dims: &[usize], seed| random(&device, dims, seed, dtype);
        let (x, weight, bias) = (of(&[2, 5, 7], 11), of(&[7, 9], 12), of(&[9], 13));
        let expected = values(&x.matmul(&weight).unwrap().add(&bias).unwrap());
        assert_eq!(values(&x.linear(&weight, &bias).unwrap()), expected);
        let refused = x.linear_activation(&weight, &bias, Activation::Relu).unwrap_err();
        assert_eq!(refused, Error::UnsupportedDType { op: "linear", dtype });

        let (a, b) = (of(&[3, 4], 14), of(&[5, 4], 15));
        let y = Tensor::einsum("ij,kj->ik", &[&a, &b]).unwrap();
        assert_eq!((y.dtype(), values(&y)), (dtype, product(&a, &b.t().unwrap())));
        // Sums that come before and after a product are of the type too.
        let y = Tensor::einsum("ij,kl->i", &[&a, &b]).unwrap();
        let sum = |values: &[i64]| values.iter().fold(0i64, |sum, value| sum.wrapping_add(*value));
        let all = sum(&values(&b));
        let rows: Vec<i64> =
            values(&a).chunks(4).map(|row| wrapped(sum(row).wrapping_mul(all), dtype)).collect();
        assert_eq!((y.dtype(), values(&y)), (dtype, rows));
    }
}

/// One number to the power of another, by one product after the other.
fn power(base: i64, exponent: i64, dtype: DType) -> i64 {
    match (base, exponent) {
        (_, 0..) => wrapped((0..exponent).fold(1, |power: i64, _| power.wrapping_mul(base)), dtype),
        (1, _) => 1,
        (-1, _) => [1, -1][exponent.unsigned_abs() as usize % 2],
        _ => 0,
    }
}

#[test]
fn powers_wrap_and_below_zero_they_are_cut_towards_zero() {
    let device = device();
    for dtype in INTEGERS {
        let least = if matches!(dtype, DType::U8 | DType::U32) { 0 } else { -7 };
        let bases: Vec<i64> = [-300, -3, -2, -1, 0, 1, 2, 3, 7, 255, i64::MIN, i64::MAX]
            .into_iter()
            .map(|base| wrapped(base, dtype))
            .collect();
        let exponents: Vec<i64> = (least..80).collect();
        let expected: Vec<i64> = bases
            .iter()
            .flat_map(|&base| exponents.iter().map(move |&exponent| power(base, exponent, dtype)))
            .collect();
        let column = tensor(&device, &bases, &[bases.len(), 1], dtype).unwrap();
        let row = tensor(&device, &exponents, &[exponents.len()], dtype).unwrap();
        let y = column.pow(&row).unwrap();
        assert_eq!((y.dtype(), values(&y)), (dtype, expected), "{dtype}");
        for exponent in [0, 1, 2, 3, 5, 64, 77] {
            let y = column.powf(f64::from(exponent)).unwrap();
            let expected: Vec<i64> =
                bases.iter().map(|&base| power(base, i64::from(exponent), dtype)).collect();
            assert_eq!((y.dtype(), values(&y)), (dtype, expected), "{dtype} to {exponent}");
        }
        // As large as there is, and larger than the type itself has.
        let y = tensor(&device, &[1, 2, 3], &[3], dtype).unwrap().powf(2f64.powi(40)).unwrap();
        let cubed = (0..40).fold(3i64, |power, _| power.wrapping_mul(power));
        assert_eq!(values(&y), [1, 0, wrapped(cubed, dtype)]);
        assert_eq!(column.narrow(0, 0, 0).unwrap().pow(&row).unwrap().dims(), [0, exponents.len()]);
    }
    // Of two types they are of the one that both promote to.
    let (bytes, wide) = (tensor(&device, &[2], &[1], DType::U8), tensor(&device, &[40], &[1], DType::I64));
    let y = bytes.unwrap().pow(&wide.unwrap()).unwrap();
    assert_eq!((y.dtype(), values(&y)), (DType::I64, vec![1 << 40]));
}

#[test]
fn powers_that_are_no_integers_are_refused() {
    let x = tensor(&device(), &[1, 2], &[2], DType::I32).unwrap();
    for exponent in [-1.0, 0.5, f64::NAN, f64::INFINITY, 1e300] {
        assert_eq!(
            x.powf(exponent).unwrap_err().to_string(),
            format!(
                "powf: exponent must be a whole number of at least 0 for a tensor of integers, got {exponent} for a tensor of i32"
            )
        );
    }
    let truths = x.to_dtype(DType::Bool).unwrap();
    let refused = |op| Error::UnsupportedDType { op, dtype: DType::Bool };
    assert_eq!(truths.pow(&truths).unwrap_err(), refused("pow"));
    assert_eq!(truths.powf(2.0).unwrap_err(), refused("powf"));
}

#[test]
fn a_dry_run_makes_the_requests_of_the_real_one() {
    for dtype in INTEGERS {
        let run = |device: Device| {
            let of = |dims: &[usize]| {
                Tensor::zeros(&device, dims).and_then(|zeros| zeros.to_dtype(dtype)).unwrap()
            };
            let (x, turned) = (of(&[300, 300]), of(&[300, 300]).t().unwrap());
            x.matmul(&turned).and_then(|y| y.pow(&x)).and_then(|y| y.powf(3.0)).unwrap();
            let stats = device.default_allocator().unwrap().stats();
            (stats.num_allocs, stats.peak_bytes_in_use)
        };
        assert_eq!(run(device()), run(dry_device()), "{dtype}");
    }
}
