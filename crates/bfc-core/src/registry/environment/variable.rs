//! The known variables: their names, and the parsers of their values.

use std::ffi::OsStr;
use std::time::Duration;

use super::{AllocatorChoice, DEVICE, OTHERS, PREFIX, PoolOptions};
use crate::base::closest::{MAX_SLIPS, did_you_mean, slips};
use crate::base::units::{switch, whole};
use crate::policy::bfc::{CutRule, JoinRule};
use crate::pool::GrowthRule;
use crate::registry::{CacheChoice, DeviceId, DeviceKind, DeviceScope, SplitChoice};

/// The longest wait for frees: an hour.
const MAX_RETRY_MS: u64 = 3_600_000;

/// One row of the table in the module docs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variable {
    Allocator,
    PoolLimit,
    Growth,
    FirstRegion,
    RegionMerging,
    GarbageCollection,
    Split,
    Cut,
    Join,
    RetryMs,
    ThreadCache,
}

impl Variable {
    const ALL: [Self; 11] = [
        Self::Allocator,
        Self::PoolLimit,
        Self::Growth,
        Self::FirstRegion,
        Self::RegionMerging,
        Self::GarbageCollection,
        Self::Split,
        Self::Cut,
        Self::Join,
        Self::RetryMs,
        Self::ThreadCache,
    ];

    /// The name without the prefix.
    const fn name(self) -> &'static str {
        match self {
            Self::Allocator => "ALLOCATOR",
            Self::PoolLimit => "POOL_LIMIT",
            Self::Growth => "GROWTH",
            Self::FirstRegion => "FIRST_REGION",
            Self::RegionMerging => "REGION_MERGING",
            Self::GarbageCollection => "GARBAGE_COLLECTION",
            Self::Split => "SPLIT",
            Self::Cut => "CUT",
            Self::Join => "JOIN",
            Self::RetryMs => "RETRY_MS",
            Self::ThreadCache => "THREAD_CACHE",
        }
    }

    /// The name of the pool option that the variable sets.
    pub(super) const fn option_name(self) -> &'static str {
        match self {
            Self::Allocator => "allocator",
            Self::PoolLimit => "limit",
            Self::Growth => "growth",
            Self::FirstRegion => "first_region",
            Self::RegionMerging => "region_merging",
            Self::GarbageCollection => "garbage_collection",
            Self::Split => "split",
            Self::Cut => "cut",
            Self::Join => "join",
            Self::RetryMs => "retry_ms",
            Self::ThreadCache => "thread_cache",
        }
    }

    /// Returns the variable of a pool option.
    pub(super) fn of_option(name: &str) -> Option<Self> {
        let name = if name == "pool_limit" { "limit" } else { name };
        Self::ALL.into_iter().find(|variable| variable.option_name() == name)
    }

    /// Returns the names of all pool options.
    pub(super) fn option_names() -> [&'static str; Self::ALL.len()] {
        Self::ALL.map(Self::option_name)
    }

    /// Splits a full name into the variable and its devices.
    pub(super) fn named(name: &OsStr) -> Option<(Self, DeviceScope)> {
        let name = name.to_str()?.strip_prefix(PREFIX)?;
        Self::ALL.into_iter().find_map(|variable| {
            let scope = scope(name.strip_prefix(variable.name())?)?;
            Some((variable, scope))
        })
    }

    /// Parses a value; fails with the expected values.
    pub(super) fn parse(self, text: &str) -> Result<PoolOptions, String> {
        let options = PoolOptions::default();
        let chosen = match self {
            Self::Allocator => text.parse().ok().map(|choice| options.with_allocator(choice)),
            Self::PoolLimit => text.parse().ok().map(|limit: crate::base::Amount| options.with_limit(limit)),
            Self::Growth => growth(text),
            Self::FirstRegion => text.parse().ok().map(|bytes| options.with_first_region(bytes)),
            Self::RegionMerging => switch(text).map(|merge| options.with_region_merging(merge)),
            Self::GarbageCollection => switch(text).map(|collect| options.with_garbage_collection(collect)),
            Self::Split => text.parse().ok().map(|split| PoolOptions { split: Some(split), ..options }),
            Self::Cut => text.parse().ok().map(|cut| PoolOptions { cut: Some(cut), ..options }),
            Self::Join => text.parse().ok().map(|join| PoolOptions { join: Some(join), ..options }),
            Self::RetryMs => milliseconds(text).map(|timeout| options.with_retry_timeout(timeout)),
            Self::ThreadCache => text.parse().ok().map(|cache| options.with_thread_cache(cache)),
        };
        chosen.ok_or_else(|| self.expected(text))
    }

    /// Returns the supported values, and the one that an invalid value may mean.
    fn expected(self, text: &str) -> String {
        let (values, names) = self.values();
        let word = text.split(':').next().unwrap_or_default();
        values + &did_you_mean(word, names)
    }

    /// Returns the supported values as text, and the words with which they begin.
    fn values(self) -> (String, Vec<&'static str>) {
        const SWITCH: [&str; 2] = ["on", "off"];
        match self {
            Self::Allocator => (
                format!("one of {}", AllocatorChoice::names()),
                AllocatorChoice::ALL.map(AllocatorChoice::name).into(),
            ),
            Self::PoolLimit => {
                ("bytes, as in 4GiB, a percentage above 0, as in 75%, or all-1GiB".to_owned(), Vec::new())
            }
            Self::Growth => {
                (format!("on, off, {}", GrowthRule::EXPECTED), [&SWITCH, GrowthRule::NAMES].concat())
            }
            Self::RegionMerging | Self::GarbageCollection => ("on or off".to_owned(), SWITCH.into()),
            Self::Cut => (CutRule::EXPECTED.to_owned(), CutRule::NAMES.into()),
            Self::Join => (JoinRule::EXPECTED.to_owned(), JoinRule::NAMES.into()),
            Self::FirstRegion => ("bytes, as in 64MiB".to_owned(), Vec::new()),
            Self::Split => (SplitChoice::EXPECTED.to_owned(), SplitChoice::NAMES.into()),
            Self::RetryMs => (format!("milliseconds, a whole number from 0 to {MAX_RETRY_MS}"), Vec::new()),
            Self::ThreadCache => (CacheChoice::EXPECTED.to_owned(), SWITCH.into()),
        }
    }
}

