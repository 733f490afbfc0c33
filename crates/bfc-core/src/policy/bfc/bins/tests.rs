use std::collections::BTreeSet;

use super::super::chunk::{ChunkState, Slab};
use super::*;

/// Checks upstream's `Log2FloorNonZeroSlow`, and examples that articles on the allocator often get wrong.
#[test]
fn a_bin_is_the_floor_of_the_binary_logarithm_of_the_granules() {
    let cases = [
        (0, 0),
        (256, 0),
        (511, 0),
        (512, 1),
        (1023 * 256, 9),
        (1024 * 256, 10),
        (1025 * 256, 10),
        (1 << 20, 12),
        ((256 << 20) - 1, 19),
        (256 << 20, 20),
        (u64::MAX, 20),
    ];
    for (bytes, bin) in cases {
        assert_eq!(bin_of(bytes), bin, "{bytes} bytes");
    }
    for bin in 0..BIN_COUNT {
        assert_eq!(bin_of(bin_floor(bin)), bin);
    }
}

/// Creates bins with free chunks of these sizes and addresses.
fn filled(chunks: &[(u64, u64)]) -> (Slab, Bins) {
    let (mut slab, mut bins) = (Slab::new(), Bins::default());
    for &(bytes, address) in chunks {
        add(&mut slab, &mut bins, bytes, address);
    }
    (slab, bins)
}

fn add(slab: &mut Slab, bins: &mut Bins, bytes: u64, address: u64) -> ChunkId {
    let id = slab.insert(address, bytes, (ChunkId::NONE, ChunkId::NONE), ChunkState::Free);
    bins.insert(slab, id, SizeClass::of(bytes));
    id
}

#[test]
fn the_best_fit_is_the_smallest_then_the_lowest_that_fits() {
    let (mut slab, mut bins) =
        filled(&[(768, 0), (512, 4096), (512, 1024), (1024, 8192), (4096, 16384), (66_048, 1 << 20)]);
    let mut best_above = |least, address| {
        let best = bins.best_fit(&mut slab, least, |chunks, id| chunks[id].address >= address);
        best.map(|id| slab[id].address)
    };
    assert_eq!(best_above(512, 1025), Some(4096));
    let mut best = |least| best_above(least, 0);
    assert_eq!(best(512), Some(1024));
    assert_eq!(best(768), Some(0), "768 lies behind 512 in the same bin");
    assert_eq!(best(1280), Some(16384));
    assert_eq!(best(8192), Some(1 << 20));
    assert_eq!(best(66_048), Some(1 << 20));
    let class = SizeClass::of(66_304);
    assert_eq!(class, SizeClass::of(66_048), "the chunk is in the class, and yet too small");
    assert_eq!(best(66_304), None);
    assert_eq!(bins.largest(&slab), 66_048);
}

#[test]
fn the_bitmap_follows_the_last_chunk_in_and_out() {
    let (mut slab, mut bins) = filled(&[]);
    assert_eq!(bins.largest(&slab), 0);
    let class = SizeClass::of(1 << 40);
    for _ in 0..2 {
        let id = add(&mut slab, &mut bins, 1 << 40, 0);
        assert_eq!(bins.in_class(&slab, class).next(), Some(id));
        assert_eq!(bins.first_from(&mut slab, SizeClass::of(256)), Some((class, id)));
        assert!(bins.is_occupied(class) && bins.bitmaps_agree());
        bins.remove(&mut slab, id, class);
        assert_eq!(bins.in_class(&slab, class).next(), None);
        assert_eq!(bins.first_from(&mut slab, SizeClass::of(256)), None);
        assert!(!bins.is_occupied(class) && bins.bitmaps_agree());
    }
}

#[test]
fn a_class_above_the_last_one_does_not_exist() {
    let (mut slab, mut bins) = filled(&[(GRANULE, 0)]);
    assert_eq!(bins.best_fit(&mut slab, u64::MAX, |_, _| true), None);
    let id = add(&mut slab, &mut bins, !(GRANULE - 1), 0);
    assert_eq!(bins.best_fit(&mut slab, 512, |_, _| true), Some(id));
    assert_eq!(bins.best_fit(&mut slab, u64::MAX, |_, _| true), None);
}

/// Chunks of one class with several sizes, in orders that build broad and deep heaps.
#[test]
fn a_class_keeps_its_order_while_it_fills_and_empties() {
    let (mut slab, mut bins) = filled(&[]);
    let mut shadow = std::collections::BTreeMap::new();
    let class = SizeClass::of(1 << 20);
    for stride in [1, 7919, 999] {
        for step in 0..1000_u64 {
            let n = step * stride % 1000;
            let (bytes, address) = ((1 << 20) + n % 5 * GRANULE, n << 24);
            let id = add(&mut slab, &mut bins, bytes, address);
            shadow.insert((bytes, address), id);
            let best = bins.best_fit(&mut slab, bytes, |_, _| true);
            let expected = shadow.range((bytes, 0)..).next().map(|(_, &id)| id);
            assert_eq!(best, expected, "stride {stride}, step {step}");
        }
        // Alternates removals from the front, which sort the heap, and from the middle.
        while let Some((&place, &id)) = shadow.iter().nth(shadow.len() % 2 * shadow.len() * 618 / 1000) {
            shadow.remove(&place);
            if shadow.len() % 2 == 1 {
                assert_eq!(bins.first_from(&mut slab, class), Some((class, id)));
                bins.remove_first(&mut slab, id, class);
            } else {
                bins.remove(&mut slab, id, class);
            }
            slab.remove(id);
            let members: BTreeSet<ChunkId> = bins.in_class(&slab, class).collect();
            assert!(shadow.len() % 97 != 0 || members.iter().eq(shadow.values().collect::<BTreeSet<_>>()));
        }
        assert_eq!(bins.largest(&slab), 0);
    }
}

/// Removes both ends and the middle of a class before any search: the rest is still found in order.
#[test]
fn removed_chunks_do_not_change_the_bin_order() {
    let (mut slab, mut bins) = filled(&[]);
    let class = SizeClass::of(512);
    let ids: Vec<ChunkId> = (0..9_u64).map(|n| add(&mut slab, &mut bins, 512, n * 5 % 9 * 4096)).collect();
    for gone in [0, 8, 4] {
        bins.remove(&mut slab, ids[gone], class);
    }
    let mut addresses = Vec::new();
    while let Some((found, first)) = bins.first_from(&mut slab, class) {
        assert_eq!(found, class);
        addresses.push(slab[first].address / 4096);
        bins.remove_first(&mut slab, first, class);
        // Removes one more below the first, which a search has sorted.
        if addresses.len() == 2 {
            bins.remove(&mut slab, ids[7], class);
        }
    }
    let gone = [0, 8, 4, 7].map(|n: u64| n * 5 % 9);
    let left: Vec<u64> = (0..9).filter(|n| !gone.contains(n)).collect();
    assert_eq!(addresses, left);
}
