//! Each method of an allocator, called through each wrapper: it reaches the inner allocator, unless the wrapper answers.

use std::mem::take;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use bfc_core::sim::SimDevice;
use bfc_core::{
    AddressSpace, AllocError, Allocator, AllocatorSnapshot, Block, BlockError, Bytes, Category, Damage,
    GuardAllocator, GuardConfig, Inconsistent, Ledger, LiveAllocation, MemoryKind, OomReport, OwnerBytes,
    OwnerId, PackingCounts, PoolId, PoolView, RecordError, Request, Span, Stats, Stream, StreamAllocator,
    Tag, Verdict, WaitKey,
};
use highwater_tracking::{ScopedAllocator, Tracker, TrackingAllocator};

/// The names of the methods of [`Allocator`], besides `as_pool`.
const ALLOCATOR: [&str; 8] = [
    "name",
    "memory_kind",
    "address_space",
    "allocate",
    "deallocate",
    "stats",
    "bytes_in_use",
    "tracks_sizes",
];

/// An allocator of one block that notes every call.
#[derive(Debug)]
struct Noting {
    arena: Box<[u64; 512]>,
    stream: Arc<Stream>,
    calls: Mutex<Vec<&'static str>>,
}

impl Noting {
    fn note(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }
}

// SAFETY: the tests allocate one block at a time, which lies in the arena.
unsafe impl Allocator for Noting {
    fn name(&self) -> &str {
        self.note("name");
        "noting"
    }

    fn memory_kind(&self) -> MemoryKind {
        self.note("memory_kind");
        MemoryKind::Host
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.note("address_space");
        None
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        self.note("allocate");
        let address = (self.arena.as_ptr().expose_provenance() as u64).next_multiple_of(request.alignment);
        Ok(Block { address, bytes: request.bytes, id: 1, chunk: 0, pool: PoolId::default() })
    }

    unsafe fn deallocate(&self, _block: Block) -> Result<(), BlockError> {
        self.note("deallocate");
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.note("stats");
        Stats::default()
    }

    fn bytes_in_use(&self) -> u64 {
        self.note("bytes_in_use");
        0
    }

    fn tracks_sizes(&self) -> bool {
        self.note("tracks_sizes");
        true
    }

    fn as_pool(&self) -> Option<&dyn PoolView> {
        Some(self)
    }
}

impl PoolView for Noting {
    fn requested_bytes(&self, _block: &Block) -> Result<u64, BlockError> {
        self.note("requested_bytes");
        Ok(0)
    }

    fn block_at(&self, address: u64) -> Result<Block, BlockError> {
        self.note("block_at");
        Err(BlockError::NoBlockAt { address })
    }

    fn tag(&self, _block: &Block) -> Result<Tag, BlockError> {
        self.note("tag");
        Ok(Tag::default())
    }

    fn retag(&self, _block: &Block, _tag: Tag) -> Result<(), BlockError> {
        self.note("retag");
        Ok(())
    }

    fn recategorize(&self, _block: &Block, _from: &[Category], _to: Category) -> Result<Tag, BlockError> {
        self.note("recategorize");
        Ok(Tag::default())
    }

    fn ledger(&self) -> Ledger {
        self.note("ledger");
        Ledger::new()
    }

    fn snapshot(&self) -> AllocatorSnapshot {
        self.note("snapshot");
        AllocatorSnapshot::default()
    }

    fn owner_bytes(&self, _owner: OwnerId) -> OwnerBytes {
        self.note("owner_bytes");
        OwnerBytes::default()
    }

    fn regions(&self) -> Vec<Span> {
        self.note("regions");
        Vec::new()
    }

    fn live_allocations(&self) -> Vec<LiveAllocation> {
        self.note("live_allocations");
        Vec::new()
    }

    fn would_fit(&self, _request: &Request<'_>, _freed: &[Block]) -> Option<bool> {
        self.note("would_fit");
        None
    }

    fn refusal(&self, request: &Request<'_>, verdict: Verdict) -> OomReport {
        self.note("refusal");
        OomReport::new("noting", request, verdict)
    }

    fn find_damage(&self) -> Option<Vec<Damage>> {
        self.note("find_damage");
        None
    }

    fn check_invariants(&self) -> Result<(), Inconsistent> {
        self.note("check_invariants");
        Ok(())
    }

    fn packing_counts(&self) -> Option<PackingCounts> {
        self.note("packing_counts");
        None
    }

    fn wait_key(&self, request: &Request<'_>) -> WaitKey {
        self.note("wait_key");
        WaitKey { bytes: request.bytes, class: None }
    }

    fn max_satisfiable_bytes(&self) -> u64 {
        self.note("max_satisfiable_bytes");
        0
    }

    fn expect_frees(&self, _begin: bool) {
        self.note("expect_frees");
    }

    fn has_orphaned_blocks(&self, _besides: &[Block]) -> bool {
        self.note("has_orphaned_blocks");
        false
    }

    fn wake_also(&self, _waiters: &Waker) {
        self.note("wake_also");
    }

    fn stream(&self) -> Option<&Arc<Stream>> {
        self.note("stream");
        Some(&self.stream)
    }

    fn record_stream(&self, _block: &Block, _stream: &Arc<Stream>) -> Result<(), RecordError> {
        self.note("record_stream");
        Ok(())
    }

    fn trim(&self, _keep: Bytes) -> u64 {
        self.note("trim");
        0
    }

    fn clear_stats(&self) -> bool {
        self.note("clear_stats");
        true
    }

    fn begin_step(&self) {
        self.note("begin_step");
    }

