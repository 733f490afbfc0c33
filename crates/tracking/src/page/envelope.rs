//! The timeline downsampled to the moments that a page can hold, without losing a peak.
//!
//! The moments of a recording are split into intervals of equal numbers, so that busy times keep more than idle ones.
//! Each interval keeps its first lowest and its first highest moment. The run keeps the highest moment of each
//! category, and the last moment. Therefore the highest and the lowest level of any complete intervals are exact.

use bfc_core::Category;

use crate::record::{EventKind, Moment, Recording};

/// Selects the moments to keep, from at most this many intervals.
pub(super) fn envelope(recording: &Recording, intervals: usize) -> Vec<Moment> {
    let count = recording.timeline().count();
    let length = count.div_ceil(intervals.max(1)).max(1);
    let mut kept = Vec::with_capacity(count.min(2 * intervals + Category::COUNT + 1));
    let mut highest: [Option<Moment>; Category::COUNT] = [None; Category::COUNT];
    let mut interval: Option<(Moment, Moment)> = None;
    let mut last = None;
    for (index, moment) in recording.timeline().enumerate() {
        for (category, highest) in highest.iter_mut().enumerate() {
            if highest.is_none_or(|known| known.categories[category] < moment.categories[category]) {
                *highest = Some(moment);
            }
        }
        let (low, high) = interval.get_or_insert((moment, moment));
        if moment.bytes < low.bytes {
            *low = moment;
        }
        if moment.bytes > high.bytes {
            *high = moment;
        }
        if (index + 1) % length == 0 {
            kept.extend(interval.take().into_iter().flat_map(<[Moment; 2]>::from));
        }
        last = Some(moment);
    }
    kept.extend(interval.into_iter().flat_map(<[Moment; 2]>::from));
    kept.extend(highest.into_iter().flatten().chain(last));
    kept.sort_by_key(|moment| moment.event);
    kept.dedup_by_key(|moment| moment.event);
    kept
}

/// Returns the op that ran on the thread of each of these moments' events. Without one, returns the owner of the block.
pub(super) fn ops_at(recording: &Recording, moments: &[Moment]) -> Vec<u32> {
    let mut running: Vec<Vec<u32>> = vec![Vec::new(); recording.threads().len()];
    let mut moments = moments.iter().map(|moment| moment.event as usize).peekable();
    let mut ops = Vec::new();
    for (index, event) in recording.events().iter().enumerate() {
        let running = &mut running[event.thread as usize];
        match event.kind {
            EventKind::Enter(execution) => running.push(recording.executions()[execution as usize].owner),
            EventKind::Leave(_) => drop(running.pop()),
            _ => {}
        }
        if moments.next_if_eq(&index).is_some() {
            let holder = match event.kind {
                EventKind::Alloc(block) => recording.block(block).owner,
                EventKind::Free(block) => recording.block(block).last_owner,
                EventKind::Retag(retag) => recording.retags()[retag as usize].owner,
                _ => 0,
            };
            ops.push(running.last().copied().unwrap_or(holder));
        }
    }
    ops
}
