//! What a user may choose of a device's pool.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::device_id::{DeviceId, DeviceKind};
use super::rules::{CacheChoice, SplitChoice};
use crate::base::amount::Amount;
use crate::base::memory::MemoryKind;
use crate::base::units::Bytes;
use crate::policy::bfc::{BfcOptions, CutRule, JoinRule, SplitRule};
use crate::pool::BfcConfig;
use crate::pool::{GrowthRule, PoolConfig};
use crate::registry::choice::AllocatorChoice;

/// What a user may choose of a device's pool. What is not chosen is left to the pool's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolOptions {
    /// How memory is handed out.
    pub allocator: Option<AllocatorChoice>,
    /// Whether memory that the chosen allocator [cannot serve](AllocatorChoice::serves) is left to
    /// [`AllocatorChoice::Bfc`]. If not, there it is an error.
    pub allocator_where_possible: bool,
    /// The most that the pool may take, in bytes or as a share of the device's memory.
    pub limit: Option<Amount>,
    /// Whether it takes memory as it needs it, or the whole limit at once.
    pub allow_growth: Option<bool>,
    /// The size of a growing pool's first region.
    pub first_region: Option<Bytes>,
    /// How large a growing pool's later regions are.
    pub growth: Option<GrowthRule>,
    /// Whether idle regions make way for a new one when the pool grows.
    pub region_merging: Option<bool>,
    /// Whether idle regions are given back when a larger one could then be taken.
    pub garbage_collection: Option<bool>,
    /// When the rest of a chunk becomes a chunk of its own.
    pub split: Option<SplitChoice>,
    /// From which end of a free chunk a block is cut.
    pub cut: Option<CutRule>,
    /// When a freed block is joined with the free memory beside it.
    pub join: Option<JoinRule>,
    /// How long a request waits for frees before it fails; 0 is not at all.
    pub retry_timeout: Option<Duration>,
    /// Whether threads keep small blocks in caches.
    pub thread_cache: Option<CacheChoice>,
}

impl PoolOptions {
    /// Every choice that a configuration makes, so that nothing else decides. The allocator is not among them.
    #[must_use]
    pub fn all_of(config: &BfcConfig) -> Self {
        let split = match config.options().split {
            SplitRule::Always => SplitChoice::Always,
            SplitRule::Twice { max_waste } => SplitChoice::Twice(max_waste.into()),
        };
        let waits = config.retry();
        Self {
            allocator: None,
            allocator_where_possible: false,
            limit: Some(config.limit().into()),
            allow_growth: Some(config.allow_growth()),
            first_region: Some(config.first_region()),
            growth: Some(config.growth()),
            region_merging: Some(config.region_merging()),
            garbage_collection: Some(config.garbage_collection()),
            split: Some(split),
            cut: Some(config.options().cut),
            join: Some(config.options().join),
            retry_timeout: Some(if waits { config.retry_timeout() } else { Duration::ZERO }),
            thread_cache: Some(config.thread_cache().into()),
        }
    }

    /// The same options with this allocator, for all memory.
    #[must_use]
    pub const fn with_allocator(mut self, allocator: AllocatorChoice) -> Self {
        self.allocator = Some(allocator);
        self.allocator_where_possible = false;
        self
    }

    /// The same options with this allocator where it can serve.
    #[must_use]
    pub const fn with_allocator_where_possible(mut self, allocator: AllocatorChoice) -> Self {
        self.allocator = Some(allocator);
        self.allocator_where_possible = true;
        self
    }

    /// What the options mean for memory of this kind.
    pub(super) fn settled(self, kind: MemoryKind) -> Self {
        let impossible = |choice: AllocatorChoice| self.allocator_where_possible && !choice.serves(kind);
        let allocator =
            self.allocator.map(|choice| if impossible(choice) { AllocatorChoice::Bfc } else { choice });
        Self { allocator, allocator_where_possible: false, ..self }
    }

    /// The same options with this limit.
    #[must_use]
    pub fn with_limit(mut self, limit: impl Into<Amount>) -> Self {
        self.limit = Some(limit.into());
        self
    }

