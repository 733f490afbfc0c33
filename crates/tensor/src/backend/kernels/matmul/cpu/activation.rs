//! Matrix products with an activation, in place unless the caller requests the arguments of the activation.

use super::matmul_small;
use crate::backend::cpu::dispatch::{float, host_mut};
use crate::backend::cpu::number::Float;
use crate::backend::cpu::parallel::{HEAVY, LIGHT, Workers};
use crate::backend::cpu::simd;
use crate::backend::kernels::map::cpu::{gelu, gelu_tanh, silu, unary};
use crate::backend::{Activation, Precision, kernels};
use crate::error::Result;
use crate::storage::{View, ViewMut};

/// See [`MatMul`](crate::backend::kernels::MatMul).
pub(crate) fn matmul(
    workers: &Workers,
    (op, precision): (&'static str, Precision),
    bias: Option<View<'_>>,
    factors: [View<'_>; 2],
    kernels::Activated { function, arguments }: &mut kernels::Activated<'_>,
    workspace: &mut Option<ViewMut<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let mut product = |out: &mut ViewMut<'_>| match matmul_small(op, precision, bias, factors, out) {
        Some(result) => result,
        None => super::matmul(workers, op, precision, bias, factors, workspace, out),
    };
    if let Some(sums) = arguments {
        product(sums)?;
        return unary(workers, op, function.function(), sums.as_view(), out);
    }
    product(out)?;
    float!(op, out.dtype(), T => {
        apply_in_place(workers, *function, host_mut::<T>(op, out)?);
        Ok(())
    })
}

/// Applies the activation in place. The results equal those of [`unary`] bit for bit.
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
