//! The free chunks of one size class: a pairing heap through the chunks themselves, sorted lazily by searches.
//!
//! A class is a list of heaps. A chunk enters at the front, as its own heap, and leaves from any position. Neither step
//! compares chunks, because many chunks merge with a neighbor before a search. A search moves the first chunk of the
//! class by size and address (its [rank](Chunk::rank)) to the front. It compares the roots of a few heaps, and merges
//! more heaps into one, so each step takes amortized logarithmic time. Source: Fredman, Sedgewick, Sleator and Tarjan,
//! "The pairing heap: a new form of self-adjusting heap", 1986; the list is the auxiliary area of Stasko and Vitter,
//! "Pairing heaps: experiments and analysis", 1987.

use super::super::chunk::{Chunk, ChunkId, Links};

/// Pushes a chunk, as its own heap, to the front of a list. Returns the new front.
#[inline(always)]
pub(super) fn push(chunks: &mut [Chunk], list: ChunkId, id: ChunkId) {
    let chunk = &mut chunks[id];
    chunk.links = Links { above: ChunkId::NONE, child: ChunkId::NONE };
    chunk.sibling = list;
    // With an empty list, this writes to the dummy slot.
    chunks[list].links.above = id;
}

/// Removes a member from its heap. Returns the member in its place, if any.
#[inline(always)]
pub(super) fn remove(chunks: &mut [Chunk], member: ChunkId) -> ChunkId {
    let Chunk { links: Links { above, child }, sibling, .. } = chunks[member];
    // A successor of the member is also a successor of its parent.
    let heir = if child.is_none() { sibling } else { meld_before(chunks, child, sibling) };
    chunks[heir].links.above = above;
    let above = &mut chunks[above];
    // Without a parent, this writes to the dummy slot.
    if above.links.child == member {
        above.links.child = heir
    } else {
        above.sibling = heir
    }
    heir
}

/// Removes the front member of a list. Returns the new front, if any.
#[inline(always)]
pub(super) fn remove_first(chunks: &mut [Chunk], first: ChunkId) -> ChunkId {
    let Chunk { links: Links { child, .. }, sibling, .. } = chunks[first];
    let heir = if child.is_none() {
        sibling
    } else if sibling.is_none() {
        child
    } else {
        meld_before(chunks, child, sibling)
    };
    chunks[heir].links.above = ChunkId::NONE;
    heir
}

/// The longest list whose roots a search compares without merging. Four of ten searches in a recorded run meet a list
/// of two or three.
const FEW: usize = 3;

/// Moves the first of all members to the front of a list of at least two heaps.
#[inline(never)]
pub(super) fn bring_first(chunks: &mut [Chunk], list: ChunkId) -> ChunkId {
    let mut best = list;
    let mut next = chunks[list].sibling;
    for _ in 1..FEW {
        if chunks[next].rank() < chunks[best].rank() {
            best = next;
        }
        next = chunks[next].sibling;
        if next.is_none() {
            return move_to_front(chunks, best, list);
        }
    }
    meld_all(chunks, list)
}

/// Moves a heap to the front of its list.
#[inline]
fn move_to_front(chunks: &mut [Chunk], id: ChunkId, list: ChunkId) -> ChunkId {
    if id != list {
        let Chunk { links: Links { above, .. }, sibling, .. } = chunks[id];
        chunks[above].sibling = sibling;
        chunks[sibling].links.above = above;
        chunks[id].links.above = ChunkId::NONE;
        chunks[id].sibling = list;
        chunks[list].links.above = id;
    }
    id
}

/// Merges the heaps of a list into one, in front of another list.
#[inline(never)]
fn meld_before(chunks: &mut [Chunk], list: ChunkId, rest: ChunkId) -> ChunkId {
    let root = meld_all(chunks, list);
    chunks[root].sibling = rest;
    chunks[rest].links.above = root;
    root
}

/// Merges the heaps of a list into one. Returns its root.
#[inline(never)]
pub(super) fn meld_all(chunks: &mut [Chunk], list: ChunkId) -> ChunkId {
    let second = chunks[list].sibling;
    // Two heaps are the most common case.
    let root = if !second.is_none() && chunks[second].sibling.is_none() {
        meld(chunks, list, second)
    } else {
        meld_pairs(chunks, list)
    };
    chunks[root].links.above = ChunkId::NONE;
    chunks[root].sibling = ChunkId::NONE;
    root
}

/// Merges the heaps of a list in pairs, and the pairs from last to first, which bounds the amortized cost. Returns the
/// root.
fn meld_pairs(chunks: &mut [Chunk], list: ChunkId) -> ChunkId {
    let (mut pairs, mut rest) = (ChunkId::NONE, list);
    while !rest.is_none() {
        let one = rest;
        let other = chunks[one].sibling;
        let mut pair = one;
        rest = ChunkId::NONE;
        if !other.is_none() {
            rest = chunks[other].sibling;
            pair = meld(chunks, one, other);
        }
        chunks[pair].sibling = pairs;
        pairs = pair;
    }
    let mut root = pairs;
    let mut rest = chunks[root].sibling;
    while !rest.is_none() {
        let pair = rest;
        rest = chunks[pair].sibling;
        root = meld(chunks, root, pair);
    }
    root
}

/// Merges two heaps by their roots. Returns the new root.
#[inline]
fn meld(chunks: &mut [Chunk], one: ChunkId, other: ChunkId) -> ChunkId {
    let in_order = chunks[one].rank() < chunks[other].rank();
    let (first, second) = if in_order { (one, other) } else { (other, one) };
    let sibling = std::mem::replace(&mut chunks[first].links.child, second);
    chunks[second].links.above = first;
    chunks[second].sibling = sibling;
    chunks[sibling].links.above = second;
    first
}

/// Returns the first member of a heap that `fits`. Visits unsuitable members and their children.
pub(super) fn first(chunks: &[Chunk], root: ChunkId, fits: impl Fn(ChunkId) -> bool) -> Option<ChunkId> {
    let mut best: Option<ChunkId> = None;
    let mut next = Some(root);
    while let Some(id) = next {
        let worse = best.is_some_and(|best| chunks[best].rank() < chunks[id].rank());
        let fits = !worse && fits(id);
        if fits {
            best = Some(id);
        }
        // Successors of a fitting member, and of a worse one, are worse.
        next = if fits || worse { beside(chunks, id) } else { after(chunks, id) };
    }
    best
}

/// Iterates over all members of a list's heaps, parents before children.
pub(super) fn members(chunks: &[Chunk], list: ChunkId) -> impl Iterator<Item = ChunkId> + '_ {
    std::iter::successors(Some(list), |&id| after(chunks, id))
}

/// Returns the next member in the order of [`members`].
fn after(chunks: &[Chunk], id: ChunkId) -> Option<ChunkId> {
    let child = chunks[id].links.child;
    if child.is_none() { beside(chunks, id) } else { Some(child) }
}

/// Returns the next member in the order of [`members`] after this one and all below it.
fn beside(chunks: &[Chunk], id: ChunkId) -> Option<ChunkId> {
    let mut id = id;
    while chunks[id].sibling.is_none() {
        id = parent(chunks, id)?;
    }
    Some(chunks[id].sibling)
}

/// Returns the parent of a member.
fn parent(chunks: &[Chunk], id: ChunkId) -> Option<ChunkId> {
    let (mut id, mut above) = (id, chunks[id].links.above);
    while !above.is_none() {
        if chunks[above].links.child == id {
            return Some(above);
        }
        (id, above) = (above, chunks[above].links.above);
    }
    None
}
