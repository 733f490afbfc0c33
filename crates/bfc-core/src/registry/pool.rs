//! How the allocator of one memory is made when it is first used.

use std::fmt;
use std::sync::Arc;

use crate::allocator::Allocator;
use crate::bfc::{BfcAllocator, BfcConfig};
use crate::error::SourceError;
use crate::memory::MemoryKind;
use crate::sub_allocator::SubAllocator;
use crate::units::Bytes;
use crate::visitors::{Visited, Visitors};

/// What a user may choose of a device's pool. What is not chosen is left to the pool's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolOptions {
    /// The most that the pool may take.
    pub limit: Option<Bytes>,
    /// Whether it takes memory as it needs it, or the whole limit at once.
    pub allow_growth: Option<bool>,
}

impl PoolOptions {
    /// The same options with this limit.
    #[must_use]
    pub const fn with_limit(mut self, limit: Bytes) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The same options with or without growth.
    #[must_use]
    pub const fn with_allow_growth(mut self, allow: bool) -> Self {
        self.allow_growth = Some(allow);
        self
    }

    /// These options, and those of `defaults` where these leave the choice.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        Self {
            limit: self.limit.or(defaults.limit),
            allow_growth: self.allow_growth.or(defaults.allow_growth),
        }
    }
}

/// Options that came too late: the pool had been made with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IgnoredOptions {
    /// What was asked for.
    pub asked: PoolOptions,
    /// What the pool was made with.
    pub in_effect: PoolOptions,
}

impl IgnoredOptions {
    /// What of `asked` is not already so.
    pub(super) fn of(asked: PoolOptions, in_effect: PoolOptions) -> Option<Self> {
        (asked.or(in_effect) != in_effect).then_some(Self { asked, in_effect })
    }
}

impl fmt::Display for IgnoredOptions {
    /// One line, fit for a warning.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pool was made before, ")?;
        describe(f, self.in_effect)?;
        write!(f, "; ignored: ")?;
        describe(f, self.asked)
    }
}

fn describe(f: &mut fmt::Formatter<'_>, options: PoolOptions) -> fmt::Result {
    match options.limit {
        Some(limit) => write!(f, "limit {limit}")?,
        None => write!(f, "no limit")?,
    }
    match options.allow_growth {
        Some(true) => write!(f, ", with growth"),
        Some(false) => write!(f, ", without growth"),
        None => Ok(()),
    }
}

/// Makes a memory's allocator on its first use. A factory must not ask the registry that calls it for the same memory.
pub type PoolFactory =
    Box<dyn Fn(&PoolOptions, &Visitors) -> Result<Arc<dyn Allocator>, SourceError> + Send + Sync>;

/// What a device is registered with for one of its memories: the kind, and how the allocator will be made.
pub struct Pool {
    kind: MemoryKind,
    defaults: PoolOptions,
    factory: PoolFactory,
}

impl Pool {
    /// A [`BfcAllocator`] of this name over `source`, which behaves as `config` says where a user's options do not say
    /// otherwise. Visitors are told `index`: the NUMA node of host memory, the ordinal of a device.
    #[must_use]
    pub fn bfc(
        name: impl Into<String>,
        source: Arc<dyn SubAllocator>,
        index: usize,
        config: BfcConfig,
    ) -> Self {
        let name = name.into();
        let kind = source.memory_kind();
        let defaults = PoolOptions { limit: Some(config.limit()), allow_growth: Some(config.allow_growth()) };
        let make = move |options: &PoolOptions, visitors: &Visitors| {
            let source = Visited::new(Arc::clone(&source), index).with_visitors(visitors.clone());
            let mut config = config.clone();
            if let Some(limit) = options.limit {
                config = config.with_limit(limit);
            }
            if let Some(allow) = options.allow_growth {
                config = config.with_allow_growth(allow);
            }
            let pool: Arc<dyn Allocator> =
                Arc::new(BfcAllocator::new(name.clone(), Arc::new(source), config));
            Ok(pool)
        };
        Self::custom(kind, make).with_defaults(defaults)
    }

    /// An allocator of any sort, for memory of this kind. The factory shows the visitors the regions that it takes, best
    /// through a [`Visited`] source; an allocator that takes none has nothing to show.
    #[must_use]
    pub fn custom(
        kind: MemoryKind,
        factory: impl Fn(&PoolOptions, &Visitors) -> Result<Arc<dyn Allocator>, SourceError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { kind, defaults: PoolOptions::default(), factory: Box::new(factory) }
    }

    /// The same pool, made with these options where a user leaves the choice.
    #[must_use]
    pub fn with_defaults(self, defaults: PoolOptions) -> Self {
        Self { defaults: defaults.or(self.defaults), ..self }
    }

    /// What kind of memory the pool manages.
    #[must_use]
    pub const fn kind(&self) -> MemoryKind {
        self.kind
    }

    pub(super) const fn defaults(&self) -> PoolOptions {
        self.defaults
    }

    pub(super) fn make(
        &self,
        options: &PoolOptions,
        visitors: &Visitors,
    ) -> Result<Arc<dyn Allocator>, SourceError> {
        (self.factory)(options, visitors)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("kind", &self.kind)
            .field("defaults", &self.defaults)
            .finish_non_exhaustive()
    }
}
