//! The free chunks of one size class: a pairing heap that runs through the chunks themselves.
//!
//! The first of a class by size and then by address (its [`Order`]) is at the root and taken without a search; a chunk enters by one
//! comparison, however many there are, and leaves from anywhere. What order there is among the rest is made when it is
//! needed: each step takes logarithmic time in the mean over many. Source: Fredman, Sedgewick, Sleator and Tarjan, "The
//! pairing heap: a new form of self-adjusting heap", 1986.

use super::super::chunk::{Chunk, ChunkId, Links, Order};

/// Joins two heaps, given by their roots; the root of both.
#[inline]
pub(super) fn meld<O: Order>(chunks: &mut [Chunk], one: ChunkId, other: ChunkId) -> ChunkId {
    let in_order = O::rank(&chunks[one]) < O::rank(&chunks[other]);
    let (first, second) = if in_order { (one, other) } else { (other, one) };
    let sibling = std::mem::replace(&mut chunks[first].links.child, second);
    chunks[second].links.above = first;
    chunks[second].sibling = sibling;
    chunks[sibling].links.above = second;
    first
}

/// What is left of a heap whose root goes: the root of its children, of which `child` is the first.
#[inline]
pub(super) fn heir<O: Order>(chunks: &mut [Chunk], child: ChunkId) -> ChunkId {
    if !chunks[child].sibling.is_none() {
        return meld_siblings::<O>(chunks, child);
    }
    chunks[child].links.above = ChunkId::NONE;
    child
}

/// Joins siblings in pairs, and the pairs from the last to the first: so the work of many steps stays small.
#[inline(never)]
fn meld_siblings<O: Order>(chunks: &mut [Chunk], first: ChunkId) -> ChunkId {
    let (mut pairs, mut rest) = (ChunkId::NONE, first);
    while !rest.is_none() {
        let one = rest;
        let other = chunks[one].sibling;
        let mut pair = one;
        rest = ChunkId::NONE;
        if !other.is_none() {
            rest = chunks[other].sibling;
            pair = meld::<O>(chunks, one, other);
        }
        chunks[pair].sibling = pairs;
        pairs = pair;
    }
    let mut root = pairs;
    let mut rest = chunks[root].sibling;
    while !rest.is_none() {
        let pair = rest;
        rest = chunks[pair].sibling;
        root = meld::<O>(chunks, root, pair);
    }
    chunks[root].links.above = ChunkId::NONE;
    root
}

/// The root of a heap after one of its members, which is not the only one, has left it.
#[inline(never)]
pub(super) fn remove<O: Order>(chunks: &mut [Chunk], root: ChunkId, member: ChunkId) -> ChunkId {
    let Links { above, child } = chunks[member].links;
    if above.is_none() {
        return heir::<O>(chunks, child);
    }
    let sibling = chunks[member].sibling;
    if chunks[above].links.child == member {
        chunks[above].links.child = sibling;
    } else {
        chunks[above].sibling = sibling;
    }
    chunks[sibling].links.above = above;
    if child.is_none() {
        return root;
    }
    let orphans = heir::<O>(chunks, child);
    meld::<O>(chunks, root, orphans)
}

/// The first member that `fits`. Looks at those that do not, and at their children.
pub(super) fn first<O: Order>(
    chunks: &[Chunk],
    root: ChunkId,
    mut fits: impl FnMut(ChunkId) -> bool,
) -> Option<ChunkId> {
    let mut best: Option<ChunkId> = None;
    let mut next = Some(root);
    while let Some(id) = next {
        let worse = best.is_some_and(|best| O::rank(&chunks[best]) < O::rank(&chunks[id]));
        let fits = !worse && fits(id);
        if fits {
            best = Some(id);
        }
        // What comes after a member that fits, or is worse than one, is worse.
        next = if fits || worse { beside(chunks, id) } else { after(chunks, id) };
    }
    best
}

/// All members, each before its children.
pub(super) fn members(chunks: &[Chunk], root: ChunkId) -> impl Iterator<Item = ChunkId> + '_ {
    std::iter::successors(Some(root), |&id| after(chunks, id))
}

/// The member that comes after another in the order of [`members`].
fn after(chunks: &[Chunk], id: ChunkId) -> Option<ChunkId> {
    let child = chunks[id].links.child;
    if child.is_none() { beside(chunks, id) } else { Some(child) }
}

/// The member that comes after another and after all below it in the order of [`members`].
fn beside(chunks: &[Chunk], id: ChunkId) -> Option<ChunkId> {
    let mut id = id;
    loop {
        let above = chunks[id].links.above;
        if above.is_none() {
            return None;
        }
        if !chunks[id].sibling.is_none() {
            return Some(chunks[id].sibling);
        }
        id = parent(chunks, id);
    }
}

/// The member that has this one, which is not the root, as one of its children.
fn parent(chunks: &[Chunk], id: ChunkId) -> ChunkId {
    let (mut id, mut above) = (id, chunks[id].links.above);
    while chunks[above].links.child != id {
        (id, above) = (above, chunks[above].links.above);
    }
    above
}
