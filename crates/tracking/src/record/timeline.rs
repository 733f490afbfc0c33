//! Live bytes by category over time.

use bfc_core::Category;

use super::recording::{EventKind, Recording};

/// Live bytes after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moment {
    /// The event's index.
    pub event: u32,
    /// When it happened, in nanoseconds since recording began.
    pub at_ns: u64,
    /// Granted bytes that are live, by [`Category::index`].
    pub categories: [u64; Category::COUNT],
    /// Their sum.
    pub bytes: u64,
    /// Bytes requested for the live blocks. The rest is rounding.
    pub requested: u64,
}

/// The moments of a recording at which live bytes or their categories change. See [`Recording::timeline`].
#[derive(Clone, Debug)]
pub struct Timeline<'a> {
    recording: &'a Recording,
    next: usize,
    moment: Moment,
}

impl<'a> Timeline<'a> {
    pub(super) const fn new(recording: &'a Recording) -> Self {
        let moment = Moment { event: 0, at_ns: 0, categories: [0; Category::COUNT], bytes: 0, requested: 0 };
        Self { recording, next: 0, moment }
    }
}

impl Iterator for Timeline<'_> {
    type Item = Moment;

    fn next(&mut self) -> Option<Moment> {
        let recording = self.recording;
        loop {
            let index = self.next;
            let event = recording.events.get(index)?;
            self.next += 1;
            let block = match event.kind {
                EventKind::Alloc(block) | EventKind::Free(block) => block,
                EventKind::Retag(retag) => recording.retags[retag as usize].block,
                _ => continue,
            };
            let life = recording.block(block);
            let moment = &mut self.moment;
            (moment.event, moment.at_ns) = (index as u32, event.at_ns);
            match event.kind {
                EventKind::Alloc(_) => {
                    moment.categories[life.category.index()] += life.granted;
                    moment.bytes += life.granted;
                    moment.requested = moment.requested.saturating_add(life.requested);
                }
                EventKind::Free(_) => {
                    moment.categories[life.last_category.index()] -= life.granted;
                    moment.bytes -= life.granted;
                    moment.requested = moment.requested.saturating_sub(life.requested);
                }
                EventKind::Retag(retag) => {
                    let retag = &recording.retags[retag as usize];
                    moment.categories[retag.old_category.index()] -= life.granted;
                    moment.categories[retag.category.index()] += life.granted;
                }
                _ => {}
            }
            return Some(*moment);
        }
    }
}
