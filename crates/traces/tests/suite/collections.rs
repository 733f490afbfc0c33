//! Collections in the pool of an op: live figures, recordings and replays agree, also where blocks grow in place.

use std::sync::Arc;

use allocator_api2::vec::Vec as PoolVec;
use bfc_core::{
    AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes, HostMemory, PoolAllocator, SubAllocator,
};
use highwater_traces::{Trace, replay};
use highwater_tracking::{Report, Tracker};

fn pool_over(source: impl SubAllocator + 'static) -> Arc<dyn Allocator> {
    let config = BfcConfig::new(Bytes::mib(1)).with_allow_growth(false).with_retry(false);
    Arc::new(BfcAllocator::new("cpu", Arc::new(source), config))
}

/// Vectors of three ops grow and shrink, in place and by moves.
#[test]
fn random_growth_has_one_peak_live_recorded_and_replayed() {
    for seed in 0..20_u64 {
        let (pool, tracker) = (pool_over(HostMemory::new()), Tracker::new());
        tracker.start_log(Bytes::mib(4));
        let mut vectors: Vec<PoolVec<u8, PoolAllocator>> = ["first", "second", "third"]
            .into_iter()
            .flat_map(|op| {
                let run = tracker.begin(op);
                let in_pool = PoolAllocator::new(run.track(&pool)).unwrap();
                [0; 2].map(|_| PoolVec::new_in(in_pool.clone()))
            })
            .collect();
        let mut random = seed;
        for _ in 0..400 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (pick, bytes) = ((random >> 60) as usize % 6, (random >> 40) as usize % 20_000);
            let vector = &mut vectors[pick];
            match random >> 33 & 3 {
                0 => vector.shrink_to(bytes),
                1 => *vector = PoolVec::new_in(vector.allocator().clone()),
                _ => drop(vector.try_reserve_exact(bytes)),
            }
        }
        let stats = pool.stats();
        let live = Report::new(&tracker, std::slice::from_ref(&pool));
        let recording = tracker.take_log();
        let recorded = Report::from_recording(&recording);
        let figures = |report: &Report| {
            let mut ops: Vec<_> = report.ops.iter().map(|op| (op.op.clone(), op.live_bytes)).collect();
            ops.sort();
            (ops, report.peak.as_ref().map(|peak| peak.bytes))
        };
        assert_eq!(figures(&live), figures(&recorded), "seed {seed}");
        assert_eq!(recorded.peak.unwrap().bytes, stats.peak_bytes_in_use);
        let trace = Trace::from_recording(&recording).unwrap();
        let again = pool_over(AddressOnlyMemory::new());
        assert_eq!(replay(&trace, &*again).unwrap().peak_in_use, stats.peak_bytes_in_use, "seed {seed}");
        drop(vectors);
        assert_eq!(pool.bytes_in_use(), 0);
    }
}
