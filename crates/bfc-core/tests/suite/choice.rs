//! Options choose a memory's allocator and its behavior.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bfc_core::sim::SimDevice;
use bfc_core::{
    AddressOnlyMemory, Allocator, AllocatorAttributes, AllocatorChoice, Amount, AutoGrowthAllocator,
    AutoGrowthOptions, BfcAllocator, BfcConfig, Bytes, CacheChoice, DeviceId, DeviceMemory, GrowthRule,
    GuardError, HostMemory, Lifetime, MemoryKind, Packing, PackingOptions, Pool, PoolError, PoolOptions,
    Registry, RegistryError, Request, SplitChoice, SubAllocator, ThreadCache,
};

use crate::common::scenario::policies;

/// A registry with one device whose memory is `source`, and the allocator that `options` make of it.
fn made_with(
    source: Arc<dyn SubAllocator>,
    config: BfcConfig,
    options: PoolOptions,
) -> Result<Arc<dyn Allocator>, RegistryError> {
    let registry = Registry::new();
    registry.register(DeviceId::CPU, [Pool::new("pool", source, 0, config)]).unwrap();
    registry
        .allocator(DeviceId::CPU, AllocatorAttributes::default(), Some(options))
        .map(|resolved| resolved.allocator)
}

fn bare(config: BfcConfig, options: PoolOptions) -> Arc<dyn Allocator> {
    made_with(Arc::new(AddressOnlyMemory::new()), config, options).unwrap()
}

fn choose(choice: AllocatorChoice) -> PoolOptions {
    PoolOptions::default().with_allocator(choice)
}

#[test]
fn options_choose_the_allocator() {
    let config = || BfcConfig::new(Bytes::mib(64));
    let granted = |choice, bytes| {
        let allocator = made_with(Arc::new(HostMemory::new()), config(), choose(choice)).unwrap();
        let block = allocator.allocate(&Request::new(bytes)).unwrap();
        // SAFETY: no code uses the block.
        unsafe { allocator.deallocate(block) }.unwrap();
        assert_eq!((allocator.name(), allocator.stats().bytes_limit), ("pool", Some(64 << 20)), "{choice}");
        (block.bytes, allocator.stats().bytes_reserved)
    };
    let first_region = 2 << 20;
    for choice in [AllocatorChoice::Bfc, AllocatorChoice::BfcTensorflow, AllocatorChoice::Packed] {
        assert_eq!(granted(choice, 1000), (1024, first_region));
    }
    assert_eq!(granted(AllocatorChoice::Guard, 1000), (1000, first_region));
    // Paddle's sizes for host memory: steps of 4 KiB, regions of a 32nd of the memory or of the request's
    // size.
    assert_eq!(granted(AllocatorChoice::Buddy, 1000), (4096, 2 << 20));
    assert_eq!(granted(AllocatorChoice::AutoGrowth, 1000), (4096, 4096));
    assert_eq!(granted(AllocatorChoice::Passthrough, 1000), (1000, 0));
}

#[test]
fn the_tensorflow_pool_splits_like_tensorflow() {
    let granted = |options| {
        let allocator = bare(BfcConfig::new(Bytes::mib(1)).with_allow_growth(false), options);
        allocator.allocate(&Request::new(700 << 10)).unwrap().bytes
    };
    // A rest of 324 KiB is less than the block and than 128 MiB.
    assert_eq!(granted(choose(AllocatorChoice::Bfc)), 700 << 10);
    assert_eq!(granted(choose(AllocatorChoice::BfcTensorflow)), 1 << 20);
    let with_split = |allocator, split| {
        let mut options = choose(allocator);
        options.split = Some(split);
        granted(options)
    };
    let fraction = SplitChoice::Twice("10%".parse().unwrap());
    assert_eq!(with_split(AllocatorChoice::BfcTensorflow, fraction), 700 << 10);
    assert_eq!(with_split(AllocatorChoice::Bfc, SplitChoice::TENSORFLOW), 1 << 20);
}

#[test]
fn every_option_reaches_the_pool() {
    let config = BfcConfig::new(Bytes::gib(1));
    let pool = bare(config.clone(), PoolOptions::default().with_first_region(Bytes::mib(8)));
    let block = pool.allocate(&Request::new(1)).unwrap();
    assert_eq!((pool.stats().bytes_reserved, block.bytes), (8 << 20, 256));

    let pool =
        bare(config.clone(), PoolOptions::default().with_limit(Bytes::mib(4)).with_allow_growth(false));
    pool.allocate(&Request::new(1)).unwrap();
    assert_eq!(pool.stats().bytes_reserved, 4 << 20);

    // Without collection the first region stays, and leaves too little below the limit.
    for (collect, fits) in [(true, true), (false, false)] {
        let options = PoolOptions::default()
            .with_limit(Bytes::mib(4))
            .with_allow_growth(true)
            .with_garbage_collection(collect)
            .with_region_merging(false)
            .with_retry_timeout(Duration::ZERO);
        let pool = bare(config.clone(), options);
        let block = pool.allocate(&Request::new(1 << 20)).unwrap();
        // SAFETY: the addresses have no memory behind them.
        unsafe { pool.deallocate(block) }.unwrap();
        assert_eq!(pool.allocate(&Request::new(4 << 20)).is_ok(), fits);
    }
}

