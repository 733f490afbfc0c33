//! Pools over the last two axes.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::Computation;
use crate::cost::{Class, Work, times};
use crate::error::{KernelError, Result};
use crate::layout::Layout;
use crate::operands::{CheckedOperand, Rules, checked, field, operands};
use crate::storage::{View, ViewMut};
use crate::window::{PoolAxis, PoolReduction, PoolWindow};

/// PyTorch's `max_pool2d`, `avg_pool2d` and their adaptive forms over the last two axes. The input is contiguous.
#[derive(Debug)]
pub struct Pool2d<'a> {
    /// The kind of pool.
    pub pool: PoolReduction,
    /// The windows along height and width.
    pub axes: [PoolAxis; 2],
    /// Shape `[.., h, w]`.
    pub input: View<'a>,
    /// Shape `[.., oh, ow]`.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Pool2d<'a> {
    operands!(ReadContiguous input, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, out) = checked!(self: input, out);
        fits(rules, &self.axes, [input, out])
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        let classes = [Class::Pool, Class::SlidingPool];
        work_of(classes, &self.axes, self.input.layout(), self.out.layout())
    }
}

/// The gradient of [`Pool2d`]. The first of the largest elements receives the gradient of a maximum.
/// Inputs are contiguous.
#[derive(Debug)]
pub struct Pool2dGrad<'a> {
    /// The kind of pool.
    pub pool: PoolReduction,
    /// The windows along height and width.
    pub axes: [PoolAxis; 2],
    /// The input of the pool; only a maximum reads it.
    pub input: Option<View<'a>>,
    /// The gradient of the output.
    pub grad: View<'a>,
    /// The gradient of the input.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for Pool2dGrad<'a> {
    operands!(ReadContiguous input, ReadContiguous grad, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (input, grad, out) = checked!(self: input, grad, out);
        fits(rules, &self.axes, [out, grad])?;
        if let Some(input) = input
            && self.pool == PoolReduction::Max
        {
            rules.same_shape(input, out)?;
            rules.same_type(input, out)?;
        }
        rules.present(field!(self.input), input, self.pool == PoolReduction::Max, out)
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        let classes = [Class::PoolGrad, Class::SlidingPoolGrad];
        work_of(classes, &self.axes, self.out.layout(), self.grad.layout())
    }
}

/// Checks a pool from `large` planes to `small` ones.
fn fits(rules: &Rules<'_>, axes: &[PoolAxis; 2], [large, small]: [CheckedOperand<'_>; 2]) -> Result<()> {
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
    Err(rules.mismatch(
        &small,
        &large,
        "it must have the same axes, with one place per window along the last two",
    ))
}

/// Checks that a window has no dilation and never covers only padding.
fn slides(rules: &Rules<'_>, axis: &PoolAxis) -> Result<()> {
    let PoolAxis::Sliding(PoolWindow { window, .. }) = axis else { return Ok(()) };
    if window.dilation == 1 && window.padding <= window.size / 2 {
        return Ok(());
    }
    let expected = "a window without dilation, and padding of at most half its size";
    Err(KernelError::BadArgument { op: rules.op, argument: "axes", expected, got: format!("{window:?}") })
}

/// The work of a pool. Its first class is for windows that do not overlap.
fn work_of([aligned, sliding]: [Class; 2], axes: &[PoolAxis; 2], input: &Layout, out: &Layout) -> Work {
    let taps = axes.map(|axis| match axis {
        PoolAxis::Sliding(pool) if pool.window.size == pool.window.stride => Some(1),
        PoolAxis::Sliding(pool) => Some(pool.window.size),
        PoolAxis::Adaptive { .. } => None,
    });
    match taps {
        [None | Some(1), _] | [_, None | Some(1)] => Work::over(aligned, input),
        [Some(down), Some(across)] => {
            let windows = out.shape().elements() as u64;
            Work::per_element(sliding, windows.saturating_mul(times(&[down, across])))
        }
    }
}
