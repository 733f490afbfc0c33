//! Fill patterns of guarded bytes, and their checks.

use std::ptr::with_exposed_provenance_mut;

use crate::base::memory::Span;

/// A byte of all ones: it makes NaN in every floating-point format.
const POISON: u8 = 0xff;

/// The pattern of a span of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Every byte depends on its address, so that canaries copied from elsewhere are detected too. None is 0x00 or
    /// 0xff, the most common values of stray writes.
    Canary,
    /// New and freed bytes.
    Poison,
}

impl Pattern {
    const fn at(self, address: u64) -> u8 {
        match self {
            // The top byte of a product with the golden ratio is uniform. The code sets its highest bit and clears its
            // lowest.
            Self::Canary => (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 & 0x7e | 0x80,
            Self::Poison => POISON,
        }
    }
}

/// A deviation of a span from its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// The address of the first different byte.
    pub(super) address: u64,
    /// The number of different bytes.
    pub(super) bytes: u64,
    /// The expected value of the first one.
    pub(super) expected: u8,
    /// Its actual value.
    pub(super) found: u8,
}

impl Difference {
    /// Combines this deviation with one at higher addresses.
    pub(super) fn and(first: Option<Self>, then: Option<Self>) -> Option<Self> {
        match (first, then) {
            (Some(first), Some(then)) => Some(Self { bytes: first.bytes + then.bytes, ..first }),
            (first, then) => first.or(then),
        }
    }
}

/// Fills a span with the pattern.
///
/// # Safety
/// The span is valid host memory that no other code uses.
pub(super) unsafe fn fill(span: Span, pattern: Pattern) {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { bytes_of(span) };
    match pattern {
        Pattern::Poison => bytes.fill(POISON),
        Pattern::Canary => {
            for (address, byte) in (span.address..).zip(bytes) {
                *byte = pattern.at(address);
            }
        }
    }
}

/// Compares a span with the pattern.
///
/// # Safety
/// The span is valid, initialized host memory that no other code may write.
pub(super) unsafe fn difference(span: Span, pattern: Pattern) -> Option<Difference> {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { bytes_of(span) };
    let differing = |(address, found): (u64, &u8)| {
        let expected = pattern.at(address);
        (*found != expected).then_some(Difference { address, bytes: 1, expected, found: *found })
    };
    let mut differences = (span.address..).zip(&*bytes).filter_map(differing);
    let first = differences.next()?;
    Some(Difference { bytes: 1 + differences.count() as u64, ..first })
}

/// Returns the bytes of a span.
///
/// # Safety
/// The span is valid, initialized host memory that no other code uses while the slice lives.
unsafe fn bytes_of<'a>(span: Span) -> &'a mut [u8] {
    if span.bytes == 0 {
        return &mut [];
    }
    let pointer: *mut u8 = with_exposed_provenance_mut(span.address as usize);
    // SAFETY: guaranteed by the caller; valid memory is never longer than the address space.
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
        for pattern in [Pattern::Canary, Pattern::Poison] {
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
        // Detects runs that were copied from the next byte, word or cache line.
        for shift in [1, 8, 64, 256] {
            let same = canaries.iter().zip(&canaries[shift..]).filter(|(one, other)| one == other).count();
            assert!(same < canaries.len() / 4, "{same} of {} at {shift}", canaries.len());
        }
    }
}