#[test]
fn a_chosen_limit_is_one_region_unless_growth_is_chosen() {
    let limit = PoolOptions::default().with_limit(Bytes::mib(24));
    let reserved = |options: PoolOptions| {
        let pool = bare(BfcConfig::new(Bytes::gib(1)), options);
        pool.allocate(&Request::new(1)).unwrap();
        (pool.stats().bytes_reserved >> 20, pool.stats().regions)
    };
    assert_eq!(reserved(limit), (24, 1));
    assert_eq!(reserved(limit.with_growth(GrowthRule::DOUBLING)), (2, 1));
    assert_eq!(reserved(limit.with_first_region(Bytes::mib(8))), (8, 1));
    assert_eq!(reserved(limit.with_allow_growth(true)), (2, 1));
    assert_eq!(reserved(limit.with_growth(GrowthRule::DOUBLING).with_allow_growth(false)), (24, 1));
    assert_eq!(reserved(PoolOptions::default()), (2, 1), "the limit of the configuration is no choice");
    // The sizes of Paddle's regions are rules of the allocator.
    assert_eq!(reserved(limit.with_allocator(AllocatorChoice::AutoGrowth)).0, 0);

    // The options of a registration are user options, and its defaults are not.
    let registered = |change: fn(Pool, PoolOptions) -> Pool| {
        let registry = Registry::new();
        let source = Arc::new(AddressOnlyMemory::new());
        let pool = Pool::new("pool", source, 0, BfcConfig::new(Bytes::gib(1)));
        registry
            .register(DeviceId::CPU, [change(pool, PoolOptions::default().with_limit(Bytes::mib(24)))])
            .unwrap();
        let resolved = registry.allocator(DeviceId::CPU, AllocatorAttributes::default(), None).unwrap();
        resolved.allocator.allocate(&Request::new(1)).unwrap();
        let stats = resolved.allocator.stats();
        (stats.bytes_reserved >> 20, stats.bytes_limit)
    };
    assert_eq!(registered(Pool::with_options), (24, Some(24 << 20)));
    assert_eq!(registered(Pool::with_defaults), (2, Some(24 << 20)));
}

#[test]
fn a_pool_with_a_chosen_limit_serves_all_of_it() {
    let pool = bare(BfcConfig::new(Bytes::gib(1)), PoolOptions::default().with_limit(Bytes::mib(24)));
    let take = |mib: u64| pool.allocate(&Request::new(mib << 20)).unwrap();
    let blocks = [take(1), take(7), take(16)];
    assert_eq!(pool.stats().free_bytes(), 0);
    for block in &blocks[1..] {
        // SAFETY: the addresses have no memory behind them.
        unsafe { pool.deallocate(*block) }.unwrap();
    }
    assert_eq!(take(23).bytes, 23 << 20);
}

#[test]
fn thread_caches_are_made_and_left_out_as_chosen() {
    let with = BfcConfig::new(Bytes::mib(64)).with_thread_cache(ThreadCache::new());
    for (config, choice, cached) in [
        (BfcConfig::new(Bytes::mib(64)), None, false),
        (BfcConfig::new(Bytes::mib(64)), Some(CacheChoice::On(ThreadCache::new())), true),
        (with.clone(), None, true),
        (with, Some(CacheChoice::Off), false),
    ] {
        let options = PoolOptions::default();
        let pool = bare(config, choice.map_or(options, |choice| options.with_thread_cache(choice)));
        let [first, second] = [1, 1].map(|bytes| pool.allocate(&Request::new(bytes)).unwrap());
        // SAFETY: the addresses have no memory behind them.
        unsafe { pool.deallocate(first) }.unwrap();
        // A cached block is not joined to the free memory around it, so it does not add to the largest piece.
        // SAFETY: the addresses have no memory behind them.
        unsafe { pool.deallocate(second) }.unwrap();
        let stats = pool.stats();
        assert_eq!(stats.largest_free_block_bytes < stats.bytes_reserved, cached, "{choice:?}");
    }
}

#[test]
fn a_limit_may_be_a_share_of_a_memory_whose_size_is_known() {
    let half = PoolOptions::default().with_limit("50%".parse::<Amount>().unwrap());
    let config = || BfcConfig::new(Bytes::gib(1));
    let limit = |source: Arc<dyn SubAllocator>| {
        made_with(source, config(), half).map(|allocator| allocator.stats().bytes_limit)
    };
    let device = Arc::new(SimDevice::new(Bytes::mib(64)));
    assert_eq!(limit(Arc::new(DeviceMemory::new(device))), Ok(Some(32 << 20)));
    assert_eq!(limit(Arc::new(HostMemory::new().with_total(Bytes::gib(8)))), Ok(Some(4 << 30)));
    assert_eq!(limit(Arc::new(AddressOnlyMemory::new().with_total(Bytes::gib(8)))), Ok(Some(4 << 30)));
    let error = limit(Arc::new(HostMemory::new())).unwrap_err();
    assert!(matches!(&error, RegistryError::Pool { error: PoolError::UnknownTotal { .. }, .. }), "{error}");
}

