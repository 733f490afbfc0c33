//! The buddy policy: Paddle's cases with its sizes, and random sequences beside the plainest policy.

use bfc_core::{
    Buddy, BuddyOptions, Bytes, GIB, KIB, MIB, Placement, PlacementRequest, Policy, Release, Span,
};
use proptest::prelude::*;

use crate::shadow::plain::{Plain, Rules};
use crate::shadow::{Shadow, refuses_the_impossible, steps};

fn rules(options: &BuddyOptions, overhead: u64) -> Rules {
    let (step, max_chunk) = (options.min_chunk().0, options.max_chunk().0);
    Rules { step, overhead, kept_rest: overhead, max_chunk, ..Rules::PLAIN }
}

/// The idle regions of huge requests, at any moment.
fn unwanted(plain: &Plain, _: Release) -> Vec<Span> {
    plain.regions.iter().filter(|region| region.own && region.is_idle()).map(|region| region.span).collect()
}

fn shadow(options: BuddyOptions) -> Shadow<Buddy> {
    Shadow::new(Buddy::new(options), rules(&options, 0), unwanted)
}

/// Upstream's figure: the bytes of blocks in shared regions.
fn used_bytes(buddy: &Buddy) -> u64 {
    let mut live = 0;
    buddy.visit(&mut |piece| live += piece.slot.map_or(0, |_| piece.span.bytes));
    live - buddy.huge_bytes()
}

/// A buddy allocator and its regions.
struct Pool {
    shadow: Shadow<Buddy>,
}

impl Pool {
    fn new(options: BuddyOptions) -> Self {
        Self { shadow: shadow(options) }
    }

    fn buddy(&self) -> &Buddy {
        &self.shadow.policy
    }

    /// Upstream's helper: a request below the largest chunk uses the pool, a larger one the system.
    fn take(&mut self, bytes: u64, from_system: bool) -> Placement {
        let before = used_bytes(self.buddy());
        let reserved = self.buddy().status().reserved_bytes;
        let place = self.shadow.place(bytes, 64, true).unwrap();
        if from_system {
            assert_eq!(used_bytes(self.buddy()), before);
            assert_eq!(self.buddy().status().reserved_bytes, reserved + place.bytes);
            assert!(self.buddy().huge_bytes() >= bytes);
        } else {
            assert!(used_bytes(self.buddy()) >= before + bytes);
        }
        place
    }

    fn take_and_free(&mut self, bytes: u64, from_system: bool) {
        let (used, huge) = (used_bytes(self.buddy()), self.buddy().huge_bytes());
        let reserved = self.buddy().status().reserved_bytes;
        let place = self.take(bytes, from_system);
        self.shadow.free(place.slot);
        assert_eq!((used_bytes(self.buddy()), self.buddy().huge_bytes()), (used, huge));
        if from_system {
            assert_eq!(self.buddy().status().reserved_bytes, reserved, "straight back to the system");
        }
    }
}

#[test]
fn upstream_gpu_fraction() {
    let mut pool = Pool::new(BuddyOptions::gpu_fraction(Bytes::gib(16), 0.01).unwrap());
    for bytes in [10, 10 * KIB, MIB] {
        pool.take_and_free(bytes, false);
    }
    for bytes in [500 * MIB, GIB] {
        pool.take_and_free(bytes, true);
    }
}

#[test]
fn upstream_init_realloc() {
    let mut pool = Pool::new(BuddyOptions::gpu_refills(Bytes::mib(100), Bytes::mib(50)));
    assert_eq!(pool.buddy().options().max_chunk(), Bytes::mib(100));
    for bytes in [10, 80 * MIB, 99 * MIB] {
        pool.take_and_free(bytes, false);
    }
    assert_eq!(pool.buddy().regions().len(), 1);
    for bytes in [101 * MIB, GIB] {
        pool.take_and_free(bytes, true);
    }
}

#[test]
fn upstream_realloc_size_greater_than_init() {
    let mut pool = Pool::new(BuddyOptions::gpu_refills(Bytes::mib(5), Bytes::mib(10)));
    assert_eq!(pool.buddy().options().max_chunk(), Bytes::mib(10));
    for bytes in [1, 6, 8, 9] {
        pool.take_and_free(bytes * MIB, false);
    }
    let sizes: Vec<u64> = pool.buddy().regions().iter().map(|region| region.bytes / MIB).collect();
    assert_eq!(sizes, [5, 10]);
    for bytes in [11 * MIB, GIB] {
        pool.take_and_free(bytes, true);
    }
}

