//! Pools of the buddy and the auto-growth policy over every kind of memory. All memory returns to the system
//! exactly once, despite failures and live blocks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bfc_core::sim::SimDevice;
use bfc_core::{
    AddressOnlyMemory, AllocError, Allocator, AutoGrowth, AutoGrowthAllocator, AutoGrowthConfig,
    AutoGrowthOptions, Block, Buddy, BuddyAllocator, BuddyConfig, BuddyOptions, Bytes, ConfiguredPolicy,
    DeviceMemory, GIB, HostMemory, KIB, MIB, MemoryKind, PinnedMemory, PolicyAllocator, PoolConfig, Request,
    SourceError, Span, SubAllocator,
};

use crate::common::Random;

/// A source that records its regions, counts calls, and fails on command.
#[derive(Debug)]
struct Watched {
    source: Arc<dyn SubAllocator>,
    fails: Fails,
    book: Mutex<Book>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Fails {
    #[default]
    Never,
    /// The call with this number, counted from 1.
    Once { at: u64, broken: bool },
    /// All calls whose numbers are multiples of this.
    Every { step: u64, broken: bool },
}

impl Fails {
    fn error(self, call: u64, bytes: u64) -> Option<SourceError> {
        let (strikes, broken) = match self {
            Self::Never => return None,
            Self::Once { at, broken } => (call == at, broken),
            Self::Every { step, broken } => (call % step == 0, broken),
        };
        let driver = || SourceError::Driver { call: "test", reason: "broken".to_owned() };
        strikes.then(|| if broken { driver() } else { SourceError::Exhausted { bytes } })
    }
}

#[derive(Debug, Default)]
struct Book {
    calls: u64,
    out: BTreeMap<u64, u64>,
    faults: Vec<Span>,
}

impl Watched {
    fn new(source: Arc<dyn SubAllocator>, fails: Fails) -> Arc<Self> {
        Arc::new(Self { source, fails, book: Mutex::default() })
    }

    fn calls(&self) -> u64 {
        self.book.lock().unwrap().calls
    }

    fn bytes_out(&self) -> u64 {
        self.book.lock().unwrap().out.values().sum()
    }

    /// The pool returned only regions that it held, and returned them unchanged.
    fn assert_sound(&self) {
        assert_eq!(self.book.lock().unwrap().faults, []);
    }

    fn assert_all_returned(&self) {
        self.assert_sound();
        assert_eq!(self.book.lock().unwrap().out, BTreeMap::new());
    }
}

// SAFETY: the inner source returns these regions and keeps every promise.
unsafe impl SubAllocator for Watched {
    fn memory_kind(&self) -> MemoryKind {
        self.source.memory_kind()
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        let mut book = self.book.lock().unwrap();
        book.calls += 1;
        if let Some(error) = self.fails.error(book.calls, bytes) {
            return Err(error);
        }
        let region = self.source.allocate(alignment, bytes)?;
        book.out.insert(region.address, region.bytes);
        Ok(region)
    }

