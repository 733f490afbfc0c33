//! Matrix products with an activation, in place unless the caller requests the arguments of the activation.

use super::dispatch::{float, host_mut};
use super::matmul;
use super::number::Float;
use super::parallel::{HEAVY, LIGHT, Workers};
use super::simd;
use super::unary::{gelu, gelu_tanh, silu, unary};
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
    let mut product = |out: &mut ViewMut<'_>| match matmul::matmul_small(op, precision, bias, factors, out) {
        Some(result) => result,
        None => matmul::matmul(workers, op, precision, bias, factors, workspace, out),
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
