use super::*;

/// Returns the bytes of host memory at `span`, for tests that own it.
fn bytes_at(span: Span) -> Vec<u8> {
    let pointer: *const u8 = with_exposed_provenance_mut(span.address as usize);
    // SAFETY: the tests call this with live, initialized host memory only.
    unsafe { std::slice::from_raw_parts(pointer, span.bytes as usize) }.to_vec()
}

/// Overwrites host memory at `span`.
fn fill(span: Span, value: u8) {
    let pointer: *mut u8 = with_exposed_provenance_mut(span.address as usize);
    // SAFETY: the tests call this with live host memory that no other code uses.
    unsafe { pointer.write_bytes(value, span.bytes as usize) };
}

#[test]
fn regions_are_zeroed_and_aligned_as_asked() {
    let memory = HostMemory::new();
    for shift in 0..=16 {
        let region = memory.allocate(1 << shift, 1000).unwrap();
        assert_eq!(region.bytes, 1000);
        assert_eq!(region.address % (1 << shift), 0);
        assert!(bytes_at(region).iter().all(|&byte| byte == 0));
        fill(region, 0xa5);
        // SAFETY: the region was allocated above and is not used afterwards.
        unsafe { memory.free(region) };
    }
    assert_eq!(memory.live_regions(), 0);
}

#[test]
fn regions_that_cannot_be_are_refused_and_nothing_is_held() {
    let memory = HostMemory::new();
    let cases = [
        (64, 0),
        (0, 100),
        (3, 100),
        (64, u64::MAX),
        (1 << 63, 100),
        (1 << 63, u64::MAX - 5),
        (16, i64::MAX as u64),
        (256, 1 << 60),
    ];
    for (alignment, bytes) in cases {
        assert_eq!(memory.allocate(alignment, bytes), Err(SourceError::Exhausted { bytes }));
    }
    assert_eq!(memory.live_regions(), 0);
}

#[test]
fn freeing_an_address_that_is_not_held_changes_nothing() {
    let memory = HostMemory::new();
    let region = memory.allocate(64, 64).unwrap();
    // SAFETY: no region starts there, so nothing is freed.
    unsafe { memory.free(Span { address: region.address + 1, bytes: 64 }) };
    assert_eq!(memory.live_regions(), 1);
    // SAFETY: the region was allocated above and is not used afterwards.
    unsafe { memory.free(region) };
}