    unsafe fn free(&self, region: Span) {
        let mut book = self.book.lock().unwrap();
        if book.out.remove(&region.address) != Some(region.bytes) {
            book.faults.push(region);
            return;
        }
        // SAFETY: the region was allocated until now, and the caller promises that no code uses it.
        unsafe { self.source.free(region) };
    }
}

/// A kind of memory, and a check that all memory has returned.
type Source = (Arc<dyn SubAllocator>, Box<dyn Fn()>);

fn sources() -> Vec<Source> {
    let address_only = Arc::new(AddressOnlyMemory::new());
    let host = Arc::new(HostMemory::new());
    let device = Arc::new(SimDevice::new(Bytes::mib(4)));
    let (address_only_too, host_too, device_too) = (address_only.clone(), host.clone(), device.clone());
    let pinned = device.clone();
    let returned = move |device: &SimDevice, kind| {
        assert_eq!(device.live(kind), []);
        assert_eq!(bfc_core::Driver::free_faults(device).count, 0);
    };
    vec![
        (address_only, Box::new(move || assert_eq!(address_only_too.live_bytes(), 0))),
        (host, Box::new(move || assert_eq!(host_too.live_regions(), 0))),
        (
            Arc::new(DeviceMemory::new(device.clone())),
            Box::new(move || returned(&device_too, MemoryKind::Device)),
        ),
        (Arc::new(PinnedMemory::new(device)), Box::new(move || returned(&pinned, MemoryKind::PinnedHost))),
    ]
}

fn pool<P: ConfiguredPolicy>(source: &Arc<Watched>, options: &P::Options, limit: u64) -> PolicyAllocator<P> {
    let config = PoolConfig::with_options(Bytes(limit), options.clone()).with_retry(false);
    PolicyAllocator::new("pool", source.clone(), config)
}

fn free(pool: &impl Allocator, block: Block) {
    // SAFETY: no code wrote to the block, and no code uses it.
    unsafe { pool.deallocate(block) }.unwrap();
}

/// Runs random requests and frees, and checks all invariants after each. Returns the live blocks.
fn run<P: ConfiguredPolicy>(
    pool: &PolicyAllocator<P>,
    source: &Watched,
    seed: u64,
    steps: u64,
) -> Vec<Block> {
    let mut random = Random(seed);
    let mut live: Vec<Block> = Vec::new();
    for _ in 0..steps {
        match random.below(16) {
            0 => {
                pool.trim(Bytes(random.below(256 * KIB)));
            }
            1..=7 if !live.is_empty() => {
                let block = live.swap_remove(random.below(live.len() as u64) as usize);
                free(pool, block);
            }
            _ => {
                let most = if random.below(8) == 0 { 150 * KIB } else { 12 * KIB };
                let alignment = 1 << random.below(13);
                let request = Request::new(1 + random.below(most)).with_alignment(alignment);
                match pool.allocate(&request) {
                    Ok(block) => {
                        assert!(block.address % alignment == 0 && block.bytes >= request.bytes);
                        live.push(block);
                    }
                    Err(AllocError::OutOfMemory(_) | AllocError::Source { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        pool.check_invariants().unwrap();
        source.assert_sound();
        assert_eq!(source.bytes_out(), pool.stats().bytes_reserved);
        crate::common::assert_disjoint(&live);
    }
    live
}

/// Runs a policy over all kinds of memory, and drops the pool with and without live blocks.
fn returns_everything<P: ConfiguredPolicy>(options: &P::Options) {
    for seed in 0..4 {
        for (source, assert_returned) in sources() {
            let source = Watched::new(source, Fails::Never);
            let pool = pool::<P>(&source, options, 2 * MIB);
            let live = run(&pool, &source, seed, 300);
            assert!(!live.is_empty() && source.calls() > 3);
            if seed % 2 == 0 {
                live.into_iter().for_each(|block| free(&pool, block));
                assert_eq!(pool.stats().bytes_in_use, 0);
            }
            drop(pool);
            source.assert_all_returned();
            assert_returned();
        }
    }
}

/// Runs a policy over sources that fail at each of their calls, once and repeatedly.
fn survives_failures<P: ConfiguredPolicy>(options: &P::Options) {
    let clean = Watched::new(Arc::new(AddressOnlyMemory::new()), Fails::Never);
    run(&pool::<P>(&clean, options, 2 * MIB), &clean, 9, 200);
    for call in 1..=clean.calls() {
        for broken in [false, true] {
            for fails in [Fails::Once { at: call, broken }, Fails::Every { step: call, broken }] {
                let source = Watched::new(Arc::new(AddressOnlyMemory::new()), fails);
                let pool = pool::<P>(&source, options, 2 * MIB);
                run(&pool, &source, 9, 200);
                if matches!(fails, Fails::Once { .. }) {
                    assert!(pool.allocate(&Request::new(1)).is_ok(), "later requests are served");
                }
                drop(pool);
                source.assert_all_returned();
            }
        }
    }
}

fn buddy_options() -> BuddyOptions {
    BuddyOptions::new(Bytes(256), Bytes::kib(64)).unwrap()
}

fn auto_growth_options() -> [AutoGrowthOptions; 3] {
    let options = AutoGrowthOptions::gpu().with_chunk_size(Bytes::kib(48));
    [options, options.with_free_idle_chunks(true), options.with_free_before_growth(true)]
}

#[test]
fn a_dropped_buddy_pool_returns_each_chunk_once() {
    returns_everything::<Buddy>(&buddy_options());
    returns_everything::<Buddy>(&buddy_options().with_paddle_sizes());
}

#[test]
fn a_dropped_auto_growth_pool_returns_each_chunk_once() {
    auto_growth_options().iter().for_each(returns_everything::<AutoGrowth>);
}

#[test]
fn a_buddy_pool_leaks_nothing_if_any_source_call_fails() {
    survives_failures::<Buddy>(&buddy_options());
}

#[test]
fn an_auto_growth_pool_leaks_nothing_if_a_source_call_fails() {
    auto_growth_options().iter().for_each(survives_failures::<AutoGrowth>);
}

#[test]
fn one_seed_gives_one_run() {
    let offsets = |seed| {
        let source = Watched::new(Arc::new(AddressOnlyMemory::new()), Fails::Never);
        let pool = pool::<Buddy>(&source, &buddy_options(), 2 * MIB);
        run(&pool, &source, seed, 200).iter().map(|block| (block.address, block.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(offsets(3), offsets(3));
    assert_ne!(offsets(3), offsets(4));
}

/// Upstream's `InitRealloc`, through the pool and the simulated device.
#[test]
fn huge_requests_go_straight_to_the_device_and_straight_back() {
    let device = Arc::new(SimDevice::new(Bytes::gib(2)));
    let options = BuddyOptions::gpu_refills(Bytes::mib(100), Bytes::mib(50));
    let config = BuddyConfig::with_options(Bytes::gib(2), options);
    let pool = BuddyAllocator::new("gpu", Arc::new(DeviceMemory::new(device.clone())), config);
    for (bytes, regions) in [(10, 1), (80 * MIB, 1), (99 * MIB, 1), (101 * MIB, 2), (GIB, 2)] {
        let block = pool.allocate(&Request::new(bytes)).unwrap();
        assert_eq!(device.live(MemoryKind::Device).len(), regions);
        pool.check_invariants().unwrap();
        free(&pool, block);
        assert_eq!(device.live(MemoryKind::Device).len(), 1);
        assert_eq!(pool.stats().bytes_reserved, 100 * MIB);
    }
    assert_eq!(pool.trim(Bytes(0)), 100 * MIB);
    assert_eq!(device.live(MemoryKind::Device), []);
}

#[test]
fn a_huge_request_returns_idle_regions_first() {
    let config = BuddyConfig::with_options(Bytes::kib(160), buddy_options()).with_retry(false);
    let pool = BuddyAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config);
    let small = pool.allocate(&Request::new(1)).unwrap();
    let huge = Request::new(100 * KIB);
    let error = pool.allocate(&huge).unwrap_err();
    assert_eq!(error.out_of_memory().map(|report| report.free), Some(64 * KIB - 256));
    free(&pool, small);
    assert_eq!(pool.allocate(&huge).unwrap().bytes, 100 * KIB);
    assert_eq!(pool.stats().bytes_reserved, 100 * KIB);
}

/// The constructors' limits and sizes match: the first request reserves the first refill.
#[test]
fn each_kind_of_memory_has_its_sizes() {
    let first_refill = |config: BuddyConfig| {
        let pool = BuddyAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config);
        let block = pool.allocate(&Request::new(1)).unwrap();
        (block.bytes, pool.stats().bytes_reserved)
    };
    assert_eq!(first_refill(BuddyConfig::cpu(Bytes::gib(8))), (4 * KIB, 256 * MIB));
    assert_eq!(first_refill(BuddyConfig::pinned(Bytes::gib(8))), (64 * KIB, 16 * MIB));
    let share = ((16 * GIB - 16 * GIB / 20) as f64 * 0.92) as u64;
    assert_eq!(first_refill(BuddyConfig::gpu(Bytes::gib(16))), (256, share));
}

/// A source like upstream's aligned allocator: it reserves one alignment more than it delivers.
#[derive(Debug)]
struct Aligned {
    alignment: u64,
    below: AddressOnlyMemory,
}

// SAFETY: regions are the lower parts of the inner source's regions, which keeps every promise.
unsafe impl SubAllocator for Aligned {
    fn memory_kind(&self) -> MemoryKind {
        self.below.memory_kind()
    }

    fn allocate(&self, alignment: u64, bytes: u64) -> Result<Span, SourceError> {
        let taken = self.below.allocate(alignment.max(self.alignment), bytes + self.alignment)?;
        Ok(Span { address: taken.address, bytes })
    }

    unsafe fn free(&self, region: Span) {
        let taken = Span { address: region.address, bytes: region.bytes + self.alignment };
        // SAFETY: this is the memory of the region, and the caller promises that no code uses it.
        unsafe { self.below.free(taken) };
    }
}

fn auto_growth(source: &Arc<Aligned>, options: AutoGrowthOptions) -> AutoGrowthAllocator {
    let config = AutoGrowthConfig::with_options(Bytes::gib(1), options).with_retry(false);
    AutoGrowthAllocator::new("pool", source.clone(), config)
}

#[test]
fn upstream_auto_growth_keeps_or_frees_the_idle_chunk() {
    for free_idle in [false, true] {
        let source = Arc::new(Aligned { alignment: 4096, below: AddressOnlyMemory::new() });
        let options = AutoGrowthOptions::cpu().with_free_idle_chunks(free_idle);
        let pool = auto_growth(&source, options);
        for _ in 0..10 {
            let block = pool.allocate(&Request::new(8192)).unwrap();
            assert_eq!(source.below.live_bytes(), 8192 + 4096);
            free(&pool, block);
            assert_eq!(source.below.live_bytes(), if free_idle { 0 } else { 8192 + 4096 });
        }
        drop(pool);
        assert_eq!(source.below.live_bytes(), 0);
    }
}

#[test]
fn upstream_auto_growth_frees_when_no_cache_hit() {
    let capacity = Bytes(4096 + 4608 + 2560);
    for (free_first, expected) in [(false, [4352, 9216, 5376]), (true, [4352, 4864, 5376])] {
        let below = AddressOnlyMemory::new().with_limit(capacity);
        let source = Arc::new(Aligned { alignment: 256, below });
        let options = AutoGrowthOptions::gpu().with_free_before_growth(free_first);
        let pool = auto_growth(&source, options);
        let taken = [4096, 4608, 5120].map(|bytes| {
            free(&pool, pool.allocate(&Request::new(bytes)).unwrap());
            source.below.live_bytes()
        });
        assert_eq!(taken, expected);
    }
}

/// Upstream frees its idle chunks for any request that finds no block. Highwater keeps them if the request
/// still would not fit.
#[test]
fn a_request_that_cannot_be_met_frees_no_idle_chunk() {
    let options = AutoGrowthOptions::gpu().with_free_before_growth(true);
    let source = Watched::new(Arc::new(AddressOnlyMemory::new()), Fails::Never);
    let pool = pool::<AutoGrowth>(&source, &options, 64 * KIB);
    let get = |bytes| pool.allocate(&Request::new(bytes));
    let (kept, idle) = (get(8 * KIB).unwrap(), get(16 * KIB).unwrap());
    free(&pool, idle);
    let before = pool.regions();
    assert_eq!(before.len(), 2);
    for bytes in [57 * KIB, MIB] {
        assert!(get(bytes).is_err());
        assert_eq!(pool.regions(), before, "{bytes} bytes");
    }
    assert_eq!(get(56 * KIB).unwrap().bytes, 56 * KIB);
    free(&pool, kept);
}
