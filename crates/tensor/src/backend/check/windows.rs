//! Checks of convolutions and pools.

use super::operand::{CheckedOperand, CheckedOperands, Rules};
use crate::backend::{Convolution, PoolAxis, PoolReduction, PoolWindow};
use crate::error::{Error, OperandFault, Result};

const IMAGES: &str =
    "images must be [n, channels, h, w], filters [out channels, channels of a group, kh, kw]";
const FILTERS: &str =
    "channels must be groups times those of a filter, and the window must have the filter's size";
const OUTPUTS: &str = "it must be [n, out channels, oh, ow], with at most as many places as the window has";

/// Checks a convolution from `large` images to `small` ones.
pub(super) fn conv2d(
    rules: Rules<'_>,
    conv: &Convolution,
    [large, filters, small]: [CheckedOperand<'_>; 3],
) -> Result<()> {
    rules.same_type(large, filters)?;
    rules.same_type(small, filters)?;
    let (&[images, channels, height, width], &[outputs, of_group, high, wide]) =
        (large.dims(), filters.dims())
    else {
        return Err(rules.misfit(&filters, &large, IMAGES));
    };
    let Convolution { windows: [down, across], groups } = *conv;
    let of_groups =
        groups > 0 && outputs.is_multiple_of(groups) && of_group.checked_mul(groups) == Some(channels);
    if !of_groups || [down.size, across.size] != [high, wide] {
        return Err(rules.misfit(&filters, &large, FILTERS));
    }
    // A transposed convolution with output padding has fewer outputs than the window has places.
    let places = |window: &crate::backend::Window, len: usize, places: usize| {
        window.outputs(len).is_some_and(|outputs| places <= outputs)
    };
    match *small.dims() {
        [n, channels, high, wide]
            if [n, channels] == [images, outputs]
                && places(&down, height, high)
                && places(&across, width, wide) =>
        {
            Ok(())
        }
        _ => Err(rules.misfit(&small, &large, OUTPUTS)),
    }
}

/// Checks a pool from `large` planes to `small` ones.
pub(super) fn pool2d(
    rules: Rules<'_>,
    axes: &[PoolAxis; 2],
    [large, small]: [CheckedOperand<'_>; 2],
) -> Result<()> {
    rules.same_type(small, large)?;
    axes.iter().try_for_each(|axis| slides(rules, axis))?;
    let planes = [large, small].map(|operand| operand.dims().split_last_chunk::<2>());
    if let [Some((leading, &[height, width])), Some((others, &[high, wide]))] = planes
        && leading == others
        // A plane without rows or columns consists of padding only.
        && height > 0
        && width > 0
        && axes[0].outputs(height) == Some(high)
        && axes[1].outputs(width) == Some(wide)
    {
        return Ok(());
    }
    Err(rules.misfit(
        &small,
        &large,
        "it must have the same axes, with one place per window along the last two",
    ))
}

/// Checks that a window has no dilation and never covers only padding.
fn slides(rules: Rules<'_>, axis: &PoolAxis) -> Result<()> {
    let PoolAxis::Sliding(PoolWindow { window, .. }) = axis else { return Ok(()) };
    if window.dilation == 1 && window.padding <= window.size / 2 {
        return Ok(());
    }
    let expected = "a window without dilation, and padding of at most half its size";
    Err(Error::BadArgument { op: rules.op, argument: "axes", expected, got: format!("{window:?}") })
}

pub(super) fn pool2d_grad(
    rules: Rules<'_>,
    operands: &CheckedOperands<'_>,
    (pool, axes): (PoolReduction, &[PoolAxis; 2]),
) -> Result<()> {
    let (grad, out) = (operands.required("grad"), operands.last());
    pool2d(rules, axes, [out, grad])?;
    match operands.named("input") {
        Some(input) if pool == PoolReduction::Max => {
            rules.same_shape(input, out)?;
            rules.same_type(input, out)
        }
        None if pool == PoolReduction::Mean => Ok(()),
        _ => {
            Err(rules
                .fault(&out.named("input"), OperandFault::Presence { required: pool == PoolReduction::Max }))
        }
    }
}
