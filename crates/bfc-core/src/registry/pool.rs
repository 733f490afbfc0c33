//! Factories that create the allocator of one memory on first use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::build::{self, PoolError};
use super::device::device_source;
use super::setting::PoolOptions;
use crate::allocator::Allocator;
use crate::base::memory::MemoryKind;
use crate::packing::Packing;
use crate::pool::BfcConfig;
use crate::registry::choice::AllocatorChoice;
use crate::source::error::SourceError;
use crate::source::stream::Stream;
use crate::source::sub_allocator::SubAllocator;
use crate::source::visitors::{VisitedMemory, Visitors};
use crate::streams::StreamAllocator;

/// Options that have no effect, because the pool was created with different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IgnoredOptions {
    /// The requested options.
    pub asked: PoolOptions,
    /// The options that the pool was created with.
    pub in_effect: PoolOptions,
}

impl IgnoredOptions {
    /// Returns the options if `asked` sets one that is not in effect.
    pub(super) fn of(asked: PoolOptions, in_effect: PoolOptions) -> Option<Self> {
        (asked.or(in_effect) != in_effect).then_some(Self { asked, in_effect })
    }
}

impl fmt::Display for IgnoredOptions {
    /// One line for a warning.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pool was made before, {}; ignored: {}", self.in_effect, self.asked)
    }
}

/// Creates a memory's allocator on first use, without a lock. A factory may use the registry that calls it; requesting
/// the memory that it creates fails with [`RegistryError::Reentrant`](crate::RegistryError::Reentrant). Two factories
/// must not request each other's memory: their threads would deadlock.
pub type PoolFactory =
    Box<dyn Fn(&PoolOptions, &Visitors) -> Result<Arc<dyn Allocator>, PoolError> + Send + Sync>;

/// The registration of one memory of a device: its kind, and the factory of its allocator.
pub struct Pool {
    kind: MemoryKind,
    /// The user's options.
    options: PoolOptions,
    /// The pool's own options, below those of the user.
    defaults: PoolOptions,
    factory: PoolFactory,
}

impl Pool {
    /// Registers an allocator with this name over `source`. User options choose it; the default is a
    /// [`BfcAllocator`](crate::BfcAllocator). `config` applies where the options are unset. Visitors receive `index`:
    /// the NUMA node of host memory, or the ordinal of a device.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        source: Arc<dyn SubAllocator>,
        index: usize,
        config: BfcConfig,
    ) -> Self {
        Self::built(name.into(), source, index, config, None)
    }

    /// As [`new`](Self::new), with a packing. The default is then the [packed](crate::AllocatorChoice::Packed)
    /// allocator, which follows it.
    #[must_use]
    pub fn packed(
        name: impl Into<String>,
        source: Arc<dyn SubAllocator>,
        index: usize,
        config: BfcConfig,
        packing: Arc<Packing>,
    ) -> Self {
        Self::built(name.into(), source, index, config, Some(packing)).with_defaults(following_a_packing())
    }

    fn built(
        name: String,
        source: Arc<dyn SubAllocator>,
        index: usize,
        config: BfcConfig,
        packing: Option<Arc<Packing>>,
    ) -> Self {
        let kind = source.memory_kind();
        let defaults = defaults(&config);
        let make = move |options: &PoolOptions, visitors: &Visitors| {
            let source = VisitedMemory::new(Arc::clone(&source), index, visitors.clone());
            build::allocator(name.clone(), Arc::new(source), &config, packing.as_ref(), options)
        };
        Self { kind, options: PoolOptions::default(), defaults, factory: Box::new(make) }
    }

    /// Registers an allocator over device memory that belongs to the stream `compute`, and that other streams may use:
    /// see [`StreamAllocator`]. The source is created with the allocator, because it may query the device. With a packing,
    /// the default is the [packed](crate::AllocatorChoice::Packed) allocator.
    #[must_use]
    pub fn streamed(
        name: impl Into<String>,
        compute: Arc<Stream>,
        index: usize,
        config: BfcConfig,
        packing: Option<Arc<Packing>>,
    ) -> Self {
        let (name, mut defaults) = (name.into(), defaults(&config));
        if packing.is_some() {
            defaults = following_a_packing().or(defaults);
        }
        let make = move |options: &PoolOptions, visitors: &Visitors| {
            let source = VisitedMemory::new(device_source(compute.driver())?, index, visitors.clone());
            let own = if config.retry { config.retry_timeout } else { Duration::ZERO };
            let pool = build::allocator(name.clone(), Arc::new(source), &config, packing.as_ref(), options)?;
            let pool = StreamAllocator::new(pool, Arc::clone(&compute));
            Ok(Arc::new(pool.with_retry_timeout(options.retry_timeout.unwrap_or(own))) as Arc<dyn Allocator>)
        };
        let options = PoolOptions::default();
        Self { kind: MemoryKind::Device, options, defaults, factory: Box::new(make) }
    }

    /// Registers any allocator for memory of this kind. The factory shows its regions to the visitors, preferably
    /// through a [`VisitedMemory`] source. An allocator without regions ignores them.
    #[must_use]
    pub fn custom(
        kind: MemoryKind,
        factory: impl Fn(&PoolOptions, &Visitors) -> Result<Arc<dyn Allocator>, SourceError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let factory = move |options: &PoolOptions, visitors: &Visitors| Ok(factory(options, visitors)?);
        let (options, defaults) = (PoolOptions::default(), PoolOptions::default());
        Self { kind, options, defaults, factory: Box::new(factory) }
    }

    /// Sets user options. Those of the first caller take precedence. A limit among them is fixed: see
    /// [`PoolOptions::limit`].
    #[must_use]
    pub fn with_options(self, options: PoolOptions) -> Self {
        Self { options: options.or(self.options), ..self }
    }

    /// Sets the options of the pool where the user's are unset. A limit among them bounds the growth of the pool.
    #[must_use]
    pub fn with_defaults(self, defaults: PoolOptions) -> Self {
        Self { defaults: defaults.or(self.defaults), ..self }
    }

    /// Returns the kind of memory.
    #[must_use]
    pub const fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Returns all options of the allocator that a first caller with these options creates.
    pub(super) fn settled(&self, asked: Option<PoolOptions>) -> PoolOptions {
        let chosen = asked.unwrap_or_default().or(self.options);
        chosen.fixed_by_limit().or(self.defaults).settled(self.kind)
    }

    pub(super) fn make(
        &self,
        options: &PoolOptions,
        visitors: &Visitors,
    ) -> Result<Arc<dyn Allocator>, PoolError> {
        (self.factory)(options, visitors)
    }
}

fn following_a_packing() -> PoolOptions {
    PoolOptions::default().with_allocator(AllocatorChoice::Packed)
}

/// Returns the general options of a configuration.
fn defaults(config: &BfcConfig) -> PoolOptions {
    PoolOptions {
        limit: Some(config.limit.into()),
        allow_growth: Some(config.allow_growth),
        ..PoolOptions::default()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("kind", &self.kind)
            .field("options", &self.options)
            .field("defaults", &self.defaults)
            .finish_non_exhaustive()
    }
}
