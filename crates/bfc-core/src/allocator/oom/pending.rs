//! Frees that wait for work under way.

/// Frees of a [`StreamAllocator`](crate::StreamAllocator) that wait for other streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PendingFrees {
    /// How many blocks.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that are never given back, because the driver could not say when their use ends.
    pub stranded_bytes: u64,
}
