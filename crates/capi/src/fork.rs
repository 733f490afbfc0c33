//! Child processes of `fork`.
//!
//! A child has a copy of the parent's memory, but only the thread that called `fork`. Locks that other threads held stay
//! locked there, and the thread that writes a recording does not exist. Therefore every function fails in a child
//! before it takes a lock. Only NumPy's functions work, with `malloc`, because NumPy decides when to call them.
//!
//! A process that never called the library has no state to protect, so its children use the library as other processes do.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use bfc_core::Span;
use bfc_core::sync::lock;

use crate::error::Error;

#[cfg(all(unix, not(miri)))]
mod handlers;

/// The library was not called yet.
const UNUSED: u8 = 0;
/// The library was called, and its handlers see each `fork`.
const USED: u8 = 1;
/// This process is a child of a process that had called the library.
const CHILD: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNUSED);

/// The lengths of the regions of all pools of host memory, by address. A child knows by them which arrays are the parent's.
///
/// No code takes another lock of this library while it holds this one. The handlers of `fork` lock it, so that it is free
/// in the child.
static REGIONS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// Fails in a child process. The first call prepares for children, before the library has any state.
pub(crate) fn check() -> Result<(), Error> {
    match STATE.load(Ordering::Relaxed) {
        USED => Ok(()),
        CHILD => Err(Error::Forked),
        _ => {
            #[cfg(all(unix, not(miri)))]
            handlers::register();
            Ok(())
        }
    }
}

/// Whether this process is a child of a process that had called the library.
pub(crate) fn is_child() -> bool {
    STATE.load(Ordering::Relaxed) == CHILD
}

/// Notes that a pool has taken a region of host memory from its source, or is about to return it.
pub(crate) fn note_region(region: Span, is_taken: bool) {
    let regions = &mut *lock(&REGIONS);
    if is_taken {
        regions.insert(region.address, region.bytes);
    } else {
        regions.remove(&region.address);
    }
}

/// Returns the bytes from `address` to the end of the region that contains it.
pub(crate) fn bytes_in_region(address: u64) -> Option<u64> {
    let regions = lock(&REGIONS);
    let (start, bytes) = regions.range(..=address).next_back()?;
    bytes.checked_sub(address - start).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_within_regions_are_found() {
        let region = Span { address: 0x7000_0000_0000_0000, bytes: 4096 };
        note_region(region, true);
        let at = |offset: u64| bytes_in_region(region.address + offset);
        assert_eq!([at(0), at(4095), at(4096)], [Some(4096), Some(1), None]);
        assert_eq!(bytes_in_region(region.address - 1), None);
        note_region(region, false);
        assert_eq!(at(0), None);
    }
}
