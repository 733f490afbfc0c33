//! The memory that a kernel uses while it runs.

use crate::rules::DeviceRules;

/// A request for the workspace of a kernel: all values that its size depends on.
///
/// The sizes are pure functions of the request, so that a dry run allocates the same memory as the real run. A 16-bit
/// float type counts as f32 if the kernel upcasts it.
pub trait Workspace {
    /// The size in bytes on the CPU.
    fn cpu_bytes(&self) -> usize;

    /// The size in bytes on a GPU.
    fn gpu_bytes(&self) -> usize;

    /// The size in bytes on a kind of device.
    fn bytes(&self, rules: DeviceRules) -> usize {
        match rules {
            DeviceRules::Cpu => self.cpu_bytes(),
            DeviceRules::Cuda { .. } => self.gpu_bytes(),
        }
    }
}
