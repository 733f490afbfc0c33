//! Loops over slices, compiled for several instruction sets. The widest supported set is selected at run time.
//!
//! The loops are ordinary Rust, which the compiler vectorizes inside functions with `target_feature`. It never contracts a
//! product and a sum to a fused multiply-add; a loop states that explicitly
//! ([`Number::fused`](super::number::Number::fused)). So results are equal bit for bit for all instruction sets.

pub(crate) mod f16c;

use std::sync::LazyLock;

use bfc_core::did_you_mean;
use bfc_core::setting::{Setting, SettingKind, SettingScope};

use crate::error::{KernelError, Result};

/// The instruction sets for which loops are compiled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instructions {
    /// The instructions that every processor of the target supports.
    Baseline,
    /// x86-64-v3: AVX2, FMA and BMI.
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    V3,
    /// x86-64-v4: also AVX-512.
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    V4 {
        /// Whether the processor also multiplies pairs of bf16 elements (AVX512-BF16).
        bf16: bool,
    },
}

/// The instruction set of this processor, cached because detection takes longer than a short loop.
static INSTRUCTIONS: LazyLock<Instructions> = LazyLock::new(Instructions::detect);

/// The instruction set of this processor.
#[inline]
pub(crate) fn instructions() -> Instructions {
    *INSTRUCTIONS
}

/// The limit of the instruction set, for measurements and for tests. It does not change the memory of a run.
pub const CPU_INSTRUCTIONS: Setting = Setting {
    name: "cpu_instructions",
    variable: Some(VARIABLE),
    option: None,
    scope: SettingScope::Process,
    kind: SettingKind::OneOf(&LIMITS),
    default: "the widest set that the processor supports",
    help: "The widest instruction set of CPU kernels; the memory of a run does not depend on it",
    example: "avx2",
};

/// The environment variable of the limit.
const VARIABLE: &str = "HIGHWATER_CPU_INSTRUCTIONS";

/// The values of [`VARIABLE`], in ascending order. The last one is the default.
const LIMITS: [&str; 4] = ["baseline", "avx2", "avx512", "avx512-bf16"];

/// The position in [`LIMITS`] of the largest permitted instruction set.
///
/// # Errors
/// [`KernelError::BadArgument`] for an unknown name.
pub(crate) fn limit() -> Result<usize> {
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(LIMITS.len() - 1);
    };
    let value = value.to_string_lossy();
    LIMITS.iter().position(|&name| value.trim() == name).ok_or_else(|| KernelError::BadArgument {
        op: "cpu",
        argument: VARIABLE,
        expected: "baseline, avx2, avx512 or avx512-bf16",
        got: format!("{value}{}", did_you_mean(&value, LIMITS)),
    })
}

impl Instructions {
    fn detect() -> Self {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        {
            // All features that `target_feature` names below, except those that AVX implies.
            macro_rules! all {
                ($($feature:tt)+) => { true $(&& std::arch::is_x86_feature_detected!($feature))+ };
            }
            // `CpuBackend::new` reports an invalid limit.
            let limit = limit().unwrap_or(LIMITS.len() - 1);
            if limit >= 1 && all!("fxsr" "popcnt" "avx" "avx2" "bmi1" "bmi2" "fma" "lzcnt") {
                if limit >= 2 && all!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl") {
                    return Self::V4 { bf16: limit >= 3 && all!("avx512bf16") };
                }
                return Self::V3;
            }
        }
        Self::Baseline
    }
}

/// Whether loops that write or compute this type are compiled for AVX-512 too: types of four bytes are. Programs train in f32, and
/// panels of matrix products have four bytes. Each form of a loop makes the build longer.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
const fn has_avx512_form<T>() -> bool {
    size_of::<T>() == size_of::<f32>()
}

/// A custom loop for [`run`].
///
/// It is a type and not a closure, so that its method can be `inline(always)`. Without inlining, the loop would be compiled
/// for the baseline instruction set.
pub(crate) trait Loop {
    /// The type that the loop computes in, which decides on a form for AVX-512.
    type Element;

    /// The result of the loop.
    type Output;

    /// Runs the loop. Implementations are `inline(always)`.
    fn run(self) -> Self::Output;
}