#[test]
fn upstream_fraction_refill_pool() {
    let available = 16 * GIB;
    let options = BuddyOptions::gpu_fraction(Bytes(available), 0.6).unwrap();
    let max_chunk = options.max_chunk().0;
    let mut pool = Pool::new(options);
    let sixty_percent_of_the_rest = |pool: &Pool| {
        let rest = available - pool.buddy().status().reserved_bytes;
        ((rest - rest / 20) as f64 * 0.6) as u64 - 1000
    };
    pool.take(max_chunk - 1000, false);
    for _ in 0..2 {
        let bytes = sixty_percent_of_the_rest(&pool);
        pool.take(bytes, false);
        assert_eq!(pool.buddy().options().max_chunk(), Bytes(max_chunk));
    }
    assert_eq!(pool.buddy().regions().len(), 3);
    assert!(pool.buddy().status().reserved_bytes < available);
}

#[test]
fn upstream_device_refill_pool() {
    let mut pool = Pool::new(BuddyOptions::gpu_refills(Bytes::mib(10), Bytes::mib(10)));
    for regions in [1, 2] {
        pool.take(10 * MIB - 1000, false);
        assert_eq!(pool.buddy().regions().len(), regions);
        assert_eq!(pool.buddy().options().max_chunk(), Bytes::mib(10));
    }
}

#[test]
fn upstream_alloc_from_available() {
    // Other processes use half of a device of 16 GiB.
    let mut pool = Pool::new(BuddyOptions::gpu_fraction(Bytes::gib(8), 0.7).unwrap());
    for bytes in [10, 10 * KIB, 10 * MIB, GIB] {
        pool.take_and_free(bytes, false);
    }
    let mut pool = Pool::new(BuddyOptions::gpu_fraction(Bytes::gib(8), 1.0).unwrap());
    pool.take(GIB, false);
    pool.take(GIB, false);
}

#[test]
fn upstream_release() {
    let mut pool = Pool::new(BuddyOptions::gpu_refills(Bytes::mib(50), Bytes::mib(50)));
    for bytes in [10, 50 * MIB] {
        let place = pool.take(bytes, false);
        pool.shadow.free(place.slot);
    }
    let buddy = &mut pool.shadow.policy;
    assert_eq!(buddy.idle_bytes(), 50 * MIB);
    assert_eq!(buddy.release(Release::Idle { at_most: u64::MAX }).map(|span| span.bytes), Some(50 * MIB));
    assert_eq!(
        (buddy.status().reserved_bytes, buddy.release(Release::Idle { at_most: u64::MAX })),
        (0, None)
    );
    buddy.check().unwrap();
}

#[test]
fn a_fully_released_pool_starts_with_the_first_refill() {
    let mut pool = Pool::new(BuddyOptions::gpu_refills(Bytes::mib(5), Bytes::mib(10)));
    let place = pool.take(MIB, false);
    assert_eq!(pool.buddy().region_bytes(256, 0), 10 * MIB);
    pool.shadow.free(place.slot);
    pool.shadow.policy.release(Release::Idle { at_most: u64::MAX }).unwrap();
    assert_eq!(pool.buddy().region_bytes(256, 0), 5 * MIB);
}

fn small() -> BuddyOptions {
    BuddyOptions::new(Bytes(256), Bytes::kib(64)).unwrap()
}

#[test]
fn descriptor_bytes_are_charged_only_if_configured() {
    let rounded = |options: BuddyOptions, bytes| Buddy::new(options).rounded(bytes, 64).unwrap();
    assert_eq!([0, 1, 256, 257].map(|bytes| rounded(small(), bytes)), [256, 256, 256, 512]);
    let paddle = small().with_paddle_sizes();
    assert_eq!([0, 1, 192, 193, 256].map(|bytes| rounded(paddle, bytes)), [256, 256, 256, 512, 512]);
    assert_eq!(rounded(paddle.with_padding(Bytes(100)), 93), 512);
}

