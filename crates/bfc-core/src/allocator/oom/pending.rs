//! Frees that wait for pending work.

/// Frees of a [`StreamAllocator`](crate::StreamAllocator) that wait for other streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PendingFrees {
    /// The number of blocks.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that are never reused, because the driver could not report when their use ends.
    pub stranded_bytes: u64,
}
