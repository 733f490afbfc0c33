//! Streams of a simulated device: pending work, and the orders in which it may end.

use std::collections::{BTreeMap, VecDeque};

use super::random::Random;
use super::watch::{Clock, MemoryUse, Violation, conflict};
use crate::base::memory::Span;
use crate::source::driver::{MemoryCopy, StreamHandle};

/// The pace at which the work of a simulated device ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pace {
    /// Immediately when submitted.
    #[default]
    AtOnce,
    /// Partly at every call about streams and events, from randomly chosen streams. The seed determines the order.
    Random {
        /// The seed of the order.
        seed: u64,
    },
    /// Only when the host waits for it, and no more than that; or by [`advance`](super::SimDevice::advance).
    OnDemand,
}

/// An item of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// A use of memory.
    Launch,
    Copy(MemoryCopy),
    /// An event record, reached after all earlier items.
    Reach(u64),
    /// A wait, which blocks all later items.
    Await(u64),
}

/// One pending item.
#[derive(Debug)]
pub(super) struct Item {
    /// Its number in its stream, from 1.
    index: u64,
    work: Work,
    uses: Vec<MemoryUse>,
}

#[derive(Debug, Default)]
struct Stream {
    queue: VecDeque<Item>,
    /// The number of submitted items.
    given: u64,
    /// The clock of the next item.
    clock: Clock,
    destroyed: bool,
}

/// The pending record of an event.
#[derive(Debug)]
struct Marker {
    stream: u64,
    /// Its clock.
    clock: Clock,
}

/// All streams and events of a device.
#[derive(Debug)]
pub(super) struct Streams {
    pace: Pace,
    random: Random,
    next: u64,
    streams: BTreeMap<u64, Stream>,
    /// The marker of the event's record; 0 before the first.
    events: BTreeMap<u64, u64>,
    next_marker: u64,
    markers: BTreeMap<u64, Marker>,
    pub(super) violations: Vec<Violation>,
}

