//! Memory that several streams use, and asynchronous copies: when, to whom and after which work the pool
//! returns memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

#[path = "streams/transfers.rs"]
mod transfers;
#[path = "streams/waiting.rs"]
mod waiting;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bfc_core::sim::{DeviceCall, Fault, FaultTime, MemoryUse, Pace, SimDevice};
use bfc_core::{
    AddressSpace, AllocError, Allocation, AllocationAttributes, Allocator, BfcAllocator, BfcConfig, Block,
    BlockError, Bytes, DeviceMemory, Driver, FreeFaults, Lifetime, MIB, MemoryKind, PackedAllocator,
    PackedConfig, Packing, PackingOptions, PoolView, RecordError, Request, SourceError, Stats, Stream,
    StreamAllocator, StreamEvent, ThreadCache, Verdict, failed_drops,
};

/// A device with a pool of 8 MiB in one region, a compute stream and two others. Work ends when the pool
/// waits for it.
struct Bench {
    device: Arc<SimDevice>,
    compute: Arc<Stream>,
    others: [Arc<Stream>; 2],
    memory: Arc<StreamAllocator>,
    allocator: Arc<dyn Allocator>,
}

impl Bench {
    fn new() -> Self {
        Self::on(SimDevice::new(Bytes::mib(64)).with_pace(Pace::OnDemand))
    }

    fn on(device: SimDevice) -> Self {
        Self::with(device, |config| config)
    }

    fn with(device: SimDevice, change: impl FnOnce(BfcConfig) -> BfcConfig) -> Self {
        let device = Arc::new(device);
        let stream = || Stream::new(device.clone()).unwrap();
        let (compute, others) = (stream(), [stream(), stream()]);
        let config = change(BfcConfig::new(Bytes::mib(8)).with_allow_growth(false));
        let pool = BfcAllocator::new("sim_0_bfc", Arc::new(DeviceMemory::new(device.clone())), config);
        let memory = Arc::new(StreamAllocator::new(Arc::new(pool), compute.clone()));
        Self { device, compute, others, allocator: memory.clone(), memory }
    }

    fn take(&self, bytes: u64) -> Allocation {
        Allocation::new(&self.allocator, &Request::new(bytes)).unwrap()
    }

    fn fails(&self, bytes: u64) -> bool {
        let request = Request::new(bytes).with_attributes(AllocationAttributes::no_retry());
        Allocation::new(&self.allocator, &request).is_err()
    }

    /// Submits work that uses a block to another stream.
    fn use_on(&self, other: usize, allocation: &Allocation) {
        self.allocator.record_stream(&allocation.block(), &self.others[other]).unwrap();
        self.launch(&self.others[other], allocation);
    }

    fn launch(&self, stream: &Stream, allocation: &Allocation) {
        self.device.launch(stream.handle(), &[MemoryUse::of(&allocation.block())]).unwrap();
    }

    fn pending(&self) -> u64 {
        self.memory.pending_frees().bytes / MIB
    }
}

#[test]
fn memory_of_the_compute_stream_is_reused_at_once() {
    let bench = Bench::new();
    let first = bench.take(8 * MIB);
    bench.launch(&bench.compute, &first);
    let address = first.block().address;
    drop(first);
    let second = bench.take(8 * MIB);
    bench.launch(&bench.compute, &second);
    assert_eq!(second.block().address, address);
    assert_eq!(bench.device.violations(), []);
    assert_eq!(bench.device.calls().of(DeviceCall::Record), 0, "and costs no event");
}

#[test]
fn memory_is_reused_after_the_other_streams_work() {
    let bench = Bench::new();
    let block = bench.take(4 * MIB);
    let address = block.block().address;
    bench.use_on(0, &block);
    drop(block);
    assert_eq!((bench.pending(), bench.memory.stats().bytes_in_use), (4, 4 * MIB));
    bench.memory.poll();
    let other = bench.take(4 * MIB);
    assert_ne!(other.block().address, address, "not while it is used");
    bench.device.finish(bench.others[0].handle());
    assert_eq!(bench.take(4 * MIB).block().address, address, "a request looks without being told");
    assert_eq!(bench.memory.pending_frees(), Default::default());
    assert_eq!(bench.device.violations(), []);
}

