//! Creates the allocator that a choice and its options describe. `choice.rs` lists the constructors.

use std::sync::Arc;
use std::time::Duration;

use super::setting::PoolOptions;
use crate::allocator::Allocator;
use crate::base::amount::Amount;
use crate::base::memory::MemoryKind;
use crate::base::printable::printable;
use crate::base::units::Bytes;
use crate::packing::Packing;
use crate::policy::ConfiguredPolicy;
use crate::policy::auto_growth::{AutoGrowth, AutoGrowthOptions};
use crate::policy::bfc::Bfc;
use crate::policy::buddy::{Buddy, BuddyOptions};
use crate::policy::packed::{Packed, PackedOptions};
use crate::policy::pytorch::{Pytorch, PytorchOptions};
use crate::pool::limit::RegionLimit;
use crate::pool::{BfcConfig, PolicyAllocator};
use crate::registry::choice::AllocatorChoice;
use crate::source::error::SourceError;
use crate::source::sub_allocator::SubAllocator;
use crate::wrappers::guard::{GuardAllocator, GuardConfig, GuardError};
use crate::wrappers::passthrough::PassthroughAllocator;

/// An error of creating a pool from its options.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The source of memory failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The memory cannot be guarded.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The options set a timing counter, but the chosen allocator does not support one.
    #[error(
        "{pool}: {allocator} does not support a timing counter, which delays the reuse of freed memory: choose bfc, or remove the counter", pool = printable(pool)
    )]
    NoCounts {
        /// The pool's name.
        pool: String,
        /// The chosen allocator.
        allocator: AllocatorChoice,
    },
    /// The options set `alloc_conf`, but the chosen allocator is not PyTorch's.
    #[error(
        "{pool}: alloc_conf has no effect on {allocator}: choose pytorch, or remove alloc_conf", pool = printable(pool)
    )]
    NoAllocConf {
        /// The pool's name.
        pool: String,
        /// The chosen allocator.
        allocator: AllocatorChoice,
    },
    /// The limit is relative to the size of the memory, but the source does not report its size.
    #[error(
        "{pool}: the limit {limit} is relative to the size of the memory, which is unknown: set the limit in bytes, such as 2GiB", pool = printable(pool)
    )]
    UnknownTotal {
        /// The pool's name.
        pool: String,
        /// The requested limit.
        limit: Amount,
    },
}

debug_as_message!(PoolError);

/// An allocator, or the reason why it cannot be created.
pub(super) type Made = Result<Arc<dyn Allocator>, PoolError>;

/// The parts of an allocator.
pub(super) struct Parts<'a> {
    pub(super) name: String,
    pub(super) source: Arc<dyn SubAllocator>,
    pub(super) config: BfcConfig,
    pub(super) packing: Option<&'a Arc<Packing>>,
    /// The size of the first region, if options set it.
    pub(super) first_region: Option<Bytes>,
    /// The settings of PyTorch's allocator.
    pub(super) alloc_conf: PytorchOptions,
}

impl Parts<'_> {
    /// Creates a pool with this policy.
    pub(super) fn pool<P: ConfiguredPolicy>(self, options: P::Options) -> Made {
        Ok(Arc::new(PolicyAllocator::<P>::new(self.name, self.source, self.config.with_policy(options))))
    }

    pub(super) fn no_counts(self, allocator: AllocatorChoice) -> PoolError {
        PoolError::NoCounts { pool: self.name, allocator }
    }
}

/// Creates the allocator that `options` choose; `config` supplies the other settings.
pub(super) fn allocator(
    name: String,
    source: Arc<dyn SubAllocator>,
    config: &BfcConfig,
    packing: Option<&Arc<Packing>>,
    options: &PoolOptions,
) -> Made {
    let config = configured(&name, &*source, config, options)?;
    let choice = options.allocator.unwrap_or_default();
    RegionLimit::new(config.limit, &*source).check(choice.row().smallest_region)?;
    let alloc_conf = match options.alloc_conf {
        Some(_) if choice != AllocatorChoice::Pytorch => {
            return Err(PoolError::NoAllocConf { pool: name, allocator: choice });
        }
        alloc_conf => alloc_conf.unwrap_or_default(),
    };
    choice.make(Parts { name, source, config, packing, first_region: options.first_region, alloc_conf })
}

pub(super) fn bfc(parts: Parts<'_>) -> Made {
    let rules = parts.config.options;
    parts.pool::<Bfc>(rules)
}

pub(super) fn buddy(parts: Parts<'_>) -> Made {
    let options = buddy_options(parts.source.memory_kind(), parts.config.limit);
    parts.pool::<Buddy>(options)
}

