//! The dry run: every op takes the memory that it would take on the CPU, and nothing is computed.
//!
//! Workspaces are sized by the very functions that the CPU uses, so the requests are the same to the byte. What depends
//! on values cannot fail here: indices out of range, for one, show only in a real run.

use super::cpu;
use super::{Backend, Kernel, Workspace};
use crate::error::{Error, Result};
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

    fn workspace(&self, of: Workspace<'_>) -> usize {
        cpu::workspace(of)
    }

    fn run(&self, _: &'static str, _: Kernel<'_>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::CpuBackend;
    use crate::dtype::DType;
    use crate::shape::Shape;

    #[test]
    fn workspaces_are_those_of_the_cpu() {
        let (cpu, dry) = (CpuBackend::new(2).unwrap(), DryBackend::new());
        let mut largest = 0;
        for dims in [&[][..], &[0], &[7], &[1_000_000], &[4096, 64], &[64, 4096], &[30, 40, 50], &[3, 0]] {
            let shape = Shape::new(dims).unwrap();
            for mask in 0..1_u32 << dims.len() {
                let axes: Vec<bool> = (0..dims.len()).map(|axis| mask >> axis & 1 == 1).collect();
                for dtype in DType::ALL {
                    let of = Workspace::Reduce { shape: &shape, axes: &axes, dtype };
                    let bytes = cpu.workspace(of);
                    assert_eq!(dry.workspace(of), bytes);
                    largest = largest.max(bytes);
                }
            }
        }
        assert!(largest > 0);
    }
}
