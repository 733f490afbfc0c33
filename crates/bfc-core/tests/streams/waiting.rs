//! Order of waiting when memory runs out: first streams whose work frees memory, then threads that hold
//! memory. Without either, the request fails.

use std::sync::Arc;
use std::time::Duration;

use bfc_core::sim::{DeviceCall, SimDevice};
use bfc_core::{
    AllocError, Allocation, AllocationAttributes, Allocator, BfcAllocator, BfcConfig, Bytes, DeviceMemory,
    MIB, OomReport, Request, Stream, StreamAllocator, TimingCounter,
};

use super::Bench;

impl Bench {
    /// Returns the report of a request that may wait and then fails.
    fn refuses(&self, bytes: u64) -> OomReport {
        match Allocation::new(&self.allocator, &Request::new(bytes)) {
            Err(AllocError::OutOfMemory(report)) => *report,
            other => panic!("{bytes} bytes should not fit: {other:?}"),
        }
    }

    fn waits_for_streams(&self) -> u64 {
        self.device.calls().of(DeviceCall::Synchronize)
    }

    fn waits_for_threads(&self) -> u64 {
        self.allocator.stats().retry.waits
    }
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

#[test]
fn useful_pending_frees_of_ended_threads_are_waited_for() {
    let bench = Bench::new();
    let _kept = bench.take(4 * MIB);
    on_a_thread(|| {
        let block = bench.take(4 * MIB);
        bench.use_on(0, &block);
    });
    assert_eq!(bench.pending(), 4);
    let _taken = bench.take(4 * MIB);
    assert_eq!((bench.pending(), bench.waits_for_streams(), bench.waits_for_threads()), (0, 1, 0));
}

#[test]
fn useless_pending_frees_of_ended_threads_are_ignored() {
    let bench = Bench::new();
    let _kept = bench.take(4 * MIB);
    on_a_thread(|| {
        let block = bench.take(4 * MIB);
        bench.use_on(0, &block);
    });
    let report = bench.refuses(5 * MIB);
    assert!(report.waited.is_zero(), "{:?}", report.waited);
    assert_eq!((bench.pending(), bench.waits_for_streams(), bench.waits_for_threads()), (4, 0, 0));
}

/// Neither the stream nor the thread alone suffices.
#[test]
fn a_request_waits_for_a_thread_and_then_a_stream() {
    let bench = Bench::new();
    let freed = bench.take(4 * MIB);
    bench.use_on(0, &freed);
    drop(freed);
    let left = on_a_thread(|| {
        let block = bench.take(4 * MIB);
        bench.use_on(1, &block);
        block
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while bench.allocator.stats().retry.waiting == 0 {
                std::thread::yield_now();
            }
            drop(left);
        });
        assert_eq!(bench.take(8 * MIB).block().bytes, 8 * MIB);
    });
    assert_eq!((bench.pending(), bench.waits_for_threads()), (0, 1));
    assert_eq!(bench.device.violations(), []);
}

/// The frontier rises in the counter, which knows the pool but not the allocators above it.
#[test]
fn a_rising_frontier_wakes_a_request_above_the_pool() {
    let device = Arc::new(SimDevice::new(Bytes::mib(8)));
    let counter = Arc::new(TimingCounter::default());
    let config = BfcConfig::new(Bytes::mib(8)).with_allow_growth(false).with_timing_counter(counter.clone());
    let pool = Arc::new(BfcAllocator::new("sim", Arc::new(DeviceMemory::new(device.clone())), config));
    let streams = StreamAllocator::new(pool, Stream::new(device).unwrap());
    let allocator: Arc<dyn Allocator> = Arc::new(streams.with_retry_timeout(Duration::from_secs(600)));
    let take = |mib: u64| Allocation::new(&allocator, &Request::new(mib * MIB)).unwrap();
    let (_kept, freed) = (take(1), take(7));
    let address = freed.block().address;
    drop(freed);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let before = || 0;
            let attributes = AllocationAttributes { freed_before: Some(&before), ..Default::default() };
            Allocation::new(&allocator, &Request::new(7 * MIB).with_attributes(attributes))
        });
        while allocator.stats().retry.waiting == 0 {
            std::thread::yield_now();
        }
        counter.set_safe_frontier(2);
        assert_eq!(waiter.join().unwrap().unwrap().block().address, address);
    });
}
