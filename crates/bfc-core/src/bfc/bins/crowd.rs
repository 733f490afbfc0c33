//! The free chunks of a crowded size class: more than a walk from one to the next should meet.

use std::collections::BTreeSet;
use std::mem;

use super::super::chunk::{Chunk, ChunkId};

/// Above this many chunks a sorted list becomes a tree: there, moving chunks aside costs more than a tree's nodes.
const MANY: usize = 256;

/// Below this many a tree becomes a list again. Far from [`MANY`], so that a class does not change back and forth.
const FEW: usize = 64;

/// A free chunk as the order knows it: by size, then by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    bytes: u64,
    address: u64,
    id: ChunkId,
}

impl Member {
    pub(super) const fn new(id: ChunkId, chunk: &Chunk) -> Self {
        Self { bytes: chunk.bytes, address: chunk.address, id }
    }
}

/// Free chunks in order of size and then of address.
#[derive(Clone, Debug)]
pub(super) enum Crowd {
    /// In falling order: the chunk that is taken most, the best fit, then leaves without another being moved.
    Few(Vec<Member>),
    /// However many there are, each step takes logarithmic time.
    Many(BTreeSet<Member>),
}

impl Crowd {
    pub(super) const fn new() -> Self {
        Self::Few(Vec::new())
    }

    pub(super) fn insert(&mut self, member: Member) {
        match self {
            Self::Few(falling) => {
                falling.insert(place_of(falling, member), member);
                if falling.len() > MANY {
                    *self = Self::Many(mem::take(falling).into_iter().collect());
                }
            }
            Self::Many(tree) => {
                tree.insert(member);
            }
        }
    }

    /// Takes a member out; whether none is left.
    pub(super) fn remove(&mut self, member: Member) -> bool {
        match self {
            Self::Few(falling) => {
                let place = place_of(falling, member);
                debug_assert!(falling.get(place) == Some(&member), "{member:?} is not in its crowd");
                falling.remove(place);
                falling.is_empty()
            }
            Self::Many(tree) => {
                let found = tree.remove(&member);
                debug_assert!(found, "{member:?} is not in its crowd");
                if tree.len() < FEW {
                    *self = Self::Few(mem::take(tree).into_iter().rev().collect());
                }
                false
            }
        }
    }

    /// The first member of at least `least` bytes that `fits`.
    pub(super) fn first(&self, least: u64, mut fits: impl FnMut(ChunkId) -> bool) -> Option<ChunkId> {
        let from = Member { bytes: least, address: 0, id: ChunkId(0) };
        let found = match self {
            Self::Few(falling) => {
                let enough = falling.partition_point(|member| *member >= from);
                falling[..enough].iter().rev().find(|member| fits(member.id))
            }
            Self::Many(tree) => tree.range(from..).find(|member| fits(member.id)),
        };
        found.map(|member| member.id)
    }

    /// All members in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = ChunkId> {
        let (few, many) = match self {
            Self::Few(falling) => (Some(falling), None),
            Self::Many(tree) => (None, Some(tree)),
        };
        let few = few.into_iter().flat_map(|falling| falling.iter().rev());
        few.chain(many.into_iter().flatten()).map(|member| member.id)
    }
}

/// Where a member is in falling order, or belongs.
fn place_of(falling: &[Member], member: Member) -> usize {
    falling.partition_point(|other| *other > member)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members of 256 or 512 bytes, in an order that has nothing to do with their addresses.
    fn members(count: u64) -> Vec<Member> {
        let scattered = (0..count).map(|n| n * 7919 % count);
        scattered.map(|n| Member { bytes: 256 << (n % 2), address: n * 512, id: ChunkId(n as u32) }).collect()
    }

    #[test]
    fn the_order_is_the_same_for_few_and_for_many() {
        for count in [FEW as u64 - 1, MANY as u64, MANY as u64 + 1, 1000] {
            let mut crowd = Crowd::new();
            let mut sorted = members(count);
            for &member in &sorted {
                crowd.insert(member);
            }
            assert_eq!(matches!(crowd, Crowd::Many(_)), count > MANY as u64);
            sorted.sort();
            assert!(crowd.iter().eq(sorted.iter().map(|member| member.id)));
            assert_eq!(crowd.first(257, |_| true), Some(ChunkId(1)));
            assert_eq!(crowd.first(256, |id| id.0 > 30), Some(ChunkId(32)));
            assert_eq!(crowd.first(513, |_| true), None);
        }
    }

    #[test]
    fn a_crowd_that_dwindles_keeps_its_order_to_the_last() {
        let mut crowd = Crowd::new();
        for member in members(1000) {
            crowd.insert(member);
        }
        let mut left: Vec<Member> = members(1000);
        while let Some(member) = left.pop() {
            let empty = crowd.remove(member);
            assert_eq!(empty, left.is_empty());
            assert_eq!(crowd.iter().next(), left.iter().min().map(|member| member.id));
        }
        assert!(matches!(crowd, Crowd::Few(_)));
    }
}
