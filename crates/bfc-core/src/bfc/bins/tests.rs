use super::*;

/// Upstream's `Log2FloorNonZeroSlow` and the examples often got wrong in articles on the allocator.
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

/// Free chunks of these sizes and addresses, in bins.
fn filled(chunks: &[(u64, u64)]) -> (Slab, Bins) {
    let (mut slab, mut bins) = (Slab::new(), Bins::default());
    for &(bytes, address) in chunks {
        let id = slab.insert(Chunk::free(address, bytes));
        bins.insert(&mut slab, id);
    }
    (slab, bins)
}

#[test]
fn the_best_fit_is_the_smallest_then_the_lowest_that_fits() {
    let (mut slab, mut bins) =
        filled(&[(768, 0), (512, 4096), (512, 1024), (1024, 8192), (4096, 16384), (66_048, 1 << 20)]);
    let mut best_above = |least, address| {
        let best = bins.best_fit(&mut slab, least, |chunk| chunk.address >= address);
        best.map(|id| slab[id].address)
    };
    assert_eq!(best_above(512, 1025), Some(4096));
    let mut best = |least| best_above(least, 0);
    assert_eq!(best(512), Some(1024));
    assert_eq!(best(768), Some(0), "768 lies behind 512 in the same bin");
    assert_eq!(best(1280), Some(16384));
    assert_eq!(best(8192), Some(1 << 20));
    assert_eq!(best(66_048), Some(1 << 20));
    assert_eq!(class_of(66_048), class_of(66_304), "the chunk is in the class, and yet too small");
    assert_eq!(best(66_304), None);
    assert_eq!(bins.largest(&slab), 66_048);
}

#[test]
fn the_bitmap_follows_the_last_chunk_in_and_out() {
    let (mut slab, mut bins) = filled(&[]);
    assert_eq!(bins.largest(&slab), 0);
    let id = slab.insert(Chunk::free(0, 1 << 40));
    bins.insert(&mut slab, id);
    assert_eq!(bins.in_class(&slab, class_of(1 << 40)).next(), Some(id));
    assert!(bins.is_occupied(class_of(1 << 40)));
    assert_eq!(bins.best_fit(&mut slab, 256, |_| true), Some(id));
    bins.remove(&mut slab, id);
    assert!(!bins.is_occupied(class_of(1 << 40)));
    assert_eq!(bins.in_class(&slab, class_of(1 << 40)).next(), None);
    assert_eq!(bins.best_fit(&mut slab, 256, |_| true), None);
}

/// Chunks of one class but of several sizes, in numbers that make lists, crowds and trees.
#[test]
fn a_class_keeps_its_order_while_it_fills_and_empties() {
    let (mut slab, mut bins) = filled(&[]);
    let mut shadow = std::collections::BTreeMap::new();
    for round in 0..3 {
        for step in 0..1000_u64 {
            let n = step * 7919 % 1000;
            let bytes = (1 << 20) + n % 5 * GRANULE;
            let id = slab.insert(Chunk::free(n << 24, bytes));
            bins.insert(&mut slab, id);
            shadow.insert((bytes, n << 24), id);
            assert!(bins.bitmaps_agree());
            let best = bins.best_fit(&mut slab, bytes, |_| true);
            let expected = shadow.range((bytes, 0)..).next().map(|(_, &id)| id);
            assert_eq!(best, expected, "round {round}, step {step}");
        }
        while let Some((&place, &id)) = shadow.iter().nth(shadow.len() * 618 / 1000) {
            shadow.remove(&place);
            bins.remove(&mut slab, id);
            slab.remove(id);
            assert!(bins.bitmaps_agree());
            assert!(shadow.len() % 97 != 0 || bins.iter(&slab).eq(shadow.values().copied()));
        }
        assert_eq!(bins.largest(&slab), 0);
    }
}

/// Chunks that come in falling order enter a list at its head, so that none of them walks.
#[test]
fn a_list_grown_long_without_a_walk_is_walked_once_at_most() {
    let rising = (0..1000).map(|n| ((1 << 30) + n * GRANULE, n << 31));
    let falling: Vec<(u64, u64)> = rising.rev().collect();
    let (mut slab, mut bins) = filled(&falling);
    let class = class_of(1 << 30);
    assert!(!bins.is_crowded(class));
    let best = bins.best_fit(&mut slab, (1 << 30) + 700 * GRANULE, |_| true);
    assert_eq!(best.map(|id| slab[id].address), Some(700 << 31));
    assert!(bins.is_crowded(class) && bins.bitmaps_agree());
    let order: Vec<u64> = bins.iter(&slab).map(|id| slab[id].address).collect();
    assert!(order.len() == 1000 && order.is_sorted());
}
