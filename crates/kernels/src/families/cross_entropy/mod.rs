//! The cross entropy of logits and target classes.

pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;

use super::Computation;
use crate::cost::{Class, Work};
use crate::error::{KernelError, Result};
use crate::operands::{CheckedOperand, Rules, checked, operands};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// `losses[i] = -log softmax(logits[i])[targets[i]]` (PyTorch's `cross_entropy` without reduction). A target outside the
/// classes is [`KernelError::IndexOutOfRange`](crate::error::KernelError::IndexOutOfRange), before the kernel writes anything.
#[derive(Debug)]
pub struct CrossEntropy<'a> {
    /// Shape `[n, classes]`.
    pub logits: View<'a>,
    /// Shape `[n]`, i64.
    pub targets: View<'a>,
    /// Shape `[n]`.
    pub losses: ViewMut<'a>,
}

impl<'a> Computation<'a> for CrossEntropy<'a> {
    operands!(Read logits, Read targets, Write losses);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (logits, targets, losses) = checked!(self: logits, targets, losses);
        targets_of_rows(rules, logits, targets)?;
        rules.same_shape(losses, targets)?;
        rules.same_computed(&[logits, losses])
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::Softmax, self.logits.layout())
    }
}

/// Checks that there is a target for each row of logits.
fn targets_of_rows(rules: &Rules<'_>, logits: CheckedOperand<'_>, targets: CheckedOperand<'_>) -> Result<()> {
    rules.typed(targets, DType::I64)?;
    let &[rows, _] = logits.dims() else {
        return Err(KernelError::BadRank {
            op: rules.op,
            expected: "logits of two axes",
            shape: *logits.shape(),
        });
    };
    rules.sized(targets, &[rows], logits, "there must be one for each row of logits")
}

/// `out = (softmax(logits) - one_hot(targets)) · grad`. A row whose gradient is 0 becomes 0, even if its logits are NaN:
/// such rows are ignored.
#[derive(Debug)]
pub struct CrossEntropyGrad<'a> {
    /// Shape `[n, classes]`.
    pub logits: View<'a>,
    /// Shape `[n]`, i64. The backend checks them before it writes.
    pub targets: View<'a>,
    /// Shape `[n]`.
    pub grad: View<'a>,
    /// Shape `[n, classes]`.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for CrossEntropyGrad<'a> {
    operands!(Read logits, Read targets, Read grad, Write out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (logits, targets, grad, out) = checked!(self: logits, targets, grad, out);
        targets_of_rows(rules, logits, targets)?;
        rules.same_shape(grad, targets)?;
        rules.same_shape(out, logits)?;
        rules.same_computed(&[logits, grad, out])
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    /// The kernel computes the softmax again.
    fn work(&self) -> Work {
        Work::over(Class::Softmax, self.out.layout())
    }
}

/// The losses of rows with label smoothing ε, and their gradients in the buffer of the logits. With p = softmax(logits\[i\]),
/// C classes and target t:
///
/// - `losses[i] = -(1 - ε) ln p[t] - ε/C Σ ln p`, or 0 if the factor is 0.
/// - `logits[i] = (p - (1 - ε) one_hot(t) - ε/C) · factors[i]`.
///
/// A row whose factor is 0 becomes 0, even if its logits are NaN: such rows are ignored.
#[derive(Debug)]
pub struct CrossEntropyInPlace<'a> {
    /// The share of each target that is spread over all classes: ε, from 0 to 1.
    pub smoothing: f64,
    /// Shape `[n]`, i64. The backend checks them before it writes.
    pub targets: View<'a>,
    /// Shape `[n]`.
    pub factors: View<'a>,
    /// Shape `[n]`.
    pub losses: ViewMut<'a>,
    /// Shape `[n, classes]`. The gradients replace the logits.
    pub logits: ViewMut<'a>,
}

impl<'a> Computation<'a> for CrossEntropyInPlace<'a> {
    operands!(Read targets, Read factors, Write losses, Update logits);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        let (targets, factors, losses, logits) = checked!(self: targets, factors, losses, logits);
        targets_of_rows(rules, logits, targets)?;
        rules.same_shape(factors, targets)?;
        rules.same_shape(losses, targets)?;
        rules.same_computed(&[logits, factors, losses])
    }

    fn supports_half_on_cpu(&self) -> bool {
        true
    }

    fn work(&self) -> Work {
        Work::over(Class::Softmax, self.logits.layout())
    }
}
