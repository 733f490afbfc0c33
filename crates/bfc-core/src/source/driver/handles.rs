//! What a driver hands out besides addresses: numbers that mean something to it alone.

/// A stream of a driver. Valid until it is destroyed; [`Stream`](crate::Stream) sees to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamHandle(pub u64);

/// An event of a driver. Valid until it is destroyed; [`Event`](crate::Event) sees to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventHandle(pub u64);

/// Memory of a device without an address. Valid until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalHandle(pub u64);

/// Bytes to be copied, with the addresses of the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryCopy {
    /// From page-locked host memory to device memory.
    ToDevice {
        /// Host address.
        from: u64,
        /// Device address.
        to: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// From device memory to page-locked host memory.
    ToHost {
        /// Device address.
        from: u64,
        /// Host address.
        to: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Within the device's memory.
    OnDevice {
        /// Device address.
        from: u64,
        /// Device address; the two ranges do not overlap.
        to: u64,
        /// How many bytes.
        bytes: u64,
    },
}