/// Runs a custom loop with the widest supported instruction set.
pub(crate) fn run<L: Loop>(of: L) -> L::Output {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    #[target_feature(enable = "fxsr,popcnt,avx2,bmi1,bmi2,fma,lzcnt")]
    fn v3<L: Loop>(of: L) -> L::Output {
        of.run()
    }

    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    #[target_feature(
        enable = "fxsr,popcnt,avx2,bmi1,bmi2,fma,lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
    )]
    fn v4<L: Loop>(of: L) -> L::Output {
        of.run()
    }

    match *INSTRUCTIONS {
        // SAFETY: `Instructions::detect` found these instructions.
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        Instructions::V4 { .. } if const { has_avx512_form::<L::Element>() } => unsafe { v4(of) },
        // SAFETY: as above.
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        Instructions::V4 { .. } | Instructions::V3 => unsafe { v3(of) },
        Instructions::Baseline => of.run(),
    }
}

/// Defines functions that run a closure over slices, compiled like [`run`]. The slices are separate arguments, so that the
/// compiler knows that outputs do not alias inputs.
macro_rules! loops {
    ($($(#[$doc:meta])* fn $name:ident<$($T:ident $(: $bound:path)?),+>($($arg:ident: $type:ty),+; $f:ident: Fn($($of:ty),+)) $body:block)+) => {$(
        $(#[$doc])*
        pub(crate) fn $name<$($T $(: $bound)?),+>($($arg: $type,)+ $f: impl Fn($($of),+)) {
            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            #[target_feature(enable = "fxsr,popcnt,avx2,bmi1,bmi2,fma,lzcnt")]
            fn v3<$($T $(: $bound)?),+>($($arg: $type,)+ $f: impl Fn($($of),+)) $body

            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            #[target_feature(
                enable = "fxsr,popcnt,avx2,bmi1,bmi2,fma,lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
            )]
            fn v4<$($T $(: $bound)?),+>($($arg: $type,)+ $f: impl Fn($($of),+)) $body

            match *INSTRUCTIONS {
                // SAFETY: `Instructions::detect` found these instructions.
                #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
                Instructions::V4 { .. } if const { has_avx512_form::<U>() } => unsafe { v4($($arg,)+ $f) },
                // SAFETY: as above.
                #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
                Instructions::V4 { .. } | Instructions::V3 => unsafe { v3($($arg,)+ $f) },
                Instructions::Baseline => $body,
            }
        }
    )+};
}

loops! {
    /// Calls `f` with each element.
    fn each<U>(out: &mut [U]; f: Fn(&mut U)) {
        for out in out {
            f(out);
        }
    }

    /// Calls `f` with each element of `out` and the element of `a` at the same index. The slices have equal length.
    fn zip<U, A: Copy>(out: &mut [U], a: &[A]; f: Fn(&mut U, A)) {
        for (out, &a) in out.iter_mut().zip(a) {
            f(out, a);
        }
    }

    /// Like [`zip`], with the elements of `a` in reverse order.
    fn zip_back<U, A: Copy>(out: &mut [U], a: &[A]; f: Fn(&mut U, A)) {
        for (out, &a) in out.iter_mut().zip(a.iter().rev()) {
            f(out, a);
        }
    }

    /// Like [`zip`], with two inputs.
    fn zip2<U, A: Copy, B: Copy>(out: &mut [U], a: &[A], b: &[B]; f: Fn(&mut U, A, B)) {
        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
            f(out, a, b);
        }
    }

    /// Like [`zip`], with two outputs.
    fn zip_into2<U, A: Copy>(u: &mut [U], v: &mut [U], a: &[A]; f: Fn([&mut U; 2], A)) {
        for ((u, v), &a) in u.iter_mut().zip(v).zip(a) {
            f([u, v], a);
        }
    }

    /// Like [`zip`], with three outputs.
    fn zip_into3<U, A: Copy>(u: &mut [U], v: &mut [U], w: &mut [U], a: &[A]; f: Fn([&mut U; 3], A)) {
        for (((u, v), w), &a) in u.iter_mut().zip(v).zip(w).zip(a) {
            f([u, v, w], a);
        }
    }

    /// Like [`zip`], with four outputs.
    fn zip_into4<U, A: Copy>(u: &mut [U], v: &mut [U], w: &mut [U], x: &mut [U], a: &[A]; f: Fn([&mut U; 4], A)) {
        for ((((u, v), w), x), &a) in u.iter_mut().zip(v).zip(w).zip(x).zip(a) {
            f([u, v, w, x], a);
        }
    }
}

