//! Pools with per-thread caches, beside a shadow without caches: the caches must not change the pool's
//! results.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bfc_core::{
    AllocError, Allocator, BfcAllocator, BfcConfig, Block, BlockError, Bytes, Category, KIB, MIB, OwnerId,
    PoolId, PoolView, Request, Tag, ThreadCache, TimingCounter,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::source::{FakeSource, Nature};
use crate::common::{Random, allocate, free, out_of_memory, try_free};

/// Longer than any test may take: a request that waits this long has missed its wake-up.
const LONG: Duration = Duration::from_secs(60);

fn cached(config: BfcConfig, cache: ThreadCache) -> Arc<BfcAllocator> {
    let source = FakeSource::new(Nature::default());
    Arc::new(BfcAllocator::new("cached", source, config.with_thread_cache(cache)))
}

/// A pool of `bytes` bytes in one region whose requests do not wait.
fn fixed(bytes: Bytes) -> Arc<BfcAllocator> {
    cached(BfcConfig::new(bytes).with_allow_growth(false).with_retry(false), ThreadCache::new())
}

/// Runs `work` to its end on a new thread.
fn elsewhere<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// Allocates and frees this many blocks, all live at once.
fn fill_and_free(pool: &BfcAllocator, count: u64, bytes: u64) {
    let blocks: Vec<Block> = (0..count).map(|_| allocate(pool, bytes)).collect();
    blocks.into_iter().for_each(|block| free(pool, block));
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that work one at a time on command: the test sets the order, and each thread has its own cache.
struct Crew(Vec<mpsc::Sender<Job>>);

impl Crew {
    fn new(size: usize) -> Self {
        let worker = |_| {
            let (sender, jobs) = mpsc::channel::<Job>();
            std::thread::spawn(move || jobs.into_iter().for_each(|job| job()));
            sender
        };
        Self((0..size).map(worker).collect())
    }

    fn run<R: Send + 'static>(&self, worker: usize, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, result) = mpsc::channel();
        self.0[worker % self.0.len()].send(Box::new(move || sender.send(job()).unwrap())).unwrap();
        result.recv().unwrap()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { bytes: u64, alignment_log2: u8, owner: u8 },
    Free { pick: usize },
    FreeTwice { pick: usize },
    FreeForeign { pick: usize },
    FreeMadeUp { pick: usize, twist: u8 },
    Retag { pick: usize, owner: u8 },
    LookUp { pick: usize, offset: u64 },
    ClearStats,
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![6 => (1..12_u64).prop_map(|n| n * 300), 2 => 1..20_000_u64, 1 => 1..200_000_u64];
    prop_oneof![
        12 => (bytes, 0..11_u8, any::<u8>())
            .prop_map(|(bytes, alignment_log2, owner)| Step::Allocate { bytes, alignment_log2, owner }),
        12 => any::<usize>().prop_map(|pick| Step::Free { pick }),
        1 => any::<usize>().prop_map(|pick| Step::FreeTwice { pick }),
        1 => any::<usize>().prop_map(|pick| Step::FreeForeign { pick }),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(pick, twist)| Step::FreeMadeUp { pick, twist }),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(pick, owner)| Step::Retag { pick, owner }),
        2 => (any::<usize>(), 0..8192_u64).prop_map(|(pick, offset)| Step::LookUp { pick, offset }),
        1 => Just(Step::ClearStats),
        1 => Just(Step::Trim),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Live {
    block: Block,
    requested: u64,
    tag: Tag,
}

/// A pool and its users' knowledge of it.
struct Shadow {
    pool: Arc<BfcAllocator>,
    live: BTreeMap<u64, Live>,
    allocs: u64,
    peak: u64,
    largest: u64,
}

impl Shadow {
    fn new(pool: Arc<BfcAllocator>) -> Self {
        Self { pool, live: BTreeMap::new(), allocs: 0, peak: 0, largest: 0 }
    }

    fn in_use(&self) -> u64 {
        self.live.values().map(|live| live.block.bytes).sum()
    }

    fn pick(&self, pick: usize) -> Option<Live> {
        self.live.values().nth(pick.checked_rem(self.live.len())?).copied()
    }

    fn tag(owner: u8) -> Tag {
        let net = OwnerId::intern(OwnerId::ROOT, "thread-cache");
        let owners = [OwnerId::ROOT, net, OwnerId::intern(net, "a"), OwnerId::intern(net, "b")];
        let owner = usize::from(owner);
        Tag { owner: owners[owner % owners.len()], category: Category::ALL[owner % Category::COUNT] }
    }

    fn step(&mut self, crew: &Crew, worker: usize, step: &Step) {
        let pool = Arc::clone(&self.pool);
        match *step {
            Step::Allocate { bytes, alignment_log2, owner } => {
                let tag = Self::tag(owner);
                let request = Request::new(bytes).with_alignment(1 << alignment_log2).with_tag(tag);
                match crew.run(worker, move || pool.allocate(&request)) {
                    Ok(block) => self.note(Live { block, requested: bytes, tag }, 1 << alignment_log2),
                    Err(AllocError::OutOfMemory(report)) => {
                        assert_eq!(report.in_use, self.in_use());
                        let stats = self.pool.stats();
                        assert!(stats.largest_free_block_bytes < report.rounded + report.alignment);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Free { pick } => {
                if let Some(live) = self.pick(pick) {
                    crew.run(worker, move || free(&pool, live.block));
                    self.live.remove(&live.block.address);
                }
            }
            Step::FreeTwice { pick } => {
                if let Some(Live { block, .. }) = self.pick(pick) {
                    crew.run(worker, move || free(&pool, block));
                    self.live.remove(&block.address);
                    self.assert_refused(block, BlockError::Stale { block });
                }
            }
            Step::FreeForeign { pick } => {
                if let Some(Live { block, .. }) = self.pick(pick) {
                    let block = Block { pool: PoolId::next(), ..block };
                    self.assert_refused(block, BlockError::Foreign { block });
                }
            }
            Step::FreeMadeUp { pick, twist } => {
                let Some(Live { block, .. }) = self.pick(pick) else { return };
                let block = match twist % 7 {
                    0 => Block { bytes: block.bytes + 256, ..block },
                    1 => Block { address: block.address + 256, ..block },
                    2 => Block { chunk: block.chunk ^ 1, ..block },
                    3 => Block { chunk: u32::MAX, ..block },
                    4 => Block { id: 0, ..block },
                    // No cache has this index.
                    5 => Block { id: block.id | 0xff << 56, ..block },
                    _ => Block { id: block.id + 1_000_000, ..block },
                };
                self.assert_refused(block, BlockError::Unknown { block });
            }
            Step::Retag { pick, owner } => {
                if let Some(Live { block, .. }) = self.pick(pick) {
                    let tag = Self::tag(owner);
                    pool.retag(&block, tag).unwrap();
                    self.live.get_mut(&block.address).unwrap().tag = tag;
                }
            }
            Step::LookUp { pick, offset } => {
                let Some(Live { block, .. }) = self.pick(pick) else { return };
                assert_eq!(pool.block_at(block.address), Ok(block));
                let address = (block.address + offset).saturating_sub(4096);
                let expected =
                    self.live.get(&address).map(|live| live.block).ok_or(BlockError::NoBlockAt { address });
                assert_eq!(pool.block_at(address), expected);
            }
            Step::ClearStats => {
                assert!(pool.clear_stats());
                (self.allocs, self.peak, self.largest) = (0, self.in_use(), 0);
                assert_eq!(pool.stats().peak_bytes_in_use, self.peak, "exact at this moment");
            }
            Step::Trim => {
                pool.trim(Bytes(0));
                let used = |region| pool.chunks().iter().any(|c| c.region == region && c.in_use());
                assert!((0..pool.regions().len()).all(used), "no idle region is left, cached blocks or not");
            }
        }
    }

    fn note(&mut self, live: Live, alignment: u64) {
        assert!(live.block.bytes >= live.requested && live.block.address % alignment == 0);
        assert_eq!(self.live.insert(live.block.address, live), None, "handed out twice: {live:?}");
        self.allocs += 1;
        self.largest = self.largest.max(live.block.bytes);
        self.peak = self.peak.max(self.in_use());
    }

    fn assert_refused(&self, block: Block, error: BlockError) {
        let before = (self.pool.stats(), self.pool.chunks());
        assert_eq!(try_free(&self.pool, block), Err(error));
        assert_eq!(self.pool.requested_bytes(&block), Err(error));
        assert_eq!(self.pool.tag(&block), Err(error));
        assert_eq!(self.pool.retag(&block, Tag::default()), Err(error));
        assert_eq!((self.pool.stats(), self.pool.chunks()), before);
    }

    fn compare(&self) {
        self.pool.check_invariants().unwrap();
        let chunks = self.pool.chunks();
        let seen = chunks.iter().filter(|chunk| chunk.in_use());
        let seen = seen.map(|chunk| (chunk.address, chunk.bytes, chunk.id, chunk.requested, chunk.tag));
        let known = self.live.values().map(|live| {
            let Block { address, bytes, id, .. } = live.block;
            (address, bytes, id, live.requested, live.tag)
        });
        assert!(seen.eq(known), "{chunks:?}\n{:?}", self.live);
        for live in self.live.values() {
            assert_eq!(self.pool.requested_bytes(&live.block), Ok(live.requested));
            assert_eq!(self.pool.tag(&live.block), Ok(live.tag));
        }
        let stats = self.pool.stats();
        let requested: u64 = self.live.values().map(|live| live.requested).sum();
        assert_eq!((stats.bytes_in_use, stats.bytes_requested), (self.in_use(), requested));
        assert_eq!((stats.num_allocs, stats.live_allocs), (self.allocs, self.live.len() as u64));
        assert_eq!(stats.largest_alloc_bytes, self.largest);
        assert!((self.peak..=stats.peak_bytes_reserved).contains(&stats.peak_bytes_in_use), "{stats:?}");
        let ledger = self.pool.ledger();
        let mut categories = [0; Category::COUNT];
        let mut owners = BTreeMap::<OwnerId, u64>::new();
        for live in self.live.values() {
            categories[live.tag.category.index()] += live.block.bytes;
            *owners.entry(live.tag.owner).or_default() += live.block.bytes;
        }
        assert_eq!(Category::ALL.map(|category| ledger.category(category)), categories);
        assert_eq!(ledger.owner(OwnerId::ROOT).live, self.in_use());
        for (owner, bytes) in ledger.owners() {
            assert_eq!(bytes.own, owners.get(&owner).copied().unwrap_or(0));
            assert!(bytes.peak >= bytes.live);
        }
    }
}

fn config() -> impl Strategy<Value = (BfcConfig, ThreadCache)> {
    let limit = Bytes::kib(256);
    let config = prop_oneof![
        Just(BfcConfig::new(limit).with_first_region(Bytes(4096))),
        Just(BfcConfig::new(limit).with_allow_growth(false)),
        Just(BfcConfig::tensorflow(limit).with_first_region(Bytes(4096))),
    ];
    let cache = prop_oneof![
        Just(ThreadCache::new()),
        Just(ThreadCache::new().with_largest_block(Bytes(2048)).with_bytes(Bytes(8192))),
        Just(ThreadCache::new().with_blocks(3)),
        Just(ThreadCache::new().with_bytes(Bytes(0))),
    ];
    (config.prop_map(|config| config.with_retry(false)), cache)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_pool_with_caches_holds_what_its_users_know(
        (config, cache) in config(),
        steps in vec((0..3_usize, step()), 1..120),
    ) {
        let crew = Crew::new(3);
        let source = FakeSource::new(Nature::default());
        let pool = BfcAllocator::new("shadowed", source.clone(), config.with_thread_cache(cache));
        let mut shadow = Shadow::new(Arc::new(pool));
        for (worker, step) in &steps {
            shadow.step(&crew, *worker, step);
            shadow.compare();
        }
        while let Some(live) = shadow.pick(0) {
            free(&shadow.pool, live.block);
            shadow.live.remove(&live.block.address);
        }
        shadow.compare();
        drop(shadow);
        source.assert_all_returned();
    }
}

/// Threads that pass blocks to each other, while another thread inspects the pool all the time.
#[test]
fn the_sums_are_exact_at_every_moment_while_threads_run() {
    // Requests do not wait: a block sent to an ended worker stays in use.
    let config = BfcConfig::new(Bytes::mib(4)).with_retry(false);
    let pool = cached(config, ThreadCache::new().with_bytes(Bytes::kib(64)));
    let done = AtomicBool::new(false);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel::<Block>()).unzip();
    std::thread::scope(|scope| {
        let workers: Vec<_> = receivers
            .into_iter()
            .enumerate()
            .map(|(index, receiver)| {
                let (pool, next) = (&pool, senders[(index + 1) % 3].clone());
                scope.spawn(move || {
                    let mut random = Random(index as u64);
                    let mut held: Vec<Block> = Vec::new();
                    for _ in 0..4000 {
                        held.extend(receiver.try_iter());
                        if random.below(2) == 0 {
                            let owner = Shadow::tag(random.below(250) as u8);
                            let bytes = 1 + random.below(40) * random.below(400);
                            held.extend(pool.allocate(&Request::new(bytes).with_tag(owner)));
                        } else if !held.is_empty() {
                            let block = held.swap_remove(random.below(held.len() as u64) as usize);
                            if random.below(3) == 0 {
                                // An ended worker has given up its blocks.
                                next.send(block).unwrap_or_else(|refused| free(pool, refused.0));
                            } else {
                                free(pool, block);
                            }
                        }
                    }
                    held.into_iter().for_each(|block| free(pool, block));
                    receiver
                })
            })
            .collect();
        let watcher = scope.spawn(|| {
            let mut looks = 0;
            while !done.load(Ordering::Relaxed) || looks == 0 {
                pool.check_invariants().unwrap();
                assert!(pool.stats().bytes_in_use <= pool.stats().bytes_reserved);
                looks += 1;
                // Without this, the workers would hardly get the lock.
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let receivers: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
        for receiver in receivers {
            receiver.unwrap().try_iter().for_each(|block| free(&pool, block));
        }
    });
    assert_eq!((pool.stats().bytes_in_use, pool.stats().live_allocs, pool.ledger().total()), (0, 0, 0));
    pool.check_invariants().unwrap();
}

#[test]
fn the_cache_reuses_a_block_before_a_better_fit() {
    let pool = fixed(Bytes::mib(1));
    let low = allocate(&pool, 1000);
    let kept = allocate(&pool, 1000);
    let high = allocate(&pool, 1000);
    free(&pool, low);
    free(&pool, high);
    assert_eq!(pool.stats().bytes_in_use, 1024);
    let again = allocate(&pool, 900);
    assert_eq!((again.address, again.bytes), (high.address, 1024));
    assert_ne!(again.id, high.id);
    assert_eq!(pool.block_at(again.address), Ok(again));
    assert_eq!(try_free(&pool, high), Err(BlockError::Stale { block: high }));
    free(&pool, again);
    free(&pool, kept);
}

#[test]
fn a_remote_free_returns_to_the_cache_of_origin() {
    let pool = fixed(Bytes::mib(1));
    let low = allocate(&pool, 4096);
    let (block, high) = (allocate(&pool, 4096), allocate(&pool, 4096));
    // The best fit is the lowest chunk, but the cache holds another.
    free(&pool, low);
    elsewhere(|| free(&pool, block));
    assert_eq!(allocate(&pool, 4096).address, block.address);
    free(&pool, high);
    pool.check_invariants().unwrap();
}

#[test]
fn a_request_gets_what_ended_threads_have_left_in_caches() {
    let pool = fixed(Bytes::mib(1));
    for _ in 0..20 {
        elsewhere(|| fill_and_free(&pool, 16, 64 * KIB));
    }
    assert!(pool.stats().largest_free_block_bytes < MIB, "some is cached");
    assert_eq!(allocate(&pool, MIB).bytes, MIB);
    pool.check_invariants().unwrap();
}

#[test]
fn an_out_of_memory_report_finds_the_caches_empty() {
    let pool = fixed(Bytes::mib(1));
    let held = allocate(&pool, 256);
    fill_and_free(&pool, 16, 60 * KIB);
    elsewhere(|| fill_and_free(&pool, 16, 50 * KIB));
    let report = out_of_memory(&pool, MIB);
    assert_eq!((report.in_use, report.free, report.largest_free), (256, MIB - 256, MIB - 256));
    free(&pool, held);
}

#[test]
fn the_pool_does_not_grow_while_caches_keep_what_is_needed() {
    let config = BfcConfig::new(Bytes::mib(64)).with_first_region(Bytes(MIB)).with_retry(false);
    let pool = cached(config, ThreadCache::new());
    elsewhere(|| fill_and_free(&pool, 16, 64 * KIB));
    assert_eq!(pool.stats().bytes_reserved, MIB);
    allocate(&pool, MIB);
    assert_eq!(pool.stats().bytes_reserved, MIB);
}

#[test]
fn trimming_empties_the_caches() {
    let pool = fixed(Bytes::mib(1));
    fill_and_free(&pool, 8, 1000);
    assert_eq!(pool.trim(Bytes(0)), MIB);
    assert_eq!(pool.stats().bytes_reserved, 0);
}

#[test]
fn a_what_if_counts_cached_blocks_as_free() {
    let pool = fixed(Bytes::mib(1));
    fill_and_free(&pool, 8, 1000);
    assert!(pool.stats().largest_free_block_bytes < MIB);
    assert_eq!(pool.policy().unwrap().largest_free_bytes(), MIB);
    pool.check_invariants().unwrap();
}

#[test]
fn a_cache_keeps_no_more_than_it_may() {
    let cache = ThreadCache::new().with_bytes(Bytes::kib(8)).with_largest_block(Bytes::kib(4));
    let config = BfcConfig::new(Bytes::mib(1)).with_allow_growth(false);
    let pool = cached(config, cache);
    fill_and_free(&pool, 80, 1024);
    // Cached blocks and the gaps between them are separate chunks; the pool has joined all other memory.
    let chunks = pool.chunks();
    assert!(chunks.iter().all(|chunk| !chunk.in_use()));
    assert!((5..=17).contains(&chunks.len()), "{chunks:?}");
    let large = allocate(&pool, 5 * KIB);
    free(&pool, large);
    assert_eq!(pool.chunks().len(), chunks.len(), "too large to be kept");
    pool.check_invariants().unwrap();
}

#[test]
fn pools_whose_frees_bear_counts_have_no_caches() {
    let config = BfcConfig::new(Bytes::mib(1)).with_timing_counter(Arc::new(TimingCounter::default()));
    let pool = cached(config, ThreadCache::new());
    let block = allocate(&pool, 1000);
    free(&pool, block);
    assert!(pool.chunks().iter().any(|chunk| chunk.freed_at > 0));
}

/// A waiter may use everything: the blocks in other threads' caches, and all later frees.
#[test]
fn a_waiter_is_served_from_the_caches_and_frees_of_others() {
    let config = BfcConfig::new(Bytes::mib(1)).with_allow_growth(false).with_retry_timeout(LONG);
    let pool = cached(config, ThreadCache::new());
    let held: Vec<Block> = (0..16).map(|_| allocate(&pool, 64 * KIB)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| held[..8].iter().for_each(|block| free(&pool, *block))).join().unwrap();
        let waiter = scope.spawn(|| allocate(&pool, MIB));
        let start = Instant::now();
        while pool.stats().retry.waiting == 0 {
            assert!(start.elapsed() < LONG, "nobody waits");
            std::thread::yield_now();
        }
        scope.spawn(|| held[8..].iter().for_each(|block| free(&pool, *block)));
        assert_eq!(waiter.join().unwrap().bytes, MIB);
    });
    let retry = pool.stats().retry;
    assert!(retry.waits == 1 && retry.waited < LONG, "{retry:?}");
    pool.check_invariants().unwrap();
}

#[test]
fn a_single_thread_gets_the_same_addresses_every_time() {
    let addresses = || {
        let pool = fixed(Bytes::mib(4));
        let (mut random, mut held, mut addresses) = (Random(3), Vec::new(), Vec::new());
        for _ in 0..3000 {
            if random.below(5) < 3 || held.is_empty() {
                let Ok(block) = pool.allocate(&Request::new(1 + random.below(20_000))) else { continue };
                addresses.push(block.address);
                held.push(block);
            } else {
                free(&pool, held.swap_remove(random.below(held.len() as u64) as usize));
            }
        }
        addresses
    };
    assert_eq!(addresses(), elsewhere(addresses));
}

#[test]
fn a_source_that_calls_back_is_refused_by_caches_too() {
    let source = FakeSource::new(Nature::default());
    let config =
        BfcConfig::new(Bytes::mib(8)).with_first_region(Bytes(MIB)).with_thread_cache(ThreadCache::new());
    let pool = Arc::new(BfcAllocator::new("hooked", source.clone(), config));
    fill_and_free(&pool, 1, 1000);
    let block = allocate(&pool, 1000);
    fill_and_free(&pool, 1, 4000);
    let hooked = Arc::clone(&pool);
    source.set_hook(move || {
        assert!(matches!(hooked.allocate(&Request::new(4000)), Err(AllocError::Reentrant { .. })));
        assert_eq!(try_free(&hooked, block), Err(BlockError::Reentrant));
        assert_eq!(hooked.tag(&block), Err(BlockError::Reentrant));
        assert_eq!(hooked.stats().bytes_in_use, 1024);
    });
    let before = source.calls();
    let large = allocate(&pool, 2 * MIB);
    assert!(source.calls() > before);
    source.clear_hook();
    free(&pool, large);
    free(&pool, block);
    pool.check_invariants().unwrap();
}
