//! A limit is an upper bound of the bytes that an allocator reserves, for each source, allocator and growth rule.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bfc_core::sim::{GRANULARITY, SimDevice};
use bfc_core::{
    AddressOnlyMemory, AddressSpace, AllocError, Allocator, AllocatorAttributes, AllocatorChoice, Amount,
    BfcAllocator, BfcConfig, Block, Bytes, CacheChoice, DeviceId, DeviceKind, DeviceMemory, Driver,
    GrowthRule, HostMemory, KIB, Lifetime, MIB, MemoryKind, Packing, PackingOptions, PassthroughAllocator,
    PinnedMemory, Pool, PoolOptions, Registry, RegistryError, Request, SourceError, Span, SubAllocator,
    ThreadCache, VirtualMemory,
};

use crate::common::source::{FakeSource, Nature};

/// Limits around the regions of a GPU, and odd ones.
const LIMITS: &[u64] = &[
    100 * KIB,
    MIB,
    GRANULARITY - 1,
    GRANULARITY,
    GRANULARITY + 1,
    3 * MIB,
    5 * MIB,
    7169 * KIB,
    65 * MIB + 1,
];

/// A source that counts the bytes of its live regions.
#[derive(Debug)]
struct Metered {
    source: Arc<dyn SubAllocator>,
    /// The bytes now, and the most so far.
    live: Mutex<(u64, u64)>,
}

impl Metered {
    fn new(source: Arc<dyn SubAllocator>) -> Arc<Self> {
        Arc::new(Self { source, live: Mutex::default() })
    }

    fn live(&self) -> (u64, u64) {
        *self.live.lock().unwrap()
    }
}

// SAFETY: every region comes unchanged from `source`.
unsafe impl SubAllocator for Metered {
    fn memory_kind(&self) -> MemoryKind {
        self.source.memory_kind()
    }
    fn address_space(&self) -> Option<AddressSpace> {
        self.source.address_space()
    }
    fn granularity(&self) -> u64 {
        self.source.granularity()
    }
    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        let region = self.source.allocate(alignment, bytes)?;
        let live = &mut *self.live.lock().unwrap();
        live.0 += region.bytes;
        live.1 = live.1.max(live.0);
        Ok(region)
    }
    unsafe fn free(&self, region: Span) {
        self.live.lock().unwrap().0 -= region.bytes;
        // SAFETY: as our caller promises.
        unsafe { self.source.free(region) }
    }
    fn total_bytes(&self) -> Option<u64> {
        self.source.total_bytes()
    }
    fn available_bytes(&self) -> Option<u64> {
        self.source.available_bytes()
    }
    fn boundary_in(&self, tail: Span) -> Option<u64> {
        self.source.boundary_in(tail)
    }
    fn supports_coalescing(&self) -> bool {
        self.source.supports_coalescing()
    }
}

/// A source that rounds sizes up and does not state it.
#[derive(Debug, Default)]
struct Silent(AddressOnlyMemory);

// SAFETY: every region comes from `AddressOnlyMemory`.
unsafe impl SubAllocator for Silent {
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::AddressOnly
    }
    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        self.0.allocate(alignment, bytes.next_multiple_of(64 * KIB))
    }
    unsafe fn free(&self, region: Span) {
        // SAFETY: as our caller promises.
        unsafe { self.0.free(region) }
    }
}

fn device() -> Arc<SimDevice> {
    Arc::new(SimDevice::new(Bytes::gib(1)))
}

/// Sources, and whether each delivers exactly the multiple of its granularity.
fn sources() -> Vec<(&'static str, bool, Arc<dyn SubAllocator>)> {
    let surplus = Nature { extra: 1000, ..Nature::default() };
    vec![
        ("host memory", true, Arc::new(HostMemory::new())),
        ("addresses", true, Arc::new(AddressOnlyMemory::new())),
        ("adjacent addresses", true, Arc::new(AddressOnlyMemory::new().with_coalescing(true))),
        ("device memory", true, Arc::new(DeviceMemory::new(device()))),
        ("pinned memory", true, Arc::new(PinnedMemory::new(device()))),
        ("virtual memory", true, Arc::new(VirtualMemory::new(device()).unwrap())),
        ("a surplus", false, FakeSource::new(surplus)),
        ("silent rounding", false, Arc::new(Silent::default())),
    ]
}