/// A cache holds the account of such a block. The pool must find it there when it estimates the effect of
/// frees.
#[test]
fn pending_frees_of_blocks_from_a_cache_are_waited_for_too() {
    let device = SimDevice::new(Bytes::mib(64)).with_pace(Pace::OnDemand);
    let bench = Bench::with(device, |config| config.with_thread_cache(ThreadCache::new()));
    let blocks: Vec<Allocation> = (0..8).map(|_| bench.take(MIB)).collect();
    blocks.iter().for_each(|block| bench.use_on(0, block));
    drop(blocks);
    let whole = Request::new(8 * MIB);
    assert!(!bench.fails(3 * MIB), "three of eight blocks make room");
    assert_eq!(bench.pending(), 5, "and no more are waited for");
    assert_eq!(bench.allocator.refusal(&whole, Verdict::Exhausted).verdict, Verdict::Pinned);
    assert_eq!(bench.take(8 * MIB).block().bytes, 8 * MIB);
    assert_eq!((bench.pending(), bench.device.violations()), (0, vec![]));
}

/// The estimate of frees counts all memory that the pool can return before it refuses.
#[test]
fn pending_frees_of_an_idle_region_are_waited_for() {
    let device = SimDevice::new(Bytes::mib(64)).with_pace(Pace::OnDemand);
    let bench = Bench::with(device, |config| {
        config.with_allow_growth(true).with_first_region(Bytes::mib(2)).with_garbage_collection(false)
    });
    let blocks = [2, 4].map(|size| bench.take(size * MIB));
    assert_eq!(bench.allocator.regions().len(), 2);
    bench.use_on(0, &blocks[1]);
    let [kept, pending] = blocks;
    drop(pending);
    assert_eq!(bench.take(6 * MIB).block().bytes, 6 * MIB);
    drop(kept);
}

#[test]
fn another_stream_waits_for_the_earlier_owner_of_its_memory() {
    let bench = Bench::new();
    let first = bench.take(8 * MIB);
    bench.launch(&bench.compute, &first);
    drop(first);
    let second = bench.take(8 * MIB);
    bench.use_on(0, &second);
    assert_eq!(bench.device.violations(), []);
}

#[test]
fn using_a_block_without_saying_so_is_what_the_device_finds() {
    let bench = Bench::new();
    let first = bench.take(8 * MIB);
    bench.launch(&bench.others[0], &first);
    drop(first);
    bench.launch(&bench.compute, &bench.take(8 * MIB));
    assert_eq!(bench.device.violations().len(), 1);
}

#[test]
fn out_of_memory_waits_for_the_cheapest_sufficient_frees() {
    let bench = Bench::new();
    // In address order: 1 and 3 MiB in use on one stream, 3 MiB on the other, 1 MiB on the first again.
    let blocks = [1, 3, 3, 1].map(|size| bench.take(size * MIB));
    for (other, block) in [0, 0, 1, 0].into_iter().zip(&blocks) {
        bench.use_on(other, block);
    }
    drop(blocks);
    assert_eq!(bench.pending(), 8);
    let waits = || bench.device.calls().of(DeviceCall::Synchronize);

    // The oldest free alone is too small, but the two oldest form one piece.
    let first = bench.take(4 * MIB);
    assert_eq!((bench.pending(), waits()), (4, 1));
    // Here the older stream's last free does not help: the pool waits for the other stream alone.
    let second = bench.take(3 * MIB);
    assert_eq!((bench.pending(), waits()), (1, 2));
    drop((first, second));
    assert_eq!(bench.device.violations(), []);
}

#[test]
fn nothing_is_waited_for_if_all_pending_frees_do_not_suffice() {
    let bench = Bench::new();
    let (kept, freed) = (bench.take(4 * MIB), bench.take(4 * MIB));
    bench.use_on(0, &freed);
    drop(freed);
    assert!(bench.fails(5 * MIB));
    assert_eq!((bench.pending(), bench.device.calls().of(DeviceCall::Synchronize)), (4, 0));
    drop(kept);
    let _all = bench.take(8 * MIB);
}

/// A pool where other threads free at the worst time: between a refusal and the choice of what to wait for.
#[derive(Debug)]
struct FreedAfterRefusal {
    pool: Arc<dyn Allocator>,
    held: Mutex<Vec<Allocation>>,
}

