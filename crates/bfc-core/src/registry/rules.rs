//! Text forms of rules and switches, for command lines and environment variables.

use std::fmt;
use std::str::FromStr;

use crate::base::amount::{Amount, Share};
use crate::base::closest::did_you_mean;
use crate::base::units::{Bytes, MIB, switch, whole};
use crate::policy::bfc::{CutRule, JoinRule, SplitRule};
use crate::pool::{GrowthRule, ThreadCache};

/// The default granule of region sizes.
const GRANULE: Bytes = Bytes::mib(2);

/// The valid sizes of the largest cached block.
const CACHED: std::ops::RangeInclusive<u64> = 256..=16 * MIB;

/// A text that is not a valid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not valid: expected {expected}{}", did_you_mean(first_word(text), names.iter().copied()))]
#[non_exhaustive]
pub struct ParseRuleError {
    /// The text, or its start.
    pub text: String,
    /// The valid texts.
    pub expected: &'static str,
    /// The words with which valid texts begin.
    names: &'static [&'static str],
}

impl ParseRuleError {
    fn new(text: &str, expected: &'static str, names: &'static [&'static str]) -> Self {
        Self { text: text.chars().take(64).collect(), expected, names }
    }
}

/// Returns the name of a rule, without its value.
fn first_word(text: &str) -> &str {
    text.split(':').next().unwrap_or_default()
}

/// When the rest of a chunk becomes a separate chunk: a [`SplitRule`] whose waste may be a share of the limit.
///
/// As text: `always`, `twice`, or `twice:AMOUNT`, as in `twice:16MiB` or `twice:5%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitChoice {
    /// [`SplitRule::Always`].
    Always,
    /// [`SplitRule::Twice`] with at most this waste, in bytes or as a share of the pool's limit.
    Twice(Amount),
}

impl SplitChoice {
    /// Upstream's rule with its default of 128 MiB.
    pub const TENSORFLOW: Self = Self::Twice(Amount::Bytes(Bytes::mib(128)));

    pub(crate) const EXPECTED: &str =
        "always, twice, or twice:AMOUNT as in twice:16MiB or twice:5% (100% at most)";
    pub(crate) const NAMES: &[&str] = &["always", "twice"];

    /// Returns the rule in a pool with this limit.
    #[must_use]
    pub fn rule(self, limit: Bytes) -> SplitRule {
        match self {
            Self::Always => SplitRule::Always,
            Self::Twice(waste) => SplitRule::Twice { max_waste: waste.of(limit) },
        }
    }
}

impl fmt::Display for SplitChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Twice(waste) => write!(f, "twice:{waste}"),
        }
    }
}

impl FromStr for SplitChoice {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseRuleError::new(text, Self::EXPECTED, Self::NAMES);
        match text.split_once(':') {
            None if text == "always" => Ok(Self::Always),
            None if text == "twice" => Ok(Self::TENSORFLOW),
            // A waste above the whole pool is invalid.
            Some(("twice", waste)) => match waste.parse().map_err(|_| error())? {
                Amount::Share(share) if share > Share::WHOLE => Err(error()),
                waste => Ok(Self::Twice(waste)),
            },
            _ => Err(error()),
        }
    }
}

impl CutRule {
    pub(crate) const EXPECTED: &str = "low or large-high";
    pub(crate) const NAMES: &[&str] = &["low", "large-high"];
}

/// As text: `low` or `large-high`.
impl fmt::Display for CutRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::LargeHigh => "large-high",
        })
    }
}

impl FromStr for CutRule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = [Self::Low, Self::LargeHigh].into_iter().find(|rule| rule.to_string() == text);
        named.ok_or_else(|| ParseRuleError::new(text, Self::EXPECTED, Self::NAMES))
    }
}

impl JoinRule {
    pub(crate) const EXPECTED: &str = "at-once or deferred";
    pub(crate) const NAMES: &[&str] = &["at-once", "deferred"];
}

/// As text: `at-once` or `deferred`.
impl fmt::Display for JoinRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtOnce => "at-once",
            Self::Deferred => "deferred",
        })
    }
}