impl Streams {
    /// Creates the streams of the device with this number.
    pub(super) fn new(pace: Pace, device: u64) -> Self {
        Self {
            pace,
            random: Random::new(0),
            next: device << 32,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            next_marker: 0,
            markers: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    pub(super) fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
        if let Pace::Random { seed } = pace {
            self.random = Random::new(seed);
        }
    }

    pub(super) fn create_stream(&mut self) -> u64 {
        self.next += 1;
        self.streams.insert(self.next, Stream::default());
        self.next
    }

    pub(super) fn destroy_stream(&mut self, stream: u64) -> Result<(), String> {
        self.stream(stream)?.destroyed = true;
        self.drop_if_done(stream);
        Ok(())
    }

    pub(super) fn create_event(&mut self) -> u64 {
        self.next += 1;
        self.events.insert(self.next, 0);
        self.next
    }

    pub(super) fn destroy_event(&mut self, event: u64) -> Result<(), String> {
        self.events.remove(&event).map(|_| ()).ok_or_else(|| format!("there is no event {event}"))
    }

    pub(super) fn record(&mut self, event: u64, stream: u64) -> Result<(), String> {
        self.marker(event)?;
        let index = self.stream(stream)?.given + 1;
        let mut clock = self.stream(stream)?.clock.clone();
        clock.raise(stream, index);
        self.next_marker += 1;
        let marker = self.next_marker;
        self.markers.insert(marker, Marker { stream, clock });
        self.events.insert(event, marker);
        self.give(stream, Work::Reach(marker), Vec::new())
    }

    pub(super) fn wait(&mut self, stream: u64, event: u64) -> Result<(), String> {
        let marker = self.marker(event)?;
        // Reached items come before everything submitted from now on.
        let clock = self.markers.get(&marker).map(|marker| marker.clock.clone());
        let waiting = self.stream(stream)?;
        let Some(clock) = clock else { return Ok(()) };
        waiting.clock.join(&clock);
        self.give(stream, Work::Await(marker), Vec::new())
    }

    pub(super) fn is_complete(&self, event: u64) -> Result<bool, String> {
        Ok(!self.markers.contains_key(&self.marker(event)?))
    }

    /// Submits an item to a stream, and checks that no unordered work uses the same bytes.
    pub(super) fn give(&mut self, stream: u64, work: Work, uses: Vec<MemoryUse>) -> Result<(), String> {
        let given = self.stream(stream)?;
        given.given += 1;
        let (index, clock) = (given.given, given.clock.clone());
        if !uses.is_empty() {
            for (&other, earlier) in self.streams.iter().filter(|(other, _)| **other != stream) {
                let unordered = earlier.queue.iter().filter(|item| item.index > clock.of(other));
                for span in unordered.filter_map(|item| conflict(&item.uses, &uses)) {
                    let (first, second) = (StreamHandle(other), StreamHandle(stream));
                    self.violations.push(Violation::Unordered { span, first, second });
                }
            }
        }
        self.stream(stream)?.queue.push_back(Item { index, work, uses });
        Ok(())
    }

    /// Returns the stream of pending work that uses a byte of the span.
    pub(super) fn user_of(&self, span: Span) -> Option<StreamHandle> {
        let uses =
            |stream: &Stream| stream.queue.iter().any(|item| item.uses.iter().any(|used| used.touches(span)));
        self.streams.iter().find(|(_, stream)| uses(stream)).map(|(&stream, _)| StreamHandle(stream))
    }

    /// Progresses some of the work that can run at this call. Returns the next item to end.
    pub(super) fn next_by_pace(&mut self) -> Option<Work> {
        let goes_on = match self.pace {
            Pace::AtOnce => true,
            // The seed also determines how far the device lags behind.
            Pace::Random { seed } => self.random.below(8) < seed % 8,
            Pace::OnDemand => false,
        };
        if goes_on { self.next() } else { None }
    }

    /// Ends one item of a randomly chosen stream.
    pub(super) fn next(&mut self) -> Option<Work> {
        let can_run = |stream: &Stream| match stream.queue.front() {
            Some(Item { work: Work::Await(marker), .. }) => !self.markers.contains_key(marker),
            Some(_) => true,
            None => false,
        };
        let count = self.streams.values().filter(|stream| can_run(stream)).count();
        if count == 0 {
            return None;
        }
        let pick = self.random.below(count as u64) as usize;
        let stream =
            self.streams.iter().filter(|(_, stream)| can_run(stream)).nth(pick).map(|(&id, _)| id)?;
        self.end_first_of(stream)
    }

    /// Ends one item that an event waits for; `None` once the event is complete.
    pub(super) fn next_towards(&mut self, event: u64) -> Option<Work> {
        let stream = self.markers.get(self.events.get(&event)?)?.stream;
        if matches!(self.pace, Pace::Random { .. }) && self.random.below(2) == 0 {
            return self.next();
        }
        self.next_of(stream)
    }

    /// Ends one item of a stream, or one that it waits for; `None` if the stream has none.
    pub(super) fn next_of(&mut self, mut stream: u64) -> Option<Work> {
        loop {
            match self.streams.get(&stream)?.queue.front()?.work {
                Work::Await(marker) if self.markers.contains_key(&marker) => {
                    stream = self.markers.get(&marker)?.stream;
                }
                _ => return self.end_first_of(stream),
            }
        }
    }

    fn end_first_of(&mut self, stream: u64) -> Option<Work> {
        let item = self.streams.get_mut(&stream)?.queue.pop_front()?;
        if let Work::Reach(marker) = item.work {
            self.markers.remove(&marker);
        }
        self.drop_if_done(stream);
        Some(item.work)
    }

    fn drop_if_done(&mut self, stream: u64) {
        if self.streams.get(&stream).is_some_and(|stream| stream.destroyed && stream.queue.is_empty()) {
            self.streams.remove(&stream);
        }
    }

    fn stream(&mut self, stream: u64) -> Result<&mut Stream, String> {
        let found = self.streams.get_mut(&stream).filter(|stream| !stream.destroyed);
        found.ok_or_else(|| format!("there is no stream {stream}"))
    }

    fn marker(&self, event: u64) -> Result<u64, String> {
        self.events.get(&event).copied().ok_or_else(|| format!("there is no event {event}"))
    }

    /// Returns the live streams and events.
    pub(super) fn open(&self) -> usize {
        self.streams.values().filter(|stream| !stream.destroyed).count() + self.events.len()
    }
}