// SAFETY: the inner pool keeps every promise.
unsafe impl Allocator for FreedAfterRefusal {
    fn name(&self) -> &str {
        self.pool.name()
    }
    fn memory_kind(&self) -> MemoryKind {
        self.pool.memory_kind()
    }
    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let outcome = self.pool.allocate(request);
        if outcome.is_err() {
            let held = std::mem::take(&mut *self.held.lock().unwrap());
            std::thread::scope(|scope| scope.spawn(|| drop(held)).join().unwrap());
        }
        outcome
    }
    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        // SAFETY: as our caller promises.
        unsafe { self.pool.deallocate(block) }
    }
    fn stats(&self) -> Stats {
        self.pool.stats()
    }
    fn address_space(&self) -> Option<AddressSpace> {
        self.pool.address_space()
    }
    fn tracks_sizes(&self) -> bool {
        self.pool.tracks_sizes()
    }
    fn as_pool(&self) -> Option<&dyn PoolView> {
        self.pool.as_pool()
    }
}

#[test]
fn a_free_just_after_a_refusal_serves_the_request() {
    let bench = Bench::new();
    let config = BfcConfig::new(Bytes::mib(8)).with_allow_growth(false);
    let pool = BfcAllocator::new("sim_0_bfc", Arc::new(DeviceMemory::new(bench.device.clone())), config);
    let pool = Arc::new(FreedAfterRefusal { pool: Arc::new(pool), held: Mutex::default() });
    let memory: Arc<dyn Allocator> = Arc::new(StreamAllocator::new(pool.clone(), bench.compute.clone()));
    let take = |mib: u64| Allocation::new(&memory, &Request::new(mib * MIB));
    // Two threads have called: from now on, requests may wait for other threads.
    std::thread::scope(|scope| scope.spawn(|| drop(take(1).unwrap())).join().unwrap());

    for used_elsewhere in [false, true] {
        let held = [3, 5].map(|mib| take(mib).unwrap());
        if used_elsewhere {
            memory.record_stream(&held[1].block(), &bench.others[0]).unwrap();
        }
        pool.held.lock().unwrap().extend(held);
        assert_eq!(take(8).unwrap().block().bytes, 8 * MIB, "used elsewhere: {used_elsewhere}");
    }
}

#[test]
fn a_block_that_two_streams_use_waits_for_both() {
    let bench = Bench::new();
    let block = bench.take(MIB);
    bench.use_on(0, &block);
    bench.use_on(1, &block);
    drop(block);
    for (other, pending) in [(1, 1), (0, 0)] {
        bench.device.finish(bench.others[other].handle());
        bench.memory.poll();
        assert_eq!(bench.pending(), pending);
    }
}

#[test]
fn a_block_given_back_is_stale_while_its_memory_is_not_free_yet() {
    let bench = Bench::new();
    let block = bench.memory.allocate(&Request::new(1000)).unwrap();
    bench.allocator.record_stream(&block, &bench.others[0]).unwrap();
    bench.device.launch(bench.others[0].handle(), &[MemoryUse::of(&block)]).unwrap();
    // SAFETY: the addresses of these tests have no memory behind them.
    let free = || unsafe { bench.memory.deallocate(block) };
    assert_eq!(free(), Ok(()));
    let stale = BlockError::Stale { block };
    assert_eq!(free(), Err(stale));
    assert_eq!(bench.memory.tag(&block), Err(stale));
    assert_eq!(bench.memory.requested_bytes(&block), Err(stale));
    assert_eq!(bench.memory.block_at(block.address), Err(BlockError::NoBlockAt { address: block.address }));
    assert_eq!(bench.memory.record_stream(&block, &bench.others[1]), Err(RecordError::Block(stale)));
    bench.device.finish(bench.others[0].handle());
    bench.memory.poll();
    assert_eq!(free(), Err(stale));
    assert_eq!(bench.memory.stats().bytes_in_use, 0);
}

#[test]
fn a_pool_that_knows_no_streams_refuses_to_be_used_on_one() {
    let bench = Bench::new();
    let plain = BfcAllocator::new(
        "plain",
        Arc::new(DeviceMemory::new(bench.device.clone())),
        BfcConfig::new(Bytes::mib(1)),
    );
    let block = plain.allocate(&Request::new(1)).unwrap();
    let plain: &dyn Allocator = &plain;
    let error = plain.record_stream(&block, &bench.others[0]).unwrap_err();
    assert_eq!(error.to_string(), "plain does not order memory between streams");
}

