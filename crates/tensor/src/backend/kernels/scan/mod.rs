//! Running sums.

use super::Computation;
use crate::backend::check::Rules;
use crate::backend::cost::{Class, Work};
use crate::backend::cpu::{self, Workers};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, Launcher};
use crate::backend::operands::{checked, operands};
use crate::error::Result;
use crate::storage::ViewMut;

/// `out[.., i, ..] = Σ out[.., j, ..]` over j ≤ i along `axis`, in place and in order (PyTorch's `cumsum_`). Floats are
/// summed in f64.
#[derive(Debug)]
pub struct RunningSum<'a> {
    /// The axis.
    pub axis: usize,
    /// Whether the sums run from the last element to the first.
    pub reverse: bool,
    /// The elements, which their sums replace.
    pub out: ViewMut<'a>,
}

impl<'a> Computation<'a> for RunningSum<'a> {
    operands!(Update out);

    fn check(&self, rules: &Rules<'_>) -> Result<()> {
        rules.axis(self.axis, checked!(self: out))
    }

    fn work(&self) -> Work {
        Work::over(Class::Scan, self.out.layout())
    }

    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        cpu::scan::running_sum(workers, op, self.axis, self.reverse, &mut self.out)
    }

    #[cfg(feature = "cuda")]
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        cuda::scan::running_sum(device, op, self.axis, self.reverse, &self.out)
    }
}
