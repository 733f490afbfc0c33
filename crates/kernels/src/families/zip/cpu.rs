//! Elementwise functions of two and three arguments, from the tables `binary_functions` and `comparisons`.

use super::functions::{binary_functions, comparisons};
use super::{Accumulate, Comparison, Select, Zip};
use crate::cpu::dispatch::{
    any, byte_or_integer, byte_or_number, float, host, host_mut, integer, unsupported,
};
use crate::cpu::fold::BLOCK;
use crate::cpu::halves;
use crate::cpu::number::{Float, Integer};
use crate::cpu::operands::{Pair, Source};
use crate::cpu::parallel::{HEAVY, LIGHT, Workers};
use crate::cpu::power::raise_each;
use crate::error::Result;
use crate::families::map::cpu::{chunk, silu};
use crate::families::map::functions::if_of_numbers;
use crate::families::{Binary, Compare, RunCpu};
use crate::layout::Layout;
use crate::shape::{DType, RawElement};

impl RunCpu for Zip<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { f, lhs, rhs, ref mut out } = *self;
        let dtype = out.dtype();
        if dtype == DType::Bool && !f.supports_booleans() {
            return Err(unsupported(op, dtype));
        }
        if halves::any_of([dtype, lhs.dtype(), rhs.dtype()]) {
            let chunk = if f.is_light() { LIGHT } else { HEAVY };
            return halves::map(workers, op, chunk, [lhs, rhs], out, &|[lhs, rhs], out| {
                let row = Layout::of_row(lhs.len());
                of_floats(workers, f, &Pair::of((lhs, &row), (rhs, &row)), out);
            });
        }
        if dtype.is_float() {
            return float!(op, dtype, T => {
                let (left, right) = (host::<T>(op, &lhs)?, host::<T>(op, &rhs)?);
                let out = host_mut::<T>(op, out)?;
                of_floats(workers, f, &Pair::of((left, lhs.layout()), (right, rhs.layout())), out);
                Ok(())
            });
        }
        byte_or_integer!(op, dtype, T => {
            let (left, right) = (host::<T>(op, &lhs)?, host::<T>(op, &rhs)?);
            let out = host_mut::<T>(op, out)?;
            let pair = Pair::of((left, lhs.layout()), (right, rhs.layout()));
            of_integers(workers, (op, dtype), f, &pair, out)
        })
    }
}

impl RunCpu for Accumulate<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { f, input, ref mut acc } = *self;
        let dtype = acc.dtype();
        if halves::any_of([dtype, input.dtype()]) {
            return halves::update(workers, op, LIGHT, [input], [acc], &|[input], [acc]| {
                accumulate_floats(workers, f, &Source::of(input, &Layout::of_row(input.len())), acc);
            });
        }
        if dtype.is_float() {
            return float!(op, dtype, T => {
                let (data, acc) = (host::<T>(op, &input)?, host_mut::<T>(op, acc)?);
                accumulate_floats(workers, f, &Source::of(data, input.layout()), acc);
                Ok(())
            });
        }
        integer!(op, dtype, T => {
            let (data, acc) = (host::<T>(op, &input)?, host_mut::<T>(op, acc)?);
            accumulate_integers(workers, (op, dtype), f, &Source::of(data, input.layout()), acc)
        })
    }
}

/// Computes one function of the table: in a loop over pairs with the cost as chunk, or by its own loop over each chunk.
macro_rules! compute {
    (by($f:expr), $pair:ident, $workers:ident, $out:ident) => {
        $workers.chunks($out, HEAVY, &|start, part| {
            $pair.first().load(start, part);
            $f(start, part, &$pair.second());
        })
    };
    ($cost:ident($f:expr), $pair:ident, $workers:ident, $out:ident) => {
        $pair.map($workers, chunk!($cost), $out, $f)
    };
}

