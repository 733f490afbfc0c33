//! The rules by which a dry run imitates a kind of device: workspace sizes, chunk lengths and supported types.
//!
//! All rules depend only on shapes. The backends and the dry backend call the same functions, so a dry run makes the same
//! requests as the real run, to the byte.

use super::grid::{ConvGemm, sorts_indices, split_reduction, split_rows, weight_elements};
use super::recurrent::RecurrentCell;
use super::{Kernel, Precision, Workspace, cpu};
use crate::layout::Layout;

/// The kind of device that a dry device imitates. It decides how the pool grows and how large workspaces are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceRules {
    /// The host, as `cpu:0`. The pool allocates regions as needed, up to its limit. Without a limit, the pool
    /// leaves a small reserve ([`UsableMemory::reserve`](highwater_tracking::UsableMemory::reserve)).
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
    pub(crate) const fn region_granularity(self) -> u64 {
        match self {
            Self::Cpu => 256,
            Self::Cuda { .. } => bfc_core::sim::GRANULARITY,
        }
    }
}

/// The size of a kernel's workspace in bytes.
pub(super) fn workspace(rules: DeviceRules, of: Workspace<'_>) -> usize {
    match (rules, of) {
        (DeviceRules::Cpu, _) => cpu::workspace(of),
        (DeviceRules::Cuda { .. }, Workspace::Reduce { shape, axes, dtype }) => {
            split_reduction(shape, axes).workspace_elements().saturating_mul(dtype.size())
        }
        (DeviceRules::Cuda { .. }, Workspace::LayerNormSums { sizes, sums, dtype }) => {
            let slabs = split_rows(sizes).0;
            if slabs == 1 { 0 } else { slabs.saturating_mul(sizes[1]).saturating_mul(sums * dtype.size()) }
        }
        (DeviceRules::Cuda { .. }, Workspace::Recurrent { cell, sizes, dtype }) => {
            recurrent_workspace(cell, sizes).saturating_mul(dtype.size())
        }
        // The sorted order of the indices, and the buffer of the merge sort.
        (DeviceRules::Cuda { .. }, Workspace::ScatterAdd { indices, axis })
            if sorts_indices(indices, axis) =>
        {
            indices.shape()[axis].saturating_mul(2 * size_of::<i64>())
        }
        (DeviceRules::Cuda { .. }, Workspace::ScatterAdd { .. }) => 0,
        // The merge sort has the same buffer as on the CPU.
        (DeviceRules::Cuda { .. }, Workspace::ArgSort { .. }) => cpu::workspace(of),
        // cuBLAS multiplies floats only.
        (DeviceRules::Cuda { .. }, Workspace::MatMul { dtype, .. }) if !dtype.is_float() => 0,
        (DeviceRules::Cuda { .. }, Workspace::MatMul { lhs, rhs, precision, .. }) => {
            let copies =
                bf16_copies(precision, [lhs, rhs].map(|factor| factor.distinct().shape().elements()));
            copies.saturating_add(matmul_workspace(lhs, rhs))
        }
        // The kernels of convolutions and attention pack their tiles into shared memory.
        (DeviceRules::Cuda { .. }, Workspace::Conv2d { conv, input, out, precision, .. }) => {
            bf16_copies(precision, [input.elements(), weight_elements(conv, input.dims(), out.dims())])
        }
        (DeviceRules::Cuda { .. }, Workspace::Conv2dInputGrad { conv, input, out, precision, .. }) => {
            bf16_copies(precision, [weight_elements(conv, input.dims(), out.dims()), out.elements()])
        }
        (DeviceRules::Cuda { .. }, Workspace::Conv2dWeightGrad { conv, input, out, dtype, precision }) => {
            let partial = ConvGemm::of_weight_grad(conv, input.dims(), out.dims()).partial_elements();
            let copies = bf16_copies(precision, [input.elements(), out.elements()]);
            copies.saturating_add(partial.saturating_mul(dtype.computed_as().size()))
        }
        (DeviceRules::Cuda { .. }, Workspace::Attention { .. }) => 0,
    }
}

/// The elements of the workspace of a recurrent layer on a GPU: for each sequence the gates' product or gradient, the
/// state's gradient, and what a step passes to the next.
pub(super) fn recurrent_workspace(cell: RecurrentCell, [sequences, len, hidden]: [usize; 3]) -> usize {
    let width = hidden.saturating_mul(cell.gates() + 2);
    if len == 0 { 0 } else { sequences.saturating_mul(width) }
}

/// The workspace of a matrix product on a GPU, whether or not cuBLAS is installed.
///
/// It has room for the partial products of split-K: one for each 256 of the depth, at most eight. It has at least 16 KiB
/// and at most 4 MiB, the range from which cuBLAS profits.
fn matmul_workspace(lhs: &Layout, rhs: &Layout) -> usize {
    let &[.., rows, depth] = lhs.shape().dims() else { return 0 };
    let columns = rhs.shape().dims().last().copied().unwrap_or(0);
    if [rows, depth, columns].contains(&0) {
        return 0;
    }
    let parts = rows.saturating_mul(columns).saturating_mul((depth / 256).min(8) * size_of::<f32>());
    parts.clamp(16 << 10, 4 << 20).next_multiple_of(256)
}

/// Whether kernels accept 16-bit floats without an upcast.
pub(super) const fn supports_half(rules: DeviceRules) -> bool {
    matches!(rules, DeviceRules::Cuda { .. })
}

