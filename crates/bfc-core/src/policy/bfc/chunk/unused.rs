//! The numbers of unused slots: a short stack over a bitmap.

use super::ChunkId;

/// How many slots a group has: as many as a word of the bitmap has bits.
pub(super) const GROUP: usize = u64::BITS as usize;

/// How many numbers the stack holds at most. Half of them go to the bitmap when it is full.
const STACK: usize = 2 * GROUP;

/// The end of the list of groups.
const NONE: u32 = u32::MAX;

/// The numbers of unused slots. The slots that were emptied last are used first, as they are likeliest to be in the cache.
/// The others are taken from one group after the other, the lowest slot first.
///
/// So after many frees in disorder, chunks that are cut one after the other, and mostly lie beside each other, have slots
/// beside each other. A list from slot to slot would strew them all over the slab: neighbours would seldom share a cache
/// line, and each step along the list would wait for memory.
#[derive(Clone, Debug)]
pub(super) struct UnusedSlots {
    stack: [ChunkId; STACK],
    /// How many of the stack there are.
    height: usize,
    /// All others.
    groups: Vec<Group>,
    /// The first group of the list of those that have an unused slot.
    first: u32,
}

/// Slots of consecutive numbers.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Bit `n` is set if and only if the slot in place `n` is unused, and not in the stack.
    unused: u64,
    /// The next group of the list; means nothing in a group that is not in it.
    next: u32,
}

impl UnusedSlots {
    pub(super) const fn new() -> Self {
        Self { stack: [ChunkId::NONE; STACK], height: 0, groups: Vec::new(), first: NONE }
    }

    /// Adds the slots that follow those known so far, as many as a group has.
    pub(super) fn add_group(&mut self) {
        let group = self.groups.len() as u32;
        self.groups.push(Group { unused: u64::MAX, next: self.first });
        self.first = group;
    }

    /// Sees to it that `count` slots, no more than a group, can be taken; whether there are so many.
    #[inline]
    pub(super) fn has(&mut self, count: usize) -> bool {
        self.height >= count || self.fill(count)
    }

    /// Takes one out; [`has`](Self::has) has said that there is one.
    #[inline]
    pub(super) fn take(&mut self) -> ChunkId {
        self.height -= 1;
        self.stack[self.height % STACK]
    }

    /// Adds a slot, which was in use until now.
    #[inline]
    pub(super) fn add(&mut self, id: ChunkId) {
        if self.height >= STACK {
            self.spill();
        }
        self.stack[self.height % STACK] = id;
        self.height += 1;
    }

    /// Moves the half of the stack that was filled first to the bitmap.
    #[cold]
    fn spill(&mut self) {
        for place in 0..STACK / 2 {
            self.add_to_group(self.stack[place]);
        }
        self.stack.copy_within(STACK / 2.., 0);
        self.height = STACK / 2;
    }

    /// Moves groups to the stack until it holds `count` slots; whether it does.
    #[cold]
    fn fill(&mut self, count: usize) -> bool {
        while self.height < count {
            let Some(group) = self.groups.get_mut(self.first as usize) else { return false };
            let first = self.first * GROUP as u32;
            self.first = group.next;
            // The lowest comes to lie on top.
            while let Some(place) = group.unused.checked_ilog2() {
                group.unused ^= 1 << place;
                self.stack[self.height] = ChunkId(first + place);
                self.height += 1;
            }
        }
        true
    }

    fn add_to_group(&mut self, id: ChunkId) {
        let number = id.0 / GROUP as u32;
        let group = &mut self.groups[number as usize];
        if group.unused == 0 {
            group.next = self.first;
            self.first = number;
        }
        group.unused |= 1 << (id.0 as usize % GROUP);
    }

    /// All of them in the order in which they would be taken.
    pub(super) fn iter(&self) -> impl Iterator<Item = ChunkId> + '_ {
        let group = |number: u32| self.groups.get(number as usize).map(|group| (number, group));
        let groups = std::iter::successors(group(self.first), move |(_, before)| group(before.next));
        let in_groups = groups.flat_map(|(number, group)| {
            let places = (0..GROUP).filter(|place| group.unused >> place & 1 == 1);
            places.map(move |place| ChunkId(number * GROUP as u32 + place as u32))
        });
        self.stack[..self.height].iter().rev().copied().chain(in_groups)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// All slots of so many groups, taken out.
    fn all_taken(groups: usize) -> (UnusedSlots, Vec<ChunkId>) {
        let mut slots = UnusedSlots::new();
        (0..groups).for_each(|_| slots.add_group());
        let mut taken = Vec::new();
        while slots.has(1) {
            taken.push(slots.take());
        }
        (slots, taken)
    }

    #[test]
    fn slots_of_a_group_are_taken_in_rising_order() {
        let (_, taken) = all_taken(3);
        let expected = [2, 1, 0].map(|group| group * GROUP as u32..(group + 1) * GROUP as u32);
        assert!(taken.iter().map(|id| id.0).eq(expected.into_iter().flatten()));
    }

    #[test]
    fn a_slot_that_was_just_added_is_taken_next() {
        let (mut slots, _) = all_taken(1);
        slots.add(ChunkId(9));
        slots.add(ChunkId(3));
        assert!(slots.has(2) && !slots.has(3));
        assert_eq!((slots.take(), slots.take()), (ChunkId(3), ChunkId(9)));
    }

    /// However they were added, those that the stack cannot hold come back in runs of neighbours.
    #[test]
    fn many_slots_added_in_disorder_are_taken_beside_each_other() {
        let (mut slots, mut taken) = all_taken(100);
        let count = taken.len();
        // 2,741 has no divisor in common with 6,400.
        (0..count).for_each(|n| slots.add(ChunkId((n * 2741 % count) as u32)));
        taken.clear();
        while slots.has(1) {
            assert!(slots.iter().next().is_some());
            taken.push(slots.take());
        }
        assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), count);
        let beside = taken.windows(2).filter(|pair| pair[1].0.abs_diff(pair[0].0) <= 2).count();
        assert!(beside > count * 9 / 10, "{beside} of {count}");
    }

    #[test]
    fn the_iterator_tells_the_order_in_which_slots_are_taken() {
        let (mut slots, taken) = all_taken(5);
        taken.iter().step_by(3).for_each(|&id| slots.add(id));
        let told: Vec<ChunkId> = slots.iter().collect();
        let mut came = Vec::new();
        while slots.has(1) {
            came.push(slots.take());
        }
        assert_eq!(told, came);
    }
}