    /// The same options with or without growth.
    #[must_use]
    pub const fn with_allow_growth(mut self, allow: bool) -> Self {
        self.allow_growth = Some(allow);
        self
    }

    /// The same options with this first region.
    #[must_use]
    pub const fn with_first_region(mut self, bytes: Bytes) -> Self {
        self.first_region = Some(bytes);
        self
    }

    /// The same options with this rule for later regions.
    #[must_use]
    pub const fn with_growth(mut self, rule: GrowthRule) -> Self {
        self.growth = Some(rule);
        self
    }

    /// The same options with or without region merging.
    #[must_use]
    pub const fn with_region_merging(mut self, merge: bool) -> Self {
        self.region_merging = Some(merge);
        self
    }

    /// The same options with or without garbage collection.
    #[must_use]
    pub const fn with_garbage_collection(mut self, collect: bool) -> Self {
        self.garbage_collection = Some(collect);
        self
    }

    /// The same options with this rule for splitting.
    #[must_use]
    pub const fn with_split(mut self, split: SplitChoice) -> Self {
        self.split = Some(split);
        self
    }

    /// The same options with this end to cut from.
    #[must_use]
    pub const fn with_cut(mut self, cut: CutRule) -> Self {
        self.cut = Some(cut);
        self
    }

    /// The same options with this rule for joining.
    #[must_use]
    pub const fn with_join(mut self, join: JoinRule) -> Self {
        self.join = Some(join);
        self
    }

    /// The same options with this patience.
    #[must_use]
    pub const fn with_retry_timeout(mut self, timeout: Duration) -> Self {
        self.retry_timeout = Some(timeout);
        self
    }

    /// The same options with or without caches of small blocks by thread.
    #[must_use]
    pub const fn with_thread_cache(mut self, cache: CacheChoice) -> Self {
        self.thread_cache = Some(cache);
        self
    }

    /// The configuration of a pool with these options in place of its own: all but the allocator, the limit, and what is
    /// for one policy alone.
    #[must_use]
    pub fn configure<O>(&self, mut config: PoolConfig<O>) -> PoolConfig<O> {
        if let Some(allow) = self.allow_growth {
            config = config.with_allow_growth(allow);
        }
        if let Some(bytes) = self.first_region {
            config = config.with_first_region(bytes);
        }
        if let Some(rule) = self.growth {
            config = config.with_growth(rule);
        }
        if let Some(merge) = self.region_merging {
            config = config.with_region_merging(merge);
        }
        if let Some(collect) = self.garbage_collection {
            config = config.with_garbage_collection(collect);
        }
        if let Some(timeout) = self.retry_timeout {
            config = config.with_retry(!timeout.is_zero()).with_retry_timeout(timeout);
        }
        match self.thread_cache {
            Some(CacheChoice::On(cache)) => config.with_thread_cache(cache),
            Some(CacheChoice::Off) => config.without_thread_cache(),
            None => config,
        }
    }

    /// The rules for cutting and joining chunks in a pool with this limit: these options' in place of those in `rules`.
    #[must_use]
    pub fn cutting(&self, rules: BfcOptions, limit: Bytes) -> BfcOptions {
        let split = self.split.map_or(rules.split, |split| split.rule(limit));
        let (cut, join) = (self.cut.unwrap_or(rules.cut), self.join.unwrap_or(rules.join));
        BfcOptions { split, cut, join, ..rules }
    }

    /// These options, and those of `defaults` where these leave the choice.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        let chooser = if self.allocator.is_some() { self } else { defaults };
        Self {
            allocator: chooser.allocator,
            allocator_where_possible: chooser.allocator_where_possible,
            limit: self.limit.or(defaults.limit),
            allow_growth: self.allow_growth.or(defaults.allow_growth),
            first_region: self.first_region.or(defaults.first_region),
            growth: self.growth.or(defaults.growth),
            region_merging: self.region_merging.or(defaults.region_merging),
            garbage_collection: self.garbage_collection.or(defaults.garbage_collection),
            split: self.split.or(defaults.split),
            cut: self.cut.or(defaults.cut),
            join: self.join.or(defaults.join),
            retry_timeout: self.retry_timeout.or(defaults.retry_timeout),
            thread_cache: self.thread_cache.or(defaults.thread_cache),
        }
    }
}

