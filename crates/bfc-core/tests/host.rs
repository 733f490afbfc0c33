//! Runs alone in its process, because it measures the memory of the whole process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use bfc_core::{GIB, HostMemory, KIB, MIB, SubAllocator};

/// Bytes of this process that are in physical memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * KIB
}

#[test]
fn a_large_region_costs_physical_memory_only_where_it_is_used() {
    let memory = HostMemory::new();
    let before = resident();
    let region = memory.allocate(4096, GIB).unwrap();
    assert!(resident() < before + 64 * MIB, "taking a region touches none of it");

    let pointer: *mut u8 = std::ptr::with_exposed_provenance_mut(region.address as usize);
    // SAFETY: the first 128 MiB of the region are host memory that only this test uses.
    unsafe { pointer.write_bytes(1, 128 << 20) };
    assert!(resident() >= before + 128 * MIB);
    // SAFETY: the region was allocated above, and no code uses it any more.
    unsafe { memory.free(region) };
    assert!(resident() < before + 64 * MIB, "what is given back goes back to the system");
}
