//! Tests of the kernels of all instruction sets that this processor supports.

use super::*;
use crate::testing::noise;

type Multiply<P, T> = fn(&[[P; ROWS]], &[[P; COLUMNS]], usize, &mut Tile<T>);

/// Panels of `depth` rows.
fn panels<P: Copy>(depth: usize, element: impl Fn(f64) -> P) -> (Vec<[P; ROWS]>, Vec<[P; COLUMNS]>) {
    let values: Vec<P> = noise(3, depth * (ROWS + COLUMNS)).into_iter().map(element).collect();
    let (lhs, rhs) = values.split_at(depth * ROWS);
    (lhs.as_chunks().0.to_vec(), rhs.as_chunks().0.to_vec())
}

/// Asserts that kernels compute the same tiles as the first one, up to a tolerance, and no more rows.
fn assert_equal<P: Copy, T: Float + Into<f64>>(
    kernels: &[Multiply<P, T>],
    element: impl Fn(f64) -> P,
    tolerance: f64,
) {
    for depth in [0, 1, 2, 50] {
        let (lhs, rhs) = panels(depth, &element);
        for rows in 1..=ROWS {
            let tiles: Vec<Tile<T>> = kernels
                .iter()
                .map(|kernel| {
                    let mut tile = Tile::ZERO;
                    kernel(&lhs, &rhs, rows, &mut tile);
                    tile
                })
                .collect();
            for tile in &tiles {
                for (row, (sums, expected)) in tile.0.iter().zip(&tiles[0].0).enumerate().take(rows) {
                    for (&sum, &expected) in sums.iter().zip(expected) {
                        let error = (sum.into() - expected.into()).abs();
                        assert!(error <= tolerance, "depth {depth}, row {row} of {rows}: {error}");
                    }
                }
            }
        }
    }
}

/// A kernel that reads a packed panel.
macro_rules! packed {
    ($kernel:expr) => {
        |lhs, rhs, rows, tile| $kernel(lhs, rhs, rows, tile)
    };
}

/// A kernel that reads the rows of a panel where they are stored, here in reverse order and with exchanged halves.
macro_rules! stored {
    ($kernel:expr) => {
        |lhs, rhs, rows, tile| {
            let halves = rhs.iter().rev().flat_map(|row| row.iter().cycle().skip(HALF).take(COLUMNS));
            let data: Vec<_> = halves.copied().collect();
            let offsets: Vec<usize> = (0..rhs.len()).rev().map(|row| row * COLUMNS).collect();
            let rhs = Stored { data: &data, rows: &offsets, halves: [HALF, 0] };
            assert!(rhs.is_inside(offsets.iter().copied().max().unwrap_or(0)));
            $kernel(lhs, rhs, rows, tile)
        }
    };
}

#[test]
fn kernels_of_all_instruction_sets_agree() {
    let mut single: Vec<Multiply<f32, f32>> =
        vec![packed!(portable), packed!(f32::multiply), stored!(f32::multiply)];
    let mut double: Vec<Multiply<f64, f64>> =
        vec![packed!(portable), packed!(f64::multiply), stored!(f64::multiply)];
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "only x86 multiplies pairs"))]
    let mut pairs: Vec<Multiply<Pair, f32>> =
        vec![packed!(portable_pairs), packed!(Pair::multiply), stored!(Pair::multiply)];
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            single.push(packed!(x86::f32_avx2));
            double.push(packed!(x86::f64_avx2));
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
            single.push(packed!(x86::f32_avx512));
            double.push(packed!(x86::f64_avx512));
        }
        if is_x86_feature_detected!("avx512bf16") {
            pairs.push(packed!(x86::pairs_avx512));
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        single.push(packed!(neon::f32_neon));
        double.push(packed!(neon::f64_neon));
    }
    assert_equal(&single, |value| value as f32, 1e-5);
    assert_equal(&double, |value| value, 1e-14);
    assert_equal(&pairs, |value| Pair(u32::from(half::bf16::from_f64(value).to_bits()) * 0x1_0001), 1e-5);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn instruction_sets_with_fused_products_have_the_same_bits() {
    if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("avx512vl") {
        return;
    }
    assert_equal::<f32, f32>(&[packed!(x86::f32_avx2), packed!(x86::f32_avx512)], |value| value as f32, 0.0);
    assert_equal::<f64, f64>(&[packed!(x86::f64_avx2), packed!(x86::f64_avx512)], |value| value, 0.0);
}
