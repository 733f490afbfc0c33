//! The whole state of the optimizer, and the norm of all gradients, if each rank has a part of them.

use highwater_nn::io::{Array, Arrays};
use highwater_tensor::{DType, Error, Gradients, Result, Shape};

use super::shared::Shared;
use crate::agree::{AgreedValue, Hash, broadcast_text};
use crate::collective::{SliceMut, spans};
use crate::error::CollectiveError;
use crate::reduction::ParallelError;
use crate::world::World;

/// The op of errors.
const OP: &str = "optimizer_state";

/// Collects the arrays of all ranks on all ranks.
pub(crate) fn collect(world: &World, own: &Arrays) -> Result<Arrays> {
    let mut all = Arrays::new();
    for root in 0..world.size() {
        let names = own.keys().map(String::as_str).collect::<Vec<_>>().join("\n");
        let names = broadcast_text(world.collective(), &names, root).map_err(wrapped)?;
        for name in names.split('\n').filter(|name| !name.is_empty()) {
            let array = broadcast_array(world, own.get(name).filter(|_| world.rank() == root), root)?;
            all.insert(name.to_owned(), array);
        }
    }
    Ok(all)
}

/// Sends an array of rank `root` to all ranks. Only that rank passes it.
fn broadcast_array(world: &World, own: Option<&Array>, root: usize) -> Result<Array> {
    // The type and the dimensions as text, as `f32 3 4`.
    let header = own.map_or_else(String::new, |array| {
        let dims = array.shape().dims().iter().map(usize::to_string);
        [array.dtype().name().to_owned()].into_iter().chain(dims).collect::<Vec<_>>().join(" ")
    });
    let header = broadcast_text(world.collective(), &header, root).map_err(wrapped)?;
    let mut words = header.split(' ');
    let dtype = words.next().and_then(|name| DType::ALL.into_iter().find(|dtype| dtype.name() == name));
    let dims: Option<Vec<usize>> = words.map(|word| word.parse().ok()).collect();
    let (Some(dtype), Some(dims)) = (dtype, dims) else {
        let message = format!("rank {root} sent the array header {header:?}");
        return Err(Error::Custom { op: OP, message });
    };
    let mut array = match own {
        Some(own) => own.clone(),
        None => Array::zeros(OP, dtype, Shape::new(&dims)?)?,
    };
    world.collective().broadcast(SliceMut::Bytes(array.bytes_mut()), root).map_err(wrapped)?;
    Ok(array)
}

/// Returns a hash of each array, which all ranks compare.
pub(crate) fn entries(state: &Arrays) -> Vec<AgreedValue> {
    let entry = |(name, array): (&String, &Array)| AgreedValue {
        name: format!("state {name}"),
        shape: array.shape().dims().to_vec(),
        dtype: Some(array.dtype()),
        options: format!("hash {:016x}", Hash::new().add_words(array.bytes()).get()),
    };
    state.iter().map(entry).collect()
}

/// Returns the state of this rank's parameters, and what belongs to no parameter.
pub(crate) fn own_part(shared: &Shared, state: &Arrays) -> Arrays {
    let is_own = |name: &str| {
        // Groups of parameters have names before the path.
        let owner = name.rsplit_once('.').and_then(|(parameter, _)| {
            let of = |path: &str| {
                let group = parameter.strip_suffix(path)?;
                (group.is_empty() || group.ends_with('.')).then_some(path.len())
            };
            let paths = shared.parameters.iter().enumerate();
            let found = paths.filter_map(|(index, (path, _))| Some((of(path)?, index)));
            found.max().map(|(_, index)| index)
        });
        owner.is_none_or(|index| shared.owns(index))
    };
    state.iter().filter(|(name, _)| is_own(name)).map(|(name, array)| (name.clone(), array.clone())).collect()
}

/// Returns the norm of all gradients, of which each rank has those of its own parameters. The squares are added in the
/// order in which one process adds them.
pub(crate) fn norm(shared: &Shared, gradients: &Gradients) -> Result<f64> {
    let mut order: Vec<usize> = (0..shared.parameters.len()).collect();
    order.sort_by_key(|index| shared.parameters[*index].1.number());
    // Each rank fills the squares of its own parameters.
    let mut sorted_by_owner = order.clone();
    sorted_by_owner.sort_by_key(|index| shared.owners[*index]);
    let mut squares = vec![0.0_f64; order.len()];
    for (square, index) in squares.iter_mut().zip(&sorted_by_owner) {
        if shared.owns(*index) {
            let (_, parameter) = &shared.parameters[*index];
            *square = gradients.sum_of_squares(parameter)?.unwrap_or(0.0);
        }
    }
    if !shared.device.is_dry() {
        let mut parts = spans(0, shared.world.size());
        let mut end = 0;
        for (rank, part) in parts.iter_mut().enumerate() {
            let start = end;
            end += sorted_by_owner[start..].iter().take_while(|index| shared.owners[**index] == rank).count();
            *part = start..end;
        }
        let squares = SliceMut::F64(&mut squares);
        shared.world.collective().all_gather(squares, &parts).map_err(wrapped)?;
    }
    let mut by_parameter = vec![0.0; order.len()];
    for (square, index) in squares.iter().zip(&sorted_by_owner) {
        by_parameter[*index] = *square;
    }
    Ok(order.iter().map(|index| by_parameter[*index]).fold(0.0, |sum, square| sum + square).sqrt())
}

fn wrapped(error: CollectiveError) -> Error {
    ParallelError::from(error).into()
}
