//! Byte counts in readable units.

use std::fmt;
use std::str::FromStr;

/// One kibibyte, in bytes.
pub const KIB: u64 = 1 << 10;
/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte, in bytes.
pub const GIB: u64 = 1 << 30;

/// A number of bytes that prints in readable units: `12 B`, `1.5 KiB`, `64 MiB`.
///
/// ```
/// use bfc_core::Bytes;
/// assert_eq!(Bytes(1536).to_string(), "1.50 KiB");
/// assert_eq!("64MiB".parse::<Bytes>().unwrap(), Bytes::mib(64));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Returns `count` kibibytes, saturating.
    #[must_use]
    pub const fn kib(count: u64) -> Self {
        Self(count.saturating_mul(KIB))
    }

    /// Returns `count` mebibytes, saturating.
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(MIB))
    }

    /// Returns `count` gibibytes, saturating.
    #[must_use]
    pub const fn gib(count: u64) -> Self {
        Self(count.saturating_mul(GIB))
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the difference; `None` if `other` is larger.
    ///
    /// ```
    /// use bfc_core::Bytes;
    /// assert_eq!(Bytes::kib(3).checked_sub(Bytes::kib(1)), Some(Bytes::kib(2)));
    /// assert_eq!(Bytes::kib(1).checked_sub(Bytes::kib(3)), None);
    /// ```
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// Returns the difference; 0 if `other` is larger.
    ///
    /// ```
    /// use bfc_core::Bytes;
    /// assert_eq!(Bytes::kib(3).saturating_sub(Bytes::kib(1)), Bytes::kib(2));
    /// assert_eq!(Bytes::kib(1).saturating_sub(Bytes::kib(3)), Bytes(0));
    /// ```
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < KIB {
            return f.pad(&format!("{} B", self.0));
        }
        // The largest unit whose rounded value stays below 1024, so that 1023.999 KiB prints as 1.00 MiB.
        let mut value = self.0 as f64 / KIB as f64;
        let mut unit = 0;
        while value >= 1023.995 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{value:.2} {}", UNITS[unit]))
    }
}

/// A text that is not a byte count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a byte count: expected a whole number with an optional unit B, KiB, MiB, GiB or TiB"
)]
#[non_exhaustive]
pub struct ParseBytesError {
    /// The text.
    pub text: String,
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseBytesError { text: text.chars().take(64).collect() };
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = trimmed.split_at(digits);
        let number: u64 = number.parse().map_err(|_| error())?;
        let scale = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => KIB,
            "m" | "mib" => MIB,
            "g" | "gib" => GIB,
            "t" | "tib" => GIB * 1024,
            _ => return Err(error()),
        };
        number.checked_mul(scale).map(Self).ok_or_else(error)
    }
}

/// Parses a switch: on or off.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => Some(true),
        "off" | "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// Parses an unsigned number of digits only; `parse` would also accept a sign.
pub(crate) fn whole(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Rounds `value` up to a multiple of `step` (a power of two); `None` on overflow.
#[must_use]
pub(crate) const fn round_up(value: u64, step: u64) -> Option<u64> {
    debug_assert!(step.is_power_of_two());
    match value.checked_add(step - 1) {
        Some(sum) => Some(sum & !(step - 1)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_with_two_decimals_in_the_largest_fitting_unit() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (MIB - 1, "1.00 MiB"),
            (64 * MIB, "64.00 MiB"),
            (u64::MAX, "16.00 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>10}", Bytes(12)), "      12 B");
    }

    #[test]
    fn byte_counts_parse_with_units_and_refuse_the_rest() {
        assert_eq!("7".parse(), Ok(Bytes(7)));
        assert_eq!(" 3 KiB ".parse(), Ok(Bytes::kib(3)));
        assert_eq!("2g".parse(), Ok(Bytes::gib(2)));
        for bad in ["", "-1", "1.5MiB", "12 parsecs", "99999999999999999999", "20000000000000000 MiB"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn rounding_up_stops_at_the_end_of_the_address_space() {
        assert_eq!(round_up(0, 256), Some(0));
        assert_eq!(round_up(1, 256), Some(256));
        assert_eq!(round_up(256, 256), Some(256));
        assert_eq!(round_up(u64::MAX - 10, 256), None);
    }
}
