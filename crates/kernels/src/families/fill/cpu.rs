//! Fills on the CPU.

use super::{Arange, Fill};
use crate::cpu::dispatch::{any, host_mut, unsupported};
use crate::cpu::number::Stored;
use crate::cpu::parallel::{LIGHT, Workers};
use crate::error::Result;
use crate::families::RunCpu;
use crate::shape::{DType, Scalar};
use crate::storage::ViewMut;

impl RunCpu for Fill<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        fill(workers, op, self.value, &mut self.out)
    }
}

/// See [`Fill`](crate::families::Fill).
pub(crate) fn fill(workers: &Workers, op: &'static str, value: Scalar, out: &mut ViewMut<'_>) -> Result<()> {
    let dtype = out.dtype();
    any!(dtype, T => {
        let value = match dtype {
            DType::Bool => T::from_scalar(Scalar::from(value.as_f64() != 0.0)),
            _ => T::from_scalar(value),
        };
        workers.chunks(host_mut::<T>(op, out)?, LIGHT, &|_, part| part.fill(value));
    });
    Ok(())
}

impl RunCpu for Arange<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { start, step, ref mut out } = *self;
        let dtype = out.dtype();
        if dtype == DType::Bool {
            return Err(unsupported(op, dtype));
        }
        any!(dtype, T => {
            let out = host_mut::<T>(op, out)?;
            if dtype.is_float() {
                // Computes in f64 and rounds once, so that errors do not accumulate.
                let (start, step) = (start.as_f64(), step.as_f64());
                count(workers, out, |i| T::from_scalar(Scalar::Float(start + i as f64 * step)));
            } else {
                let (start, step) = (start.as_i64(), step.as_i64());
                count(workers, out, |i| {
                    T::from_scalar(Scalar::Int(start.wrapping_add(step.wrapping_mul(i as i64))))
                });
            }
        });
        Ok(())
    }
}

/// `out[i] = f(i)`.
fn count<T: Stored>(workers: &Workers, out: &mut [T], f: impl Fn(usize) -> T + Sync) {
    workers.chunks(out, LIGHT, &|start, part| {
        part.iter_mut().enumerate().for_each(|(i, out)| *out = f(start + i));
    });
}
