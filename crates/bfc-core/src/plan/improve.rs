//! Improves the order of blocks from failed placements.
//!
//! A block that ended above the goal was placed too late, because other blocks took its space. All such blocks move to
//! the front in their order, and all blocks are placed again. Hard blocks thus gather at the front, and their order
//! changes while any of them ends too high. This is squeaky wheel optimization (Joslin and Clements, 1999). It needs
//! neither randomness nor a conflict graph.

use super::solve::Search;

/// The most placements in a row without an improvement. After that the same blocks only displace each other.
const PATIENCE: u32 = 120;

/// Improves the placement until the search ends or stops making progress.
pub(super) fn improve(search: &mut Search<'_>, mut order: Vec<u32>) {
    if search.is_over() {
        return;
    }
    let mut failures = 0;
    if search.place(&order, u64::MAX).is_none() {
        return;
    }
    let mut last = search.last.clone();
    while !search.is_over() && failures < PATIENCE {
        let goal = search.goal;
        let sizes = &search.problem.sizes;
        let too_high = |&block: &u32| last.offsets[block as usize] + sizes[block as usize] > goal;
        let (mut next, rest): (Vec<u32>, Vec<u32>) = order.iter().partition(|block| too_high(block));
        next.extend(rest);
        let Some(better) = search.place(&next, u64::MAX) else { return };
        failures = if better { 0 } else { failures + 1 };
        last.clone_from(&search.last);
        order = next;
    }
}