impl fmt::Display for PoolOptions {
    /// One line: the limit, and what else was chosen.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            Some(limit) => write!(f, "limit {limit}")?,
            None => write!(f, "no limit")?,
        }
        if let Some(allow) = self.allow_growth {
            write!(f, ", {} growth", if allow { "with" } else { "without" })?;
        }
        if let Some(bytes) = self.first_region {
            write!(f, ", first region {bytes}")?;
        }
        match self.growth {
            Some(GrowthRule::Doubling { .. }) => write!(f, ", regions doubling")?,
            Some(GrowthRule::AsRequested { .. }) => write!(f, ", regions as requested")?,
            Some(GrowthRule::Fixed(bytes)) => write!(f, ", regions of {bytes}")?,
            Some(GrowthRule::Proportional { parts, .. }) => write!(f, ", regions of 1/{parts} of the pool")?,
            None => {}
        }
        if let Some(merge) = self.region_merging {
            write!(f, ", {} region merging", if merge { "with" } else { "without" })?;
        }
        if let Some(collect) = self.garbage_collection {
            write!(f, ", {} garbage collection", if collect { "with" } else { "without" })?;
        }
        if let Some(split) = self.split {
            write!(f, ", split {split}")?;
        }
        match self.cut {
            Some(CutRule::Low) => write!(f, ", cut low")?,
            Some(CutRule::LargeHigh) => write!(f, ", cut large-high")?,
            None => {}
        }
        match self.join {
            Some(JoinRule::AtOnce) => write!(f, ", join at-once")?,
            Some(JoinRule::Deferred) => write!(f, ", join deferred")?,
            None => {}
        }
        if let Some(timeout) = self.retry_timeout {
            write!(f, ", waits {} ms", timeout.as_millis())?;
        }
        match self.thread_cache {
            Some(CacheChoice::Off) => write!(f, ", without thread caches")?,
            Some(CacheChoice::On(_)) => write!(f, ", with thread caches")?,
            None => {}
        }
        self.allocator.map_or(Ok(()), |allocator| write!(f, ", allocator {allocator}"))
    }
}

/// Which devices a choice is for. More precise ones count before less precise ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceScope {
    /// One device.
    One(DeviceId),
    /// All of a kind.
    Kind(DeviceKind),
    /// All.
    All,
}

impl DeviceScope {
    /// Whether the choice is for this device.
    #[must_use]
    pub fn includes(self, device: DeviceId) -> bool {
        match self {
            Self::One(one) => one == device,
            Self::Kind(kind) => kind == device.kind,
            Self::All => true,
        }
    }
}

impl From<DeviceId> for DeviceScope {
    fn from(device: DeviceId) -> Self {
        Self::One(device)
    }
}

impl From<DeviceKind> for DeviceScope {
    fn from(kind: DeviceKind) -> Self {
        Self::Kind(kind)
    }
}

/// Options for the pools of several devices.
///
/// ```
/// use bfc_core::{AllocatorChoice, Bytes, DeviceId, DeviceScope, PoolOptions, PoolSettings};
/// let mut settings = PoolSettings::default();
/// settings.choose(DeviceScope::All, PoolOptions::default().with_limit(Bytes::gib(1)));
/// settings.choose(DeviceId::CPU, PoolOptions::default().with_allocator(AllocatorChoice::Guard));
/// let options = settings.options(DeviceId::CPU);
/// assert_eq!(options.limit, Some(Bytes::gib(1).into()));
/// assert_eq!(options.allocator, Some(AllocatorChoice::Guard));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSettings {
    by_scope: BTreeMap<DeviceScope, PoolOptions>,
}

