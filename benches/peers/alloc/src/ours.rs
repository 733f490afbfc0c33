//! Highwater's allocators, behind the same interface as the third-party ones.

use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, AllocationAttributes, Allocator, Bfc, BfcAllocator, BfcConfig, Block, Bytes, Category,
    OwnerId, PlacementRequest, Policy, Request, Span, Tag,
};

use crate::peer::Peer;

/// The policy alone: no lock, no accounts.
pub struct Arena(Bfc);

impl Peer for Arena {
    type Handle = u32;

    fn new(capacity: u64, _: u32) -> Self {
        let mut bfc = Bfc::default();
        bfc.add_region(Span { address: 1 << 30, bytes: capacity }, false).expect("a sound region");
        Self(bfc)
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<u32> {
        self.0.place(&PlacementRequest::new(bytes)).map(|place| place.slot)
    }

    #[inline]
    fn free(&mut self, slot: u32) {
        self.0.free(slot).expect("the slot is live");
    }
}

/// One region of the whole capacity, reserved before the measurement starts.
fn pool(capacity: u64) -> BfcAllocator {
    let config = BfcConfig::new(Bytes(capacity)).with_allow_growth(false);
    BfcAllocator::new("pool", Arc::new(AddressOnlyMemory::new()), config)
}

fn request<'a>(bytes: u64) -> Request<'a> {
    Request::new(bytes).with_attributes(AllocationAttributes::no_retry())
}

/// The thread-safe pool, called by its concrete type.
pub struct Pool(pub BfcAllocator);

impl Peer for Pool {
    type Handle = Block;

    fn new(capacity: u64, _: u32) -> Self {
        Self(pool(capacity))
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Block> {
        self.0.allocate(&request(bytes)).ok()
    }

    #[inline]
    fn free(&mut self, block: Block) {
        // SAFETY: nothing uses addresses that have no memory behind them.
        unsafe { self.0.deallocate(block) }.expect("the block is live");
    }
}

/// The thread-safe pool through `dyn Allocator`. It charges each request to an op in a module, with its
/// marks.
pub struct Marked {
    pool: Arc<dyn Allocator>,
    tag: Tag,
}

impl Peer for Marked {
    type Handle = Block;

    fn new(capacity: u64, _: u32) -> Self {
        let block = OwnerId::intern(OwnerId::intern(OwnerId::ROOT, "encoder"), "block0");
        let tag = Tag { owner: OwnerId::intern(block, "matmul"), category: Category::Output };
        Self { pool: Arc::new(pool(capacity)), tag }
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Block> {
        self.pool.allocate(&request(bytes).with_tag(self.tag)).ok()
    }

    #[inline]
    fn free(&mut self, block: Block) {
        // SAFETY: nothing uses addresses that have no memory behind them.
        unsafe { self.pool.deallocate(block) }.expect("the block is live");
    }
}
