//! The parts of the peak: its holders, and how high the next peak is without each of them.
//!
//! A run without a holder does not save all bytes that it held at the peak, because another moment may be nearly as
//! high. So for each holder this module computes the highest level of the run without anything ever charged to it.
//!
//! One pass handles all holders. A holder's bytes change only at its own events; between two of them, the level
//! without it is highest where the total is. A monotonic stack finds the highest total since an event: it keeps only
//! events after which the total was never higher. The pass takes O(n log n) for n events.

use bfc_core::Category;

use super::recording::{EventKind, Recording};
use crate::report::{PeakPart, PeakParts};

/// The parts of the peak; `None` if nothing was ever live.
pub(super) fn peak_parts(recording: &Recording) -> Option<PeakParts> {
    let peak = recording.peak()?;
    let mut pass = Pass::new(recording);
    for index in 0..recording.events().len() {
        pass.take(index as u32);
    }
    pass.settle_all();

    for live in recording.live_at_peak() {
        pass.places[live.owner as usize].hold_at_peak(live.bytes);
        pass.categories[live.category.index()].hold_at_peak(live.bytes);
        let mut above = live.owner;
        while above != 0 {
            pass.scopes[above as usize].hold_at_peak(live.bytes);
            above = recording.owner(above).parent;
        }
    }
    let named = |&(owner, _): &(u32, &Holder)| !recording.owner(owner).is_op();
    let paths = |(owner, holder): (u32, &Holder)| holder.part(recording, recording.owner_path(owner));
    let categories = Category::ALL.into_iter().zip(&pass.categories);
    Some(PeakParts {
        bytes: peak.bytes,
        places: sorted((0..).zip(&pass.places).filter(|(_, holder)| holder.blocks > 0).map(paths)),
        scopes: sorted(
            (0..).zip(&pass.scopes).filter(|(_, holder)| holder.blocks > 0).filter(named).map(paths),
        ),
        categories: sorted(
            categories
                .filter(|(_, holder)| holder.blocks > 0)
                .map(|(category, holder)| holder.part(recording, category.name().to_owned())),
        ),
    })
}

fn sorted(parts: impl Iterator<Item = PeakPart>) -> Vec<PeakPart> {
    let mut parts: Vec<PeakPart> = parts.collect();
    sort(&mut parts);
    parts
}

/// Apart from [`sorted`], or the sort would be compiled for each kind of iterator.
fn sort(parts: &mut [PeakPart]) {
    parts.sort_by(|a, b| (b.falls, b.bytes, &a.name).cmp(&(a.falls, a.bytes, &b.name)));
}

/// A holder during the pass over the events.
#[derive(Clone, Copy, Debug, Default)]
struct Holder {
    /// Bytes that it holds since the event `since`.
    held: u64,
    since: u32,
    /// The highest level without it up to `since`, and the event that reached it.
    most: u64,
    most_at: u32,
    at_peak: u64,
    blocks: u64,
}

impl Holder {
    const fn hold_at_peak(&mut self, bytes: u64) {
        self.at_peak += bytes;
        self.blocks += 1;
    }

    fn part(&self, recording: &Recording, name: String) -> PeakPart {
        let peak = recording.peak().map_or(0, |peak| peak.bytes);
        let next_owner = match recording.events().get(self.most_at as usize).map(|event| event.kind) {
            Some(EventKind::Alloc(block)) if self.most > 0 => {
                recording.owner_path(recording.block(block).owner)
            }
            _ => String::new(),
        };
        PeakPart {
            name,
            bytes: self.at_peak,
            blocks: self.blocks,
            next_peak: self.most,
            falls: peak - self.most,
            next_at_ns: if self.most > 0 { recording.time_of(self.most_at) } else { 0 },
            next_owner,
        }
    }
}

/// Live bytes after events, only where they were never higher since.
#[derive(Debug, Default)]
struct Levels(Vec<(u32, u64)>);

impl Levels {
    fn push(&mut self, event: u32, bytes: u64) {
        // Equal levels all stay, because the first one may be earlier than `since`.
        while self.0.last().is_some_and(|&(_, level)| level < bytes) {
            self.0.pop();
        }
        self.0.push((event, bytes));
    }

    /// The highest level after the event `since` or a later one, and the first event that reached it.
    fn highest_since(&self, since: u32) -> Option<(u32, u64)> {
        self.0.get(self.0.partition_point(|&(event, _)| event < since)).copied()
    }
}

/// Merges the levels since the holder's last event.
fn settle(holder: &mut Holder, levels: &Levels) {
    let Some((event, level)) = levels.highest_since(holder.since) else { return };
    // A holder's bytes are part of the total.
    let without = level - holder.held;
    if without > holder.most {
        (holder.most, holder.most_at) = (without, event);
    }
}

struct Pass<'a> {
    recording: &'a Recording,
    levels: Levels,
    live: u64,
    places: Vec<Holder>,
    scopes: Vec<Holder>,
    categories: [Holder; Category::COUNT],
}

impl<'a> Pass<'a> {
    fn new(recording: &'a Recording) -> Self {
        let owners = vec![Holder::default(); recording.owners().len()];
        Self {
            recording,
            levels: Levels::default(),
            live: 0,
            places: owners.clone(),
            scopes: owners,
            categories: [Holder::default(); Category::COUNT],
        }
    }

    fn take(&mut self, index: u32) {
        match self.recording.events()[index as usize].kind {
            EventKind::Alloc(block) => {
                let block = self.recording.block(block);
                self.live += block.granted;
                self.change(index, block.owner, block.category, |held| held + block.granted);
            }
            EventKind::Free(block) => {
                let block = self.recording.block(block);
                self.live -= block.granted;
                self.change(index, block.last_owner, block.last_category, |held| held - block.granted);
            }
            EventKind::Retag(retag) => {
                let retag = self.recording.retags()[retag as usize];
                let bytes = self.recording.block(retag.block).granted;
                self.change(index, retag.old_owner, retag.old_category, |held| held - bytes);
                self.change(index, retag.owner, retag.category, |held| held + bytes);
            }
            _ => return,
        }
        self.levels.push(index, self.live);
    }

    /// Changes the bytes of an owner, of all owners above it and of a category from this event on.
    fn change(&mut self, event: u32, owner: u32, category: Category, change: impl Fn(u64) -> u64) {
        let levels = &self.levels;
        let change = |holder: &mut Holder| {
            settle(holder, levels);
            (holder.held, holder.since) = (change(holder.held), event);
        };
        change(&mut self.places[owner as usize]);
        change(&mut self.categories[category.index()]);
        let mut above = owner;
        while above != 0 {
            change(&mut self.scopes[above as usize]);
            above = self.recording.owner(above).parent;
        }
    }

    fn settle_all(&mut self) {
        let holders = self.places.iter_mut().chain(&mut self.scopes).chain(&mut self.categories);
        for holder in holders {
            settle(holder, &self.levels);
        }
    }
}

#[cfg(test)]
mod tests;
