//! Large matrix products on one thread beside the peak of the processor's multipliers, which a loop in registers measures in the
//! same round.
//!
//! Run with `cargo bench -p highwater-benches --bench products`. Prints GFLOP/s, the fastest of all rounds, and the share of the peak.

use std::error::Error;
use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use highwater::prelude::*;

/// Rows, columns and depth.
const SIZES: [[usize; 3]; 5] = [[512; 3], [1024; 3], [2048; 3], [4096; 3], [8192, 512, 512]];

/// The fused multiply-adds of a chain. 12 chains of vectors hide the latency, and fit into the registers.
#[cfg(target_arch = "x86_64")]
const CHAIN: usize = 1 << 16;
#[cfg(target_arch = "x86_64")]
const CHAINS: usize = 12;

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo test --benches` only checks that it runs.
    let is_test = std::env::args().any(|argument| argument == "--test");
    let (rounds, sizes) = if is_test { (1, &SIZES[..1]) } else { (9, &SIZES[..]) };
    let device = Runtime::builder().threads(1).build()?.cpu()?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:<22}{:>6}{:>12}{:>12}{:>8}",
        "rows x columns x depth", "type", "product", "peak", "share"
    )?;
    for &[m, n, k] in sizes {
        for dtype in [DType::F32, DType::BF16] {
            let Some(peak) = peak_of(dtype) else { continue };
            let rng = Rng::new(1);
            let x = Tensor::uniform(&device, [m, k], -1.0, 1.0, &rng)?.to_dtype(dtype)?;
            let w = Tensor::uniform(&device, [k, n], -1.0, 1.0, &rng)?.to_dtype(dtype)?;
            let (mut fastest, mut reached) = (0.0_f64, 0.0_f64);
            for _ in 0..rounds {
                fastest = fastest.max(peak());
                let start = Instant::now();
                black_box(no_grad(|| x.matmul(&w))?);
                let seconds = start.elapsed().as_secs_f64();
                reached = reached.max(2e-9 * (m * n * k) as f64 / seconds);
            }
            let (size, share) = (format!("{m} x {n} x {k}"), 100.0 * reached / fastest);
            writeln!(out, "{size:<22}{:>6}{reached:>12.1}{fastest:>12.1}{share:>7.0}%", dtype.name())?;
        }
    }
    Ok(())
}

/// Returns the function that measures the peak in GFLOP/s; `None` if products of the type have no instruction of their own.
#[cfg(target_arch = "x86_64")]
fn peak_of(dtype: DType) -> Option<fn() -> f64> {
    let has_avx512 = is_x86_feature_detected!("avx512f");
    match dtype {
        // SAFETY: the processor has the instructions.
        DType::F32 if has_avx512 => Some(|| measured(32, || unsafe { x86::multiply_add_512() })),
        DType::F32 if is_x86_feature_detected!("fma") => {
            // SAFETY: as above.
            Some(|| measured(16, || unsafe { x86::multiply_add_256() }))
        }
        DType::BF16 if has_avx512 && is_x86_feature_detected!("avx512bf16") => {
            // SAFETY: as above.
            Some(|| measured(64, || unsafe { x86::multiply_add_pairs() }))
        }
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn peak_of(_: DType) -> Option<fn() -> f64> {
    None
}

/// Returns GFLOP/s of a loop of [`CHAIN`] times [`CHAINS`] instructions, each of which makes this many operations.
#[cfg(target_arch = "x86_64")]
fn measured(operations: usize, run: impl Fn() -> f32) -> f64 {
    let seconds = (0..5).map(|_| {
        let start = Instant::now();
        black_box(run());
        start.elapsed().as_secs_f64()
    });
    1e-9 * (operations * CHAIN * CHAINS) as f64 / seconds.fold(f64::INFINITY, f64::min)
}

/// Loops in which only the multipliers are busy.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{CHAIN, CHAINS};

    /// Defines a loop of independent chains, whose vectors stay in registers.
    macro_rules! chains {
        ($name:ident, $features:literal, $zero:ident, $set:expr, $step:expr, $add:ident, $store:ident, $lanes:literal) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name() -> f32 {
                let (mut sums, factor) = ([$zero(); CHAINS], $set(black_box(1.0)));
                for _ in 0..CHAIN {
                    sums.iter_mut().for_each(|sum| *sum = $step(*sum, factor));
                }
                let mut total = [0.0_f32; $lanes];
                let sum = sums.into_iter().fold($zero(), |all, sum| $add(all, sum));
                // SAFETY: the array has the size of the vector.
                unsafe { $store(total.as_mut_ptr(), sum) };
                total[0]
            }
        };
    }

    chains!(
        multiply_add_512,
        "avx512f",
        _mm512_setzero_ps,
        |x: f32| _mm512_set1_ps(x),
        |sum, x| _mm512_fmadd_ps(x, x, sum),
        _mm512_add_ps,
        _mm512_storeu_ps,
        16
    );
    chains!(
        multiply_add_256,
        "avx,fma",
        _mm256_setzero_ps,
        |x: f32| _mm256_set1_ps(x),
        |sum, x| _mm256_fmadd_ps(x, x, sum),
        _mm256_add_ps,
        _mm256_storeu_ps,
        8
    );
    chains!(
        multiply_add_pairs,
        "avx512f,avx512bf16",
        _mm512_setzero_ps,
        |x: f32| _mm512_cvtne2ps_pbh(_mm512_set1_ps(x), _mm512_set1_ps(x)),
        |sum, x| _mm512_dpbf16_ps(sum, x, x),
        _mm512_add_ps,
        _mm512_storeu_ps,
        16
    );
}
