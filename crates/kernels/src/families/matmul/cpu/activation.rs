//! Matrix products with an activation, in place unless the caller requests the arguments of the activation.

use half::{bf16, f16};

use crate::cpu::convert::Half;
use crate::cpu::dispatch::{host_mut, unsupported};
use crate::cpu::number::Float;
use crate::cpu::parallel::{HEAVY, LIGHT, Workers};
use crate::cpu::simd;
use crate::error::Result;
use crate::families::map::cpu::{gelu, gelu_tanh, silu};
use crate::families::{Activated, Activation, Map, MatMul, RunCpu};
use crate::shape::{DType, RawElement};
use crate::storage::ViewMut;

/// The number of 16-bit floats that are converted at a time: 4 KiB of f32.
const BLOCK: usize = 1024;

/// Runs a product that has an activation.
pub(super) fn run(kernel: &mut MatMul<'_>, workers: &Workers, op: &'static str) -> Result<()> {
    let MatMul { bias, lhs, rhs, ref mut activation, ref mut workspace, ref mut out } = *kernel;
    let Some(Activated { function, arguments }) = activation else { return Ok(()) };
    let mut product = |sums: &mut ViewMut<'_>| {
        let (workspace, out) = (workspace.as_mut().map(ViewMut::reborrow), sums.reborrow());
        MatMul { bias, lhs, rhs, activation: None, workspace, out }.run_cpu(workers, op)
    };
    if let Some(sums) = arguments {
        product(sums)?;
        let (f, input, out) = (function.function(), sums.as_view(), out.reborrow());
        return Map { f, input, out }.run_cpu(workers, op);
    }
    product(out)?;
    match out.dtype() {
        DType::F32 => apply_in_place::<f32, f32>(workers, *function, host_mut(op, out)?),
        DType::F64 => apply_in_place::<f64, f64>(workers, *function, host_mut(op, out)?),
        DType::F16 => apply_in_place::<f32, f16>(workers, *function, host_mut(op, out)?),
        DType::BF16 => apply_in_place::<f32, bf16>(workers, *function, host_mut(op, out)?),
        dtype => return Err(unsupported(op, dtype)),
    }
    Ok(())
}

/// Applies the activation in place. The results equal those of [`Map`] bit for bit.
fn apply_in_place<T: Float, S: Stored<T>>(workers: &Workers, function: Activation, values: &mut [S]) {
    fn each<T: Float, S: Stored<T>>(
        workers: &Workers,
        chunk: usize,
        values: &mut [S],
        f: impl Fn(T) -> T + Sync,
    ) {
        workers.chunks(values, chunk, &|_, part| S::update(part, |part| simd::each(part, |x| *x = f(*x))));
    }
    match function {
        Activation::Relu => each(workers, LIGHT, values, T::rectified),
        Activation::Gelu => each(workers, HEAVY, values, gelu),
        Activation::GeluTanh => each(workers, HEAVY, values, gelu_tanh),
        Activation::Silu => each(workers, HEAVY, values, silu),
    }
}

/// An element whose functions are computed in `T`.
trait Stored<T>: RawElement {
    /// Updates values, possibly in parts that are converted on the stack.
    fn update(values: &mut [Self], f: impl Fn(&mut [T]));
}

macro_rules! stored {
    (floats: $($float:ty)+; halves: $($half:ty)+) => {
        $(impl Stored<$float> for $float {
            fn update(values: &mut [Self], f: impl Fn(&mut [Self])) {
                f(values);
            }
        })+
        $(impl Stored<f32> for $half {
            fn update(values: &mut [Self], f: impl Fn(&mut [f32])) {
                let mut wide = [0.0; BLOCK];
                for values in values.chunks_mut(BLOCK) {
                    let wide = &mut wide[..values.len()];
                    Half::upcast(values, wide);
                    f(wide);
                    Half::narrow(wide, values);
                }
            }
        })+
    };
}

stored!(floats: f32 f64; halves: f16 bf16);
