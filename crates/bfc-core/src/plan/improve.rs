//! Better orders from what went wrong.
//!
//! A block that ended above the goal was placed too late: others took the room it needs. All such blocks move to the
//! front, in the order they had, and everything is placed anew. Blocks that are hard to place so gather in front, and
//! their order among each other changes as long as any of them ends too high. This is squeaky wheel optimisation
//! (Joslin and Clements, 1999); it needs neither chance nor a list of who is in whose way.

use super::solve::Search;

/// After so many placements in a row that were not better, the same blocks only push each other around.
const PATIENCE: u32 = 120;

/// Improves the placement until the search is over, or leads nowhere.
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
