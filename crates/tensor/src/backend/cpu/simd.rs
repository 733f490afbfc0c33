//! Loops over slices, compiled for several instruction sets; the widest that the processor has is taken at run time.
//!
//! They are plain loops, which the compiler vectorises in functions that may use those instructions. A product and a sum are
//! contracted into one rounding only where a loop says so ([`Number::fused`](super::number::Number::fused)), so it gives the same
//! bits whatever the instructions. Processors without one for that, which are older than 2013, call a function.
//!
//! A loop is written once and not for each set: what is inlined into the functions of all of them the compiler then reads once,
//! closures with it. For processors of the x86 kind that lack AVX2 it is compiled small and not fast: few are left, and products of
//! matrices take a number at a time there anyway.

use std::sync::LazyLock;

/// Instructions that functions are compiled for.
#[derive(Clone, Copy, Debug)]
enum Instructions {
    /// Those that every processor of the target has.
    Least,
    /// x86-64-v3: AVX2 and what came with it.
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    V3,
    /// x86-64-v4: AVX-512 besides.
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    V4,
}

/// What the processor has; asking takes longer than a short loop.
static INSTRUCTIONS: LazyLock<Instructions> = LazyLock::new(Instructions::detect);

impl Instructions {
    fn detect() -> Self {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        {
            // Each of the features named below, but for those that AVX implies.
            macro_rules! all {
                ($($feature:tt)+) => { true $(&& std::arch::is_x86_feature_detected!($feature))+ };
            }
            if all!("fxsr" "popcnt" "avx" "avx2" "bmi1" "bmi2" "fma" "lzcnt") {
                return match all!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl") {
                    true => Self::V4,
                    false => Self::V3,
                };
            }
        }
        Self::Least
    }
}

/// A loop of one's own, for [`run`].
///
/// A type and not a closure, so that it can be told to be inlined: in a function of its own the loop would be compiled for the least
/// of all processors.
pub(super) trait Loop {
    /// Whether the widest registers make it faster. They do not if it calls a function for each element.
    #[cfg_attr(
        not(any(target_arch = "x86", target_arch = "x86_64")),
        expect(dead_code, reason = "only x86 has a choice of registers")
    )]
    const WIDEST: bool = true;

    /// What it makes.
    type Output;

    /// The loop, `inline(always)`. It is not `WIDE` for a processor of the x86 kind that lacks the instructions of
    /// [`Instructions::V3`]: there it should be little code.
    fn run<const WIDE: bool>(self) -> Self::Output;
}

/// Runs a loop of one's own.
pub(super) fn run<L: Loop>(of: L) -> L::Output {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    #[target_feature(enable = "fxsr,popcnt,avx2,bmi1,bmi2,fma,lzcnt")]
    fn v3<L: Loop>(of: L) -> L::Output {
        of.run::<true>()
    }

    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    #[target_feature(
        enable = "fxsr,popcnt,avx2,bmi1,bmi2,fma,lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
    )]
    fn v4<L: Loop>(of: L) -> L::Output {
        of.run::<true>()
    }

    match *INSTRUCTIONS {
        // SAFETY: the processor was seen to have these instructions.
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        Instructions::V4 if L::WIDEST => unsafe { v4(of) },
        // SAFETY: as above.
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        Instructions::V4 | Instructions::V3 => unsafe { v3(of) },
        Instructions::Least => least(of),
    }
}

/// [`run`] for a processor that lacks the instructions of [`Instructions::V3`], or is of another kind. Never inlined: where it is
/// called, the loop would be compiled once more.
#[inline(never)]
pub(super) fn least<L: Loop>(of: L) -> L::Output {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    return of.run::<false>();
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
    of.run::<true>()
}