#[test]
fn a_free_without_an_event_waits_for_the_device() {
    let bench = Bench::new();
    let block = bench.take(8 * MIB);
    bench.use_on(0, &block);
    bench.device.inject(Fault::new(DeviceCall::Record, FaultTime::Call(1)));
    drop(block);
    assert_eq!(bench.pending(), 0);
    bench.launch(&bench.compute, &bench.take(8 * MIB));
    assert_eq!(bench.device.violations(), []);
}

#[test]
fn memory_without_a_completion_event_is_never_reused() {
    let bench = Bench::new();
    let block = bench.take(4 * MIB);
    bench.use_on(0, &block);
    bench.device.inject(Fault::new(DeviceCall::Record, FaultTime::Call(1)));
    bench.device.inject(Fault::new(DeviceCall::Synchronize, FaultTime::Call(1)));
    drop(block);
    assert_eq!(bench.memory.pending_frees().stranded_bytes, 4 * MIB);
    assert!(bench.fails(5 * MIB));
    assert_eq!(bench.memory.stats().bytes_in_use, 4 * MIB);
}

#[test]
fn a_lost_device_reports_once_and_leaks_nothing() {
    let bench = Bench::new();
    let blocks = [bench.take(MIB), bench.take(MIB), bench.take(MIB)];
    bench.use_on(0, &blocks[0]);
    bench.use_on(1, &blocks[1]);
    bench.device.inject(Fault::sticky(DeviceCall::Launch, FaultTime::Call(1)));
    let lost = bench.device.launch(bench.compute.handle(), &[]).unwrap_err();
    assert!(lost.is_poisoned());
    assert_eq!(
        lost.to_string(),
        "simulated device is lost to this process: launch failed with injected fault at call 1"
    );
    drop(blocks);
    assert_eq!(bench.memory.stats().bytes_in_use, 0);
    let error = bench.memory.allocate(&Request::new(1)).unwrap_err();
    assert_eq!(error.to_string(), format!("sim_0_bfc: {lost}"));
    let calls = bench.device.calls();
    let device = bench.device.clone();
    drop(bench);
    assert_eq!(device.calls(), calls, "nothing reaches the driver any more");
    assert_eq!(device.free_faults(), FreeFaults { count: 1, last: Some(lost) });
}

#[test]
fn running_out_of_memory_does_not_lose_the_device() {
    let bench = Bench::new();
    bench.device.inject(Fault::exhausted(DeviceCall::AllocateDevice, FaultTime::After(0)));
    assert!(bench.fails(MIB));
    assert_eq!(bench.device.poison(), None);
    bench.device.clear_faults();
    drop(bench.take(MIB));
}

#[test]
fn blocks_are_given_back_from_any_thread_and_while_unwinding() {
    let bench = Bench::new();
    let before = failed_drops();
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || receiver.into_iter().for_each(drop::<Allocation>));
    for other in [0, 1, 0, 1] {
        let block = bench.take(MIB);
        bench.use_on(other, &block);
        sender.send(block).unwrap();
    }
    drop(sender);
    thread.join().unwrap();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let block = bench.take(MIB);
        bench.use_on(0, &block);
        panic!("on purpose");
    }));
    assert!(unwound.is_err());
    assert_eq!(bench.pending(), 5);
    let _all = bench.take(8 * MIB);
    assert_eq!((bench.pending(), failed_drops()), (0, before));
    assert_eq!(bench.device.violations(), []);
}

#[test]
fn a_block_may_outlive_the_handles_of_its_device() {
    let Bench { device, compute, others, memory, allocator } = Bench::new();
    let block = Allocation::new(&allocator, &Request::new(MIB)).unwrap();
    allocator.record_stream(&block.block(), &others[0]).unwrap();
    device.launch(others[0].handle(), &[MemoryUse::of(&block.block())]).unwrap();
    drop((compute, others, memory, allocator));
    assert!(!device.live(MemoryKind::Device).is_empty());
    std::thread::spawn(move || drop(block)).join().unwrap();
    assert_eq!(device.live(MemoryKind::Device), []);
    assert_eq!(device.open_streams_and_events(), 0);
    assert_eq!((device.violations(), device.free_faults()), (vec![], FreeFaults::default()));
}

