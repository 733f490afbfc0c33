//! Elementwise functions of two and three arguments.

use super::dispatch::{any, byte_or_number, float, host, host_mut, integer, number, unsupported};
use super::fold::BLOCK;
use super::halves;
use super::number::{Float, Integer, Number};
use super::operands::{Pair, Source};
use super::parallel::{HEAVY, LIGHT, Workers};
use super::power::raise_each;
use crate::backend::{Binary, Compare};
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::{DType, RawElement};
use crate::storage::{View, ViewMut};

/// See [`Zip`](crate::backend::kernels::Zip).
#[inline(never)]
pub(crate) fn binary(
    workers: &Workers,
    op: &'static str,
    f: Binary,
    lhs: View<'_>,
    rhs: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dtype = out.dtype();
    // These functions return booleans for booleans; sums would not.
    let closed_over_bool = matches!(f, Binary::Mul | Binary::Maximum | Binary::Minimum);
    if dtype == DType::Bool && !closed_over_bool {
        return Err(unsupported(op, dtype));
    }
    if halves::any_of([dtype, lhs.dtype(), rhs.dtype()]) {
        let chunk = if f == Binary::Pow { HEAVY } else { LIGHT };
        return halves::map(workers, op, chunk, [lhs, rhs], out, &|[lhs, rhs], out| {
            let row = Layout::of_row(lhs.len());
            if f == Binary::Pow {
                out.copy_from_slice(lhs);
                raise_each(out, rhs);
            } else {
                arithmetic(workers, f, &Pair::of((lhs, &row), (rhs, &row)), out);
            }
        });
    }
    if f == Binary::Pow && !dtype.is_float() {
        return integer!(op, dtype, T => {
            let pair = Pair::<T, T>::new(op, lhs, rhs)?;
            pair.map(workers, HEAVY, host_mut::<T>(op, out)?, T::power);
            Ok(())
        });
    }
    if f == Binary::Pow {
        return float!(op, dtype, T => {
            let (bases, exponents) = (Source::<T>::new(op, lhs)?, Source::<T>::new(op, rhs)?);
            workers.chunks(host_mut::<T>(op, out)?, HEAVY, &|start, part| {
                bases.load(start, part);
                raise(start, part, &exponents);
            });
            Ok(())
        });
    }
    byte_or_number!(op, dtype, T => {
        let (left, right) = (host::<T>(op, &lhs)?, host::<T>(op, &rhs)?);
        let out = host_mut::<T>(op, out)?;
        arithmetic(workers, f, &Pair::of((left, lhs.layout()), (right, rhs.layout())), out);
        Ok(())
    })
}

/// Computes all functions but powers.
fn arithmetic<T: Number>(workers: &Workers, f: Binary, pair: &Pair<'_, T, T>, out: &mut [T]) {
    match f {
        Binary::Add => pair.map(workers, LIGHT, out, T::plus),
        Binary::Sub => pair.map(workers, LIGHT, out, T::minus),
        Binary::Mul => pair.map(workers, LIGHT, out, T::times),
        Binary::Div => pair.map(workers, LIGHT, out, T::over),
        Binary::Maximum => pair.map(workers, LIGHT, out, T::larger),
        Binary::Minimum => pair.map(workers, LIGHT, out, T::smaller),
        Binary::Pow => debug_assert!(false, "powers are computed elsewhere"),
    }
}

/// See [`Accumulate`](crate::backend::kernels::Accumulate).
#[inline(never)]
pub(crate) fn accumulate(
    workers: &Workers,
    op: &'static str,
    f: Binary,
    input: View<'_>,
    acc: &mut ViewMut<'_>,
) -> Result<()> {
    let dtype = acc.dtype();
    if halves::any_of([dtype, input.dtype()]) {
        return halves::update(workers, op, LIGHT, [input], [acc], &|[input], [acc]| {
            if f == Binary::Pow {
                raise_each(acc, input);
            } else {
                accumulate_values(workers, f, &Source::of(input, &Layout::of_row(input.len())), acc);
            }
        });
    }
    if f == Binary::Pow && !dtype.is_float() {
        return integer!(op, dtype, T => {
            fold_into(workers, &Source::<T>::new(op, input)?, HEAVY, host_mut::<T>(op, acc)?, T::power);
            Ok(())
        });
    }
    if f == Binary::Pow {
        return float!(op, dtype, T => {
            let exponents = Source::<T>::new(op, input)?;
            workers.chunks(host_mut::<T>(op, acc)?, HEAVY, &|start, part| raise(start, part, &exponents));
            Ok(())
        });
    }
    number!(op, dtype, T => {
        let (data, acc) = (host::<T>(op, &input)?, host_mut::<T>(op, acc)?);
        accumulate_values(workers, f, &Source::of(data, input.layout()), acc);
        Ok(())
    })
}