impl FromStr for JoinRule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = [Self::AtOnce, Self::Deferred].into_iter().find(|rule| rule.to_string() == text);
        named.ok_or_else(|| ParseRuleError::new(text, Self::EXPECTED, Self::NAMES))
    }
}

/// Cap and size have units: `doubling:1.00 GiB`.
impl fmt::Display for GrowthRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DOUBLING => f.write_str("doubling"),
            Self::Doubling { cap } => write!(f, "doubling:{cap}"),
            Self::AsRequested { .. } => f.write_str("as-requested"),
            Self::Fixed(bytes) => write!(f, "fixed:{bytes}"),
            Self::Proportional { parts, .. } => write!(f, "proportional:{parts}"),
        }
    }
}

impl GrowthRule {
    pub(crate) const EXPECTED: &str =
        "doubling, doubling:CAP, as-requested, fixed:SIZE, or proportional:PARTS";
    pub(crate) const NAMES: &[&str] = &["doubling", "as-requested", "fixed", "proportional"];
}

/// As text: `doubling`, `doubling:CAP`, `as-requested`, `fixed:SIZE`, or `proportional:PARTS`. Granules are 2 MiB.
impl FromStr for GrowthRule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
        let bytes = |value: &str| value.parse::<Bytes>().ok().filter(|bytes| bytes.get() > 0);
        let rule = match (name, value) {
            ("doubling", None) => Some(Self::DOUBLING),
            ("doubling", Some(cap)) => bytes(cap).map(|cap| Self::Doubling { cap }),
            ("as-requested", None) => Some(Self::AsRequested { granule: GRANULE }),
            ("fixed", Some(size)) => bytes(size).map(Self::Fixed),
            ("proportional", Some(parts)) => whole(parts)
                .filter(|&parts| parts > 0)
                .map(|parts| Self::Proportional { parts, granule: GRANULE }),
            _ => None,
        };
        rule.ok_or_else(|| ParseRuleError::new(text, Self::EXPECTED, Self::NAMES))
    }
}

/// Whether threads cache small blocks: see
/// [`PoolConfig::with_thread_cache`](crate::PoolConfig::with_thread_cache).
///
/// As text: `on`, `off`, or `LARGEST[:KEPT]`, the largest block to cache and the most bytes in one cache.
///
/// ```
/// use bfc_core::{Bytes, CacheChoice, ThreadCache};
/// let cache = ThreadCache::new().with_largest_block(Bytes::kib(64));
/// assert_eq!("64KiB".parse(), Ok(CacheChoice::On(cache)));
/// assert_eq!("64KiB:4MiB".parse(), Ok(CacheChoice::On(cache.with_bytes(Bytes::mib(4)))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheChoice {
    /// No caches: every request takes the pool's lock.
    Off,
    /// Caches with these options.
    On(ThreadCache),
}

impl CacheChoice {
    pub(crate) const EXPECTED: &str =
        "on, off, or LARGEST[:KEPT] as in 64KiB or 64KiB:4MiB, the first from 256 B to 16 MiB";
    pub(crate) const NAMES: &[&str] = &["on", "off"];
}

impl fmt::Display for CacheChoice {
    /// `off`, or the two sizes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On(cache) => write!(f, "{}:{}", cache.largest_block(), cache.bytes()),
        }
    }
}

impl From<Option<ThreadCache>> for CacheChoice {
    fn from(cache: Option<ThreadCache>) -> Self {
        cache.map_or(Self::Off, Self::On)
    }
}

