//! Properties of GPUs by name.

use bfc_core::{Bytes, GIB};

use crate::speed::Peaks;

/// The properties of a GPU that a dry run uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gpu {
    pub(super) name: &'static str,
    /// The total memory that the driver reports, in hundredths of a GiB. It is below the nominal size,
    /// because the driver and error correction use a part. Drivers and boards of one name differ by some
    /// tenths of a GiB; `memory=` overrides the value.
    hundredths: u64,
    pub(super) compute_capability: (u32, u32),
    peaks: Peaks,
}

/// Approximate memory totals, from PyTorch's out-of-memory messages in public reports, and NVIDIA's table of
/// compute capabilities.
///
/// The peaks are TFLOP/s of f32 without tensor cores, TFLOP/s of 16-bit factors with sums in f32 on tensor cores
/// (dense, without sparsity), GB/s of memory, and GB/s of uploads in one direction. Sources, all by NVIDIA:
///
/// | GPU | source |
/// |---|---|
/// | T4 | T4 Tensor Core GPU data sheet: 8.1, 65 (f16), 320 GB/s, PCIe 3.0 × 16 |
/// | V100 | V100 data sheet, SXM2: 15.7, 125 (f16), 900 GB/s, PCIe 3.0 × 16 |
/// | A10G | A10 data sheet for bandwidth and PCIe 4.0; the A10G has 9,216 cores at 1.71 GHz, tensor cores at half of GA102's rate: 31.5, 70, 600 GB/s |
/// | A100 | A100 data sheet: 19.5, 312, 1,555 GB/s (40 GB) and 2,039 GB/s (80 GB, SXM), PCIe 4.0 × 16 |
/// | L4 | L4 data sheet, dense half of the sparse rate: 30.3, 121, 300 GB/s, PCIe 4.0 × 16 |
/// | RTX 3090 | GA102 whitepaper: 35.6, 71 (f32 sums), 936 GB/s, PCIe 4.0 × 16 |
/// | RTX 4090 | Ada whitepaper: 82.6, 165.2 (f32 sums), 1,008 GB/s, PCIe 4.0 × 16 |
/// | H100 | H100 data sheet, SXM5: 67, 989, 3,350 GB/s, PCIe 5.0 × 16 |
/// | H200 | H200 data sheet, SXM: 67, 989, 4,800 GB/s, PCIe 5.0 × 16 |
///
/// GPUs before compute capability 8.0 have no tensor cores for bf16; the peak is that of f16.
pub(super) const GPUS: &[Gpu] = &[
    gpu("t4", 1458, (7, 5), Peaks::new([8.1, 65.0], [320.0, 16.0])),
    gpu("v100-16g", 1577, (7, 0), Peaks::new([15.7, 125.0], [900.0, 16.0])),
    gpu("v100-32g", 3174, (7, 0), Peaks::new([15.7, 125.0], [900.0, 16.0])),
    gpu("a10g", 2199, (8, 6), Peaks::new([31.5, 70.0], [600.0, 32.0])),
    gpu("a100-40g", 3939, (8, 0), Peaks::new([19.5, 312.0], [1555.0, 32.0])),
    gpu("a100-80g", 7914, (8, 0), Peaks::new([19.5, 312.0], [2039.0, 32.0])),
    gpu("l4", 2203, (8, 9), Peaks::new([30.3, 121.0], [300.0, 32.0])),
    gpu("rtx-3090", 2357, (8, 6), Peaks::new([35.6, 71.0], [936.0, 32.0])),
    gpu("rtx-4090", 2364, (8, 9), Peaks::new([82.6, 165.2], [1008.0, 32.0])),
    gpu("h100-80g", 7910, (9, 0), Peaks::new([67.0, 989.0], [3350.0, 64.0])),
    gpu("h200", 13980, (9, 0), Peaks::new([67.0, 989.0], [4800.0, 64.0])),
];

const fn gpu(name: &'static str, hundredths: u64, compute_capability: (u32, u32), peaks: Peaks) -> Gpu {
    Gpu { name, hundredths, compute_capability, peaks }
}

impl Gpu {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        GPUS.iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name))
    }

    pub(super) const fn memory(&self) -> Bytes {
        Bytes(self.hundredths * GIB / 100)
    }

    /// The published peaks, from which the speed of kernels follows.
    pub(super) const fn peaks(&self) -> Peaks {
        self.peaks
    }
}