/// One region, every growth rule, and caches.
fn growths() -> Vec<PoolOptions> {
    let fixed = PoolOptions::default().with_retry_timeout(Duration::ZERO);
    let growing = fixed.with_allow_growth(true);
    vec![
        fixed,
        fixed.with_thread_cache(CacheChoice::On(ThreadCache::new())),
        growing,
        growing.with_thread_cache(CacheChoice::On(ThreadCache::new())),
        growing.with_growth(GrowthRule::DOUBLING),
        growing.with_growth(GrowthRule::Doubling { cap: Bytes(3 * MIB) }),
        growing.with_growth(GrowthRule::AsRequested { granule: Bytes(0) }),
        growing.with_growth(GrowthRule::AsRequested { granule: Bytes(3 * MIB) }),
        growing.with_growth(GrowthRule::Fixed(Bytes(5 * MIB))),
        growing.with_growth(GrowthRule::Proportional { parts: 1, granule: Bytes(2 * MIB) }),
        growing.with_first_region(Bytes(3 * MIB + 1)).with_region_merging(false),
        growing.with_garbage_collection(false),
    ]
}

/// A pool of the registry that follows a packing if `allocator` does.
fn make(source: Arc<dyn SubAllocator>, options: PoolOptions) -> Result<Arc<dyn Allocator>, RegistryError> {
    let kind = source.memory_kind();
    let config = BfcConfig::new(Bytes::gib(1));
    let pool = if options.allocator == Some(AllocatorChoice::Packed) {
        let step = [40_000, 9000].map(|bytes| Lifetime { bytes, start: 0, end: 1 });
        let packing = Packing::solve(&step, &PackingOptions::default()).unwrap();
        Pool::packed("pool", source, 0, config, Arc::new(packing))
    } else {
        Pool::new("pool", source, 0, config)
    };
    let (registry, id) = (Registry::new(), DeviceId::new(DeviceKind::Sim, 0));
    registry.register(id, [pool])?;
    let is_pinned = kind == MemoryKind::PinnedHost;
    let attributes = AllocatorAttributes::default().with_on_host(is_pinned).with_gpu_compatible(is_pinned);
    registry.allocator(id, attributes, Some(options)).map(|made| made.allocator)
}

/// Fills an allocator with blocks of several sizes and alignments, frees every second one, and fills it again. Calls
/// `check` after each request. Returns the blocks.
fn fill(allocator: &dyn Allocator, limit: u64, check: &dyn Fn()) -> Vec<Block> {
    let mut blocks = Vec::new();
    for round in 0..3 {
        let mut bytes = limit / (5 + round);
        while bytes > limit / 1000 + 200 {
            for alignment in [256, 64 * KIB, 1] {
                while let Ok(block) = allocator.allocate(&Request::new(bytes).with_alignment(alignment)) {
                    blocks.push(block);
                    check();
                }
                check();
            }
            bytes /= 4;
        }
        let (kept, freed): (Vec<_>, Vec<_>) =
            blocks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        blocks = kept.into_iter().map(|(_, block)| block).collect();
        freed.into_iter().for_each(|(_, block)| free(allocator, block));
        allocator.trim(Bytes(0));
        check();
    }
    blocks
}

fn free(allocator: &dyn Allocator, block: Block) {
    // SAFETY: the tests free each block once and never use it.
    unsafe { allocator.deallocate(block) }.unwrap();
}

/// Returns both sizes of the error of a limit below one region.
fn sizes_of(error: &SourceError) -> (u64, u64) {
    let SourceError::LimitTooSmall { limit, region } = *error else { panic!("{error}") };
    let text = error.to_string();
    assert!(text.contains(&limit.to_string()) && text.contains(&region.to_string()), "{text}");
    (limit, region)
}

