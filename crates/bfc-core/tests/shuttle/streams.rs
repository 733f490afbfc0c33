//! Several threads use memory on several streams, under the `shuttle` checker. The checker has no clock: a
//! request that misses its wake-up sleeps forever, and the checker reports a deadlock.

use std::sync::Arc;
use std::time::Duration;

use bfc_core::sim::{MemoryUse, Pace, SimDevice};
use bfc_core::sync::thread;
use bfc_core::{
    Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, DeviceMemory, KIB, Request, Stream,
    StreamAllocator,
};

/// Far more real time than any schedule takes.
const LONG: Duration = Duration::from_secs(3600);

const SCHEDULES: usize = 2000;

/// Room for one block of each of two threads, but not of three.
const POOL: Bytes = Bytes::kib(8);
const BLOCKS: [u64; 3] = [4 * KIB, 3 * KIB, 2 * KIB];

#[test]
fn requests_waiting_for_streams_and_threads_are_served() {
    let scenario = || {
        let device = Arc::new(SimDevice::new(Bytes::mib(1)).with_pace(Pace::OnDemand));
        let stream = || Stream::new(device.clone()).unwrap();
        let (compute, other) = (stream(), stream());
        let config = BfcConfig::new(POOL).with_allow_growth(false);
        let pool = BfcAllocator::new("sim", Arc::new(DeviceMemory::new(device.clone())), config);
        let memory = StreamAllocator::new(Arc::new(pool), compute).with_retry_timeout(LONG);
        let memory: Arc<dyn Allocator> = Arc::new(memory);
        let user = |bytes: u64| {
            let (device, memory, other) = (device.clone(), memory.clone(), other.clone());
            thread::spawn(move || {
                for turn in 0..3 {
                    let block = Allocation::new(&memory, &Request::new(bytes)).unwrap();
                    if turn != 1 {
                        memory.record_stream(&block.block(), &other).unwrap();
                        device.launch(other.handle(), &[MemoryUse::of(&block.block())]).unwrap();
                    }
                }
            })
        };
        for thread in BLOCKS.map(user) {
            thread.join().unwrap();
        }
        assert_eq!(device.violations(), []);
    };
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, 3);
}