/// `acc[i] = f(acc[i], value[i])` for all functions but powers.
fn accumulate_values<T: Number>(workers: &Workers, f: Binary, source: &Source<'_, T>, acc: &mut [T]) {
    match f {
        Binary::Add => fold_into(workers, source, LIGHT, acc, T::plus),
        Binary::Sub => fold_into(workers, source, LIGHT, acc, T::minus),
        Binary::Mul => fold_into(workers, source, LIGHT, acc, T::times),
        Binary::Div => fold_into(workers, source, LIGHT, acc, T::over),
        Binary::Maximum => fold_into(workers, source, LIGHT, acc, T::larger),
        Binary::Minimum => fold_into(workers, source, LIGHT, acc, T::smaller),
        Binary::Pow => debug_assert!(false, "powers are computed elsewhere"),
    }
}

/// `x = xʸ`, in place, with exponents starting at number `start`.
fn raise<T: Float>(start: usize, bases: &mut [T], exponents: &Source<'_, T>) {
    exponents.blocks::<BLOCK>(start..start + bases.len(), |range, block| {
        raise_each(&mut bases[range.start - start..][..block.len()], block);
    });
}

/// `acc[i] = f(acc[i], value[i])`.
fn fold_into<T: RawElement>(
    workers: &Workers,
    source: &Source<'_, T>,
    chunk: usize,
    acc: &mut [T],
    f: impl Fn(T, T) -> T + Sync,
) {
    workers.chunks(acc, chunk, &|start, part| {
        source.each(start, part, |acc, value| *acc = f(*acc, value));
    });
}

/// See [`Comparison`](crate::backend::kernels::Comparison).
#[inline(never)]
pub(crate) fn compare(
    workers: &Workers,
    op: &'static str,
    f: Compare,
    lhs: View<'_>,
    rhs: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    byte_or_number!(op, lhs.dtype(), T => {
        let pair = Pair::<T, T>::new(op, lhs, rhs)?;
        let out = host_mut::<u8>(op, out)?;
        match f {
            Compare::Eq => pair.map(workers, LIGHT, out, |a, b| u8::from(a == b)),
            Compare::Ne => pair.map(workers, LIGHT, out, |a, b| u8::from(a != b)),
            Compare::Lt => pair.map(workers, LIGHT, out, |a, b| u8::from(a < b)),
            Compare::Le => pair.map(workers, LIGHT, out, |a, b| u8::from(a <= b)),
            Compare::Gt => pair.map(workers, LIGHT, out, |a, b| u8::from(a > b)),
            Compare::Ge => pair.map(workers, LIGHT, out, |a, b| u8::from(a >= b)),
        }
        Ok(())
    })
}

/// See [`Select`](crate::backend::kernels::Select).
#[inline(never)]
pub(crate) fn select(
    workers: &Workers,
    op: &'static str,
    condition: View<'_>,
    lhs: View<'_>,
    rhs: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    any!(out.dtype(), T => {
        let (lhs, others) = (Source::<T>::new(op, lhs)?, Pair::<u8, T>::new(op, condition, rhs)?);
        workers.chunks(host_mut::<T>(op, out)?, LIGHT, &|first, part| {
            // Pieces that stay in the L1 cache.
            for (start, piece) in (first..).step_by(HEAVY).zip(part.chunks_mut(HEAVY)) {
                lhs.load(start, piece);
                others.each(start, piece, |out, c, b| *out = if c != 0 { *out } else { b });
            }
        });
    });
    Ok(())
}

#[cfg(test)]
mod tests;