#[test]
fn no_allocator_reserves_more_than_its_limit() {
    let mut filled = 0;
    for (name, exact, source) in sources() {
        let choices = AllocatorChoice::ALL.into_iter().filter(|choice| choice.serves(source.memory_kind()));
        for (choice, options) in choices.flat_map(|choice| growths().into_iter().map(move |of| (choice, of)))
        {
            for &limit in LIMITS {
                if choice == AllocatorChoice::Guard && limit > 8 * MIB {
                    continue; // Patterns in all of it take seconds.
                }
                let case = format!("{name}, {choice}, limit {limit}, {options}");
                let metered = Metered::new(Arc::clone(&source));
                let options = options.with_allocator(choice).with_limit(Bytes(limit));
                let allocator = match make(metered.clone(), options) {
                    Ok(allocator) => allocator,
                    Err(RegistryError::Source { error, .. }) => {
                        let has_large_regions = choice == AllocatorChoice::Pytorch;
                        let smallest = if has_large_regions { 2 * MIB } else { source.granularity() };
                        assert_eq!(sizes_of(&error), (limit, smallest), "{case}");
                        let is_coarse = name == "virtual memory" || has_large_regions;
                        assert!(limit < GRANULARITY && is_coarse, "{case}");
                        continue;
                    }
                    Err(error) => panic!("{case}: {error}"),
                };
                let check = || {
                    let stats = allocator.stats();
                    let (now, most) = metered.live();
                    assert_eq!(now, stats.bytes_reserved, "{case}");
                    assert!(stats.bytes_in_use <= now && stats.peak_bytes_in_use <= limit, "{case}: {stats}");
                    assert_eq!(stats.bytes_limit, Some(limit), "{case}");
                    let most = if exact { most } else { stats.peak_bytes_reserved };
                    assert!(most <= limit, "{case}: {most} bytes");
                };
                let blocks = fill(&*allocator, limit, &check);
                // A source that delivers a surplus exceeds a limit of one region of exact size.
                let may_be_empty = choice == AllocatorChoice::Pytorch && limit <= GRANULARITY + 1;
                assert!(!blocks.is_empty() || may_be_empty, "{case}: nothing fits");
                filled += 1;
                blocks.into_iter().for_each(|block| free(&*allocator, block));
                check();
                drop(allocator);
                assert_eq!(metered.live().0, 0, "{case}");
            }
        }
    }
    assert!(filled > 4000, "{filled}");
}

/// The limit is used up: rounding never leaves more than one region.
#[test]
fn all_whole_regions_below_a_limit_are_usable() {
    for options in growths() {
        for &limit in LIMITS.iter().filter(|limit| **limit >= GRANULARITY) {
            let memory = Arc::new(VirtualMemory::new(device()).unwrap());
            let pool = make(memory, options.with_limit(Bytes(limit))).unwrap();
            let blocks: Vec<Block> =
                std::iter::from_fn(|| pool.allocate(&Request::new(4 * KIB)).ok()).collect();
            let usable = limit / GRANULARITY * GRANULARITY;
            let stats = pool.stats();
            assert_eq!((stats.bytes_in_use, stats.bytes_reserved), (usable, usable), "{limit}, {options}");
            assert_eq!(stats.bytes_limit, Some(limit));
            blocks.into_iter().for_each(|block| free(&*pool, block));
        }
    }
}

