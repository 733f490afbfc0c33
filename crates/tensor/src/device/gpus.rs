//! Properties of GPUs by name.

use bfc_core::{Bytes, GIB};

/// The properties of a GPU that a dry run uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gpu {
    pub(super) name: &'static str,
    /// The total memory that the driver reports, in hundredths of a GiB. It is below the nominal size,
    /// because the driver and error correction use a part. Drivers and boards of one name differ by some
    /// tenths of a GiB; `memory=` overrides the value.
    hundredths: u64,
    pub(super) compute_capability: (u32, u32),
}

/// Approximate memory totals, from PyTorch's out-of-memory messages in public reports, and NVIDIA's table of
/// compute capabilities.
pub(super) const GPUS: &[Gpu] = &[
    gpu("t4", 1458, (7, 5)),
    gpu("v100-16g", 1577, (7, 0)),
    gpu("v100-32g", 3174, (7, 0)),
    gpu("a10g", 2199, (8, 6)),
    gpu("a100-40g", 3939, (8, 0)),
    gpu("a100-80g", 7914, (8, 0)),
    gpu("l4", 2203, (8, 9)),
    gpu("rtx-3090", 2357, (8, 6)),
    gpu("rtx-4090", 2364, (8, 9)),
    gpu("h100-80g", 7910, (9, 0)),
    gpu("h200", 13980, (9, 0)),
];

const fn gpu(name: &'static str, hundredths: u64, compute_capability: (u32, u32)) -> Gpu {
    Gpu { name, hundredths, compute_capability }
}

impl Gpu {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        GPUS.iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name))
    }

    pub(super) const fn memory(&self) -> Bytes {
        Bytes(self.hundredths * GIB / 100)
    }
}