#[test]
fn the_lowest_of_the_smallest_fitting_chunks_is_used() {
    let mut buddy = Buddy::new(small());
    for (address, bytes) in [(0x9000, 1024), (0x5000, 1024), (0x2000, 4096)] {
        buddy.add_region(Span { address, bytes }, false).unwrap();
    }
    let places = [1000, 1000, 1000, 3072]
        .map(|bytes| buddy.place(&PlacementRequest::new(bytes)).map(|place| place.address));
    assert_eq!(places, [Some(0x5000), Some(0x9000), Some(0x2000), Some(0x2400)]);
}

/// Upstream adds 1024 and later subtracts 1088.
#[test]
fn a_small_remainder_is_charged_and_credited_equally() {
    let mut buddy = Buddy::new(small().with_paddle_sizes());
    buddy.add_region(Span { address: 4096, bytes: 1024 + 64 }, false).unwrap();
    let place = buddy.place(&PlacementRequest::new(960)).unwrap();
    assert_eq!((place.bytes, used_bytes(&buddy), (&buddy as &dyn Policy).free_bytes()), (1088, 1088, 0));
    buddy.free(place.slot).unwrap();
    assert_eq!((used_bytes(&buddy), (&buddy as &dyn Policy).free_bytes()), (0, 1088));
    buddy.release(Release::Idle { at_most: u64::MAX }).unwrap();
    buddy.add_region(Span { address: 4096, bytes: 1024 + 65 }, false).unwrap();
    assert_eq!(buddy.place(&PlacementRequest::new(960)).unwrap().bytes, 1024);
}

#[test]
fn a_huge_block_has_its_region_alone_and_nobody_keeps_it() {
    let mut buddy = Buddy::new(small());
    buddy.add_region(Span { address: 0, bytes: 65536 }, false).unwrap();
    let need = PlacementRequest::new(65537);
    assert_eq!(buddy.place(&need), None);
    assert_eq!(buddy.region_bytes(buddy.rounded(65537, 1).unwrap(), 1 << 30), 65792);
    // A source may deliver more than requested: the block gets all of it.
    let own = Span { address: 1 << 20, bytes: 70000 };
    buddy.add_region(own, true).unwrap();
    let huge = buddy.place(&need).unwrap();
    assert_eq!((huge.address, huge.bytes), (own.address, own.bytes));
    assert_eq!(
        (used_bytes(&buddy), buddy.huge_bytes(), (&buddy as &dyn Policy).free_bytes()),
        (0, 70000, 65536)
    );
    assert_eq!(buddy.release(Release::Unwanted), None);
    buddy.free(huge.slot).unwrap();
    assert_eq!(buddy.release(Release::Unwanted), Some(own));
    assert_eq!(buddy.release(Release::Unwanted), None);
    assert_eq!(buddy.regions(), [Span { address: 0, bytes: 65536 }]);
    buddy.check().unwrap();
}

#[test]
fn a_reused_huge_region_is_returned_after_its_use() {
    let mut buddy = Buddy::new(small());
    let own = Span { address: 0, bytes: 1 << 20 };
    buddy.add_region(own, false).unwrap();
    let huge = buddy.place(&PlacementRequest::new(1 << 20)).unwrap();
    buddy.free(huge.slot).unwrap();
    let small = buddy.place(&PlacementRequest::new(100)).unwrap();
    assert_eq!(buddy.release(Release::BeforeGrowth), None);
    buddy.free(small.slot).unwrap();
    assert_eq!(buddy.release(Release::Unwanted), Some(own));
    buddy.check().unwrap();
}

#[test]
fn needs_at_the_edge_of_the_address_space_are_refused_or_met() {
    refuses_the_impossible(Buddy::default());
    refuses_the_impossible(Buddy::new(small().with_paddle_sizes()));
    refuses_the_impossible(Buddy::new(BuddyOptions::new(Bytes(256), Bytes(u64::MAX)).unwrap()));
    let options = BuddyOptions::default().with_padding(Bytes(u64::MAX));
    assert_eq!(Buddy::new(options).rounded(1, 1), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_sequences_go_as_the_plainest_policy_says(steps in steps(96 << 10)) {
        shadow(small()).run(&steps);
    }

    #[test]
    fn so_they_do_with_upstreams_sizes_and_without_huge_requests(steps in steps(24 << 10), padding in 0..200_u64) {
        let options = small().with_paddle_sizes().with_padding(Bytes(padding));
        Shadow::new(Buddy::new(options), rules(&options, 64 + padding), unwanted).run(&steps);
    }
}
