//! Things that are given back when events have passed.
//!
//! Anybody hands things in, from any thread and without waiting: through a queue without locks, and with an event on each
//! stream that uses the thing. Whoever looks for what has passed takes the queue's other end; if another thread has it,
//! that one does the work.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, TryLockError};

use crossbeam::queue::SegQueue;

use super::cheapest::{Marks, cheapest_cut};
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::base::sync::{Mutex, MutexGuard, lock};
use crate::source::error::SourceError;
use crate::source::stream::{Event, Stream};

/// Events that are kept for the next use: making one costs more than recording one.
const SPARE_EVENTS: usize = 64;

/// Events without a use.
#[derive(Debug, Default)]
pub(super) struct EventPool(Mutex<Vec<Event>>);

impl EventPool {
    /// An event after all the work that the stream was given so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<Event, SourceError> {
        let spare = {
            let mut events = lock(&self.0);
            let place = events.iter().rposition(|event| event.is_of(stream));
            place.map(|place| events.swap_remove(place))
        };
        let Some(event) = spare else { return Event::new(stream) };
        event.record(stream)?;
        Ok(event)
    }

    pub(super) fn put(&self, event: Event) {
        let mut events = lock(&self.0);
        if events.len() < SPARE_EVENTS {
            events.push(event);
        }
    }
}

/// A point of a stream that a thing waits for.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) stream: Arc<Stream>,
    pub(super) event: Event,
}

/// Things of which each waits for its marks.
#[derive(Debug)]
pub(super) struct Deferred<T> {
    /// Things handed in that nobody has looked at yet.
    incoming: SegQueue<(T, Vec<Mark>)>,
    /// Things handed in and not given back.
    count: AtomicUsize,
    waiting: Mutex<Waiting<T>>,
    pub(super) events: EventPool,
}

#[derive(Debug)]
struct Waiting<T> {
    /// The streams that are waited for, one lane each.
    lanes: Vec<Lane>,
    /// The things by age, each with the number of marks that have not passed.
    things: BTreeMap<u64, (T, usize)>,
    next: u64,
}

/// The marks of one stream, in the order of their arrival, which is nearly that in which they pass.
#[derive(Debug)]
struct Lane {
    stream: Arc<Stream>,
    marks: VecDeque<(Arc<Event>, u64)>,
}

impl<T> Deferred<T> {
    pub(super) fn new() -> Self {
        let waiting = Waiting { lanes: Vec::new(), things: BTreeMap::new(), next: 0 };
        Self {
            incoming: SegQueue::new(),
            count: AtomicUsize::new(0),
            waiting: Mutex::new(waiting),
            events: EventPool::default(),
        }
    }

    /// Things handed in and not given back.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Marks after all the work that these streams were given so far.
    pub(super) fn marks(&self, streams: &[Arc<Stream>]) -> Result<Vec<Mark>, SourceError> {
        let mark = |stream: &Arc<Stream>| {
            Ok(Mark { stream: Arc::clone(stream), event: self.events.record(stream)? })
        };
        streams.iter().map(mark).collect()
    }

    /// Hands a thing in. Never waits.
    pub(super) fn push(&self, thing: T, marks: Vec<Mark>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.incoming.push((thing, marks));
    }

    /// The things all of whose marks have passed. Never waits: nothing, if another thread is at it.
    pub(super) fn passed(&self) -> Vec<T> {
        if self.len() == 0 {
            return Vec::new();
        }
        let mut waiting = match self.waiting.try_lock() {
            Ok(waiting) => waiting,
            // Taken as it is, as by `lock`.
            Err(TryLockError::Poisoned(waiting)) => waiting.into_inner(),
            Err(TryLockError::WouldBlock) => return Vec::new(),
        };
        waiting.take_in(&self.incoming);
        self.take_passed(&mut waiting)
    }

    /// The same, waiting for a thread that is at it.
    pub(super) fn passed_by_now(&self) -> Vec<T> {
        self.take_passed(&mut self.waiting())
    }

    /// Waits for the fewest marks that suffice, which may be none by now; `false` if all of them do not. `suffices` is
    /// asked with things, and with all of them first.
    pub(super) fn wait_for(&self, mut suffices: impl FnMut(&[&T]) -> bool) -> Result<bool, SourceError> {
        if self.len() == 0 {
            return Ok(false);
        }
        let events: Vec<Arc<Event>> = {
            let waiting = self.waiting();
            let (things, marks) = waiting.things_and_marks();
            let suffices = |given: &[usize]| {
                let given: Vec<&T> = given.iter().map(|&index| things[index]).collect();
                suffices(&given)
            };
            let Some(cut) = cheapest_cut(&marks, waiting.lanes.len(), suffices) else { return Ok(false) };
            let lanes = waiting.lanes.iter().zip(&cut);
            lanes
                .flat_map(|(lane, &count)| lane.marks.iter().take(count).rev())
                .map(|(event, _)| Arc::clone(event))
                .collect()
        };
        // Others may look for what has passed meanwhile. After the last mark of a lane the others have passed as well,
        // except where threads that freed at one time handed in their marks in another order than the stream's.
        for event in &events {
            if event.is_complete() != Ok(true) {
                event.synchronise()?;
            }
        }
        Ok(true)
    }

    /// How many things were ever handed in.
    pub(super) fn handed_in(&self) -> u64 {
        let waiting = &mut *self.waiting();
        waiting.next
    }

