//! Parameters that one rank sends to the others, in place.

use bfc_core::Stream;
use highwater_tensor::{DType, Error, Parameter, Result, ViewMut};

use crate::collective::SliceMut;
#[cfg(feature = "cuda")]
use crate::operation::CollectiveOperation;
use crate::reduction::ParallelError;
use crate::world::World;

/// Replaces the values on all ranks with those of rank `root`.
pub(crate) fn copy_from(world: &World, parameters: &[(String, Parameter)], root: usize) -> Result<()> {
    parameters.iter().try_for_each(|parameter| copy(world, parameter, root))
}

/// Replaces the values on all ranks with those of each parameter's owner.
pub(crate) fn copy_from_owners(
    world: &World,
    parameters: &[(String, Parameter)],
    owners: &[usize],
) -> Result<()> {
    parameters.iter().zip(owners).try_for_each(|(parameter, owner)| copy(world, parameter, *owner))
}

fn copy(world: &World, (_, parameter): &(String, Parameter), root: usize) -> Result<()> {
    if parameter.value().device().is_dry() {
        // Only makes the same requests for memory.
        return parameter.make_unique();
    }
    if let Some(stream) = parameter.value().device().stream() {
        return copy_on_device(world, parameter, root, &stream);
    }
    let mut result = Ok(());
    parameter.update(|mut values| {
        if let Some(values) = slice_of(&mut values) {
            result = world.collective().broadcast(values, root);
        }
        Ok(())
    })?;
    result.map_err(|error| Error::from(ParallelError::from(error)))
}

/// Copies the values between GPUs.
#[cfg(feature = "cuda")]
fn copy_on_device(world: &World, parameter: &Parameter, root: usize, stream: &Stream) -> Result<()> {
    let Some(nccl) = world.nccl() else { return Ok(()) };
    let mut result = Ok(());
    parameter.update(|values| {
        let (address, dtype) = (values.storage().address(), values.dtype());
        let elements = values.layout().shape().elements();
        result = nccl.after(CollectiveOperation::Broadcast, stream, |stream| {
            // SAFETY: the parameter owns its memory, and the lock of `update` keeps other work away until the end.
            unsafe { nccl.broadcast(address, elements, dtype, root, stream) }
        });
        Ok(())
    })?;
    result.map_err(|error| Error::from(ParallelError::from(error)))
}

#[cfg(not(feature = "cuda"))]
fn copy_on_device(_: &World, _: &Parameter, _: usize, _: &Stream) -> Result<()> {
    Ok(())
}

fn slice_of<'a>(values: &'a mut ViewMut<'_>) -> Option<SliceMut<'a>> {
    match values.dtype() {
        DType::F32 => values.host::<f32>().map(SliceMut::F32),
        DType::F64 => values.host::<f64>().map(SliceMut::F64),
        DType::F16 => values.host::<half::f16>().map(SliceMut::F16),
        DType::BF16 => values.host::<half::bf16>().map(SliceMut::BF16),
        _ => None,
    }
}
