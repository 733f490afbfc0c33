//! Tests of packing and of products for all element types.

use half::{bf16, f16};

use super::super::number::Number;
use super::*;
use crate::testing::noise;

/// A stored element of the tests.
trait Stored: Copy + Default + Send + Sync {
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
}

macro_rules! stored {
    ($($type:ty: $from:expr, $to:expr;)+) => {$(
        impl Stored for $type {
            fn from_f64(value: f64) -> Self {
                let from: fn(f64) -> Self = $from;
                from(value)
            }

            fn to_f64(self) -> f64 {
                let to: fn(Self) -> f64 = $to;
                to(self)
            }
        }
    )+};
}

stored! {
    f32: |value| value as f32, f64::from;
    f64: |value| value, |value| value;
    f16: f16::from_f64, f64::from;
    bf16: bf16::from_f64, f64::from;
}

/// Elements of a matrix with strides, surrounded by NaN.
fn strided<S: Stored>(lanes: usize, depth: usize, [lane, step]: [usize; 2], seed: u64) -> Vec<S> {
    let values = noise(seed, lanes * depth);
    let mut data = vec![S::from_f64(f64::NAN); (lanes - 1) * lane + (depth - 1) * step + 1];
    for (index, value) in values.into_iter().enumerate() {
        data[index / depth * lane + index % depth * step] = S::from_f64(value);
    }
    data
}

/// Compares a product of panels `P` with one in f64, for all strides.
fn compare<P: Depth, S: PackInto<P> + Stored>(round: fn(f64) -> f64, tolerance: f64)
where
    P::Sum: Into<f64>,
{
    for [m, n, k] in [[1, 1, 1], [12, 32, 8], [13, 33, 7], [5, 40, 600], [30, 3, 65], [200, 530, 33]] {
        let strides = |lanes: usize, depth: usize| [[depth, 1], [1, lanes], [2 * depth + 3, 2]];
        for left in strides(m, k) {
            for right in strides(n, k) {
                let (a, b) = (strided::<S>(m, k, left, 1), strided::<S>(n, k, right, 2));
                let operand = |data, lanes, [lane_stride, depth_stride]: [usize; 2]| Strided {
                    data,
                    lanes,
                    lane_stride,
                    depth_stride,
                };
                let (lhs, rhs) = (operand(&a[..], m, left), operand(&b[..], n, right));
                let mut out = vec![P::Sum::ONE; m * n];
                let mut scratch = vec![P::zeroed(); scratch_elements([m, n, k])];
                let mut block = Block::new(&mut out, n);
                let ranges = [0..m, 0..n];
                product::<P>(&lhs, &rhs, ranges, k, &mut scratch, &mut block, Output::Accumulate);
                for (index, sum) in out.into_iter().enumerate() {
                    let (row, column) = (index / n, index % n);
                    let term = |depth: usize| {
                        round(a[row * left[0] + depth * left[1]].to_f64())
                            * round(b[column * right[0] + depth * right[1]].to_f64())
                    };
                    let expected = 1.0 + (0..k).map(term).sum::<f64>();
                    let error = (sum.into() - expected).abs();
                    assert!(
                        error <= tolerance * (k as f64).sqrt(),
                        "{m} {n} {k} {left:?} {right:?}: {error}"
                    );
                }
            }
        }
    }
}

#[test]
fn products_of_all_element_types_agree_with_f64() {
    compare::<f32, f32>(|value| value, 1e-6);
    compare::<f64, f64>(|value| value, 1e-14);
    compare::<f32, f16>(|value| value, 1e-6);
    compare::<f32, bf16>(|value| value, 1e-6);
    compare::<Pair, bf16>(|value| value, 1e-6);
}

#[test]
fn a_split_into_blocks_has_the_same_bits() {
    let [m, n, k] = [50, 70, 300];
    let (a, b) = (strided::<f32>(m, k, [k, 1], 1), strided::<f32>(n, k, [1, n], 2));
    let lhs = Strided { data: &a[..], lanes: m, lane_stride: k, depth_stride: 1 };
    let rhs = Strided { data: &b[..], lanes: n, lane_stride: 1, depth_stride: n };
    let with = |size: [usize; 2]| {
        let mut out = vec![0.0_f32; m * n];
        let mut scratch = vec![0.0; scratch_elements([m, n, k])];
        for mut block in Block::new(&mut out, n).split(size) {
            let ranges = [block.rows(), block.columns()];
            product::<f32>(&lhs, &rhs, ranges, k, &mut scratch, &mut block, Output::Overwrite);
        }
        out
    };
    let whole = with([m, n]);
    assert!(with([12, 32]) == whole && with([7, 33]) == whole && with([1, 1]) == whole);
}

