//! Matrix products with an activation, in place unless the caller requests the arguments of the activation.

use crate::cpu::dispatch::{float, host_mut};
use crate::cpu::number::Float;
use crate::cpu::parallel::{HEAVY, LIGHT, Workers};
use crate::cpu::simd;
use crate::error::Result;
use crate::families::map::cpu::{gelu, gelu_tanh, silu};
use crate::families::{Activated, Activation, Map, MatMul, RunCpu};
use crate::storage::ViewMut;

/// Runs a product that has an activation.
pub(super) fn run(kernel: &mut MatMul<'_>, workers: &Workers, op: &'static str) -> Result<()> {
    let MatMul { precision, bias, lhs, rhs, ref mut activation, ref mut workspace, ref mut out } = *kernel;
    let Some(Activated { function, arguments }) = activation else { return Ok(()) };
    let mut product = |sums: &mut ViewMut<'_>| {
        let (workspace, out) = (workspace.as_mut().map(ViewMut::reborrow), sums.reborrow());
        MatMul { precision, bias, lhs, rhs, activation: None, workspace, out }.run_cpu(workers, op)
    };
    if let Some(sums) = arguments {
        product(sums)?;
        let (f, input, out) = (function.function(), sums.as_view(), out.reborrow());
        return Map { f, input, out }.run_cpu(workers, op);
    }
    product(out)?;
    float!(op, out.dtype(), T => {
        apply_in_place(workers, *function, host_mut::<T>(op, out)?);
        Ok(())
    })
}

/// Applies the activation in place. The results equal those of [`Map`] bit for bit.
fn apply_in_place<T: Float>(workers: &Workers, function: Activation, values: &mut [T]) {
    fn each<T: Float>(workers: &Workers, chunk: usize, values: &mut [T], f: impl Fn(T) -> T + Sync) {
        workers.chunks(values, chunk, &|_, part| simd::each(part, |x| *x = f(*x)));
    }
    match function {
        Activation::Relu => each(workers, LIGHT, values, T::rectified),
        Activation::Gelu => each(workers, HEAVY, values, gelu),
        Activation::GeluTanh => each(workers, HEAVY, values, gelu_tanh),
        Activation::Silu => each(workers, HEAVY, values, silu),
    }
}
