//! The dry run: every op takes the memory that it would take on the CPU, and nothing is computed.
//!
//! Workspaces are sized by the very functions that the CPU uses, so the requests are the same to the byte. What depends
//! on values cannot fail here: indices out of range, for one, show only in a real run.

use super::cpu::reduce;
use super::{AdamStep, Backend, Binary, Compare, Distribution, RandomKey, Reduce, SgdStep, Unary};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::storage::{View, ViewMut};

/// Computes nothing, on memory that need not exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct DryBackend;

impl DryBackend {
    /// The backend; it has no state.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl Backend for DryBackend {
    fn name(&self) -> &'static str {
        "dry"
    }

    fn is_dry(&self) -> bool {
        true
    }

    fn upload(&self, _: &'static str, _: &[u8], _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn download(&self, op: &'static str, _: View<'_>, _: &mut [u8]) -> Result<()> {
        Err(Error::NoData { op, device: "dry:0".to_owned() })
    }

    fn fill(&self, _: &'static str, _: Scalar, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn arange(&self, _: &'static str, _: Scalar, _: Scalar, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn copy(&self, _: &'static str, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn copy_into(
        &self,
        _: &'static str,
        _: View<'_>,
        _: usize,
        _: usize,
        _: usize,
        _: &mut ViewMut<'_>,
    ) -> Result<()> {
        Ok(())
    }

    fn unary(&self, _: &'static str, _: Unary, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn unary_grad(&self, _: &'static str, _: Unary, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn binary(&self, _: &'static str, _: Binary, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn accumulate(&self, _: &'static str, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn compare(&self, _: &'static str, _: Compare, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn select(&self, _: &'static str, _: View<'_>, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn reduce_workspace(&self, _: Reduce, shape: &Shape, axes: &[bool], dtype: DType) -> usize {
        reduce::workspace(shape, axes, dtype)
    }

    fn reduce(
        &self,
        _: &'static str,
        _: Reduce,
        _: View<'_>,
        _: &[bool],
        _: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        Ok(())
    }

    fn arg_reduce(&self, _: &'static str, _: bool, _: View<'_>, _: usize, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn matmul(&self, _: &'static str, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn softmax(&self, _: &'static str, _: bool, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn softmax_grad(&self, _: &'static str, _: bool, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn cross_entropy(&self, _: &'static str, _: View<'_>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn cross_entropy_grad(
        &self,
        _: &'static str,
        _: View<'_>,
        _: View<'_>,
        _: View<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        Ok(())
    }

    fn gather(&self, _: &'static str, _: View<'_>, _: View<'_>, _: usize, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn scatter_add(&self, _: &'static str, _: View<'_>, _: View<'_>, _: usize, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn one_hot(&self, _: &'static str, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn random(&self, _: &'static str, _: Distribution, _: RandomKey, _: ViewMut<'_>) -> Result<()> {
        Ok(())
    }

    fn sgd(
        &self,
        _: &'static str,
        _: SgdStep,
        _: View<'_>,
        _: Option<ViewMut<'_>>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        Ok(())
    }

    fn adam(
        &self,
        _: &'static str,
        _: AdamStep,
        _: View<'_>,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
        _: ViewMut<'_>,
    ) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::CpuBackend;

    #[test]
    fn workspaces_are_those_of_the_cpu() {
        let (cpu, dry) = (CpuBackend::new(2).unwrap(), DryBackend::new());
        let mut largest = 0;
        for dims in [&[][..], &[0], &[7], &[1_000_000], &[4096, 64], &[64, 4096], &[30, 40, 50], &[3, 0]] {
            let shape = Shape::new(dims).unwrap();
            for mask in 0..1_u32 << dims.len() {
                let axes: Vec<bool> = (0..dims.len()).map(|axis| mask >> axis & 1 == 1).collect();
                for dtype in DType::ALL {
                    for f in [Reduce::Sum, Reduce::Max, Reduce::Min] {
                        let bytes = cpu.reduce_workspace(f, &shape, &axes, dtype);
                        assert_eq!(dry.reduce_workspace(f, &shape, &axes, dtype), bytes);
                        largest = largest.max(bytes);
                    }
                }
            }
        }
        assert!(largest > 0);
    }
}