#[test]
fn a_device_gives_at_most_the_limit_in_bytes_and_shares() {
    let limits = LIMITS.iter().map(|&bytes| Amount::Bytes(Bytes(bytes)));
    let shares = ["0.7%", "33.3%", "99.99%", "all-1000001", "all-1021MiB", "all-1GiB"];
    for limit in limits.chain(shares.map(|text| text.parse().unwrap())) {
        for options in growths() {
            let device = device();
            let (registry, id) = (Registry::new(), DeviceId::new(DeviceKind::Sim, 0));
            let options = options.with_limit(limit);
            registry.register_device(id, device.clone(), Bytes(0), options, None).unwrap();
            let bytes = limit.of(Bytes::gib(1)).get();
            let made = match registry.allocator(id, AllocatorAttributes::default(), None) {
                Ok(made) => made.allocator,
                Err(RegistryError::Source { error, .. }) => {
                    assert_eq!(sizes_of(&error), (bytes, GRANULARITY));
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let check = || {
                let memory = device.memory_info().unwrap();
                assert!(memory.total - memory.free <= bytes, "{limit}, {options}: {memory:?}");
            };
            let blocks = fill(&*made, bytes, &check);
            assert!(!blocks.is_empty(), "{limit}, {options}");
            blocks.into_iter().for_each(|block| free(&*made, block));
        }
    }
}

/// Without a limit, the pool of a device leaves the reserve.
#[test]
fn a_device_without_a_limit_keeps_its_reserve() {
    for (capacity, reserve) in [(64 * MIB, 3 * MIB), (64 * MIB + 4096, 5 * MIB + 1), (9 * MIB, 2 * MIB + 1)] {
        let device = Arc::new(SimDevice::new(Bytes(capacity)));
        let (registry, id) = (Registry::new(), DeviceId::new(DeviceKind::Sim, 0));
        let options = PoolOptions::default().with_retry_timeout(Duration::ZERO);
        registry.register_device(id, device.clone(), Bytes(reserve), options, None).unwrap();
        let pool = registry.allocator(id, AllocatorAttributes::default(), None).unwrap().allocator;
        let check = || assert!(device.memory_info().unwrap().free >= reserve);
        fill(&*pool, capacity, &check).into_iter().for_each(|block| free(&*pool, block));
    }
}

#[test]
fn threads_with_caches_stay_within_the_limit() {
    let limit = 7169 * KIB;
    let metered = Metered::new(Arc::new(VirtualMemory::new(device()).unwrap()));
    let options = PoolOptions::default().with_allow_growth(true).with_retry_timeout(Duration::ZERO);
    let options = options.with_thread_cache(CacheChoice::On(ThreadCache::new())).with_limit(Bytes(limit));
    let pool = make(metered.clone(), options).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let check = || assert!(metered.live().1 <= limit);
                fill(&*pool, limit / 4, &check).into_iter().for_each(|block| free(&*pool, block));
            });
        }
    });
    assert!(pool.stats().peak_bytes_reserved <= limit);
}

#[test]
fn a_limit_below_one_region_is_an_error_with_both_sizes() {
    let memory = || Arc::new(VirtualMemory::new(device()).unwrap());
    for limit in [1, 100 * KIB, GRANULARITY - 1] {
        let pool = BfcAllocator::new("pool", memory(), BfcConfig::new(Bytes(limit)));
        let passthrough = PassthroughAllocator::new("pool", memory()).with_limit(Bytes(limit));
        let allocators: [&dyn Allocator; 2] = [&pool, &passthrough];
        for allocator in allocators {
            match allocator.allocate(&Request::new(1)) {
                Err(AllocError::Source { error, .. }) => assert_eq!(sizes_of(&error), (limit, GRANULARITY)),
                other => panic!("{other:?}"),
            }
            assert_eq!(allocator.stats().bytes_reserved, 0);
        }
    }
    for (choice, smallest) in [(AllocatorChoice::Bfc, 256), (AllocatorChoice::Passthrough, 1)] {
        let make = |limit| {
            let options = PoolOptions::default().with_allocator(choice).with_limit(Bytes(limit));
            make(Arc::new(AddressOnlyMemory::new()), options)
        };
        let Err(RegistryError::Source { error, .. }) = make(smallest - 1) else { panic!("{choice}") };
        assert_eq!(sizes_of(&error), (smallest - 1, smallest));
        assert!(make(smallest).unwrap().allocate(&Request::new(smallest)).is_ok());
    }
}

#[test]
fn a_report_explains_a_rounded_limit() {
    let memory = Arc::new(VirtualMemory::new(device()).unwrap());
    let config = BfcConfig::new(Bytes::mib(3)).with_allow_growth(false);
    let pool = BfcAllocator::new("pool", memory, config);
    let report = crate::common::out_of_memory(&pool, 5 * MIB / 2);
    assert_eq!((report.limit, report.rounded), (Some(2 * MIB), 5 * MIB / 2));
    let details = report.details();
    assert!(details.contains("the request alone is over the limit of 2.00 MiB"), "{details}");
    assert!(details.contains("3.00 MiB, in whole regions of 2.00 MiB"), "{details}");
    // The limit leaves nothing, although the configured one would.
    let block = pool.allocate(&Request::new(2 * MIB)).unwrap();
    let details = crate::common::out_of_memory(&pool, MIB / 2).details();
    assert!(details.contains("512.00 KiB more than the limit leaves"), "{details}");
    crate::common::free(&pool, block);
}
