//! The facts of a kind of device that memory depends on: how its pool grows, chunk lengths and supported kernels.
//!
//! A backend returns its rules, and so does the dry backend that stands for it. So a dry run makes the same requests as the
//! real run, to the byte. [`Workspace`](crate::workspace::Workspace) has the sizes of workspaces by the same rules.

/// The kind of device that a dry device imitates. It decides how the pool grows and how large workspaces are.
// Exhaustive, so that the compiler names each place that a new kind affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceRules {
    /// The host, as `cpu:0`. The pool allocates regions as needed, up to its limit. Without a limit, the pool
    /// leaves a small reserve (`UsableMemory::reserve` of `highwater-tracking`).
    Cpu,
    /// A CUDA device. The pool maps pages of 2 MiB into one address range. Without a limit, the pool leaves
    /// [`bfc_core::default_reserve`] to the driver.
    Cuda {
        /// The compute capability, which decides the size of the reserve.
        compute_capability: (u32, u32),
    },
}

impl DeviceRules {
    /// The granularity of the pool's regions in bytes. A limit is rounded down to a multiple of it.
    #[must_use]
    #[inline]
    pub const fn region_granularity(self) -> u64 {
        match self {
            Self::Cpu => 256,
            Self::Cuda { .. } => bfc_core::sim::GRANULARITY,
        }
    }

    /// Whether the device is a GPU.
    #[must_use]
    #[inline]
    pub const fn is_gpu(self) -> bool {
        matches!(self, Self::Cuda { .. })
    }

    /// The chunk length, in elements, of operations that allocate temporaries: the terms of long sums.
    #[must_use]
    #[inline]
    pub const fn chunk_elements(self) -> usize {
        match self {
            // Temporaries of 128 KiB stay in a core's caches.
            Self::Cpu => 1 << 15,
            // 1 MiB for each temporary: enough work to fill a device.
            Self::Cuda { .. } => 1 << 18,
        }
    }

    /// Whether all kernels accept 16-bit floats, also mixed with f32 operands, and compute in f32. Otherwise some kernels do,
    /// and the runtime upcasts operands to f32 before all others.
    #[must_use]
    #[inline]
    pub const fn supports_half(self) -> bool {
        self.is_gpu()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::backend::cpu::CpuBackend;
    use crate::backend::dry::DryBackend;
    use crate::families::{Conv2dWeightGradWorkspace, Conv2dWorkspace, MatMulWorkspace, ScatterAddWorkspace};
    use crate::layout::Layout;
    use crate::shape::{DType, Shape};
    use crate::window::{Convolution, Window};
    use crate::workspace::Workspace;

    const GPU: DeviceRules = DeviceRules::Cuda { compute_capability: (9, 0) };

    #[test]
    fn a_dry_backend_has_the_rules_of_the_imitated_device() {
        let (cpu, dry, gpu) = (CpuBackend::new(2).unwrap(), DryBackend::new(), DryBackend::of(GPU));
        assert_eq!([cpu.rules(), dry.rules(), gpu.rules()], [DeviceRules::Cpu, DeviceRules::Cpu, GPU]);
    }

    #[test]
    fn workspaces_of_products_differ_between_gpu_and_cpu() {
        let taken = |size: usize| {
            let lhs = Layout::contiguous("matmul", Shape::new(&[size, size]).unwrap(), DType::F32).unwrap();
            let rhs = lhs.permuted("matmul", &[1, 0]).unwrap();
            let of = MatMulWorkspace { lhs: &lhs, rhs: &rhs, dtype: DType::F32, out: DType::F32 };
            [of.cpu_bytes(), of.gpu_bytes()]
        };
        assert_eq!(taken(512), [8 * 256 * (192 + 512) * 4, 2 * 512 * 512 * 4]);
        assert_eq!([taken(100)[1], taken(3)[1]], [16 << 10; 2]);
        assert_eq!(taken(5000)[1], 4 << 20);
        assert_eq!(taken(0), [0, 0]);
    }

    #[test]
    fn only_padded_images_are_staged_on_the_cpu() {
        let shape = |channels| Shape::new(&[2, channels, 5, 5]).unwrap();
        let taken = |window: Window, channels: usize| {
            let (input, out, dtype) = (&shape(channels), &shape(channels), DType::F32);
            let conv = &Convolution { windows: [window; 2], groups: 1 };
            [
                Conv2dWorkspace { conv, input, out, dtype }.cpu_bytes(),
                Conv2dWeightGradWorkspace { conv, input, out, dtype, weight_dtype: dtype }.cpu_bytes(),
            ]
        };
        // Two images of 4 planes of 7 · 7, and panels of 12 and 64 lanes.
        let three = Window { padding: 1, ..Window::new(3) };
        let staged = 2 * 4 * 7 * 7;
        assert_eq!(taken(three, 4), [4 * (staged + 36 * (12 + 64)), 4 * (staged + 50 * (12 + 64))]);
        assert_eq!(taken(Window::new(1), 4), [4 * 4 * (12 + 64), 4 * 50 * (12 + 32)]);
    }

    #[test]
    fn a_gpu_needs_a_workspace_to_sort_shared_indices() {
        let taken = |dims: &[usize], repeated: &[usize], axis| {
            let layout = Layout::contiguous("gather", Shape::new(dims).unwrap(), DType::I64).unwrap();
            let layout = layout.broadcast_to("gather", &Shape::new(repeated).unwrap()).unwrap();
            let of = ScatterAddWorkspace { indices: &layout, axis };
            assert_eq!(of.cpu_bytes(), 0);
            of.gpu_bytes()
        };
        assert_eq!(taken(&[8192, 1], &[8192, 768], 0), 8192 * 16);
        assert_eq!(taken(&[1, 100], &[7, 100], 1), 100 * 16);
        assert_eq!(taken(&[100], &[100], 0), 100 * 16);
        // Few indices are added without sorting, and so are indices that differ between lines.
        assert_eq!(taken(&[31, 1], &[31, 768], 0), 0);
        assert_eq!(taken(&[100, 8], &[100, 8], 0), 0);
        assert_eq!(taken(&[100, 1], &[100, 0], 0), 0);
    }

    #[test]
    fn only_weight_gradients_need_a_workspace_on_a_gpu() {
        let shape = |side| Shape::new(&[2, 64, side, side]).unwrap();
        let window = Window { padding: 1, ..Window::new(3) };
        let conv = Convolution { windows: [window; 2], groups: 1 };
        let taken = |side| {
            let (input, out, dtype) = (shape(side), shape(side), DType::F32);
            let (conv, input, out) = (&conv, &input, &out);
            [
                Conv2dWorkspace { conv, input, out, dtype }.gpu_bytes(),
                Conv2dWeightGradWorkspace { conv, input, out, dtype, weight_dtype: dtype }.gpu_bytes(),
            ]
        };
        // A depth of 2 × 32 × 32 in splits of 256.
        assert_eq!(taken(32), [0, 8 * 64 * 64 * 9 * 4]);
        assert_eq!([taken(8), taken(0)], [[0, 0]; 2]);
    }
}
