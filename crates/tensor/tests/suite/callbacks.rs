//! Code of the user that the library calls: it runs without locks, so it may use the library.

use std::sync::{Arc, OnceLock};

use bfc_core::{Allocator, BfcAllocator, BfcConfig, Bytes, HostMemory, VisitedMemory, Visitors};
use highwater_tensor::backend::Backend;
use highwater_tensor::backend::dry::DryBackend;
use highwater_tensor::{Device, Runtime, Tensor};

/// Runs an op when it is dropped.
struct RunsOp(Device);

impl Drop for RunsOp {
    fn drop(&mut self) {
        Tensor::zeros(&self.0, [1]).unwrap();
    }
}

#[test]
fn what_a_replaced_placement_listener_holds_may_run_ops() {
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let device = runtime.cpu().unwrap();
    for _ in 0..2 {
        let held = RunsOp(device.clone());
        runtime.on_placement(move |_| {
            let _ = &held;
        });
    }
}

#[test]
fn what_a_forgotten_callback_holds_may_register_callbacks() {
    struct Registers(Arc<highwater_tracking::Tracker>);
    impl Drop for Registers {
        fn drop(&mut self) {
            self.0.last_resort().before_giving_up(|_| false);
            self.0.last_resort().on_failure(|_| ());
        }
    }
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let tracker = runtime.tracker();
    let (first, second) = (Registers(Arc::clone(tracker)), Registers(Arc::clone(tracker)));
    tracker.last_resort().before_giving_up(move |_| {
        let _ = &first;
        false
    });
    tracker.last_resort().on_failure(move |_| {
        let _ = &second;
    });
    tracker.last_resort().clear();
}

#[test]
fn a_visitor_of_page_locked_memory_may_upload() {
    let mut visitors = Visitors::new();
    let backend = Arc::new(OnceLock::<DryBackend>::new());
    let seen = Arc::new(OnceLock::new());
    let (own, told) = (Arc::clone(&backend), Arc::clone(&seen));
    visitors.on_alloc(move |region, _| {
        own.get().unwrap().simulate_upload(16);
        own.get().unwrap().simulate_download();
        let _ = told.set(region.bytes);
    });
    let source = VisitedMemory::new(Arc::new(HostMemory::new()), 0, visitors);
    let pool: Arc<dyn Allocator> =
        Arc::new(BfcAllocator::new("pinned", Arc::new(source), BfcConfig::new(Bytes::mib(8))));
    backend.set(DryBackend::new().with_pinned(Arc::clone(&pool))).unwrap();
    backend.get().unwrap().simulate_upload(1000);
    assert!(seen.get().is_some_and(|bytes| *bytes >= 1000));
    assert_eq!(pool.stats().live_allocs, 1);
    backend.get().unwrap().simulate_download();
    assert_eq!(pool.stats().live_allocs, 0);
}