/// Calls `f` with each element of `out` and an element of `a`, each of which repeats `times` times.
pub(crate) fn zip_repeated<U, A: Copy>(out: &mut [U], a: &[A], times: usize, f: impl Fn(&mut U, A)) {
    match times {
        2 => run(Repeated::<U, A, _, 2> { out, a, f }),
        3 => run(Repeated::<U, A, _, 3> { out, a, f }),
        4 => run(Repeated::<U, A, _, 4> { out, a, f }),
        _ => {
            let copies = out.chunks_mut(times).zip(a);
            copies.for_each(|(out, &a)| out.iter_mut().for_each(|out| f(out, a)));
        }
    }
}

/// Like [`zip`], with every `step`-th element of `a`, starting with the first.
pub(crate) fn zip_step<U, A: Copy>(out: &mut [U], a: &[A], step: usize, f: impl Fn(&mut U, A)) {
    match step {
        1 => {
            let len = out.len();
            zip(out, &a[..len], f);
        }
        2 => {
            let (pairs, _) = a.as_chunks::<2>();
            let whole = pairs.len().min(out.len());
            let (out, rest) = out.split_at_mut(whole);
            zip(out, &pairs[..whole], |out, [a, _]| f(out, a));
            // The last element may not have a neighbor.
            rest.iter_mut().zip(&a[2 * whole..]).take(1).for_each(|(out, &a)| f(out, a));
        }
        _ => out.iter_mut().zip(a.iter().step_by(step)).for_each(|(out, &a)| f(out, a)),
    }
}

struct Repeated<'a, U, A, F, const TIMES: usize> {
    out: &'a mut [U],
    a: &'a [A],
    f: F,
}

impl<U, A: Copy, F: Fn(&mut U, A), const TIMES: usize> Loop for Repeated<'_, U, A, F, TIMES> {
    type Element = U;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (whole, rest) = self.out.as_chunks_mut::<TIMES>();
        if let Some(&a) = self.a.get(whole.len()) {
            rest.iter_mut().for_each(|out| (self.f)(out, a));
        }
        for (out, &a) in whole.iter_mut().zip(self.a) {
            for out in out {
                (self.f)(out, a);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zips_pair_elements_by_index_at_every_length() {
        for len in 0..70_usize {
            let (a, b): (Vec<f32>, Vec<f32>) = (0..len).map(|i| (i as f32, (i * i) as f32)).unzip();
            let mut out = vec![1.0_f32; len];
            each(&mut out, |out| *out += 1.0);
            zip(&mut out, &a, |out, a| *out *= a);
            zip2(&mut out, &a, &b, |out, a, b| *out += a - b);
            let expected = (0..len).map(|i| (3 * i) as f32 - (i * i) as f32);
            assert!(out.iter().copied().eq(expected), "{len}");
        }
    }

    #[test]
    fn zip_step_reads_every_nth_element() {
        for step in 1..5 {
            for len in 0..40_usize {
                // The slice ends with the last element that is read.
                let a: Vec<u32> = (0..(len * step).saturating_sub(step - 1) as u32).collect();
                let mut out = vec![0; len];
                zip_step(&mut out, &a, step, |out, a| *out = a + 1);
                assert!(out.iter().copied().eq((0..len).map(|i| (i * step) as u32 + 1)), "{step} {len}");
            }
        }
    }

    #[test]
    fn zips_support_several_outputs() {
        for len in 0..40_usize {
            let a: Vec<f64> = (0..len).map(|i| i as f64).collect();
            let (mut u, mut v, mut w) = (vec![1.0; len], vec![2.0; len], vec![3.0; len]);
            zip_into2(&mut u, &mut v, &a, |[u, v], a| (*u, *v) = (*v, *u + a));
            zip_into3(&mut u, &mut v, &mut w, &a, |[u, v, w], a| (*u, *v, *w) = (*w + a, *u, *v));
            let mut x = vec![4.0; len];
            zip_into4(&mut u, &mut v, &mut w, &mut x, &a, |[u, v, w, x], a| {
                (*u, *v, *w, *x) = (*x, *u, *v + a, *w);
            });
            assert!(u.iter().all(|&u| u == 4.0));
            assert!(v.iter().zip(&a).all(|(&v, a)| v == 3.0 + a));
            assert!(w.iter().zip(&a).all(|(&w, a)| w == 2.0 + a));
            assert!(x.iter().zip(&a).all(|(&x, a)| x == 1.0 + a));
        }
    }
}