/// Parses the devices in the rest of a name: nothing, `_CUDA`, `_CUDA_1`.
fn scope(rest: &str) -> Option<DeviceScope> {
    if rest.is_empty() {
        return Some(DeviceScope::All);
    }
    let device = rest.strip_prefix('_')?;
    let (kind, ordinal) =
        device.split_once('_').map_or((device, None), |(kind, ordinal)| (kind, Some(ordinal)));
    let named = |known: &DeviceKind| known.name().to_ascii_uppercase() == kind;
    let kind = DeviceKind::ALL.into_iter().find(named)?;
    match ordinal {
        None => Some(DeviceScope::Kind(kind)),
        Some(ordinal) => Some(DeviceScope::One(DeviceId::new(kind, whole(ordinal)?.try_into().ok()?))),
    }
}

/// Parses whether and how the pool grows.
fn growth(text: &str) -> Option<PoolOptions> {
    let options = PoolOptions::default();
    if let Some(allow) = switch(text) {
        return Some(options.with_allow_growth(allow));
    }
    text.parse().ok().map(|rule| options.with_allow_growth(true).with_growth(rule))
}

fn milliseconds(text: &str) -> Option<Duration> {
    whole(text).filter(|&ms| ms <= MAX_RETRY_MS).map(Duration::from_millis)
}

/// Returns the variable with the name most similar to `name`, if any. Separates a suffix for devices first, so that a
/// misspelling is found in front of any suffix.
pub(super) fn nearest(name: &str) -> Option<String> {
    let rest = name.strip_prefix(PREFIX)?;
    let others = [DEVICE].iter().chain(OTHERS).filter_map(|name| name.strip_prefix(PREFIX));
    let (_, name) = Variable::ALL
        .into_iter()
        .map(Variable::name)
        .chain(others)
        .filter_map(|name| {
            // The letters that could be the variable's name: its length, plus or minus the misspellings.
            let length = name.len();
            let starts =
                (length.saturating_sub(MAX_SLIPS)..=length + MAX_SLIPS).filter_map(|end| rest.get(..end));
            let least = starts.chain([rest]).filter_map(|start| slips(start, name)).min();
            least.map(|slips| (slips, name))
        })
        .min_by_key(|(slips, _)| *slips)?;
    Some(format!("{PREFIX}{name}"))
}