    fn supports_resize(&self) -> bool {
        self.note("supports_resize");
        true
    }

    unsafe fn resize(&self, _block: &Block, _bytes: u64) -> Result<Option<Block>, BlockError> {
        self.note("resize");
        Ok(None)
    }
}

/// Calls a method with a live block. `deallocate` is called for a second block.
fn call(method: &str, allocator: &dyn Allocator, block: &Block, stream: &Arc<Stream>) {
    let request = Request::new(64);
    let tag = Tag { category: Category::Output, ..Tag::default() };
    match method {
        "name" => drop(allocator.name().to_owned()),
        "memory_kind" => drop(allocator.memory_kind()),
        "address_space" => drop(allocator.address_space()),
        "allocate" => drop(allocator.allocate(&request).unwrap()),
        // SAFETY: nothing uses the memory.
        "deallocate" => unsafe { allocator.deallocate(*block) }.unwrap(),
        "stats" => drop(allocator.stats()),
        "bytes_in_use" => drop(allocator.bytes_in_use()),
        "tracks_sizes" => drop(allocator.tracks_sizes()),
        "requested_bytes" => drop(allocator.requested_bytes(block).unwrap()),
        "block_at" => drop(allocator.block_at(block.address)),
        "tag" => drop(allocator.tag(block).unwrap()),
        "retag" => allocator.retag(block, tag).unwrap(),
        "recategorize" => drop(allocator.recategorize(block, &[], Category::Output).unwrap()),
        "ledger" => drop(allocator.ledger()),
        "snapshot" => drop(allocator.snapshot()),
        "owner_bytes" => drop(allocator.owner_bytes(OwnerId::ROOT)),
        "regions" => drop(allocator.regions()),
        "live_allocations" => drop(allocator.live_allocations()),
        "would_fit" => drop(allocator.would_fit(&request, &[])),
        "refusal" => drop(allocator.refusal(&request, Verdict::Exhausted)),
        "find_damage" => drop(allocator.find_damage()),
        "check_invariants" => allocator.check_invariants().unwrap(),
        "packing_counts" => drop(allocator.packing_counts()),
        "wait_key" => drop(allocator.wait_key(&request)),
        "max_satisfiable_bytes" => drop(allocator.max_satisfiable_bytes()),
        "expect_frees" => allocator.expect_frees(true),
        "has_orphaned_blocks" => drop(allocator.has_orphaned_blocks(&[])),
        "wake_also" => allocator.wake_also(Waker::noop()),
        "stream" => drop(allocator.stream().cloned()),
        "record_stream" => drop(allocator.record_stream(block, stream)),
        "trim" => drop(allocator.trim(Bytes(0))),
        "clear_stats" => drop(allocator.clear_stats()),
        "begin_step" => allocator.begin_step(),
        "supports_resize" => drop(allocator.supports_resize()),
        // SAFETY: nothing uses the memory, and the old block is not used again.
        "resize" => drop(unsafe { allocator.resize(block, 128) }.unwrap()),
        other => panic!("no call of {other}"),
    }
}

type Wrap = fn(Arc<dyn Allocator>, &Arc<Stream>) -> Arc<dyn Allocator>;

/// The wrappers, and the methods that each answers without its inner allocator's method of the same name.
const WRAPPERS: [(&str, Wrap, &[&str]); 6] = [
    ("none", |inner, _| inner, &[]),
    (
        "guard",
        |inner, _| Arc::new(GuardAllocator::new(inner, GuardConfig::default()).unwrap()),
        &[
            // A freed block stays in the quarantine.
            "deallocate",
            "bytes_in_use",
            "tracks_sizes",
            "requested_bytes",
            "block_at",
            "tag",
            "recategorize",
            "ledger",
            "snapshot",
            "owner_bytes",
            "live_allocations",
            "find_damage",
            "stream",
            "record_stream",
            "supports_resize",
            "resize",
        ],
    ),
    (
        "streams",
        |inner, stream| Arc::new(StreamAllocator::new(inner, stream.clone())),
        &["expect_frees", "stream", "record_stream", "supports_resize", "resize"],
    ),
    // Whether sizes are tracked is asked once.
    ("tracking", |inner, _| TrackingAllocator::new(inner, true), &["tracks_sizes"]),
    ("scoped", |inner, _| ScopedAllocator::new(&Tracker::new(), inner), &[]),
    (
        "scoped twice",
        |inner, _| ScopedAllocator::new(&Tracker::new(), ScopedAllocator::new(&Tracker::new(), inner)),
        &[],
    ),
];

#[test]
fn every_method_reaches_the_inner_allocator_through_every_wrapper() {
    let device = Arc::new(SimDevice::new(Bytes::mib(1)));
    let [own, other] = [(); 2].map(|()| Stream::new(device.clone()).unwrap());
    for (name, wrap, answered) in WRAPPERS {
        for method in ALLOCATOR.iter().chain(<dyn PoolView>::METHODS) {
            let noting =
                Arc::new(Noting { arena: Box::new([0; 512]), stream: own.clone(), calls: Mutex::default() });
            let wrapper = wrap(noting.clone(), &own);
            let block = wrapper.allocate(&Request::new(64)).unwrap();
            drop(take(&mut *noting.calls.lock().unwrap()));
            call(method, &*wrapper, &block, &other);
            let calls = take(&mut *noting.calls.lock().unwrap());
            let expected = !answered.contains(method);
            assert_eq!(calls.contains(method), expected, "{method} of {name} calls {calls:?}");
        }
    }
}
