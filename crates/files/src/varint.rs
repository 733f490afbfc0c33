//! Variable-length integers: seven bits per byte, lowest first (LEB128), with zigzag for signed ones.

/// The most bytes of a number.
pub const MAX_BYTES: usize = 10;

/// Appends a number.
#[inline]
pub fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Reads a number from the start of `bytes`. Returns it and its length; `None` if it is cut off or exceeds 64 bits.
#[inline]
pub fn get(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().take(MAX_BYTES).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if index + 1 == MAX_BYTES && bits > 1 {
            return None;
        }
        value |= bits << (7 * index);
        if byte < 0x80 {
            return Some((value, index + 1));
        }
    }
    None
}

/// Encodes a difference as an unsigned number that is small for small differences of either sign.
#[inline]
pub const fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// Decodes a difference encoded by [`zigzag`].
#[inline]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_numbers_take_one_byte_and_the_largest_takes_ten() {
        for (value, length) in [(127, 1), (128, 2), (u64::MAX, MAX_BYTES)] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!((bytes.len(), get(&bytes)), (length, Some((value, length))));
        }
    }

    #[test]
    fn cut_and_too_long_numbers_are_refused() {
        assert_eq!(get(&[]), None);
        assert_eq!(get(&[0x80, 0x80]), None);
        assert_eq!(get(&[0xff; 11]), None);
        assert_eq!(get(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]), None);
    }

    proptest! {
        #[test]
        fn encoded_values_decode(value in any::<u64>(), shift in 0_u32..64, difference in any::<i64>()) {
            let (value, mut bytes) = (value >> shift, Vec::new());
            put(&mut bytes, value);
            prop_assert_eq!(get(&bytes), Some((value, bytes.len())));
            prop_assert_eq!(unzigzag(zigzag(difference)), difference);
        }
    }
}
