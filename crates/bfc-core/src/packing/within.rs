//! Lookup of the first unplaced block, in some order, that lives within a time range.
//!
//! A k-d tree over first and last sections. Each node knows the first block left in it, so a lookup skips nodes without
//! a better one. Memory is proportional to the number of blocks.

use super::sections::Sections;

/// No block left.
const NONE: u32 = u32::MAX;

/// The most blocks in a leaf.
const LEAF: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The minimum and maximum first section in the node.
    starts: (u32, u32),
    /// The minimum and maximum end section in the node.
    ends: (u32, u32),
    /// The smallest rank left.
    first: u32,
}

/// Blocks by their rank in an order.
#[derive(Debug)]
pub(super) struct Within {
    /// By rank.
    spans: Vec<(u32, u32)>,
    /// Ranks, leaf by leaf; [`NONE`] for removed ones.
    ranks: Vec<u32>,
    /// By rank: its index in `ranks`.
    places: Vec<u32>,
    /// The root is at 1, the children of `n` at `2n` and `2n + 1`.
    nodes: Vec<Node>,
    /// Visited nodes and blocks.
    pub(super) steps: u64,
}

impl Within {
    /// Builds the tree of all blocks, in this order.
    pub(super) fn new(sections: &Sections, order: &[u32]) -> Self {
        let mut leaves = 1;
        while order.len().div_ceil(leaves) > LEAF {
            leaves *= 2;
        }
        let nothing = Node { starts: (u32::MAX, 0), ends: (u32::MAX, 0), first: NONE };
        let mut within = Self {
            spans: order.iter().map(|&block| sections.spans[block as usize]).collect(),
            ranks: (0..).take(order.len()).collect(),
            places: vec![0; order.len()],
            nodes: vec![nothing; 2 * leaves],
            steps: 0,
        };
        let mut ranks = std::mem::take(&mut within.ranks);
        within.build(1, &mut ranks);
        for (place, &rank) in (0..).zip(&ranks) {
            within.places[rank as usize] = place;
        }
        within.ranks = ranks;
        within
    }

    fn is_leaf(&self, node: usize) -> bool {
        2 * node >= self.nodes.len()
    }

    fn build(&mut self, node: usize, ranks: &mut [u32]) {
        let spans = &self.spans;
        let entry = &mut self.nodes[node];
        for &rank in &*ranks {
            let (start, end) = spans[rank as usize];
            entry.starts = (entry.starts.0.min(start), entry.starts.1.max(start));
            entry.ends = (entry.ends.0.min(end), entry.ends.1.max(end));
            entry.first = entry.first.min(rank);
        }
        if self.is_leaf(node) {
            return;
        }
        let middle = ranks.len() / 2;
        let by_start = node.ilog2() % 2 == 0;
        let key = |&rank: &u32| {
            let (start, end) = self.spans[rank as usize];
            (if by_start { start } else { end }, rank)
        };
        if middle < ranks.len() {
            ranks.select_nth_unstable_by_key(middle, key);
        }
        let (low, high) = ranks.split_at_mut(middle);
        self.build(2 * node, low);
        self.build(2 * node + 1, high);
    }

    /// Removes the first block whose sections all lie in `range`, and returns its rank.
    pub(super) fn take(&mut self, range: (u32, u32)) -> Option<u32> {
        let mut first = NONE;
        self.look(1, (0, self.ranks.len()), range, &mut first);
        let place = *self.places.get(first as usize)?;
        self.remove(1, (0, self.ranks.len()), place as usize);
        Some(first)
    }

    fn look(&mut self, node: usize, places: (usize, usize), range: (u32, u32), first: &mut u32) {
        self.steps += 1;
        let Node { starts, ends, first: best } = self.nodes[node];
        if best >= *first || starts.1 < range.0 || ends.0 > range.1 {
            return;
        }
        if starts.0 >= range.0 && ends.1 <= range.1 {
            *first = best;
            return;
        }
        if self.is_leaf(node) {
            self.steps += (places.1 - places.0) as u64;
            for &rank in &self.ranks[places.0..places.1] {
                let inside = |span: &(u32, u32)| span.0 >= range.0 && span.1 <= range.1;
                if rank < *first && self.spans.get(rank as usize).is_some_and(inside) {
                    *first = rank;
                }
            }
            return;
        }
        let middle = halfway(places);
        let children = [(2 * node, (places.0, middle)), (2 * node + 1, (middle, places.1))];
        // Visits the better child first: it may make the other one unnecessary.
        let swap = self.nodes[2 * node].first > self.nodes[2 * node + 1].first;
        for index in if swap { [1, 0] } else { [0, 1] } {
            let (child, places) = children[index];
            self.look(child, places, range, first);
        }
    }

    fn remove(&mut self, node: usize, places: (usize, usize), place: usize) {
        if self.is_leaf(node) {
            self.ranks[place] = NONE;
            let left = self.ranks[places.0..places.1].iter().copied().min();
            self.nodes[node].first = left.unwrap_or(NONE);
            return;
        }
        let middle = halfway(places);
        if place < middle {
            self.remove(2 * node, (places.0, middle), place);
        } else {
            self.remove(2 * node + 1, (middle, places.1), place);
        }
        self.nodes[node].first = self.nodes[2 * node].first.min(self.nodes[2 * node + 1].first);
    }
}

/// Returns the split position of a node in `build`.
const fn halfway(places: (usize, usize)) -> usize {
    places.0 + (places.1 - places.0) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_block_within_a_range_is_taken_once(
            spans in prop::collection::vec((0u32..40, 1u32..20), 0..100),
            ranges in prop::collection::vec((0u32..40, 0u32..60), 0..200),
        ) {
            let spans: Vec<(u32, u32)> = spans.into_iter().map(|(start, length)| (start, start + length)).collect();
            // An arbitrary order: every other block, then the rest in reverse.
            let (even, odd): (Vec<u32>, Vec<u32>) = (0..).take(spans.len()).partition(|block| block % 2 == 0);
            let order: Vec<u32> = even.into_iter().chain(odd.into_iter().rev()).collect();
            let mut left: Vec<bool> = vec![true; spans.len()];
            let mut within = Within::new(&Sections { spans: spans.clone(), count: 60 }, &order);
            for (start, length) in ranges {
                let range = (start, start + length);
                let expected = order.iter().position(|&block| {
                    let span = spans[block as usize];
                    left[block as usize] && span.0 >= range.0 && span.1 <= range.1
                });
                prop_assert_eq!(within.take(range).map(|rank| rank as usize), expected);
                if let Some(rank) = expected {
                    left[order[rank] as usize] = false;
                }
            }
        }
    }
}