#[test]
fn rounding_to_bf16_equals_that_of_half() {
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45];
    let ties = [0x3f80_8000, 0x3f81_8000, 0x3f80_7fff, 0x3f80_8001].map(f32::from_bits);
    for value in special.into_iter().chain(ties).chain(noise(1, 1000).into_iter().map(|x| x as f32)) {
        assert_eq!(to_bf16(value).to_bits(), bf16::from_f32(value).to_bits(), "{value}");
    }
    assert!(to_bf16(f32::NAN).is_nan());
}

#[test]
fn f16_elements_are_packed_exactly() {
    let values: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let operand = Strided { data: &values[..], lanes: values.len(), lane_stride: 1, depth_stride: 1 };
    for (lane, value) in values.iter().enumerate().step_by(COLUMNS) {
        let mut panel = [[0.0_f32; COLUMNS]];
        Operand::<f32>::pack(&operand, lane, 0..1, COLUMNS, panel.as_flattened_mut());
        for (packed, value) in panel[0].iter().zip(&values[lane..]) {
            let same = packed.to_bits() == value.to_f32().to_bits();
            assert!(same || packed.is_nan() && value.is_nan(), "{value}: {packed}");
        }
        assert!(value.is_nan() || panel[0][0] == value.to_f32());
    }
}

/// Packs lanes whose elements are contiguous, and compares the panel with elements that are packed one by one.
fn compare_transposed<P: Depth, S: PackInto<P>, const W: usize>(
    values: &[S],
    lanes: usize,
    bits: fn(P) -> u32,
) {
    let stride = values.len() / lanes;
    let operand = Strided { data: values, lanes, lane_stride: stride, depth_stride: 1 };
    for depth in [0..stride, 3..stride, 1..RUN * P::PER_ROW + 1, 5..12] {
        for lane in (0..lanes).step_by(W) {
            let mut panel = vec![[P::zeroed(); W]; P::rows(depth.len())];
            Operand::<P>::pack(&operand, lane, depth.clone(), W, panel.as_flattened_mut());
            for (row, packed) in panel.into_iter().enumerate() {
                for (column, packed) in packed.into_iter().enumerate() {
                    let at = |depth_here: usize| match lane + column < lanes && depth_here < depth.end {
                        true => values[(lane + column) * stride + depth_here],
                        false => S::default(),
                    };
                    let first = depth.start + row * P::PER_ROW;
                    let expected = bits(at(first).pack(at(first + 1)));
                    assert_eq!(bits(packed), expected, "{depth:?}, lane {lane} + {column}, row {row}");
                }
            }
        }
    }
}

#[test]
fn interleaved_lanes_equal_elements_packed_one_by_one() {
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE];
    let ties = [0x3f80_8000, 0x3f81_8000, 0x3f80_7fff, 0x3f80_8001, 0x7f80_0001].map(f32::from_bits);
    let noise = noise(1, 37 * 203).into_iter().map(|value| value as f32);
    // Eleven of each twelve elements are numbers.
    let special = special.into_iter().chain(ties).cycle();
    let values: Vec<f32> = noise
        .zip(special)
        .enumerate()
        .map(|(i, (x, y))| if i % 12 == i / 203 % 12 { y } else { x })
        .collect();
    let rounded: Vec<bf16> = values.iter().map(|&value| bf16::from_f32(value)).collect();
    for lanes in [37, 7, 1] {
        let (values, rounded) = (&values[..lanes * 203], &rounded[..lanes * 203]);
        compare_transposed::<f32, f32, ROWS>(values, lanes, f32::to_bits);
        compare_transposed::<f32, f32, COLUMNS>(values, lanes, f32::to_bits);
        compare_transposed::<Pair, bf16, ROWS>(rounded, lanes, bytemuck::cast);
        compare_transposed::<Pair, bf16, COLUMNS>(rounded, lanes, bytemuck::cast);
    }
}