/// As `compute`, in place.
macro_rules! accumulate {
    (by($f:expr), $source:ident, $workers:ident, $acc:ident) => {
        $workers.chunks($acc, HEAVY, &|start, part| $f(start, part, $source))
    };
    ($cost:ident($f:expr), $source:ident, $workers:ident, $acc:ident) => {
        fold_into($workers, $source, chunk!($cost), $acc, $f)
    };
}

/// Defines the functions that compute values, with one loop for each row of the table.
macro_rules! computations {
    ($(
        $(#[$meta:meta])*
        $name:ident: $variant:ident {
            domain: $domain:ident, booleans: $booleans:literal, smooth: [$($a:expr),+] and [$($b:expr),+],
            value: $cost:ident($value:expr),
        }
    )*) => {
        /// Computes the functions that integers support.
        fn of_integers<T: Integer>(
            workers: &Workers,
            (op, dtype): (&'static str, DType),
            f: Binary,
            pair: &Pair<'_, T, T>,
            out: &mut [T],
        ) -> Result<()> {
            if f == Binary::Pow {
                pair.map(workers, HEAVY, out, T::power);
                return Ok(());
            }
            match f {
                $(Binary::$variant => if_of_numbers!(
                    $domain,
                    compute!($cost($value), pair, workers, out),
                    return Err(unsupported(op, dtype))
                ),)*
            }
            Ok(())
        }

        /// Computes all functions.
        fn of_floats<T: Float>(workers: &Workers, f: Binary, pair: &Pair<'_, T, T>, out: &mut [T]) {
            match f {
                $(Binary::$variant => compute!($cost($value), pair, workers, out),)*
            }
        }

        /// `acc[i] = f(acc[i], value[i])` for the functions that integers support.
        fn accumulate_integers<T: Integer>(
            workers: &Workers,
            (op, dtype): (&'static str, DType),
            f: Binary,
            source: &Source<'_, T>,
            acc: &mut [T],
        ) -> Result<()> {
            if f == Binary::Pow {
                fold_into(workers, source, HEAVY, acc, T::power);
                return Ok(());
            }
            match f {
                $(Binary::$variant => if_of_numbers!(
                    $domain,
                    accumulate!($cost($value), source, workers, acc),
                    return Err(unsupported(op, dtype))
                ),)*
            }
            Ok(())
        }

        /// `acc[i] = f(acc[i], value[i])` for all functions.
        fn accumulate_floats<T: Float>(workers: &Workers, f: Binary, source: &Source<'_, T>, acc: &mut [T]) {
            match f {
                $(Binary::$variant => accumulate!($cost($value), source, workers, acc),)*
            }
        }
    };
}

binary_functions!(computations);

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

/// Defines the kernel of comparisons, with one loop for each row of the table.
macro_rules! define_compare {
    ($($(#[$meta:meta])* $name:ident: $variant:ident($holds:expr),)*) => {
        impl RunCpu for Comparison<'_> {
            fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
                let Self { f, lhs, rhs, ref mut out } = *self;
                byte_or_number!(op, lhs.dtype(), T => {
                    let pair = Pair::<T, T>::new(op, lhs, rhs)?;
                    let out = host_mut::<u8>(op, out)?;
                    match f {
                        $(Compare::$variant => compare_pairs(workers, &pair, out, $holds),)*
                    }
                    Ok(())
                })
            }
        }
    };
}

comparisons!(define_compare);

/// `out[i] = holds(a[i], b[i])`, as 0 or 1.
#[inline(always)]
fn compare_pairs<T: RawElement>(
    workers: &Workers,
    pair: &Pair<'_, T, T>,
    out: &mut [u8],
    holds: impl Fn(T, T) -> bool + Sync,
) {
    pair.map(workers, LIGHT, out, |a, b| u8::from(holds(a, b)));
}

impl RunCpu for Select<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { condition, lhs, rhs, ref mut out } = *self;
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
}

#[cfg(test)]
mod tests;
