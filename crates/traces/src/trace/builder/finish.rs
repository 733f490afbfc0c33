//! Completes a trace: puts earlier blocks in front, and numbers the labels.

use super::Builder;
use crate::trace::{Trace, TraceEvent};

impl Builder {
    /// Allocates the blocks that were live before the log at the beginning of the trace.
    pub(super) fn put_earlier_in_front(&mut self) {
        let earlier = self.earlier.len();
        for comment in &mut self.trace.comments {
            comment.position += earlier;
        }
        // The number of events fits into 32 bits, and these are part of it.
        let count = u32::try_from(earlier).unwrap_or(u32::MAX);
        let front = (0..count).zip(&self.earlier).map(|(block, &(bytes, label))| TraceEvent::Alloc {
            block,
            bytes,
            label,
            alignment: 1,
        });
        let renumber = |block: u32| if block < self.blocks { block + count } else { u32::MAX - block };
        let renumbered = |event| match event {
            TraceEvent::Alloc { block, bytes, label, alignment } => {
                TraceEvent::Alloc { block: renumber(block), bytes, label, alignment }
            }
            TraceEvent::Free { block } => TraceEvent::Free { block: renumber(block) },
            TraceEvent::Occupy { block, start, end } => {
                TraceEvent::Occupy { block: renumber(block), start, end }
            }
        };
        self.trace.events.iter_mut().for_each(|event| *event = renumbered(*event));
        self.trace.events.reserve_exact(earlier);
        self.trace.events.extend(front);
        self.trace.events.rotate_right(earlier);
        if !self.trace.times_ns.is_empty() {
            self.trace.times_ns.resize(self.trace.events.len(), 0);
            self.trace.times_ns.rotate_right(earlier);
        }
        if !self.trace.streams.is_empty() {
            self.trace.streams.resize(self.trace.events.len(), 0);
            self.trace.streams.rotate_right(earlier);
        }
        self.trace.peak_live_bytes = peak_live_bytes(&self.trace.events);
    }
}

/// Returns the peak of live bytes in a sequence whose sums were checked.
fn peak_live_bytes(events: &[TraceEvent]) -> u64 {
    let mut sizes = Vec::new();
    let (mut live, mut peak) = (0_u64, 0);
    for event in events {
        match *event {
            TraceEvent::Alloc { bytes, .. } => {
                sizes.push(bytes);
                live = live.saturating_add(bytes);
                peak = live.max(peak);
            }
            TraceEvent::Free { block } => {
                live = live.saturating_sub(sizes.get(block as usize).copied().unwrap_or(0));
            }
            // Logs that begin late are by address and have no such events.
            TraceEvent::Occupy { .. } => {}
        }
    }
    peak
}

/// Numbers the labels in the order of their first use. Reordered events make that differ from the order of creation.
/// Removes unused labels.
pub(super) fn order_labels(trace: &mut Trace) {
    let mut made: Vec<Option<String>> = std::mem::take(&mut trace.labels).into_iter().map(Some).collect();
    let mut numbers = vec![0; made.len()];
    for event in &mut trace.events {
        let TraceEvent::Alloc { label, .. } = event else { continue };
        if let Some(text) = made.get_mut(*label as usize).and_then(Option::take) {
            // There are no more than were created, and their numbers have 32 bits.
            numbers[*label as usize] = u32::try_from(trace.labels.len()).unwrap_or(u32::MAX);
            trace.labels.push(text);
        }
        *label = numbers.get(*label as usize).copied().unwrap_or(0);
    }
}
