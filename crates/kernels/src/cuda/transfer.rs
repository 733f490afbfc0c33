//! Copies to and from the host.

use super::launch::Launcher;
use crate::error::{KernelError, Result};
use crate::storage::{View, ViewMut};

/// See [`Backend::upload`](crate::backend::Backend::upload).
pub(crate) fn upload(device: &Launcher, op: &'static str, values: &[u8], out: &ViewMut<'_>) -> Result<()> {
    let (shape, size) = (*out.layout().shape(), out.dtype().size());
    if shape.elements().checked_mul(size) != Some(values.len()) {
        return Err(KernelError::ElementCount { op, elements: values.len() / size, shape });
    }
    if values.is_empty() { Ok(()) } else { device.upload(op, values, out) }
}

/// See [`Backend::download`](crate::backend::Backend::download).
pub(crate) fn download(
    device: &Launcher,
    op: &'static str,
    input: View<'_>,
    values: &mut [u8],
) -> Result<()> {
    let (layout, size) = (*input.layout(), input.dtype().size());
    let shape = *layout.shape();
    if shape.elements().checked_mul(size) != Some(values.len()) {
        return Err(KernelError::ElementCount { op, elements: values.len() / size, shape });
    }
    if values.is_empty() {
        return Ok(());
    }
    if layout.is_contiguous() {
        return device.download(op, &input, layout.offset() * size, values);
    }
    // Downloads the whole span and gathers the elements on the host, because device memory is reserved for ops.
    let first = layout.offset();
    let last = layout.positions().max().unwrap_or(first);
    let mut whole = Vec::new();
    let bytes = (last + 1 - first) * size;
    whole.try_reserve_exact(bytes).map_err(|_| KernelError::NoHostMemory {
        op,
        shape,
        dtype: input.dtype(),
    })?;
    whole.resize(bytes, 0);
    device.download(op, &input, first * size, &mut whole)?;
    for (to, from) in values.chunks_exact_mut(size).zip(layout.positions()) {
        let from = (from - first) * size;
        to.copy_from_slice(&whole[from..from + size]);
    }
    Ok(())
}