/// The request waits for a free of another thread, and then for the stream that the block was used on.
#[test]
fn a_waiting_request_sees_pending_frees() {
    let bench = Bench::new();
    let block = bench.take(8 * MIB);
    bench.use_on(0, &block);
    let waiting = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            waiting.store(true, Ordering::SeqCst);
            bench.take(8 * MIB)
        });
        while !waiting.load(Ordering::SeqCst) || bench.memory.stats().retry.waiting == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(block);
        bench.launch(&bench.compute, &taker.join().unwrap());
    });
    assert_eq!(bench.device.violations(), []);
}

#[test]
fn threads_sharing_streams_never_reuse_memory_in_use() {
    for seed in 0..30 {
        let bench = Bench::on(SimDevice::new(Bytes::mib(64)).with_pace(Pace::Random { seed }));
        // From the first call of a second thread on, requests wait for the frees of other threads.
        drop(bench.take(1));
        std::thread::scope(|scope| {
            let (sender, receiver) = channel::<Allocation>();
            scope.spawn(move || receiver.into_iter().for_each(drop));
            for thread in 0..3_u64 {
                let (bench, sender) = (&bench, sender.clone());
                scope.spawn(move || {
                    for step in 0..60_u64 {
                        let bytes = ((seed + thread) * 7919 + step * 104_729) % (2 * MIB) + 1;
                        let block = bench.take(bytes);
                        bench.launch(&bench.compute, &block);
                        if step % 3 > 0 {
                            bench.use_on((step + thread) as usize % 2, &block);
                        }
                        if step % 2 == 0 {
                            sender.send(block).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(bench.device.violations(), [], "seed {seed}");
        let device = bench.device.clone();
        drop(bench);
        assert_eq!((device.live(MemoryKind::Device), device.free_faults()), (vec![], FreeFaults::default()));
    }
}

#[test]
fn streams_and_events_of_one_device_are_none_of_another() {
    let [first, second] = [(); 2].map(|()| Stream::new(Arc::new(SimDevice::new(Bytes::mib(1)))).unwrap());
    let event = StreamEvent::new(&first).unwrap();
    assert!(matches!(event.record(&second), Err(SourceError::Driver { call: "record", .. })));
    assert!(matches!(second.wait(&event), Err(SourceError::Driver { call: "wait", .. })));
    assert_ne!(first, second);
}

#[test]
fn a_stream_allocator_forwards_steps_to_a_packed_pool() {
    let bench = Bench::new();
    let step = [(0, 4), (1, 4), (2, 4)].map(|(start, end)| Lifetime { bytes: MIB, start, end });
    let packing = Packing::solve(&step, &PackingOptions::default()).unwrap();
    let config = PackedConfig::packed(Bytes::mib(8), Arc::new(packing));
    let source = Arc::new(DeviceMemory::new(bench.device.clone()));
    let packed = Arc::new(PackedAllocator::new("packed", source, config));
    let allocator: Arc<dyn Allocator> = Arc::new(StreamAllocator::new(packed.clone(), bench.compute.clone()));
    for _ in 0..2 {
        // A step that ends early.
        allocator.begin_step();
        drop(Allocation::new(&allocator, &Request::new(MIB)).unwrap());
    }
    assert_eq!(packed.counts().steps, 2);
    assert_eq!(allocator.packing_counts(), Some(packed.counts()));
}

/// Waiters of equal size cost one failed attempt per free, not one each.
#[test]
fn a_crowd_of_waiters_does_not_stampede() {
    let bench = Bench::new();
    let held: Vec<Allocation> = (0..8).map(|_| bench.take(MIB)).collect();
    std::thread::scope(|scope| {
        let taker = |_| scope.spawn(|| drop(bench.take(2 * MIB)));
        let takers: Vec<_> = (0..100).map(taker).collect();
        while bench.memory.stats().retry.waiting < 100 {
            std::thread::yield_now();
        }
        let (first, rest): (Vec<_>, Vec<_>) = (0..).zip(held).partition(|(nth, _)| [0, 2].contains(nth));
        drop(first);
        assert_eq!(bench.memory.stats().retry.wakeups, 0, "no two of these lie side by side");
        drop(rest);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
    let retry = bench.memory.stats().retry;
    assert_eq!((retry.waits, retry.timeouts), (100, 0));
    assert!(retry.wakeups <= 300, "{retry:?}");
}
