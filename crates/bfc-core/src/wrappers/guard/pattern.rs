//! What guarded bytes are set to, and whether they are still so.
//!
//! One of the few files of this crate with `unsafe` in it: here bytes of host memory are written and read.

use std::ptr::with_exposed_provenance_mut;

use crate::base::memory::Span;

/// What a span of bytes is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Every byte depends on its address, so that a copy of canaries from elsewhere shows too. None is 0x00 or 0xff, the
    /// values that stray writes most often bring.
    Canary,
    /// All bytes have one value.
    Byte(u8),
}

impl Pattern {
    const fn at(self, address: u64) -> u8 {
        match self {
            // The top byte of a product by the golden ratio is spread evenly; its highest bit is set and its lowest cleared.
            Self::Canary => (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 & 0x7e | 0x80,
            Self::Byte(value) => value,
        }
    }
}

/// Where a span is not as its pattern says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// The address of the first byte that differs.
    pub(super) address: u64,
    /// How many differ.
    pub(super) bytes: u64,
    /// What the first was set to.
    pub(super) expected: u8,
    /// What it is.
    pub(super) found: u8,
}

impl Difference {
    /// This difference together with one at higher addresses.
    pub(super) fn and(first: Option<Self>, then: Option<Self>) -> Option<Self> {
        match (first, then) {
            (Some(first), Some(then)) => Some(Self { bytes: first.bytes + then.bytes, ..first }),
            (first, then) => first.or(then),
        }
    }
}

/// Sets all bytes of a span.
///
/// # Safety
/// The span is valid host memory that nothing else uses.
pub(super) unsafe fn fill(span: Span, pattern: Pattern) {
    // SAFETY: as this function's caller promises.
    let bytes = unsafe { bytes_of(span) };
    match pattern {
        Pattern::Byte(value) => bytes.fill(value),
        Pattern::Canary => {
            for (address, byte) in (span.address..).zip(bytes) {
                *byte = pattern.at(address);
            }
        }
    }
}

/// Compares all bytes of a span.
///
/// # Safety
/// The span is valid, initialised host memory that nothing else is entitled to write.
pub(super) unsafe fn difference(span: Span, pattern: Pattern) -> Option<Difference> {
    // SAFETY: as this function's caller promises.
    let bytes = unsafe { bytes_of(span) };
    let differing = |(address, found): (u64, &u8)| {
        let expected = pattern.at(address);
        (*found != expected).then_some(Difference { address, bytes: 1, expected, found: *found })
    };
    let mut differences = (span.address..).zip(&*bytes).filter_map(differing);
    let first = differences.next()?;
    Some(Difference { bytes: 1 + differences.count() as u64, ..first })
}

/// The bytes of a span.
///
/// # Safety
/// The span is valid, initialised host memory that nothing else uses for as long as the slice lives.
unsafe fn bytes_of<'a>(span: Span) -> &'a mut [u8] {
    if span.bytes == 0 {
        return &mut [];
    }
    let pointer: *mut u8 = with_exposed_provenance_mut(span.address as usize);
    // SAFETY: as the caller promises; valid memory is never longer than the address space.
    unsafe { std::slice::from_raw_parts_mut(pointer, span.bytes as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span_of(bytes: &mut [u8]) -> Span {
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        Span { address, bytes: bytes.len() as u64 }
    }

    #[test]
    fn a_filled_span_counts_each_changed_byte() {
        for pattern in [Pattern::Canary, Pattern::Byte(0xff)] {
            let mut memory = vec![0_u8; 1000];
            let span = span_of(&mut memory);
            // SAFETY: the vector is not used while the span is.
            unsafe { fill(span, pattern) };
            // SAFETY: as above.
            assert_eq!(unsafe { difference(span, pattern) }, None);

            let expected = memory[17];
            memory[17] = 0;
            memory[900] = 1;
            let span = span_of(&mut memory);
            let found = Difference { address: span.address + 17, bytes: 2, expected, found: 0 };
            // SAFETY: as above.
            assert_eq!(unsafe { difference(span, pattern) }, Some(found));
        }
    }

    #[test]
    fn canaries_differ_from_their_neighbors() {
        let canaries: Vec<u8> = (4096..8192).map(|address| Pattern::Canary.at(address)).collect();
        assert!(canaries.iter().all(|&canary| canary != 0 && canary != 0xff));
        // A run that was copied from the next byte, word or cache line does not pass.
        for shift in [1, 8, 64, 256] {
            let same = canaries.iter().zip(&canaries[shift..]).filter(|(one, other)| one == other).count();
            assert!(same < canaries.len() / 4, "{same} of {} at {shift}", canaries.len());
        }
    }
}
