//! An amount of memory in text form: bytes, a share of a total, or the total less a reserve.

use std::fmt;
use std::str::FromStr;

use crate::base::units::Bytes;

/// The largest share, in percent. A pool may exceed the memory of a device whose driver pages to the host, but a factor
/// of a hundred is a mistake.
const MAX_PERCENT: f64 = 10_000.0;

/// Parts per million in a percent.
const PER_PERCENT: f64 = 10_000.0;

/// A positive share of a total, exact to a millionth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    millionths: u64,
}

impl Share {
    /// The whole total.
    pub const WHOLE: Self = Self { millionths: 1_000_000 };

    /// Returns `percent` hundredths of a total; `None` below a millionth or above a hundred times the total.
    #[must_use]
    pub fn percent(percent: f64) -> Option<Self> {
        if !(percent.is_finite() && percent > 0.0 && percent <= MAX_PERCENT) {
            return None;
        }
        let millionths = (percent * PER_PERCENT).round() as u64;
        (millionths > 0).then_some(Self { millionths })
    }

    /// Returns this share of `whole`, rounded down and saturating.
    #[must_use]
    pub fn of(self, whole: Bytes) -> Bytes {
        let part = u128::from(whole.0) * u128::from(self.millionths) / 1_000_000;
        Bytes(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.millionths as f64 / PER_PERCENT)
    }
}

/// A number of bytes, a share of a total, or a total less a reserve. The context defines the total.
///
/// ```
/// use bfc_core::{Amount, Bytes};
/// let amount: Amount = "12.5%".parse()?;
/// assert_eq!(amount.of(Bytes::gib(8)), Bytes::gib(1));
/// assert_eq!("512 MiB".parse::<Amount>()?, Amount::Bytes(Bytes::mib(512)));
/// assert_eq!("all-1GiB".parse::<Amount>()?.of(Bytes::gib(8)), Bytes::gib(7));
/// # Ok::<(), bfc_core::ParseAmountError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Amount {
    /// This many bytes.
    Bytes(Bytes),
    /// This share of the total.
    Share(Share),
    /// The total less this reserve; the whole total if the reserve is not smaller (source: TensorFlow's limit of a
    /// GPU).
    AllBut(Bytes),
}

impl Amount {
    /// Returns the amount in bytes, for this total.
    #[must_use]
    pub fn of(self, whole: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => share.of(whole),
            Self::AllBut(reserve) if reserve < whole => Bytes(whole.0 - reserve.0),
            Self::AllBut(_) => whole,
        }
    }
}

impl From<Bytes> for Amount {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Share(share) => share.fmt(f),
            Self::AllBut(reserve) => write!(f, "all but {reserve}"),
        }
    }
}

/// A text that is not an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an amount of memory: expected bytes, as in 512MiB, a percentage above 0, as in 50%, or what to \
     leave, as in all-1GiB"
)]
#[non_exhaustive]
pub struct ParseAmountError {
    /// The text, or its start.
    pub text: String,
}

impl FromStr for Amount {
    type Err = ParseAmountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseAmountError { text: text.chars().take(64).collect() };
        if let Some(reserve) = text.trim().strip_prefix("all-") {
            return reserve.parse().map(Self::AllBut).map_err(|_| error());
        }
        let Some(number) = text.trim().strip_suffix('%') else {
            return text.parse().map(Self::Bytes).map_err(|_| error());
        };
        let number = number.trim_end();
        // Checked by hand: `parse` also accepts signs, exponents, `inf` and `nan`.
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(error());
        }
        let share = number.parse().ok().and_then(Share::percent);
        share.map(Self::Share).ok_or_else(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_percentages_are_read() {
        for (text, bytes) in
            [("50%", 500), (" 12.5 % ", 125), ("200%", 2000), ("0.1%", 1), ("7", 7), ("1k", 1024)]
        {
            assert_eq!(
                text.parse::<Amount>().map(|amount| amount.of(Bytes(1000))),
                Ok(Bytes(bytes)),
                "{text}"
            );
        }
        assert_eq!(Amount::from_str("12.5%").unwrap().to_string(), "12.5 %");
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for bad in [
            "", "%", "0%", "-5%", "+5%", "nan%", "inf%", "1e2%", "1.2.3%", "10001%", "0.00001%", "5%%",
            "50 %x", "-1", "all", "all-", "all-5%", "all--1", "-all-1",
        ] {
            assert!(bad.parse::<Amount>().is_err(), "{bad:?}");
        }
        let long = "9".repeat(10_000) + "%";
        assert_eq!(long.parse::<Amount>().unwrap_err().text.len(), 64);
    }

    #[test]
    fn all_but_a_reserve_is_all_where_there_is_no_more_than_that() {
        let amount: Amount = " all-300 ".parse().unwrap();
        assert_eq!(amount, Amount::AllBut(Bytes(300)));
        assert_eq!([1000, 301, 300, 7].map(|whole| amount.of(Bytes(whole)).0), [700, 1, 300, 7]);
        assert_eq!(amount.to_string(), "all but 300 B");
    }

    #[test]
    fn shares_of_the_largest_wholes_saturate() {
        let share = |percent| Share::percent(percent).unwrap();
        assert_eq!(share(100.0).of(Bytes(u64::MAX)), Bytes(u64::MAX));
        assert_eq!(share(10_000.0).of(Bytes(u64::MAX)), Bytes(u64::MAX));
        assert_eq!(share(50.0).of(Bytes(3)), Bytes(1));
        assert_eq!(share(100.0), Share::WHOLE);
        for percent in [0.0, -1.0, f64::NAN, f64::INFINITY, 10_000.1] {
            assert_eq!(Share::percent(percent), None, "{percent}");
        }
    }
}
