//! Sorting where it is not the sorting that takes long: compiled once, and not once more for each type and each order.

use std::cmp::Ordering;
use std::mem;

/// As [`slice::sort_by`], for reports and the like.
pub fn sort_by<T>(items: &mut [T], mut compare: impl FnMut(&T, &T) -> Ordering) {
    let mut order = sorted(items.len(), &mut |a, b| compare(&items[a], &items[b]));
    // Cycle by cycle: what belongs at a place comes from the place that the order names.
    for start in 0..items.len() {
        let mut place = start;
        loop {
            let from = mem::replace(&mut order[place], place);
            if from == start {
                break;
            }
            items.swap(place, from);
            place = from;
        }
    }
}

/// As [`slice::sort_by_key`], for reports and the like.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], mut key: impl FnMut(&T) -> K) {
    sort_by(items, |a, b| key(a).cmp(&key(b)));
}

/// The places of so many items, in order.
#[inline(never)]
fn sorted(len: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by(|&a, &b| compare(a, b));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_sorted_as_the_standard_library_sorts_them_at_every_length() {
        for len in 0..200_u64 {
            let mut items: Vec<(u64, String)> = (0..len).map(|i| (i * 7919 % 13, i.to_string())).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|item| std::cmp::Reverse(item.0));
            sort_by_key(&mut items, |item| std::cmp::Reverse(item.0));
            assert_eq!(items, expected, "{len}");
            expected.sort();
            sort_by(&mut items, Ord::cmp);
            assert_eq!(items, expected, "{len}");
        }
    }
}
