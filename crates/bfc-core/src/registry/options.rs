//! User options of a device's pool: their order of precedence, their effect on a configuration, and their text form.

use std::fmt;
use std::time::Duration;

use super::rules::{CacheChoice, SplitChoice};
use super::setting::PoolOptions;
use crate::base::memory::MemoryKind;
use crate::base::units::Bytes;
use crate::policy::bfc::{BfcOptions, SplitRule};
use crate::pool::BfcConfig;
use crate::pool::{GrowthRule, PoolConfig};
use crate::registry::choice::AllocatorChoice;

impl PoolOptions {
    /// Returns all options of a configuration, except the allocator and its settings.
    #[must_use]
    pub fn all_of(config: &BfcConfig) -> Self {
        let split = match config.options.split {
            SplitRule::Always => SplitChoice::Always,
            SplitRule::Twice { max_waste } => SplitChoice::Twice(max_waste.into()),
        };
        let waits = config.retry;
        Self {
            allocator: None,
            allocator_where_possible: false,
            limit: Some(config.limit.into()),
            allow_growth: Some(config.allow_growth),
            first_region: Some(config.first_region),
            growth: Some(config.growth),
            region_merging: Some(config.region_merging),
            garbage_collection: Some(config.garbage_collection),
            split: Some(split),
            cut: Some(config.options.cut),
            join: Some(config.options.join),
            retry_timeout: Some(if waits { config.retry_timeout } else { Duration::ZERO }),
            thread_cache: Some(config.thread_cache.into()),
            alloc_conf: None,
        }
    }

    /// Sets the allocator for all memory.
    #[must_use]
    pub const fn with_allocator(mut self, allocator: AllocatorChoice) -> Self {
        self.allocator = Some(allocator);
        self.allocator_where_possible = false;
        self
    }

    /// Sets whether the pool grows.
    #[must_use]
    pub const fn with_allow_growth(mut self, allow: bool) -> Self {
        self.allow_growth = Some(allow);
        self
    }

    /// Returns the allocator for memory of this kind.
    pub(super) fn settled(self, kind: MemoryKind) -> Self {
        let impossible = |choice: AllocatorChoice| self.allocator_where_possible && !choice.serves(kind);
        let allocator =
            self.allocator.map(|choice| if impossible(choice) { AllocatorChoice::Bfc } else { choice });
        Self { allocator, allocator_where_possible: false, ..self }
    }

    /// Applies these options to the configuration of a pool, except the allocator, the limit and options of single
    /// policies.
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
            Some(CacheChoice::Off) => PoolConfig { thread_cache: None, ..config },
            None => config,
        }
    }

    /// Applies these options to the rules for cutting and joining chunks in a pool with this limit.
    #[must_use]
    pub fn cutting(&self, rules: BfcOptions, limit: Bytes) -> BfcOptions {
        let split = self.split.map_or(rules.split, |split| split.rule(limit));
        let (cut, join) = (self.cut.unwrap_or(rules.cut), self.join.unwrap_or(rules.join));
        BfcOptions { split, cut, join, ..rules }
    }

    /// Disables growth if a limit is set and no other option enables growth.
    pub(super) fn fixed_by_limit(self) -> Self {
        let grows = self.growth.is_some() || self.first_region.is_some();
        let fixed = self.limit.is_some() && !grows;
        Self { allow_growth: self.allow_growth.or(fixed.then_some(false)), ..self }
    }
}

impl fmt::Display for PoolOptions {
    /// One line: the limit and the other set options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |on: bool| if on { "with" } else { "without" };
        let growth = |rule| match rule {
            GrowthRule::Doubling { .. } => "regions doubling".to_owned(),
            GrowthRule::AsRequested { .. } => "regions as requested".to_owned(),
            GrowthRule::Fixed(bytes) => format!("regions of {bytes}"),
            GrowthRule::Proportional { parts, .. } => format!("regions of 1/{parts} of the pool"),
        };
        let options = [
            Some(self.limit.map_or("no limit".to_owned(), |limit| format!("limit {limit}"))),
            self.allow_growth.map(|allow| format!("{} growth", with(allow))),
            self.first_region.map(|bytes| format!("first region {bytes}")),
            self.growth.map(growth),
            self.region_merging.map(|merge| format!("{} region merging", with(merge))),
            self.garbage_collection.map(|collect| format!("{} garbage collection", with(collect))),
            self.split.map(|split| format!("split {split}")),
            self.cut.map(|cut| format!("cut {cut}")),
            self.join.map(|join| format!("join {join}")),
            self.retry_timeout.map(|timeout| format!("waits {} ms", timeout.as_millis())),
            self.thread_cache.map(|cache| format!("{} thread caches", with(cache != CacheChoice::Off))),
            self.allocator.map(|allocator| format!("allocator {allocator}")),
            self.alloc_conf.map(|settings| {
                let ignored = settings.without_effect().collect::<Vec<_>>().join(", ");
                let note = if ignored.is_empty() {
                    ignored
                } else {
                    format!(" (no effect on placement: {ignored})")
                };
                format!("alloc_conf {settings}{note}")
            }),
        ];
        f.write_str(&options.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::bfc::{CutRule, JoinRule};
    use crate::pool::ThreadCache;

    #[test]
    fn a_configuration_leaves_no_choice_but_the_allocator() {
        let config = BfcConfig::tensorflow(Bytes::gib(1)).with_retry(false).with_first_region(Bytes::mib(8));
        let options = PoolOptions::all_of(&config);
        let expected = PoolOptions {
            split: Some(SplitChoice::TENSORFLOW),
            cut: Some(CutRule::Low),
            join: Some(JoinRule::AtOnce),
            ..PoolOptions::default()
        };
        let expected = expected
            .with_limit(Bytes::gib(1))
            .with_allow_growth(true)
            .with_first_region(Bytes::mib(8))
            .with_growth(GrowthRule::DOUBLING)
            .with_region_merging(false)
            .with_garbage_collection(false)
            .with_retry_timeout(Duration::ZERO)
            .with_thread_cache(CacheChoice::Off);
        assert_eq!(options, expected);
        let cached = PoolOptions::all_of(&config.with_thread_cache(ThreadCache::new())).thread_cache;
        assert_eq!(cached, Some(CacheChoice::On(ThreadCache::new())));
    }
}
