//! The rules by which a dry run stands for a kind of device.

/// Whose rules a dry device follows: how its memory is taken, and how large workspaces are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceRules {
    /// The host's, as `cpu:0`: regions are taken as needed, up to the limit of the pool. Unless a limit is given, the pool
    /// leaves a small reserve ([`UsableMemory::reserve`](highwater_tracking::UsableMemory::reserve)).
    Cpu,
    /// A CUDA device's: one range of addresses with pages of 2 MiB behind it; unless a limit is given, the pool leaves what
    /// [`bfc_core::default_reserve`] says to the driver.
    Cuda {
        /// Its compute capability, which decides about the reserve.
        compute_capability: (u32, u32),
    },
}