impl FromStr for CacheChoice {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(on) = switch(text) {
            return Ok(on.then(ThreadCache::new).into());
        }
        let sized = || {
            let (largest, kept) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
            let largest: Bytes = largest.parse().ok()?;
            let cache = ThreadCache::new().with_largest_block(largest);
            let cache = match kept {
                Some(kept) => cache.with_bytes(kept.parse().ok()?),
                None => cache,
            };
            CACHED.contains(&largest.get()).then_some(Self::On(cache))
        };
        sized().ok_or_else(|| ParseRuleError::new(text, Self::EXPECTED, Self::NAMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T: FromStr<Err = ParseRuleError> + fmt::Debug>(texts: &[&str]) {
        for text in texts {
            assert_eq!(text.parse::<T>().unwrap_err().text, *text);
        }
    }

    #[test]
    fn rules_for_splitting_are_read() {
        let waste = |amount: &str| SplitChoice::Twice(amount.parse().unwrap());
        for (text, expected) in [
            ("always", SplitChoice::Always),
            ("twice", SplitChoice::TENSORFLOW),
            ("twice:16MiB", waste("16MiB")),
            ("twice:5%", waste("5%")),
            ("twice:100%", waste("100%")),
            ("twice:0", waste("0")),
        ] {
            assert_eq!(text.parse(), Ok(expected));
        }
        refused::<SplitChoice>(&[
            "",
            "never",
            "twice:",
            "twice:x",
            "always:5%",
            "twice:-1",
            "twice:0%",
            "twice:100.1%",
            "twice:500%",
        ]);
        let rule = waste("50%").rule(Bytes::gib(1));
        assert_eq!(rule, SplitRule::Twice { max_waste: Bytes::mib(512) });
    }

    #[test]
    fn rules_for_growth_cutting_and_joining_are_read() {
        for (text, expected) in [
            ("doubling", GrowthRule::DOUBLING),
            ("doubling:1GiB", GrowthRule::Doubling { cap: Bytes::gib(1) }),
            ("as-requested", GrowthRule::AsRequested { granule: Bytes::mib(2) }),
            ("fixed:64MiB", GrowthRule::Fixed(Bytes::mib(64))),
            ("proportional:8", GrowthRule::Proportional { parts: 8, granule: Bytes::mib(2) }),
        ] {
            assert_eq!(text.parse(), Ok(expected));
        }
        refused::<GrowthRule>(&["", "doubling:", "doubling:0", "as-requested:1", "fixed", "proportional:+8"]);
        assert_eq!(("low".parse(), "large-high".parse()), (Ok(CutRule::Low), Ok(CutRule::LargeHigh)));
        refused::<CutRule>(&["", "Low", "high"]);
        assert_eq!(("at-once".parse(), "deferred".parse()), (Ok(JoinRule::AtOnce), Ok(JoinRule::Deferred)));
        refused::<JoinRule>(&["", "once", "Deferred"]);
    }

    #[test]
    fn a_cache_is_a_switch_or_sizes_within_what_caches_can_hold() {
        let cache = ThreadCache::new();
        for (text, expected) in [
            ("off", CacheChoice::Off),
            ("0", CacheChoice::Off),
            ("on", CacheChoice::On(cache)),
            ("256", CacheChoice::On(cache.with_largest_block(Bytes(256)))),
            ("16MiB", CacheChoice::On(cache.with_largest_block(Bytes::mib(16)))),
            ("1 KiB:0", CacheChoice::On(cache.with_largest_block(Bytes::kib(1)).with_bytes(Bytes(0)))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        refused::<CacheChoice>(&["", "2", "255", "17MiB", "64KiB:", ":4MiB", "64KiB:x", "64KiB:1:2", "5%"]);
    }

    #[test]
    fn a_misspelled_rule_is_refused_with_the_closest_one() {
        let error = "doublin:1GiB".parse::<GrowthRule>().unwrap_err().to_string();
        let expected = "doubling, doubling:CAP, as-requested, fixed:SIZE, or proportional:PARTS";
        assert_eq!(
            error,
            format!("\"doublin:1GiB\" is not valid: expected {expected} (did you mean doubling?)")
        );
        assert_eq!(
            "never".parse::<CutRule>().unwrap_err().to_string(),
            "\"never\" is not valid: expected low or large-high"
        );
    }

    #[test]
    fn long_texts_are_quoted_in_part() {
        assert_eq!("x".repeat(1000).parse::<CutRule>().unwrap_err().text.len(), 64);
    }
}