#[test]
fn a_guard_over_unreadable_memory_is_a_typed_error() {
    let source = Arc::new(AddressOnlyMemory::new());
    let guard = made_with(source, BfcConfig::new(Bytes::mib(1)), choose(AllocatorChoice::Guard));
    let unreadable = GuardError { allocator: "pool".to_owned(), kind: MemoryKind::AddressOnly };
    let expected = RegistryError::Pool { device: "cpu:0".to_owned(), error: PoolError::Guard(unreadable) };
    assert_eq!(guard.unwrap_err(), expected);
}

#[test]
fn a_pool_with_a_packing_follows_it() {
    let step = [Lifetime { bytes: 1000, start: 0, end: 3 }, Lifetime { bytes: 3000, start: 1, end: 2 }];
    let packing = Arc::new(Packing::solve(&step, &PackingOptions::default()).unwrap());
    let made = |options| {
        let registry = Registry::new();
        let source = Arc::new(AddressOnlyMemory::new());
        let pool = Pool::packed("pool", source, 0, BfcConfig::new(Bytes::mib(1)), packing.clone());
        registry.register(DeviceId::CPU, [pool]).unwrap();
        let resolved = registry.allocator(DeviceId::CPU, AllocatorAttributes::default(), options).unwrap();
        format!("{:?}", resolved.allocator)
    };
    assert!(made(None).contains("PackedOptions"), "{}", made(None));
    assert!(!made(Some(choose(AllocatorChoice::Bfc))).contains("PackedOptions"));
}

/// The tests of all pools list a scenario for each policy.
#[test]
fn policies_and_scenarios_have_the_same_names() {
    let scenarios: BTreeSet<_> =
        policies().into_iter().filter_map(|(name, _)| name.split(',').next()).collect();
    let choices = AllocatorChoice::ALL.map(AllocatorChoice::name).into_iter();
    // These place nothing themselves.
    let choices: BTreeSet<_> = choices.filter(|name| !["guard", "passthrough"].contains(name)).collect();
    let missing: Vec<_> = choices.difference(&scenarios).collect();
    assert!(missing.is_empty(), "add rows of {missing:?} to `policies` in tests/common/scenario.rs");
    let unknown: Vec<_> = scenarios.difference(&choices).collect();
    assert!(unknown.is_empty(), "add rows of {unknown:?} to the list in src/registry/choice.rs");
}

/// A silently ignored counter could release memory that a device still uses.
#[test]
fn counted_frees_require_a_policy_that_supports_them() {
    for choice in AllocatorChoice::ALL {
        let config = BfcConfig::new(Bytes::mib(64)).with_timing_counter(Arc::default());
        let made = made_with(Arc::new(HostMemory::new()), config, choose(choice));
        let keeps = ["bfc", "bfc-tensorflow", "packed", "guard"].contains(&choice.name());
        match made {
            Ok(_) => assert!(keeps, "{choice}"),
            Err(RegistryError::Pool { error: PoolError::NoCounts { pool, allocator }, .. }) => {
                assert!(!keeps && (pool.as_str(), allocator) == ("pool", choice));
            }
            Err(other) => panic!("{other}"),
        }
    }
    let counted = BfcConfig::new(Bytes::mib(64)).with_timing_counter(Arc::default());
    let packing =
        Packing::solve(&[Lifetime { bytes: 1000, start: 0, end: 3 }], &PackingOptions::default()).unwrap();
    let registry = Registry::new();
    let pool = Pool::packed("pool", Arc::new(AddressOnlyMemory::new()), 0, counted, Arc::new(packing));
    registry.register(DeviceId::CPU, [pool]).unwrap();
    let packed = registry.allocator(DeviceId::CPU, AllocatorAttributes::default(), None);
    let error = packed.unwrap_err();
    assert!(matches!(&error, RegistryError::Pool { error: PoolError::NoCounts { .. }, .. }), "{error}");
}

/// The pool itself reports whether it counts.
#[test]
fn a_pool_says_whether_its_frees_are_counted() {
    let source = || Arc::new(AddressOnlyMemory::new());
    let counted = BfcConfig::new(Bytes::mib(64)).with_timing_counter(Arc::default());
    assert!(BfcAllocator::new("pool", source(), counted.clone()).timing_counter().is_some());
    let config = counted.with_policy(AutoGrowthOptions::cpu());
    assert!(AutoGrowthAllocator::new("pool", source(), config).timing_counter().is_none());
}
