//! Loops over slices, compiled for several instruction sets; the widest that the processor has is taken at run time.
//!
//! They are plain loops, which the compiler vectorises in functions that may use those instructions; `pulp` holds these
//! functions and asks the processor. A product and a sum are contracted into one rounding only where a loop says so
//! ([`Float::fused`](super::number::Float::fused)), so it gives the same bits whatever the instructions. Processors without one for
//! that, which are older than 2013, call a function.

use std::sync::LazyLock;

use pulp::{Arch, Simd, WithSimd};

/// What the processor has; asking takes longer than a short loop.
static ARCH: LazyLock<Arch> = LazyLock::new(Arch::new);

/// Runs a loop of one's own.
pub(super) fn run<L: WithSimd>(of: L) -> L::Output {
    ARCH.dispatch(of)
}

/// Calls `f` with each element.
pub(super) fn each<U>(out: &mut [U], f: impl Fn(&mut U)) {
    run(Each { out, f });
}

/// Calls `f` with each element of `out` and that of `a` at the same place. The slices have one length.
pub(super) fn zip<U, A: Copy>(out: &mut [U], a: &[A], f: impl Fn(&mut U, A)) {
    run(Zip { out, a, f });
}

/// As [`zip`], with the elements of `a` from the last to the first.
pub(super) fn zip_back<U, A: Copy>(out: &mut [U], a: &[A], f: impl Fn(&mut U, A)) {
    run(ZipBack { out, a, f });
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

/// As [`zip`], with two slices beside `out`.
pub(super) fn zip2<U, A: Copy, B: Copy>(out: &mut [U], a: &[A], b: &[B], f: impl Fn(&mut U, A, B)) {
    run(Zip2 { out, a, b, f });
}

/// As [`zip`], with three slices beside `out`.
pub(super) fn zip3<U, A: Copy, B: Copy, C: Copy>(
    out: &mut [U],
    a: &[A],
    b: &[B],
    c: &[C],
    f: impl Fn(&mut U, A, B, C),
) {
    run(Zip3 { out, a, b, c, f });
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

/// As [`zip`], into two slices.
pub(super) fn zip_into2<U, A: Copy>([u, v]: [&mut [U]; 2], a: &[A], f: impl Fn([&mut U; 2], A)) {
    run(ZipInto2 { u, v, a, f });
}

/// As [`zip`], into three slices.
pub(super) fn zip_into3<U, A: Copy>([u, v, w]: [&mut [U]; 3], a: &[A], f: impl Fn([&mut U; 3], A)) {
    run(ZipInto3 { u, v, w, a, f });
}

// What `run` takes is a type, not a closure, so that it can be told to inline it: in a function of its own the loop
// would be compiled for the least of all processors.

struct Each<'a, U, F> {
    out: &'a mut [U],
    f: F,
}

impl<U, F: Fn(&mut U)> WithSimd for Each<'_, U, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for out in self.out {
            (self.f)(out);
        }
    }
}

struct Zip<'a, U, A, F> {
    out: &'a mut [U],
    a: &'a [A],
    f: F,
}

impl<U, A: Copy, F: Fn(&mut U, A)> WithSimd for Zip<'_, U, A, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (out, &a) in self.out.iter_mut().zip(self.a) {
            (self.f)(out, a);
        }
    }
}

struct ZipBack<'a, U, A, F> {
    out: &'a mut [U],
    a: &'a [A],
    f: F,
}

impl<U, A: Copy, F: Fn(&mut U, A)> WithSimd for ZipBack<'_, U, A, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (out, &a) in self.out.iter_mut().zip(self.a.iter().rev()) {
            (self.f)(out, a);
        }
    }
}

struct Repeated<'a, U, A, F, const TIMES: usize> {
    out: &'a mut [U],
    a: &'a [A],
    f: F,
}

impl<U, A: Copy, F: Fn(&mut U, A), const TIMES: usize> WithSimd for Repeated<'_, U, A, F, TIMES> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
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

struct Zip2<'a, U, A, B, F> {
    out: &'a mut [U],
    a: &'a [A],
    b: &'a [B],
    f: F,
}

impl<U, A: Copy, B: Copy, F: Fn(&mut U, A, B)> WithSimd for Zip2<'_, U, A, B, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for ((out, &a), &b) in self.out.iter_mut().zip(self.a).zip(self.b) {
            (self.f)(out, a, b);
        }
    }
}

struct Zip3<'a, U, A, B, C, F> {
    out: &'a mut [U],
    a: &'a [A],
    b: &'a [B],
    c: &'a [C],
    f: F,
}

impl<U, A: Copy, B: Copy, C: Copy, F: Fn(&mut U, A, B, C)> WithSimd for Zip3<'_, U, A, B, C, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (((out, &a), &b), &c) in self.out.iter_mut().zip(self.a).zip(self.b).zip(self.c) {
            (self.f)(out, a, b, c);
        }
    }
}

struct ZipInto2<'a, U, A, F> {
    u: &'a mut [U],
    v: &'a mut [U],
    a: &'a [A],
    f: F,
}

impl<U, A: Copy, F: Fn([&mut U; 2], A)> WithSimd for ZipInto2<'_, U, A, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for ((u, v), &a) in self.u.iter_mut().zip(self.v).zip(self.a) {
            (self.f)([u, v], a);
        }
    }
}

struct ZipInto3<'a, U, A, F> {
    u: &'a mut [U],
    v: &'a mut [U],
    w: &'a mut [U],
    a: &'a [A],
    f: F,
}

impl<U, A: Copy, F: Fn([&mut U; 3], A)> WithSimd for ZipInto3<'_, U, A, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (((u, v), w), &a) in self.u.iter_mut().zip(self.v).zip(self.w).zip(self.a) {
            (self.f)([u, v, w], a);
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
            zip_into2([&mut u, &mut v], &a, |[u, v], a| (*u, *v) = (*v, *u + a));
            zip_into3([&mut u, &mut v, &mut w], &a, |[u, v, w], a| (*u, *v, *w) = (*w + a, *u, *v));
            assert!(u.iter().zip(&a).all(|(&u, a)| u == 3.0 + a));
            assert!(v.iter().all(|&v| v == 2.0));
            assert!(w.iter().zip(&a).all(|(&w, a)| w == 1.0 + a));
        }
    }
}
