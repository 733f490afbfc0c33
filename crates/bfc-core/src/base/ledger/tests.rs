use super::*;
use proptest::prelude::*;

fn tag(owner: OwnerId, category: Category) -> Tag {
    Tag { owner, category }
}

#[test]
fn the_bytes_of_a_child_count_in_its_parents_live_and_peak() {
    let net = OwnerId::intern(OwnerId::ROOT, "ledger-net");
    let (a, b) = (OwnerId::intern(net, "a"), OwnerId::intern(net, "b"));
    let mut ledger = Ledger::new();
    ledger.add(tag(a, Category::Output), 100);
    ledger.add(tag(b, Category::Output), 50);
    ledger.remove(tag(a, Category::Output), 100);
    assert_eq!(ledger.owner(net), OwnerBytes { own: 0, live: 50, peak: 150 });
    assert_eq!(ledger.owner(a), OwnerBytes { own: 0, live: 0, peak: 100 });
    assert_eq!(ledger.owner(OwnerId::ROOT).live, ledger.total());
}

#[test]
fn retagging_moves_bytes_and_keeps_the_sum() {
    let owner = OwnerId::intern(OwnerId::ROOT, "ledger-retag");
    let mut ledger = Ledger::new();
    ledger.add(tag(owner, Category::Output), 64);
    ledger.retag(tag(owner, Category::Output), tag(owner, Category::Activation), 64);
    assert_eq!(ledger.category(Category::Output), 0);
    assert_eq!(ledger.category(Category::Activation), 64);
    ledger.retag(tag(owner, Category::Activation), Tag::default(), 64);
    assert_eq!(ledger.owner(owner).own, 0);
    assert_eq!(ledger.total(), 64);
}

proptest! {
    /// Compares with a copy of everything at each new peak.
    #[test]
    fn what_was_held_at_the_peak_is_known_after_it(
        steps in proptest::collection::vec((0..4_usize, 0..Category::COUNT, 1..100_u64, any::<bool>()), 1..80),
    ) {
        let owners = ["p", "q", "r", "s"].map(|name| OwnerId::intern(OwnerId::ROOT, name));
        let (mut ledger, mut live, mut at_peak) = (Ledger::new(), Vec::new(), Vec::new());
        let mut peak = 0;
        for (owner, category, bytes, takes) in steps {
            let charge = tag(owners[owner], Category::ALL[category]);
            if takes || live.is_empty() {
                ledger.add(charge, bytes);
                live.push((charge, bytes));
            } else {
                let (old, bytes) = live.swap_remove(bytes as usize % live.len());
                if category % 2 == 0 {
                    ledger.remove(old, bytes);
                } else {
                    ledger.retag(old, charge, bytes);
                    live.push((charge, bytes));
                }
            }
            let total = live.iter().map(|(_, bytes)| bytes).sum::<u64>();
            if total > peak {
                (peak, at_peak) = (total, live.clone());
            }
            let of = |matches: &dyn Fn(&Tag) -> bool| -> u64 {
                at_peak.iter().filter(|(tag, _)| matches(tag)).map(|(_, bytes)| bytes).sum()
            };
            prop_assert_eq!(ledger.peak(), peak);
            let root = OwnerBytes { own: 0, live: total, peak };
            prop_assert_eq!(ledger.owner(OwnerId::ROOT), root);
            prop_assert!(ledger.owners().any(|entry| entry == (OwnerId::ROOT, root)));
            for owner in owners {
                prop_assert_eq!(ledger.own_at_peak(owner), of(&|tag| tag.owner == owner));
            }
            for category in Category::ALL {
                prop_assert_eq!(ledger.category_at_peak(category), of(&|tag| tag.category == category));
            }
        }
        ledger.reset_peaks();
        prop_assert_eq!(ledger.peak(), ledger.total());
        prop_assert_eq!(ledger.own_at_peak(owners[0]), ledger.owner(owners[0]).own);
        let mut twice = ledger.clone();
        twice.add_all(&ledger);
        prop_assert_eq!(twice.own_at_peak(owners[1]), 2 * ledger.own_at_peak(owners[1]));
        prop_assert_eq!(twice.owner(OwnerId::ROOT).live, 2 * ledger.total());
    }
}
