//! The cross entropy of logits and target classes.

use super::Computation;
use crate::backend::check::{CheckedOperand, Rules};
use crate::backend::cost::{Class, Work};
use crate::backend::cpu::{self, Workers};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, Launcher};
use crate::backend::operands::{checked, operands};
use crate::error::{Error, Result};
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// `losses[i] = -log softmax(logits[i])[targets[i]]` (PyTorch's `cross_entropy` without reduction). A target outside the
/// classes is [`Error::IndexOutOfRange`](crate::Error::IndexOutOfRange), before the kernel writes anything.
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

    fn work(&self) -> Work {
        Work::over(Class::Softmax, self.logits.layout())
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::softmax::cross_entropy(workers, op, self.logits, self.targets, &mut self.losses)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::rows::cross_entropy(device, op, self.logits, self.targets, &self.losses)
    }
}

/// Checks that there is a target for each row of logits.
fn targets_of_rows(rules: &Rules<'_>, logits: CheckedOperand<'_>, targets: CheckedOperand<'_>) -> Result<()> {
    rules.typed(targets, DType::I64)?;
    let &[rows, _] = logits.dims() else {
        return Err(Error::BadRank { op: rules.op, expected: "logits of two axes", shape: *logits.shape() });
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

    /// The kernel computes the softmax again.
    fn work(&self) -> Work {
        Work::over(Class::Softmax, self.out.layout())
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::softmax::cross_entropy_grad(workers, op, self.logits, self.targets, self.grad, &mut self.out)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::rows::cross_entropy_grad(device, op, self.logits, self.targets, self.grad, &self.out)
    }
}
