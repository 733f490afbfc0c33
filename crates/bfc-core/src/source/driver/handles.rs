//! Handles of a driver: numbers that only the driver interprets.

/// A stream handle, valid until it is destroyed. [`Stream`](crate::Stream) owns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamHandle(pub u64);

/// An event handle, valid until it is destroyed. [`StreamEvent`](crate::StreamEvent) owns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventHandle(pub u64);

/// A handle of device memory without an address, valid until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalHandle(pub u64);

/// A copy of bytes between two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryCopy {
    /// From page-locked host memory to device memory.
    ToDevice {
        /// Host address.
        from: u64,
        /// Device address.
        to: u64,
        /// The bytes.
        bytes: u64,
    },
    /// From device memory to page-locked host memory.
    ToHost {
        /// Device address.
        from: u64,
        /// Host address.
        to: u64,
        /// The bytes.
        bytes: u64,
    },
    /// Within the device's memory.
    OnDevice {
        /// Device address.
        from: u64,
        /// Device address; the two ranges do not overlap.
        to: u64,
        /// The bytes.
        bytes: u64,
    },
}
