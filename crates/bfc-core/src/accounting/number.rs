//! The number of an allocation: a serial, the index of the allocating thread, and the index of the accounts.
//!
//! Each allocation increments the serial. The other fields are above it and change only with the thread, so they cost
//! allocations nothing. Accounts that one thread uses number from 1 on.

use crate::base::memory::Block;

impl Block {
    /// The position among all allocations of its pool, from 1 on. `None` for a block of a thread cache, an empty block,
    /// and a block of an allocator that does not number them.
    #[must_use]
    pub const fn serial(&self) -> Option<u64> {
        if self.id == 0 || accounts(self.id) != 0 { None } else { Some(serial(self.id)) }
    }
}

/// Bits of the serial: enough for an allocation every twenty nanoseconds in five years.
const SERIAL_BITS: u32 = 53;

/// Bits of the thread index.
const THREAD_BITS: u32 = 6;

/// The number of threads that the numbers distinguish.
pub(crate) const MAX_THREADS: usize = 1 << THREAD_BITS;

const SERIAL: u64 = (1 << SERIAL_BITS) - 1;

const THREAD_MASK: u64 = (MAX_THREADS as u64 - 1) << SERIAL_BITS;

/// Returns the serial of an allocation in its accounts.
pub(crate) const fn serial(number: u64) -> u64 {
    number & SERIAL
}

/// Returns the index of the allocating thread.
pub(crate) const fn thread_index(number: u64) -> u32 {
    ((number & THREAD_MASK) >> SERIAL_BITS) as u32
}

/// Returns the same serial in the same accounts with another thread index.
pub(crate) const fn with_thread_index(number: u64, thread_index: u32) -> u64 {
    (number & !THREAD_MASK) | (((thread_index as u64) << SERIAL_BITS) & THREAD_MASK)
}

/// Returns the index of the accounts. 0 is the pool's own.
#[inline]
pub(crate) const fn accounts(number: u64) -> u64 {
    number >> (SERIAL_BITS + THREAD_BITS)
}

/// Returns the number before the first in these accounts.
pub(crate) const fn before(accounts: u64) -> u64 {
    accounts << (SERIAL_BITS + THREAD_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_serial_thread_and_accounts_apart() {
        let number = with_thread_index(before(16) + 7, 63);
        assert_eq!((serial(number), thread_index(number), accounts(number)), (7, 63, 16));
        let other = with_thread_index(number, 1) + 1;
        assert_eq!((serial(other), thread_index(other), accounts(other)), (8, 1, 16));
        assert_eq!(with_thread_index(other, 0), before(16) + 8);
        assert_eq!((thread_index(1), accounts(1)), (0, 0));
        let serial_of = |id| Block { id, ..Block::EMPTY }.serial();
        assert_eq!([with_thread_index(9, 5), number, 0].map(serial_of), [Some(9), None, None]);
    }
}
