//! The sums of products of 16-bit floats, in `f32`.
//!
//! A product adds to its output once for each part of the depth. The sums of a 16-bit output are in the workspace until they
//! are complete, and are then rounded once.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::dispatch::{host_mut, scratch, unsupported};
use super::gemm::to_bf16;
use super::number::Float;
use super::parallel::{LIGHT, Workers};
use super::simd;
use crate::error::Result;
use crate::shape::{DType, RawElement};
use crate::storage::ViewMut;

/// The elements of a workspace that hold the sums of an output.
pub(crate) const fn elements(dtype: DType, out: usize) -> usize {
    if dtype.is_half() { out } else { 0 }
}

/// Calls `multiply` with memory for the sums and with `rest` elements of the workspace. Stores the sums in the output.
pub(crate) fn with_sums<T: Float + RawElement>(
    workers: &Workers,
    op: &'static str,
    workspace: &mut Option<ViewMut<'_>>,
    rest: usize,
    out: &mut ViewMut<'_>,
    multiply: impl FnOnce(&mut [T], &mut [T]),
) -> Result<()> {
    if !out.dtype().is_half() {
        multiply(host_mut::<T>(op, out)?, scratch::<T>(op, workspace, rest)?);
        return Ok(());
    }
    let elements = out.layout().shape().elements();
    let scratch = scratch::<f32>(op, workspace, elements + rest)?;
    let (sums, rest) = scratch.split_at_mut(elements);
    multiply(bytemuck::cast_slice_mut(&mut *sums), bytemuck::cast_slice_mut(rest));
    round(workers, op, sums, out)
}

/// Rounds the sums to the output.
fn round(workers: &Workers, op: &'static str, sums: &[f32], out: &mut ViewMut<'_>) -> Result<()> {
    match out.dtype() {
        DType::BF16 => workers.chunks(host_mut::<bf16>(op, out)?, LIGHT, &|start, out| {
            let len = out.len();
            simd::zip(out, &sums[start..start + len], |out, sum| *out = to_bf16(sum));
        }),
        DType::F16 => workers.chunks(host_mut::<f16>(op, out)?, LIGHT, &|start, out| {
            let len = out.len();
            out.convert_from_f32_slice(&sums[start..start + len]);
        }),
        dtype => return Err(unsupported(op, dtype)),
    }
    Ok(())
}