impl PoolSettings {
    /// Chooses for the pools of some devices; what `options` leave open stays as chosen before.
    pub fn choose(&mut self, scope: impl Into<DeviceScope>, options: PoolOptions) {
        let scope = scope.into();
        let chosen = self.by_scope.get(&scope).copied().unwrap_or_default();
        self.by_scope.insert(scope, options.or(chosen));
    }

    /// What is chosen for a device's pools. What is chosen for the one device counts before what is chosen for its kind, and
    /// that before what is chosen for all. An allocator that is chosen for all devices is one
    /// [where possible](PoolOptions::allocator_where_possible): nobody has said that of a certain device.
    #[must_use]
    pub fn options(&self, device: DeviceId) -> PoolOptions {
        let for_device = self.by_scope.iter().filter(|(scope, _)| scope.includes(device));
        for_device.fold(PoolOptions::default(), |options, (&scope, &less_precise)| {
            let for_all = scope == DeviceScope::All && less_precise.allocator.is_some();
            let allocator_where_possible = for_all || less_precise.allocator_where_possible;
            options.or(PoolOptions { allocator_where_possible, ..less_precise })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::ThreadCache;

    #[test]
    fn the_more_precise_choice_counts() {
        let limit = |gib| PoolOptions::default().with_limit(Bytes::gib(gib));
        let cuda = |ordinal| DeviceId::new(DeviceKind::Cuda, ordinal);
        let mut settings = PoolSettings::default();
        settings.choose(cuda(1), limit(3));
        settings.choose(DeviceScope::All, limit(1).with_allow_growth(false));
        settings.choose(DeviceKind::Cuda, limit(2));
        assert_eq!(settings.options(DeviceId::CPU), limit(1).with_allow_growth(false));
        assert_eq!(settings.options(cuda(0)), limit(2).with_allow_growth(false));
        assert_eq!(settings.options(cuda(1)), limit(3).with_allow_growth(false));
        settings.choose(DeviceScope::All, limit(4));
        assert_eq!(settings.options(DeviceId::CPU), limit(4).with_allow_growth(false));
    }

    #[test]
    fn an_allocator_for_all_devices_is_for_those_that_it_can_serve() {
        let dry = DeviceId::new(DeviceKind::Dry, 0);
        let guard = PoolOptions::default().with_allocator(AllocatorChoice::Guard);
        let allocator = |settings: &PoolSettings, kind| settings.options(dry).settled(kind).allocator;
        let mut settings = PoolSettings::default();
        settings.choose(DeviceScope::All, guard);
        assert_eq!(allocator(&settings, MemoryKind::AddressOnly), Some(AllocatorChoice::Bfc));
        assert_eq!(allocator(&settings, MemoryKind::Host), Some(AllocatorChoice::Guard));
        assert_eq!(allocator(&settings, MemoryKind::PinnedHost), Some(AllocatorChoice::Guard));
        settings.choose(dry, guard);
        assert_eq!(allocator(&settings, MemoryKind::AddressOnly), Some(AllocatorChoice::Guard));
    }

    #[test]
    fn a_configuration_leaves_no_choice_but_the_allocator() {
        let config = BfcConfig::tensorflow(Bytes::gib(1)).with_retry(false).with_first_region(Bytes::mib(8));
        let options = PoolOptions::all_of(&config);
        let expected = PoolOptions::default()
            .with_limit(Bytes::gib(1))
            .with_allow_growth(true)
            .with_first_region(Bytes::mib(8))
            .with_growth(GrowthRule::DOUBLING)
            .with_region_merging(false)
            .with_garbage_collection(false)
            .with_split(SplitChoice::TENSORFLOW)
            .with_cut(CutRule::Low)
            .with_join(JoinRule::AtOnce)
            .with_retry_timeout(Duration::ZERO)
            .with_thread_cache(CacheChoice::Off);
        assert_eq!(options, expected);
        let cached = PoolOptions::all_of(&config.with_thread_cache(ThreadCache::new())).thread_cache;
        assert_eq!(cached, Some(CacheChoice::On(ThreadCache::new())));
    }
}
