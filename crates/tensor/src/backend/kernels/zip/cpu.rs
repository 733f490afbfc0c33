//! Elementwise functions of two and three arguments.

use super::{Accumulate, Comparison, Select, Zip};
use crate::backend::cpu::dispatch::{
    any, byte_or_number, float, host, host_mut, integer, number, unsupported,
};
use crate::backend::cpu::fold::BLOCK;
use crate::backend::cpu::halves;
use crate::backend::cpu::number::{Float, Integer, Number};
use crate::backend::cpu::operands::{Pair, Source};
use crate::backend::cpu::parallel::{HEAVY, LIGHT, Workers};
use crate::backend::cpu::power::raise_each;
use crate::backend::function::{binary_functions, comparisons};
use crate::backend::kernels::RunCpu;
use crate::backend::{Binary, Compare, Domain};
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
    if dtype == DType::Bool && !f.supports_booleans() {
        return Err(unsupported(op, dtype));
    }
    if halves::any_of([dtype, lhs.dtype(), rhs.dtype()]) {
        let chunk = if f.is_light() { LIGHT } else { HEAVY };
        return halves::map(workers, op, chunk, [lhs, rhs], out, &|[lhs, rhs], out| {
            let row = Layout::of_row(lhs.len());
            if f == Binary::Pow {
                out.copy_from_slice(lhs);
                raise_each(out, rhs);
            } else {
                of_floats(workers, f, &Pair::of((lhs, &row), (rhs, &row)), out);
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
    if f.domain() == Domain::Floats {
        return float!(op, dtype, T => {
            of_floats(workers, f, &Pair::<T, T>::new(op, lhs, rhs)?, host_mut::<T>(op, out)?);
            Ok(())
        });
    }
    byte_or_number!(op, dtype, T => {
        let (left, right) = (host::<T>(op, &lhs)?, host::<T>(op, &rhs)?);
        let out = host_mut::<T>(op, out)?;
        of_numbers(workers, f, &Pair::of((left, lhs.layout()), (right, rhs.layout())), out);
        Ok(())
    })
}

/// Evaluates an expression with the chunk of a function's cost, unless the function has loops of its own.
macro_rules! with_chunk {
    (light, $chunk:ident => $compute:expr) => {{
        let $chunk = LIGHT;
        $compute
    }};
    (heavy, $chunk:ident => $compute:expr) => {{
        let $chunk = HEAVY;
        $compute
    }};
    (by, $chunk:ident => $compute:expr) => {
        debug_assert!(false, "powers are computed elsewhere")
    };
}

/// Evaluates the first expression for functions of all numbers, and the second for others.
macro_rules! if_of_numbers {
    (Numbers, $numbers:expr, $others:expr) => {
        $numbers
    };
    ($domain:ident, $numbers:expr, $others:expr) => {
        $others
    };
}

/// Defines the functions that compute values, with one loop for each row of the table. Powers are computed elsewhere.
macro_rules! computations {
    ($(
        $(#[$meta:meta])*
        $name:ident: $variant:ident {
            domain: $domain:ident, booleans: $booleans:literal, smooth: [$($a:expr),+] and [$($b:expr),+],
            value: $cost:ident($value:expr),
        }
    )*) => {
        /// Computes the functions that integers support too.
        fn of_numbers<T: Number>(workers: &Workers, f: Binary, pair: &Pair<'_, T, T>, out: &mut [T]) {
            match f {
                $(Binary::$variant => if_of_numbers!(
                    $domain,
                    with_chunk!($cost, chunk => pair.map(workers, chunk, out, $value)),
                    debug_assert!(false, "{} is for floats", f.name())
                ),)*
            }
        }

        /// Computes all functions.
        fn of_floats<T: Float>(workers: &Workers, f: Binary, pair: &Pair<'_, T, T>, out: &mut [T]) {
            match f {
                $(Binary::$variant => if_of_numbers!(
                    $domain,
                    of_numbers(workers, f, pair, out),
                    with_chunk!($cost, chunk => pair.map(workers, chunk, out, $value))
                ),)*
            }
        }

        /// `acc[i] = f(acc[i], value[i])` for the functions that integers support too.
        fn accumulate_numbers<T: Number>(workers: &Workers, f: Binary, source: &Source<'_, T>, acc: &mut [T]) {
            match f {
                $(Binary::$variant => if_of_numbers!(
                    $domain,
                    with_chunk!($cost, chunk => fold_into(workers, source, chunk, acc, $value)),
                    debug_assert!(false, "{} is for floats", f.name())
                ),)*
            }
        }

        /// `acc[i] = f(acc[i], value[i])` for all functions.
        fn accumulate_floats<T: Float>(workers: &Workers, f: Binary, source: &Source<'_, T>, acc: &mut [T]) {
            match f {
                $(Binary::$variant => if_of_numbers!(
                    $domain,
                    accumulate_numbers(workers, f, source, acc),
                    with_chunk!($cost, chunk => fold_into(workers, source, chunk, acc, $value))
                ),)*
            }
        }
    };
}

binary_functions!(computations);

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
                accumulate_floats(workers, f, &Source::of(input, &Layout::of_row(input.len())), acc);
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
    if f.domain() == Domain::Floats {
        return float!(op, dtype, T => {
            accumulate_floats(workers, f, &Source::<T>::new(op, input)?, host_mut::<T>(op, acc)?);
            Ok(())
        });
    }
    number!(op, dtype, T => {
        let (data, acc) = (host::<T>(op, &input)?, host_mut::<T>(op, acc)?);
        accumulate_numbers(workers, f, &Source::of(data, input.layout()), acc);
        Ok(())
    })
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

/// Defines the kernel, with one loop for each row of the table.
macro_rules! define_compare {
    ($($(#[$meta:meta])* $name:ident: $variant:ident($holds:expr),)*) => {
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
                    $(Compare::$variant => compare_pairs(workers, &pair, out, $holds),)*
                }
                Ok(())
            })
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

impl RunCpu for Zip<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        binary(workers, op, self.f, self.lhs, self.rhs, &mut self.out)
    }
}

impl RunCpu for Accumulate<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        accumulate(workers, op, self.f, self.input, &mut self.acc)
    }
}

impl RunCpu for Comparison<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        compare(workers, op, self.f, self.lhs, self.rhs, &mut self.out)
    }
}

impl RunCpu for Select<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        select(workers, op, self.condition, self.lhs, self.rhs, &mut self.out)
    }
}

#[cfg(test)]
mod tests;