/// Whether this kernel accepts 16-bit floats without an upcast.
pub(super) fn multiplies_half(rules: DeviceRules, kernel: &Kernel<'_>) -> bool {
    match rules {
        DeviceRules::Cpu => cpu::multiplies_half(kernel),
        DeviceRules::Cuda { .. } => true,
    }
}

/// Whether batch normalization is one kernel.
pub(super) const fn fuses_batch_norm(rules: DeviceRules) -> bool {
    matches!(rules, DeviceRules::Cpu)
}

/// The bytes of the bf16 copies of a kernel's factors, which lie one after the other.
pub(super) fn bf16_copies(precision: Precision, elements: [usize; 2]) -> usize {
    match precision {
        Precision::Full => 0,
        Precision::BF16 => elements.into_iter().map(bf16_copy).fold(0, usize::saturating_add),
    }
}

/// The bytes of the bf16 copy of one factor, padded so that the next one is aligned.
pub(super) const fn bf16_copy(elements: usize) -> usize {
    const ALIGNMENT: usize = 256;
    match elements.saturating_mul(size_of::<half::bf16>()).checked_next_multiple_of(ALIGNMENT) {
        Some(bytes) => bytes,
        None => usize::MAX,
    }
}

/// The chunk length, in elements, of operations that allocate temporaries.
pub(super) const fn chunk_elements(rules: DeviceRules) -> usize {
    match rules {
        // Temporaries of 128 KiB stay in a core's caches.
        DeviceRules::Cpu => 1 << 15,
        // 1 MiB for each temporary: enough work to fill a device.
        DeviceRules::Cuda { .. } => 1 << 18,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::CpuBackend;
    use crate::backend::dry::DryBackend;
    use crate::backend::{Backend, Convolution, Window};
    use crate::shape::{DType, Shape};

    const GPU: DeviceRules = DeviceRules::Cuda { compute_capability: (9, 0) };

    #[test]
    fn dry_workspaces_equal_those_of_the_imitated_device() {
        let (cpu, dry, gpu) = (CpuBackend::new(2).unwrap(), DryBackend::new(), DryBackend::of(GPU));
        let mut largest = [0; 2];
        for dims in [&[][..], &[0], &[7], &[1_000_000], &[4096, 64], &[64, 4096], &[30, 40, 50], &[3, 0]] {
            let shape = Shape::new(dims).unwrap();
            for mask in 0..1_u32 << dims.len() {
                let axes: Vec<bool> = (0..dims.len()).map(|axis| mask >> axis & 1 == 1).collect();
                for dtype in DType::ALL {
                    let of = Workspace::Reduce { shape: &shape, axes: &axes, dtype };
                    assert_eq!(dry.workspace(of), cpu.workspace(of));
                    largest = [largest[0].max(dry.workspace(of)), largest[1].max(gpu.workspace(of))];
                }
            }
        }
        assert!(largest[0] > 0 && largest[1] > 0, "{largest:?}");
        assert_eq!([cpu.chunk_elements(), gpu.chunk_elements()], [dry.chunk_elements(), chunk_elements(GPU)]);
    }

    #[test]
    fn workspaces_of_products_differ_between_gpu_and_cpu() {
        let taken = |size: usize| {
            let lhs = Layout::contiguous("matmul", Shape::new(&[size, size]).unwrap(), DType::F32).unwrap();
            let rhs = lhs.permuted("matmul", &[1, 0]).unwrap();
            let of =
                Workspace::MatMul { lhs: &lhs, rhs: &rhs, dtype: DType::F32, precision: Precision::Full };
            [DryBackend::new(), DryBackend::of(GPU)].map(|backend| backend.workspace(of))
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
            let all = [
                Workspace::Conv2d { conv, input, out, dtype, precision: Precision::Full },
                Workspace::Conv2dWeightGrad { conv, input, out, dtype, precision: Precision::Full },
            ];
            all.map(|of| DryBackend::new().workspace(of))
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
            let of = Workspace::ScatterAdd { indices: &layout, axis };
            assert_eq!(DryBackend::new().workspace(of), 0);
            DryBackend::of(GPU).workspace(of)
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
    fn a_gpu_copies_the_factors_of_bf16_products() {
        let [lhs, rhs] = [[100, 30], [30, 50]].map(|dims| Layout::row_major(&Shape::new(&dims).unwrap()));
        let taken = |precision| {
            let of = Workspace::MatMul { lhs: &lhs, rhs: &rhs, dtype: DType::F32, precision };
            DryBackend::of(GPU).workspace(of)
        };
        // 6,000 and 3,000 bytes, each padded to a multiple of 256.
        assert_eq!(taken(Precision::BF16) - taken(Precision::Full), 6144 + 3072);
    }

    #[test]
    fn only_weight_gradients_need_a_workspace_on_a_gpu() {
        let shape = |side| Shape::new(&[2, 64, side, side]).unwrap();
        let window = Window { padding: 1, ..Window::new(3) };
        let conv = Convolution { windows: [window; 2], groups: 1 };
        let taken = |side| {
            let (input, out, dtype) = (shape(side), shape(side), DType::F32);
            let (conv, input, out) = (&conv, &input, &out);
            let all = [
                Workspace::Conv2d { conv, input, out, dtype, precision: Precision::Full },
                Workspace::Conv2dWeightGrad { conv, input, out, dtype, precision: Precision::Full },
            ];
            all.map(|of| DryBackend::of(GPU).workspace(of))
        };
        // A depth of 2 × 32 × 32 in splits of 256.
        assert_eq!(taken(32), [0, 8 * 64 * 64 * 9 * 4]);
        assert_eq!([taken(8), taken(0)], [[0, 0]; 2]);
    }
}
