//! Creates the allocator that a choice and its options describe.

use std::sync::Arc;
use std::time::Duration;

use super::options::PoolOptions;
use crate::allocator::Allocator;
use crate::base::amount::Amount;
use crate::base::memory::MemoryKind;
use crate::base::printable::printable;
use crate::base::units::Bytes;
use crate::plan::Plan;
use crate::policy::GRANULE;
use crate::policy::auto_growth::AutoGrowthOptions;
use crate::policy::buddy::BuddyOptions;
use crate::policy::planned::PlannedOptions;
use crate::pool::AutoGrowthAllocator;
use crate::pool::BuddyAllocator;
use crate::pool::PlannedAllocator;
use crate::pool::limit::RegionLimit;
use crate::pool::{BfcAllocator, BfcConfig};
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
    /// The options set a timing counter, but the chosen allocator does not support counts.
    #[error(
        "{pool}: {allocator} does not keep frees apart by a timing counter: choose bfc, or leave the counter out", pool = printable(pool)
    )]
    NoCounts {
        /// The pool's name.
        pool: String,
        /// The chosen allocator.
        allocator: AllocatorChoice,
    },
    /// The limit is a share of a memory of unknown size.
    #[error(
        "{pool}: a limit of {limit} of the device's memory, but nobody knows how much it has: give it in bytes", pool = printable(pool)
    )]
    UnknownTotal {
        /// The pool's name.
        pool: String,
        /// The requested share.
        limit: Amount,
    },
}

debug_as_message!(PoolError);

/// Creates the allocator that `options` choose; `config` supplies the other settings.
pub(super) fn allocator(
    name: String,
    source: Arc<dyn SubAllocator>,
    config: &BfcConfig,
    plan: Option<&Arc<Plan>>,
    options: &PoolOptions,
) -> Result<Arc<dyn Allocator>, PoolError> {
    let config = configured(&name, &*source, config, options)?;
    let choice = options.allocator.unwrap_or_default();
    RegionLimit::new(config.limit, &*source).check(smallest_region(choice))?;
    if config.timing_counter.is_some() && !keeps_counts(choice, plan.is_some()) {
        return Err(PoolError::NoCounts { pool: name, allocator: choice });
    }
    Ok(match (choice, plan) {
        (AllocatorChoice::Planned, Some(plan)) => {
            // The plan's range is contiguous, so a growing pool starts with it unless configured otherwise.
            let first = config.first_region.max(Bytes(plan.capacity()));
            let config = config.with_first_region(options.first_region.unwrap_or(first));
            let options = PlannedOptions::new(Arc::clone(plan), config.options);
            Arc::new(PlannedAllocator::new(name, source, config.with_policy(options)))
        }
        // Without a plan the fallback serves every request.
        (AllocatorChoice::Bfc | AllocatorChoice::BfcTensorflow | AllocatorChoice::Planned, _) => {
            Arc::new(BfcAllocator::new(name, source, config))
        }
        (AllocatorChoice::Guard, _) => {
            let pool = Arc::new(BfcAllocator::new(name, source, config));
            Arc::new(GuardAllocator::new(pool, GuardConfig::default())?)
        }
        (AllocatorChoice::Passthrough, _) => {
            let timeout = if config.retry { config.retry_timeout } else { Duration::ZERO };
            let mut passthrough =
                PassthroughAllocator::new(name, source).with_limit(config.limit).with_retry_timeout(timeout);
            if let Some(origin) = config.limit_origin {
                passthrough = passthrough.with_limit_origin(origin);
            }
            Arc::new(passthrough)
        }
        (AllocatorChoice::Buddy, _) => {
            let options = buddy_options(source.memory_kind(), config.limit);
            Arc::new(BuddyAllocator::new(name, source, config.with_policy(options)))
        }
        (AllocatorChoice::AutoGrowth, _) => {
            let options = auto_growth_options(source.memory_kind());
            Arc::new(AutoGrowthAllocator::new(name, source, config.with_policy(options)))
        }
    })
}

/// The smallest region of an allocator. A passthrough takes regions of any size.
const fn smallest_region(choice: AllocatorChoice) -> u64 {
    if matches!(choice, AllocatorChoice::Passthrough) { 1 } else { GRANULE }
}

/// Whether an allocator keeps freed memory apart until its count has passed.
const fn keeps_counts(choice: AllocatorChoice, has_plan: bool) -> bool {
    match choice {
        AllocatorChoice::Bfc | AllocatorChoice::BfcTensorflow | AllocatorChoice::Guard => true,
        AllocatorChoice::Planned => !has_plan,
        AllocatorChoice::Buddy | AllocatorChoice::AutoGrowth | AllocatorChoice::Passthrough => false,
    }
}

/// Returns upstream's sizes for a kind of memory of which only the pool's limit is known. Addresses without memory use
/// those of host memory, so that a dry run places as the real one.
fn buddy_options(kind: MemoryKind, limit: Bytes) -> BuddyOptions {
    match kind {
        MemoryKind::Device => BuddyOptions::gpu(limit),
        MemoryKind::PinnedHost => BuddyOptions::pinned(limit),
        MemoryKind::Host | MemoryKind::LentHost | MemoryKind::AddressOnly => BuddyOptions::cpu(limit),
    }
}

/// Returns upstream's sizes for a kind of memory.
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
    if options.allocator == Some(AllocatorChoice::BfcTensorflow) {
        // Sets all rules to TensorFlow's. Individual options still override them.
        let tensorflow = BfcConfig::tensorflow(config.limit);
        config = config
            .with_policy(tensorflow.options)
            .with_growth(tensorflow.growth)
            .with_region_merging(tensorflow.region_merging)
            .with_garbage_collection(tensorflow.garbage_collection);
    }
    if let Some(limit) = options.limit {
        let limit = limit_in_bytes(name, source, limit)?;
        // Without a chosen limit the options repeat the configuration's own, which keeps its origin.
        if limit != config.limit {
            config = config.with_limit(limit);
        }
    }
    let config = options.configure(config);
    let rules = options.cutting(config.options, config.limit);
    Ok(config.with_policy(rules))
}

/// Computes the limit. A share refers to the total memory; a reserve is subtracted from the free memory, as upstream.
fn limit_in_bytes(name: &str, source: &dyn SubAllocator, limit: Amount) -> Result<Bytes, PoolError> {
    let whole = match limit {
        Amount::Bytes(bytes) => return Ok(bytes),
        Amount::Share(_) => source.total_bytes(),
        Amount::AllBut(_) => source.available_bytes().or_else(|| source.total_bytes()),
    };
    let unknown = || PoolError::UnknownTotal { pool: name.to_owned(), limit };
    whole.map(|whole| limit.of(Bytes(whole))).ok_or_else(unknown)
}
