//! Heap memory that ops take and give back all the time, kept by its thread in between.
//!
//! Every op makes the body of a tensor, and in training a node with lists of what its backward reads. The heap takes some hundred
//! instructions for each that is made and dropped, all of them together a tenth of a small step. What a thread drops it keeps
//! here, empty, and takes again: as many as it had at a time, up to a bound.

use std::cell::RefCell;
use std::thread::LocalKey;

/// How many pieces of a kind a thread keeps: of the largest, bodies, less than a hundred KiB.
const KEPT: usize = 256;

/// Pieces of one kind.
#[derive(Debug)]
pub(crate) struct Spare<P>(RefCell<Vec<P>>);

impl<P> Spare<P> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }
}

/// A piece that was kept; `None` where a new one is to be made.
#[inline(always)]
pub(crate) fn take<P>(from: &'static LocalKey<Spare<P>>) -> Option<P> {
    from.try_with(|spare| spare.0.borrow_mut().pop()).ok().flatten()
}

/// Keeps a piece for the next [`take`], unless there are many already, or the thread is ending.
#[inline(always)]
pub(crate) fn keep<P>(at: &'static LocalKey<Spare<P>>, piece: P) {
    // What is not kept is dropped without the borrow.
    let _dropped = at.try_with(|spare| {
        let mut kept = spare.0.borrow_mut();
        if kept.len() < KEPT {
            kept.push(piece);
            return None;
        }
        Some(piece)
    });
}

/// The room of the longest list that is kept of those of an op: few ops have as many inputs, and room for many would be kept for those
/// that have few.
const LONGEST: usize = 8;

/// An empty list with room for some.
#[inline(always)]
pub(crate) fn list<T>(from: &'static LocalKey<Spare<Vec<T>>>) -> Vec<T> {
    list_of(from, LONGEST / 2)
}

/// The same, with room for so many where it is a new one.
#[inline(always)]
pub(crate) fn list_of<T>(from: &'static LocalKey<Spare<Vec<T>>>, room: usize) -> Vec<T> {
    take(from).unwrap_or_else(|| Vec::with_capacity(room))
}

/// Keeps the room of a list, whose entries are dropped.
#[inline(always)]
pub(crate) fn keep_list<T>(at: &'static LocalKey<Spare<Vec<T>>>, list: Vec<T>) {
    keep_list_of(at, LONGEST, list);
}

/// The same, if it is room for no more than so many.
#[inline(always)]
pub(crate) fn keep_list_of<T>(at: &'static LocalKey<Spare<Vec<T>>>, longest: usize, mut list: Vec<T>) {
    list.clear();
    if (1..=longest).contains(&list.capacity()) {
        keep(at, list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local!(static LISTS: Spare<Vec<u8>> = const { Spare::new() });

    #[test]
    fn what_was_kept_last_is_taken_first_and_no_more_than_so_much_is_kept() {
        assert!(take(&LISTS).is_none());
        for capacity in 1..=2 * KEPT {
            keep(&LISTS, Vec::with_capacity(capacity));
        }
        for capacity in (1..=KEPT).rev() {
            assert_eq!(take(&LISTS).unwrap().capacity(), capacity);
        }
        assert!(take(&LISTS).is_none());
    }

    #[test]
    fn lists_are_kept_empty_and_only_short_ones() {
        keep_list(&LISTS, vec![1; LONGEST]);
        keep_list(&LISTS, vec![1; LONGEST + 1]);
        keep_list(&LISTS, Vec::new());
        let list = list(&LISTS);
        assert_eq!((list.len(), list.capacity()), (0, LONGEST));
        assert!(take(&LISTS).is_none());
    }
}
