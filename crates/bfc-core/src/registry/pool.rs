//! How the allocator of one memory is made when it is first used.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::build::{self, PoolError};
use super::device::DeviceSource;
use super::options::PoolOptions;
use crate::allocator::Allocator;
use crate::base::memory::MemoryKind;
use crate::plan::Plan;
use crate::pool::BfcConfig;
use crate::registry::choice::AllocatorChoice;
use crate::source::error::SourceError;
use crate::source::stream::Stream;
use crate::source::sub_allocator::SubAllocator;
use crate::source::visitors::{Visited, Visitors};
use crate::streams::StreamAllocator;

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
        write!(f, "the pool was made before, {}; ignored: {}", self.in_effect, self.asked)
    }
}

/// Makes a memory's allocator on its first use, without a lock. A factory may use the registry that calls it; asking for the memory
/// that it is making is [`RegistryError::Reentrant`](crate::RegistryError::Reentrant). Two factories must not ask for each other's
/// memory: on two threads each would wait for the other.
pub type PoolFactory =
    Box<dyn Fn(&PoolOptions, &Visitors) -> Result<Arc<dyn Allocator>, PoolError> + Send + Sync>;

/// What a device is registered with for one of its memories: the kind, and how the allocator will be made.
pub struct Pool {
    kind: MemoryKind,
    defaults: PoolOptions,
    factory: PoolFactory,
}

impl Pool {
    /// An allocator of this name over `source`: the one that a user's options choose, by default a
    /// [`BfcAllocator`](crate::BfcAllocator), which behaves as `config` says where the options do not say otherwise.
    /// Visitors are told `index`: the NUMA node of host memory, the ordinal of a device.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        source: Arc<dyn SubAllocator>,
        index: usize,
        config: BfcConfig,
    ) -> Self {
        Self::built(name.into(), source, index, config, None)
    }

    /// As [`new`](Self::new), with a plan that the [planned](crate::AllocatorChoice::Planned) allocator follows, which is
    /// the one chosen by default.
    #[must_use]
    pub fn planned(
        name: impl Into<String>,
        source: Arc<dyn SubAllocator>,
        index: usize,
        config: BfcConfig,
        plan: Arc<Plan>,
    ) -> Self {
        Self::built(name.into(), source, index, config, Some(plan)).with_defaults(following_a_plan())
    }

    fn built(
        name: String,
        source: Arc<dyn SubAllocator>,
        index: usize,
        config: BfcConfig,
        plan: Option<Arc<Plan>>,
    ) -> Self {
        let kind = source.memory_kind();
        let defaults = defaults(&config);
        let make = move |options: &PoolOptions, visitors: &Visitors| {
            let source = Visited::new(Arc::clone(&source), index).with_visitors(visitors.clone());
            build::allocator(name.clone(), Arc::new(source), &config, plan.as_ref(), options)
        };
        Self { kind, defaults, factory: Box::new(make) }
    }

    /// An allocator of this name over a device's memory, which belongs to the stream `compute` and may be used on others:
    /// see [`StreamAllocator`]. The source is made when the allocator is, since a device may have to be asked for it. With a
    /// plan, the [planned](crate::AllocatorChoice::Planned) allocator is the one chosen by default.
    #[must_use]
    pub fn streamed(
        name: impl Into<String>,
        compute: Arc<Stream>,
        source: DeviceSource,
        index: usize,
        config: BfcConfig,
        plan: Option<Arc<Plan>>,
    ) -> Self {
        let (name, mut defaults) = (name.into(), defaults(&config));
        if plan.is_some() {
            defaults = following_a_plan().or(defaults);
        }
        let make = move |options: &PoolOptions, visitors: &Visitors| {
            let source = source.open(compute.driver())?;
            let source = Visited::new(source, index).with_visitors(visitors.clone());
            let own = if config.retry() { config.retry_timeout() } else { Duration::ZERO };
            let pool = build::allocator(name.clone(), Arc::new(source), &config, plan.as_ref(), options)?;
            let mut pool = StreamAllocator::new(pool, Arc::clone(&compute));
            // Frees that wait for a frontier are no thread's that waits.
            if let Some(time) = config.stalemate_after().filter(|_| config.timing_counter().is_none()) {
                pool = pool.with_stalemate_after(time);
            }
            Ok(Arc::new(pool.with_retry_timeout(options.retry_timeout.unwrap_or(own))) as Arc<dyn Allocator>)
        };
        Self { kind: MemoryKind::Device, defaults, factory: Box::new(make) }
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
        let factory = move |options: &PoolOptions, visitors: &Visitors| Ok(factory(options, visitors)?);
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
    ) -> Result<Arc<dyn Allocator>, PoolError> {
        (self.factory)(options, visitors)
    }
}

fn following_a_plan() -> PoolOptions {
    PoolOptions::default().with_allocator(AllocatorChoice::Planned)
}

/// What a configuration says of the options that everybody may ask for.
fn defaults(config: &BfcConfig) -> PoolOptions {
    PoolOptions {
        limit: Some(config.limit().into()),
        allow_growth: Some(config.allow_growth()),
        ..PoolOptions::default()
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