pub(super) fn auto_growth(parts: Parts<'_>) -> Made {
    let options = auto_growth_options(parts.source.memory_kind());
    parts.pool::<AutoGrowth>(options)
}

pub(super) fn pytorch(parts: Parts<'_>) -> Made {
    let config = parts.config.with_pytorch(parts.alloc_conf);
    Ok(Arc::new(PolicyAllocator::<Pytorch>::new(parts.name, parts.source, config)))
}

/// Creates the packed allocator; without a packing, plain best fit with coalescing.
pub(super) fn packed(mut parts: Parts<'_>) -> Made {
    let Some(packing) = parts.packing.cloned() else { return bfc(parts) };
    if parts.config.timing_counter.is_some() {
        return Err(parts.no_counts(AllocatorChoice::Packed));
    }
    // The packing's range is contiguous, so a growing pool starts with it unless configured otherwise.
    let first = parts.config.first_region.max(Bytes(packing.capacity()));
    parts.config = parts.config.with_first_region(parts.first_region.unwrap_or(first));
    let options = PackedOptions::new(packing, parts.config.options);
    parts.pool::<Packed<Bfc>>(options)
}

pub(super) fn guard(parts: Parts<'_>) -> Made {
    Ok(Arc::new(GuardAllocator::new(bfc(parts)?, GuardConfig::default())?))
}

pub(super) fn passthrough(parts: Parts<'_>) -> Made {
    let Parts { name, source, config, .. } = parts;
    let timeout = if config.retry { config.retry_timeout } else { Duration::ZERO };
    let mut passthrough =
        PassthroughAllocator::new(name, source).with_limit(config.limit).with_retry_timeout(timeout);
    if let Some(origin) = config.limit_origin {
        passthrough = passthrough.with_limit_origin(origin);
    }
    Ok(Arc::new(passthrough))
}

/// Returns Paddle's sizes for a kind of memory. The limit of the pool replaces the size of the memory. Addresses without
/// memory use the sizes of host memory, so that a dry run places blocks at the same offsets as a real run.
fn buddy_options(kind: MemoryKind, limit: Bytes) -> BuddyOptions {
    match kind {
        MemoryKind::Device => BuddyOptions::gpu(limit),
        MemoryKind::PinnedHost => BuddyOptions::pinned(limit),
        MemoryKind::Host | MemoryKind::LentHost | MemoryKind::AddressOnly => BuddyOptions::cpu(limit),
    }
}

/// Returns Paddle's sizes for a kind of memory.
const fn auto_growth_options(kind: MemoryKind) -> AutoGrowthOptions {
    match kind {
        MemoryKind::Device => AutoGrowthOptions::gpu(),
        MemoryKind::PinnedHost => AutoGrowthOptions::pinned(),
        MemoryKind::Host | MemoryKind::LentHost | MemoryKind::AddressOnly => AutoGrowthOptions::cpu(),
    }
}

/// Applies the options to the configuration.
fn configured(
    name: &str,
    source: &dyn SubAllocator,
    config: &BfcConfig,
    options: &PoolOptions,
) -> Result<BfcConfig, PoolError> {
    let mut config = config.clone();
    // Sets all rules of the choice, such as TensorFlow's. Individual options still override them.
    if let Some(rules) = options.allocator.and_then(|choice| choice.rules(config.limit)) {
        config = config
            .with_policy(rules.options)
            .with_growth(rules.growth)
            .with_region_merging(rules.region_merging)
            .with_garbage_collection(rules.garbage_collection);
    }
    if let Some(limit) = options.limit {
        let limit = limit_in_bytes(name, source, limit)?;
        // An equal limit is the configuration's own, and its origin must be kept.
        if limit != config.limit {
            config = config.with_limit(limit);
        }
    }
    let config = options.configure(config);
    let rules = options.cutting(config.options, config.limit);
    Ok(config.with_policy(rules))
}

/// Computes the limit. A share refers to the total memory. A reserve is subtracted from the free memory, as in TensorFlow.
fn limit_in_bytes(name: &str, source: &dyn SubAllocator, limit: Amount) -> Result<Bytes, PoolError> {
    let whole = match limit {
        Amount::Bytes(bytes) => return Ok(bytes),
        Amount::Share(_) => source.total_bytes(),
        Amount::AllBut(_) => source.available_bytes().or_else(|| source.total_bytes()),
    };
    let unknown = || PoolError::UnknownTotal { pool: name.to_owned(), limit };
    whole.map(|whole| limit.of(Bytes(whole))).ok_or_else(unknown)
}
