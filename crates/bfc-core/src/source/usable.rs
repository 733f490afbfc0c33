//! The memory available to this process, and its limit.
//!
//! The limit is the smallest of four bounds:
//!
//! - physical memory
//! - the limits of the control groups, v1 and v2, with all groups above (two bounds)
//! - the limit on the address space (`ulimit -v`)
//!
//! Free memory does not count, because it changes. On Linux all four are read from `/proc` and `/sys`. On
//! macOS and Windows only physical memory is known, elsewhere nothing.

#[cfg(any(target_os = "linux", test))]
mod linux;
#[cfg(any(target_os = "macos", windows))]
mod physical;

use std::fmt;

use crate::base::{Bytes, printable};

/// The largest reserve that a pool leaves to the rest of the process.
const MOST_RESERVED: u64 = 1 << 30;

/// The reserve is this part of the limit, if that is less.
const RESERVED_PART: u64 = 16;

/// The least reserve of a limited address space. Program code, thread stacks and the system allocator's arenas reserve
/// addresses that they hardly use.
const LEAST_RESERVED_ADDRESSES: u64 = 128 << 20;

/// The origin of a process's memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryBound {
    /// The memory of the machine.
    Physical,
    /// `memory.max` of a control group of version 2.
    CgroupV2 {
        /// The group's path.
        path: String,
    },
    /// `memory.limit_in_bytes` of a control group of version 1.
    CgroupV1 {
        /// The group's path.
        path: String,
    },
    /// `RLIMIT_AS`, which `ulimit -v` sets.
    AddressSpace,
}

impl fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Physical => f.write_str("physical memory"),
            Self::CgroupV2 { path } => write!(f, "memory.max of the cgroup {}", printable(path)),
            Self::CgroupV1 { path } => write!(f, "memory.limit_in_bytes of the cgroup {}", printable(path)),
            Self::AddressSpace => f.write_str("address space (ulimit -v)"),
        }
    }
}

/// The memory available to a process.
///
/// ```
/// use bfc_core::{Bytes, MemoryBound, UsableMemory};
/// let machine = UsableMemory { bytes: Bytes::gib(8), bound: MemoryBound::Physical };
/// assert_eq!(machine.pool_limit(), Bytes::mib(7 * 1024 + 512));
/// assert_eq!(machine.to_string(), "8.00 GiB of physical memory");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsableMemory {
    /// The number of bytes, in use or free.
    pub bytes: Bytes,
    /// The origin of this limit.
    pub bound: MemoryBound,
}

impl UsableMemory {
    /// Returns the memory available to this process; `None` if the system does not provide it.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        #[cfg(target_os = "linux")]
        return linux::usable(&|path| std::fs::read_to_string(path).ok());
        #[cfg(any(target_os = "macos", windows))]
        return Some(Self { bytes: physical::memory()?, bound: MemoryBound::Physical });
        #[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
        None
    }

    /// Returns the reserve for program code, thread stacks and libraries: a sixteenth, at most 1 GiB. In a limited
    /// address space it is at least 128 MiB, but at most half.
    #[must_use]
    pub fn reserve(&self) -> Bytes {
        let bytes = self.bytes.get();
        let part = (bytes / RESERVED_PART).min(MOST_RESERVED);
        match self.bound {
            MemoryBound::AddressSpace => Bytes(part.max(LEAST_RESERVED_ADDRESSES).min(bytes / 2)),
            _ => Bytes(part),
        }
    }

    /// The default limit of a pool of host memory: all but the [`reserve`](Self::reserve).
    #[must_use]
    pub fn pool_limit(&self) -> Bytes {
        self.bytes.saturating_sub(self.reserve())
    }

    /// Describes the origin of [`pool_limit`](Self::pool_limit).
    #[must_use]
    pub fn limit_origin(&self) -> String {
        format!("{self} less a reserve of {}", self.reserve())
    }
}

impl fmt::Display for UsableMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.bound {
            MemoryBound::Physical | MemoryBound::AddressSpace => "of",
            MemoryBound::CgroupV2 { .. } | MemoryBound::CgroupV1 { .. } => "by",
        };
        write!(f, "{} {of} {}", self.bytes, self.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usable(bytes: Bytes, bound: MemoryBound) -> UsableMemory {
        UsableMemory { bytes, bound }
    }

    #[test]
    fn the_reserve_is_a_sixteenth_of_at_most_one_gib() {
        let limit = |bytes| usable(bytes, MemoryBound::Physical).pool_limit();
        assert_eq!(limit(Bytes::gib(24)), Bytes::gib(23));
        assert_eq!(limit(Bytes::gib(4)), Bytes::mib(4096 - 256));
        assert_eq!(limit(Bytes(0)), Bytes(0));
    }

    #[test]
    fn a_limited_address_space_reserves_at_least_128_mib() {
        let limit = |bytes| usable(bytes, MemoryBound::AddressSpace).pool_limit();
        assert_eq!(limit(Bytes::gib(24)), Bytes::gib(23));
        assert_eq!(limit(Bytes::gib(1)), Bytes::mib(1024 - 128));
        assert_eq!(limit(Bytes::mib(100)), Bytes::mib(50));
    }

    #[test]
    fn the_text_names_the_bound() {
        let group = MemoryBound::CgroupV2 { path: "/a/b".to_owned() };
        let text = usable(Bytes::gib(2), group).limit_origin();
        assert_eq!(text, "2.00 GiB by memory.max of the cgroup /a/b less a reserve of 128.00 MiB");
    }

    #[cfg(any(target_os = "linux", target_os = "macos", windows))]
    #[test]
    fn this_process_may_use_some_memory() {
        assert!(UsableMemory::of_this_process().is_some_and(|usable| usable.bytes > Bytes::mib(16)));
    }
}
