//! Runs an op: opens its account, calls its forward pass, and adds its node to the graph.

use super::node::record;
use crate::device::{Device, PlacementReason};
use crate::error::{Error, Result};
use crate::op::mixed::within;
use crate::op::mode::{no_grad_guard, should_record};
use crate::op::{Op, OpContext};
use crate::tensor::Tensor;

/// Runs an op on at least one input.
///
/// # Errors
/// [`Error::DeviceMismatch`] for inputs on different devices; else the errors of the op's forward.
pub fn apply(op: impl Op, inputs: &[&Tensor]) -> Result<Tensor> {
    let (output, saved) = run(&op, inputs)?;
    Ok(match saved {
        None => output,
        Some(saved) => record(Box::new(op), inputs, saved, output),
    })
}

/// Returns the result, and the saved tensors if the op is recorded. Not generic, so that it compiles once.
fn run(op: &dyn Op, inputs: &[&Tensor]) -> Result<(Tensor, Option<Vec<Tensor>>)> {
    let name = op.name();
    let device = common_device(name, inputs)?;
    let recording = should_record(inputs.iter().any(|input| input.requires_grad()));
    device.placement().notify(name, device, PlacementReason::Inputs);
    let mut ctx = OpContext::forward(name, device, device.default_allocator()?, recording);
    let output = {
        let (_paused, _uniform) = (no_grad_guard(), within(None));
        op.forward(&ctx, inputs).map_err(|error| error.in_op(name).in_module())?
    };
    // An op may return one of its inputs, whose gradient edge is not the result's.
    let output = output.with_grad_edge(None);
    let recorded = recording && output.dtype().is_float();
    Ok((output, recorded.then(|| ctx.take_saved())))
}

fn common_device<'a>(op: &'static str, inputs: &[&'a Tensor]) -> Result<&'a Device> {
    let Some((first, rest)) = inputs.split_first() else {
        return Err(Error::BadArgument {
            op,
            argument: "inputs",
            expected: "at least one tensor",
            got: "none".to_owned(),
        });
    };
    match rest.iter().find(|other| other.device() != first.device()) {
        None => Ok(first.device()),
        Some(other) => Err(Error::DeviceMismatch {
            op,
            lhs: first.device().to_string(),
            rhs: other.device().to_string(),
        }),
    }
}
