//! The rounding of requests: multiples of 512 bytes, or `roundup_power2_divisions` by size.

use std::fmt;

use crate::base::units::{MIB, round_up};

/// The granule of blocks, in bytes.
pub(super) const STEP: u64 = 512;

/// The number of size ranges: from 1 MiB to 32 GiB, each up to twice its lower end. The first and the last range also
/// hold all smaller and larger sizes.
const RANGES: usize = 16;

/// The number of steps into which each power of two is divided, by size range: powers of two, or 0 for multiples of 512
/// bytes.
///
/// As text: one number for all ranges, or a list as in `[256:1,512:2,>:4]` with the lower ends in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Divisions([Steps; RANGES]);

/// A number of steps: 0, or a power of two, stored as one more than its logarithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Steps(u8);

impl Steps {
    fn new(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self(0)),
            _ => number.is_power_of_two().then(|| Self(number.ilog2() as u8 + 1)),
        }
    }

    const fn get(self) -> u64 {
        if self.0 == 0 { 0 } else { 1 << (self.0 - 1) }
    }
}

impl Divisions {
    /// The valid texts.
    pub(super) const EXPECTED: &str = "a power of two, or a list of SIZE:DIVISIONS as in [256:1,512:2,>:4], with sizes in \
                                       MiB and divisions that are powers of two";

    /// Returns the size of a block for `bytes` bytes; `None` if it exceeds the address space.
    pub(super) fn rounded(&self, bytes: u64) -> Option<u64> {
        let bytes = bytes.max(1);
        let divisions = self.0[range_of(bytes)].get();
        // Steps below 512 bytes would divide blocks.
        if divisions <= 1 || bytes <= STEP.saturating_mul(divisions) {
            return round_up(bytes, STEP);
        }
        let power_of_two = 1 << bytes.ilog2();
        round_up(bytes, power_of_two / divisions)
    }

    /// Parses a value without white space.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix('[') {
            None => {
                let all = text.parse().ok().filter(|&all: &u64| all > 0).and_then(Steps::new)?;
                Some(Self([all; RANGES]))
            }
            Some(list) => Self::parse_list(list.strip_suffix(']')?),
        }
    }

    /// Parses a list. Its first value also applies to all smaller sizes, and `>` to all sizes behind the previous entry.
    fn parse_list(list: &str) -> Option<Self> {
        let mut divisions = Self::default();
        let mut last = None;
        for entry in list.split(',').filter(|_| !list.is_empty()) {
            let (size, value) = entry.split_once(':')?;
            let value = value.parse().ok().and_then(Steps::new)?;
            if size == ">" {
                divisions.0[(last.unwrap_or(0) + 1).min(RANGES)..].fill(value);
                continue;
            }
            let size: u64 = size.parse().ok().filter(|&size| u64::is_power_of_two(size))?;
            let index = (size.ilog2() as usize).min(RANGES - 1);
            if last.is_none() {
                divisions.0[..index].fill(value);
            }
            divisions.0[index] = value;
            last = Some(index);
        }
        Some(divisions)
    }
}

/// Returns the index of the range of a size.
const fn range_of(bytes: u64) -> usize {
    let above_a_mebibyte = bytes.ilog2().saturating_sub(MIB.ilog2()) as usize;
    if above_a_mebibyte < RANGES { above_a_mebibyte } else { RANGES - 1 }
}

impl fmt::Display for Divisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.map(Steps::get);
        let alike = |from: &[u64], to: u64| from.iter().all(|&value| value == to);
        if ranges[0] > 0 && alike(&ranges, ranges[0]) {
            return write!(f, "{}", ranges[0]);
        }
        // The first entry covers the ranges below it, and `>` those from `tail` on.
        let first = (0..RANGES).rev().find(|&index| alike(&ranges[..index], ranges[index])).unwrap_or(0);
        let tail = (first + 1..RANGES).find(|&index| alike(&ranges[index..], ranges[RANGES - 1]));
        f.write_str("[")?;
        for (index, value) in ranges.iter().enumerate().take(tail.unwrap_or(RANGES)).skip(first) {
            write!(f, "{}{}:{value}", if index > first { "," } else { "" }, 1_u64 << index)?;
        }
        if tail.is_some() {
            write!(f, ",>:{}", ranges[RANGES - 1])?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divisions(text: &str) -> Divisions {
        Divisions::parse(text).unwrap()
    }

    #[test]
    fn lists_fill_the_ranges_as_in_pytorch() {
        for (text, expected) in [
            ("4", [4; 16]),
            ("[256:1,512:2,1024:4,>:8]", [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8]),
            ("[>:8]", [0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]),
            ("[64:4,>:2]", [4, 4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2]),
            ("[64:4,32:2]", [4, 4, 4, 4, 4, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ("[1:4,131072:2]", [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]),
            ("[64:0]", [0; 16]),
            ("[]", [0; 16]),
        ] {
            assert_eq!(divisions(text).0.map(Steps::get), expected, "{text}");
            assert_eq!(divisions(&divisions(text).to_string()), divisions(text), "{text}");
        }
        assert_eq!(divisions("[256:1,512:2,1024:4,>:8]").to_string(), "[256:1,512:2,1024:4,>:8]");
        for bad in
            ["", "0", "3", "-1", "x", "[", "[64]", "[64:3]", "[3:4]", "[64:4", "[64:4,]", "[64:4,,>:1]"]
        {
            assert_eq!(Divisions::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_are_multiples_of_512_bytes_or_parts_of_powers_of_two() {
        let plain = Divisions::default();
        assert_eq!(
            [0, 1, 512, 513, 1_000_000].map(|bytes| plain.rounded(bytes)),
            [512, 512, 512, 1024, 1_000_448].map(Some)
        );
        assert_eq!(plain.rounded(u64::MAX), None);
        let quarters = divisions("4");
        for (bytes, rounded) in
            [(1200, 1536), (2048, 2048), (2049, 2560), (1_048_577, 1_310_720), (7 << 20, 7 << 20)]
        {
            assert_eq!(quarters.rounded(bytes), Some(rounded), "{bytes}");
        }
        assert_eq!(divisions("[1:1,2:2,>:4]").rounded((3 << 20) + 1), Some(4 << 20));
        assert_eq!(quarters.rounded(u64::MAX), None);
    }
}
