//! Uploads, downloads, copies and fills.

use super::convert;
use super::dispatch::{any, host, host_mut, unsupported};
use super::loop_nest::{LoopNest, Segment};
use super::number::Stored;
use super::operands::Source;
use super::parallel::{LIGHT, Workers};
use crate::error::{Error, Result};
use crate::shape::{DType, RawElement, Scalar};
use crate::storage::{View, ViewMut};

/// See [`Backend::upload`](crate::backend::Backend::upload).
pub(crate) fn upload(op: &'static str, values: &[u8], out: &mut ViewMut<'_>) -> Result<()> {
    let (shape, dtype) = (out.layout().shape(), out.dtype());
    let bytes: &mut [u8] = any!(dtype, T => bytemuck::cast_slice_mut(host_mut::<T>(op, out)?));
    if bytes.len() != values.len() {
        return Err(Error::ElementCount { op, elements: values.len() / dtype.size(), shape: *shape });
    }
    bytes.copy_from_slice(values);
    Ok(())
}

/// See [`Backend::download`](crate::backend::Backend::download).
pub(crate) fn download(op: &'static str, input: View<'_>, values: &mut [u8]) -> Result<()> {
    let (shape, dtype) = (input.layout().shape(), input.dtype());
    if shape.elements().checked_mul(dtype.size()) != Some(values.len()) {
        return Err(Error::ElementCount { op, elements: values.len() / dtype.size(), shape: *shape });
    }
    any!(dtype, T => {
        let source = Source::<T>::new(op, input)?;
        // `values` may not be aligned to the element type, so blocks are copied as bytes.
        source.blocks::<256>(0..source.len(), |range, block| {
            let size = size_of::<T>();
            values[range.start * size..range.end * size].copy_from_slice(bytemuck::cast_slice(block));
        });
    });
    Ok(())
}

/// See [`Fill`](crate::backend::kernels::Fill).
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

/// See [`Arange`](crate::backend::kernels::Arange).
#[inline(never)]
pub(crate) fn arange(
    workers: &Workers,
    op: &'static str,
    start: Scalar,
    step: Scalar,
    out: &mut ViewMut<'_>,
) -> Result<()> {
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

/// `out[i] = f(i)`.
fn count<T: Stored>(workers: &Workers, out: &mut [T], f: impl Fn(usize) -> T + Sync) {
    workers.chunks(out, LIGHT, &|start, part| {
        part.iter_mut().enumerate().for_each(|(i, out)| *out = f(start + i));
    });
}

/// See [`Copy`](crate::backend::kernels::Copy).
pub(crate) fn copy(
    workers: &Workers,
    op: &'static str,
    input: View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (from, to) = (input.dtype(), out.dtype());
    if from != to && to != DType::Bool {
        return convert::convert(workers, op, input, out);
    }
    any!(from, A => {
        let source = Source::<A>::new(op, input)?;
        if from == to {
            let out = host_mut::<A>(op, out)?;
            workers.chunks(out, LIGHT, &|start, part| source.load(start, part));
        } else {
            let out = host_mut::<u8>(op, out)?;
            source.map(workers, LIGHT, out, |value| u8::from(value != A::default()));
        }
    });
    Ok(())
}

/// See [`Flip`](crate::backend::kernels::Flip).
#[inline(never)]
pub(crate) fn flip(
    workers: &Workers,
    op: &'static str,
    input: View<'_>,
    axes: &[bool],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    any!(out.dtype(), T => {
        let source = Source::<T>::flipped(op, input, axes)?;
        workers.chunks(host_mut::<T>(op, out)?, LIGHT, &|start, part| source.load(start, part));
    });
    Ok(())
}

/// See [`CopyInto`](crate::backend::kernels::CopyInto).
///
/// Uses one thread: memory bandwidth limits it, and the written parts are not chunks of a slice.
#[inline(never)]
pub(crate) fn copy_into(
    op: &'static str,
    input: View<'_>,
    axis: usize,
    start: usize,
    step: usize,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let part = out.layout().part(op, input.layout().shape(), axis, start, step)?;
    any!(out.dtype(), T => {
        let data = host::<T>(op, &input)?;
        let out = out.host_buffer::<T>().ok_or_else(|| crate::backend::not_host(op))?;
        place(data, &LoopNest::new([input.layout(), &part]), out);
    });
    Ok(())
}

/// Copies the elements that a loop nest visits.
fn place<T: RawElement>(data: &[T], nest: &LoopNest<2>, out: &mut [T]) {
    let [from_stride, to_stride] = nest.inner();
    for Segment { starts: [from, to], len } in nest.segments(0..nest.len()) {
        if from_stride == 1 && to_stride == 1 {
            out[to..to + len].copy_from_slice(&data[from..from + len]);
        } else {
            (0..len).for_each(|i| out[to + i * to_stride] = data[from + i * from_stride]);
        }
    }
}

#[cfg(test)]
mod tests;
