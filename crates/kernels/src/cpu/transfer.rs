//! Copies between tensors and buffers of the host.

use super::dispatch::{any, host_mut};
use super::operands::Source;
use crate::error::{KernelError, Result};
use crate::storage::{View, ViewMut};

/// See [`Backend::upload`](crate::backend::Backend::upload).
pub(crate) fn upload(op: &'static str, values: &[u8], out: &mut ViewMut<'_>) -> Result<()> {
    let (shape, dtype) = (out.layout().shape(), out.dtype());
    let bytes: &mut [u8] = any!(dtype, T => bytemuck::cast_slice_mut(host_mut::<T>(op, out)?));
    if bytes.len() != values.len() {
        return Err(KernelError::ElementCount { op, elements: values.len() / dtype.size(), shape: *shape });
    }
    bytes.copy_from_slice(values);
    Ok(())
}

/// See [`Backend::download`](crate::backend::Backend::download).
pub(crate) fn download(op: &'static str, input: View<'_>, values: &mut [u8]) -> Result<()> {
    let (shape, dtype) = (input.layout().shape(), input.dtype());
    if shape.elements().checked_mul(dtype.size()) != Some(values.len()) {
        return Err(KernelError::ElementCount { op, elements: values.len() / dtype.size(), shape: *shape });
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
