//! What the number of an allocation says: a serial, by which of its accounts' threads it was taken, and in which of a
//! pool's accounts it is.
//!
//! The serial is counted up with each allocation. The rest stands above it and changes with the thread alone, so that it
//! costs allocations nothing. Accounts that one thread uses number from 1 upward.

/// Bits of the serial: enough for an allocation every twenty nanoseconds in five years.
const SERIAL_BITS: u32 = 53;

/// Bits of the taker's index.
const TAKER_BITS: u32 = 6;

/// How many threads are told apart.
pub(crate) const TAKERS: usize = 1 << TAKER_BITS;

const SERIAL: u64 = (1 << SERIAL_BITS) - 1;

const TAKER: u64 = (TAKERS as u64 - 1) << SERIAL_BITS;

/// The count of an allocation in its accounts.
pub(crate) const fn serial(number: u64) -> u64 {
    number & SERIAL
}

/// The index of the thread that took it.
pub(crate) const fn taker(number: u64) -> u32 {
    ((number & TAKER) >> SERIAL_BITS) as u32
}

/// The same serial in the same accounts, taken by another thread.
pub(crate) const fn with_taker(number: u64, taker: u32) -> u64 {
    (number & !TAKER) | (((taker as u64) << SERIAL_BITS) & TAKER)
}

/// The accounts that it is in: 0 are a pool's own.
#[inline]
pub(crate) const fn accounts(number: u64) -> u64 {
    number >> (SERIAL_BITS + TAKER_BITS)
}

/// Where the numbers of these accounts begin.
pub(crate) const fn before(accounts: u64) -> u64 {
    accounts << (SERIAL_BITS + TAKER_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_taker_and_accounts_are_told_apart() {
        let number = with_taker(before(16) + 7, 63);
        assert_eq!((serial(number), taker(number), accounts(number)), (7, 63, 16));
        let other = with_taker(number, 1) + 1;
        assert_eq!((serial(other), taker(other), accounts(other)), (8, 1, 16));
        assert_eq!(with_taker(other, 0), before(16) + 8);
        assert_eq!((taker(1), accounts(1)), (0, 0));
    }
}
