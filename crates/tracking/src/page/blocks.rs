//! Blocks as rectangles over time and address, one for each category of a block.

use bfc_core::Category;

use super::space::Space;
use crate::record::{EventKind, Recording};

/// A block while it had one category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rectangle {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// The position on the map.
    pub(super) at: u64,
    pub(super) bytes: u64,
    pub(super) category: Category,
    /// The last owner in this time.
    pub(super) owner: u32,
}

/// Visits all rectangles, in the order of their ends. Blocks that are live at the end end after the last event.
pub(super) fn rectangles(recording: &Recording, space: &Space, mut tell: impl FnMut(Rectangle)) {
    let fresh =
        |block: &crate::record::BlockLife| (recording.time_of(block.born), block.category, block.owner);
    let mut current: Vec<(u64, Category, u32)> = recording.blocks().iter().map(fresh).collect();
    let mut end = |number: u32, to_ns: u64, (from_ns, category, owner): (u64, Category, u32)| {
        let block = recording.block(number);
        let at = space.place(block.pool, block.address);
        tell(Rectangle { from_ns, to_ns, at, bytes: block.granted, category, owner });
    };
    for event in recording.events() {
        match event.kind {
            EventKind::Free(number) => end(number, event.at_ns, current[number as usize]),
            EventKind::Retag(retag) => {
                let retag = recording.retags()[retag as usize];
                let entry = &mut current[retag.block as usize];
                if retag.category != entry.1 {
                    end(retag.block, event.at_ns, *entry);
                    *entry = (event.at_ns, retag.category, retag.owner);
                }
                entry.2 = retag.owner;
            }
            _ => {}
        }
    }
    for (number, block) in (0..).zip(recording.blocks()) {
        if block.freed.is_none() {
            end(number, recording.end_ns().saturating_add(1), current[number as usize]);
        }
    }
}

/// Returns the time in which each block is drawn separately. This is the whole run if there are few blocks.
/// Otherwise it is a time around the peak with events of at most `most` rectangles.
pub(super) fn window(recording: &Recording, most: usize) -> (u64, u64) {
    let count = recording.events().len();
    if recording.blocks().len() + recording.retags().len() <= most {
        return (0, recording.end_ns());
    }
    let peak = recording.peak().map_or(0, |peak| peak.event as usize);
    let first = peak.saturating_sub(most / 2).min(count.saturating_sub(most));
    // Before the first event there is nothing.
    let from = if first == 0 { 0 } else { recording.time_of(first as u32) };
    (from, recording.time_of((first + most).min(count) as u32))
}
