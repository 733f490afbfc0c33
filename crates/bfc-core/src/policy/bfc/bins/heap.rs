//! The free chunks of one size class: a pairing heap that runs through the chunks themselves, and is put in order when
//! it is searched.
//!
//! A class is a list of heaps. A chunk enters it at the front, as a heap of its own, and leaves it from anywhere: neither
//! looks at the order, as many chunks that enter are joined to a neighbour before anyone asks which is the first. A
//! search puts the first of the class by size and then by address (its [rank](Chunk::rank)) in front: of a few heaps by comparing
//! their roots, of more by joining them to one, so that each step takes logarithmic time in the mean over many. Source: Fredman, Sedgewick, Sleator and Tarjan,
//! "The pairing heap: a new form of self-adjusting heap", 1986; the list is the auxiliary area of Stasko and Vitter,
//! "Pairing heaps: experiments and analysis", 1987.

use super::super::chunk::{Chunk, ChunkId, Links};

/// Puts a chunk, as a heap of its own, in front of a list, which then begins with it.
#[inline(always)]
pub(super) fn push(chunks: &mut [Chunk], list: ChunkId, id: ChunkId) {
    let chunk = &mut chunks[id];
    chunk.links = Links { above: ChunkId::NONE, child: ChunkId::NONE };
    chunk.sibling = list;
    // Of an empty list this goes nowhere.
    chunks[list].links.above = id;
}

/// Takes a member out of its heap; the one in its place, if there is one.
#[inline(always)]
pub(super) fn remove(chunks: &mut [Chunk], member: ChunkId) -> ChunkId {
    let Chunk { links: Links { above, child }, sibling, .. } = chunks[member];
    // What comes after the member also comes after the one that has it as a child.
    let heir = if child.is_none() { sibling } else { meld_before(chunks, child, sibling) };
    chunks[heir].links.above = above;
    let above = &mut chunks[above];
    // With none above, this goes nowhere.
    if above.links.child == member {
        above.links.child = heir
    } else {
        above.sibling = heir
    }
    heir
}

/// Takes the member in front of a list out; the one that the list then begins with, if there is one.
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

/// How many heaps a list may have for a search to compare their roots and leave them as they are: four of ten searches
/// in a recorded run come to a list of two or three.
const FEW: usize = 3;

/// Puts the first of all members in front of a list of at least two heaps.
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

/// Puts a heap of a list in front of it.
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

/// Joins the heaps of a list to one, in front of another list.
#[inline(never)]
fn meld_before(chunks: &mut [Chunk], list: ChunkId, rest: ChunkId) -> ChunkId {
    let root = meld_all(chunks, list);
    chunks[root].sibling = rest;
    chunks[rest].links.above = root;
    root
}

/// Joins the heaps of a list to one; its root.
#[inline(never)]
pub(super) fn meld_all(chunks: &mut [Chunk], list: ChunkId) -> ChunkId {
    let second = chunks[list].sibling;
    // Two are the most common case.
    let root = if !second.is_none() && chunks[second].sibling.is_none() {
        meld(chunks, list, second)
    } else {
        meld_pairs(chunks, list)
    };
    chunks[root].links.above = ChunkId::NONE;
    chunks[root].sibling = ChunkId::NONE;
    root
}

/// Joins the heaps of a list in pairs, and the pairs from the last to the first: so the work of many steps stays small.
/// The root of the whole.
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

/// Joins two heaps, given by their roots; the root of both.
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

/// The first member of a heap that `fits`. Looks at those that do not, and at their children.
pub(super) fn first(chunks: &[Chunk], root: ChunkId, fits: impl Fn(ChunkId) -> bool) -> Option<ChunkId> {
    let mut best: Option<ChunkId> = None;
    let mut next = Some(root);
    while let Some(id) = next {
        let worse = best.is_some_and(|best| chunks[best].rank() < chunks[id].rank());
        let fits = !worse && fits(id);
        if fits {
            best = Some(id);
        }
        // What comes after a member that fits, or is worse than one, is worse.
        next = if fits || worse { beside(chunks, id) } else { after(chunks, id) };
    }
    best
}

/// All members of the heaps of a list, each before its children.
pub(super) fn members(chunks: &[Chunk], list: ChunkId) -> impl Iterator<Item = ChunkId> + '_ {
    std::iter::successors(Some(list), |&id| after(chunks, id))
}

/// The member that comes after another in the order of [`members`].
fn after(chunks: &[Chunk], id: ChunkId) -> Option<ChunkId> {
    let child = chunks[id].links.child;
    if child.is_none() { beside(chunks, id) } else { Some(child) }
}

/// The member that comes after another and after all below it in the order of [`members`].
fn beside(chunks: &[Chunk], id: ChunkId) -> Option<ChunkId> {
    let mut id = id;
    while chunks[id].sibling.is_none() {
        id = parent(chunks, id)?;
    }
    Some(chunks[id].sibling)
}

/// The member that has this one as one of its children.
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