    /// Asks something about what waits now and was among the first so many handed in; `None` if nothing waits.
    pub(super) fn of_the_first<R>(
        &self,
        handed_in: u64,
        ask: impl FnOnce(Vec<&T>) -> Option<R>,
    ) -> Option<R> {
        if self.len() == 0 {
            return None;
        }
        let waiting = &mut *self.waiting();
        ask(waiting.things.range(..handed_in).map(|(_, (thing, _))| thing).collect())
    }

    /// Runs `ask` on everything that waits now, the oldest first.
    pub(super) fn with_waiting<R>(&self, ask: impl FnOnce(Vec<&T>) -> R) -> R {
        if self.len() == 0 {
            return ask(Vec::new());
        }
        let waiting = self.waiting();
        ask(waiting.things.values().map(|(thing, _)| thing).collect())
    }

    /// Everything that is left, after waiting for it. What cannot be waited for is left out, unless its device is lost.
    pub(super) fn finish(&self) -> Vec<T> {
        let waiting = &mut *self.waiting();
        // All of them, as in `wait_for`: the last one handed in need not be the last that the stream passes.
        for (event, _) in waiting.lanes.iter().flat_map(|lane| lane.marks.iter().rev()) {
            if event.is_complete() != Ok(true) {
                // A failure shows in what has passed.
                let _ = event.synchronise();
            }
        }
        self.take_passed(waiting)
    }

    /// Leaves what is left where it is, for ever.
    pub(super) fn leak(&self) {
        let waiting = &mut *self.waiting();
        std::mem::forget(std::mem::take(&mut waiting.things));
    }

    /// What waits, with what was handed in until now.
    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        let mut waiting = lock(&self.waiting);
        waiting.take_in(&self.incoming);
        waiting
    }

    fn take_passed(&self, waiting: &mut Waiting<T>) -> Vec<T> {
        let mut passed = Vec::new();
        for lane in &mut waiting.lanes {
            while let Some((event, thing)) = lane.marks.front() {
                // No work is done on a device that is lost, so nothing there is in use.
                match event.is_complete() {
                    Ok(true) => {}
                    Err(error) if error.is_poisoned() => {}
                    Ok(false) | Err(_) => break,
                }
                if let Some((_, left)) = waiting.things.get_mut(thing) {
                    *left -= 1;
                    if *left == 0 {
                        passed.extend(waiting.things.remove(thing).map(|(thing, _)| thing));
                    }
                }
                if let Some(event) = lane.marks.pop_front().and_then(|(event, _)| Arc::into_inner(event)) {
                    self.events.put(event);
                }
            }
        }
        waiting.lanes.retain(|lane| !lane.marks.is_empty());
        self.count.fetch_sub(passed.len(), Ordering::Relaxed);
        passed
    }
}

impl<T> Waiting<T> {
    /// Takes in what was handed in since.
    fn take_in(&mut self, incoming: &SegQueue<(T, Vec<Mark>)>) {
        while let Some((thing, marks)) = incoming.pop() {
            let number = self.next;
            self.next += 1;
            self.things.insert(number, (thing, marks.len()));
            for Mark { stream, event } in marks {
                let mark = (Arc::new(event), number);
                match self.lanes.iter_mut().find(|lane| lane.stream == stream) {
                    Some(lane) => lane.marks.push_back(mark),
                    None => self.lanes.push(Lane { stream, marks: VecDeque::from([mark]) }),
                }
            }
        }
    }

    /// The things by age, and the marks that each waits for.
    fn things_and_marks(&self) -> (Vec<&T>, Vec<Marks>) {
        let mut marks: BTreeMap<u64, Marks> = BTreeMap::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            for (place, (_, thing)) in (1..).zip(&lane.marks) {
                marks.entry(*thing).or_default().push((index, place));
            }
        }
        let things = self.things.values().map(|(thing, _)| thing).collect();
        let marks = self.things.keys().map(|thing| marks.remove(thing).unwrap_or_default()).collect();
        (things, marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::Bytes;
    use crate::sim::{Pace, SimDevice};

    fn device() -> (Arc<SimDevice>, Arc<Stream>) {
        let device = Arc::new(SimDevice::new(Bytes::mib(1)).with_pace(Pace::OnDemand));
        let stream = Stream::new(device.clone()).unwrap();
        (device, stream)
    }

    /// As when two threads free at one time: the stream passes the one mark, then the other, and they come in reversed.
    fn two_in_reverse() -> Deferred<&'static str> {
        let (device, stream) = device();
        let deferred = Deferred::new();
        let marks = ["earlier", "later"].map(|thing| {
            device.launch(stream.handle(), &[]).unwrap();
            (thing, deferred.marks(std::slice::from_ref(&stream)).unwrap())
        });
        for (thing, marks) in marks.into_iter().rev() {
            deferred.push(thing, marks);
        }
        deferred
    }

    #[test]
    fn marks_in_any_order_are_all_waited_for() {
        let deferred = two_in_reverse();
        assert_eq!(deferred.wait_for(|things| things.len() == 2), Ok(true));
        assert_eq!(deferred.passed_by_now(), ["later", "earlier"]);
    }

    #[test]
    fn the_end_waits_for_all_marks_in_any_order() {
        assert_eq!(two_in_reverse().finish(), ["later", "earlier"]);
    }

    #[test]
    fn a_panic_of_who_was_asked_keeps_nothing_from_being_given_back() {
        let (device, stream) = device();
        let deferred = Deferred::new();
        device.launch(stream.handle(), &[]).unwrap();
        deferred.push("thing", deferred.marks(std::slice::from_ref(&stream)).unwrap());
        let asked = || deferred.wait_for(|_| panic!("as planned"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(asked)).is_err());
        device.finish(stream.handle());
        assert_eq!(deferred.passed(), ["thing"]);
    }
}