/// Functions that are loops, compiled like those of [`run`]. Their arguments come one by one, so that the compiler knows that what is
/// written lies apart from what is read.
///
/// A processor of the x86 kind that lacks the instructions of [`Instructions::V3`] calls what is done with each element: one loop
/// for all that is done to elements of a type, and not one more of each.
macro_rules! loops {
    ($($(#[$doc:meta])* fn $name:ident<$($T:ident $(: $bound:path)?),+>($($arg:ident: $type:ty),+; $f:ident: Fn($($of:ty),+)) $body:block)+) => {$(
        $(#[$doc])*
        pub(super) fn $name<$($T $(: $bound)?),+>($($arg: $type,)+ $f: impl Fn($($of),+)) {
            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            #[target_feature(enable = "fxsr,popcnt,avx2,bmi1,bmi2,fma,lzcnt")]
            fn v3<$($T $(: $bound)?),+>($($arg: $type,)+ $f: impl Fn($($of),+)) $body

            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            #[target_feature(
                enable = "fxsr,popcnt,avx2,bmi1,bmi2,fma,lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
            )]
            fn v4<$($T $(: $bound)?),+>($($arg: $type,)+ $f: impl Fn($($of),+)) $body

            #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
            #[inline(never)]
            fn least<$($T $(: $bound)?),+>($($arg: $type,)+ $f: &dyn Fn($($of),+)) $body

            match *INSTRUCTIONS {
                // SAFETY: the processor was seen to have these instructions.
                #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
                Instructions::V4 => unsafe { v4($($arg,)+ $f) },
                // SAFETY: as above.
                #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
                Instructions::V3 => unsafe { v3($($arg,)+ $f) },
                #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
                Instructions::Least => least($($arg,)+ &$f),
                #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
                Instructions::Least => $body,
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

    /// Calls `f` with each element of `out` and that of `a` at the same place. The slices have one length.
    fn zip<U, A: Copy>(out: &mut [U], a: &[A]; f: Fn(&mut U, A)) {
        for (out, &a) in out.iter_mut().zip(a) {
            f(out, a);
        }
    }

    /// As [`zip`], with the elements of `a` from the last to the first.
    fn zip_back<U, A: Copy>(out: &mut [U], a: &[A]; f: Fn(&mut U, A)) {
        for (out, &a) in out.iter_mut().zip(a.iter().rev()) {
            f(out, a);
        }
    }

    /// As [`zip`], with two slices beside `out`.
    fn zip2<U, A: Copy, B: Copy>(out: &mut [U], a: &[A], b: &[B]; f: Fn(&mut U, A, B)) {
        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
            f(out, a, b);
        }
    }

    /// As [`zip`], with three slices beside `out`.
    fn zip3<U, A: Copy, B: Copy, C: Copy>(out: &mut [U], a: &[A], b: &[B], c: &[C]; f: Fn(&mut U, A, B, C)) {
        for (((out, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
            f(out, a, b, c);
        }
    }

    /// As [`zip`], into two slices.
    fn zip_into2<U, A: Copy>(u: &mut [U], v: &mut [U], a: &[A]; f: Fn([&mut U; 2], A)) {
        for ((u, v), &a) in u.iter_mut().zip(v).zip(a) {
            f([u, v], a);
        }
    }

    /// As [`zip`], into three slices.
    fn zip_into3<U, A: Copy>(u: &mut [U], v: &mut [U], w: &mut [U], a: &[A]; f: Fn([&mut U; 3], A)) {
        for (((u, v), w), &a) in u.iter_mut().zip(v).zip(w).zip(a) {
            f([u, v, w], a);
        }
    }
}

/// Calls `f` with each element of `out` and that of `a` which belongs to it: the first to `times` of them, the next to as many.
pub(super) fn zip_repeated<U, A: Copy>(out: &mut [U], a: &[A], times: usize, f: impl Fn(&mut U, A)) {
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

/// As [`zip`], with every `step`-th element of `a`, from the first on.
pub(super) fn zip_step<U, A: Copy>(out: &mut [U], a: &[A], step: usize, f: impl Fn(&mut U, A)) {
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
            // The last one may have no element beside it.
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
    type Output = ();

    #[inline(always)]
    fn run<const WIDE: bool>(self) {
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
    fn each_element_meets_the_one_at_its_place_at_every_length() {
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
    fn steps_take_the_elements_that_they_reach() {
        for step in 1..5 {
            for len in 0..40_usize {
                // Just as many elements as are needed: nothing lies behind the last.
                let a: Vec<u32> = (0..(len * step).saturating_sub(step - 1) as u32).collect();
                let mut out = vec![0; len];
                zip_step(&mut out, &a, step, |out, a| *out = a + 1);
                assert!(out.iter().copied().eq((0..len).map(|i| (i * step) as u32 + 1)), "{step} {len}");
            }
        }
    }

    #[test]
    fn several_slices_change_together() {
        for len in 0..40_usize {
            let a: Vec<f64> = (0..len).map(|i| i as f64).collect();
            let (mut u, mut v, mut w) = (vec![1.0; len], vec![2.0; len], vec![3.0; len]);
            zip_into2(&mut u, &mut v, &a, |[u, v], a| (*u, *v) = (*v, *u + a));
            zip_into3(&mut u, &mut v, &mut w, &a, |[u, v, w], a| (*u, *v, *w) = (*w + a, *u, *v));
            assert!(u.iter().zip(&a).all(|(&u, a)| u == 3.0 + a));
            assert!(v.iter().all(|&v| v == 2.0));
            assert!(w.iter().zip(&a).all(|(&w, a)| w == 1.0 + a));
        }
    }
}
