//! Parameters that one rank sends to the others, in place.

use highwater_tensor::{DType, Error, Parameter, Result, ViewMut};

use crate::collective::SliceMut;
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
    let mut result = Ok(());
    parameter.update(|mut values| {
        if let Some(values) = slice_of(&mut values) {
            result = world.collective().broadcast(values, root);
        }
        Ok(())
    })?;
    result.map_err(|error| Error::from(ParallelError::from(error)))
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
