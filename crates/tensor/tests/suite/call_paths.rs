//! How many calls lead from a matrix product to the placement of its result.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::sync::Arc;

use bfc_core::{
    Bfc, BfcOptions, Bytes, Capabilities, ConfiguredPolicy, HostMemory, Inconsistent, MemoryKind, NotAdded,
    NotLive, Piece, Placement, PlacementRequest, Policy, PolicyAllocator, PolicyStatus, Pool, PoolConfig,
    Release, Span,
};
use highwater_tensor::{Runtime, Tensor};

thread_local! {
    /// The stack of the latest placement.
    static PLACE_CALL: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
}

/// A [`Bfc`] that notes who calls [`Policy::place`].
#[derive(Debug)]
struct Observed(Bfc);

impl Policy for Observed {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn rounded(&self, bytes: u64, alignment: u64) -> Option<u64> {
        self.0.rounded(bytes, alignment)
    }

    fn place(&mut self, need: &PlacementRequest) -> Option<Placement> {
        PLACE_CALL.set(Some(Backtrace::force_capture()));
        self.0.place(need)
    }

    fn placed(&self, slot: u32) -> Option<Placement> {
        self.0.placed(slot)
    }

    fn free(&mut self, slot: u32) -> Result<(), NotLive> {
        self.0.free(slot)
    }

    fn add_region(&mut self, span: Span, join: bool) -> Result<(), NotAdded> {
        self.0.add_region(span, join)
    }

    fn idle_bytes(&self) -> u64 {
        self.0.idle_bytes()
    }

    fn release(&mut self, release: Release) -> Option<Span> {
        self.0.release(release)
    }

    fn status(&self) -> PolicyStatus {
        self.0.status()
    }

    fn regions(&self) -> Vec<Span> {
        self.0.regions()
    }

    fn largest_free_bytes(&self) -> u64 {
        self.0.largest_free_bytes()
    }

    fn visit(&self, visit: &mut dyn FnMut(Piece)) {
        self.0.visit(visit);
    }

    fn check(&self) -> Result<(), Inconsistent> {
        self.0.check()
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        self.0.boxed_clone()
    }
}

// SAFETY: all places are those of a `Bfc`, which keeps the promise.
unsafe impl ConfiguredPolicy for Observed {
    type Options = BfcOptions;

    fn configured(options: &BfcOptions) -> Self {
        Self(Bfc::configured(options))
    }
}

#[test]
fn a_product_reaches_the_policy_in_ten_calls() {
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let device = runtime.cpu().unwrap();
    let config = PoolConfig::<BfcOptions>::new(Bytes::mib(16));
    let pool = PolicyAllocator::<Observed>::new("observed", Arc::new(HostMemory::new()), config);
    let pool = Arc::new(pool);
    assert!(runtime.registry().unregister(device.id()));
    let custom = Pool::custom(MemoryKind::Host, move |_, _| Ok(pool.clone()));
    runtime.registry().register(device.id(), [custom]).unwrap();

    // A product so small that it needs no workspace.
    let x = Tensor::ones(&device, [16, 16]).unwrap();
    // The first product may still take a region from the source.
    drop(x.matmul(&x).unwrap());
    PLACE_CALL.set(None);
    x.matmul(&x).unwrap();
    let calls = crate::frames::calls(&PLACE_CALL.take().unwrap(), "matmul in ops/matmul.rs");
    // The policy of this test is the last call, and none of the workspace's functions.
    assert!((4..=9).contains(&calls.len()), "{calls:#?}");
}
