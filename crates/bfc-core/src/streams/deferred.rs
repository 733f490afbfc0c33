//! Values that are released when events have passed.
//!
//! Any thread can push a value without waiting, through a lock-free queue and with an event on each stream that uses
//! it. The thread that collects passed values takes the other end of the queue. If another thread is collecting, that
//! one does the work.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, TryLockError};

use crossbeam::queue::SegQueue;

use super::cheapest::{Marks, cheapest_cut};
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::base::sync::{Mutex, MutexGuard, lock};
use crate::source::error::SourceError;
use crate::source::stream::{Stream, StreamEvent};

/// The most cached events. Creating an event costs more than recording one.
const SPARE_EVENTS: usize = 64;

/// Events for reuse.
#[derive(Debug, Default)]
pub(super) struct EventPool(Mutex<Vec<StreamEvent>>);

impl EventPool {
    /// Returns an event after all work submitted to the stream so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<StreamEvent, SourceError> {
        let spare = {
            let mut events = lock(&self.0);
            let place = events.iter().rposition(|event| event.is_of(stream));
            place.map(|place| events.swap_remove(place))
        };
        let Some(event) = spare else { return StreamEvent::new(stream) };
        event.record(stream)?;
        Ok(event)
    }

    pub(super) fn put(&self, event: StreamEvent) {
        let mut events = lock(&self.0);
        if events.len() < SPARE_EVENTS {
            events.push(event);
        }
    }
}

/// A point of a stream that a value waits for.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) stream: Arc<Stream>,
    pub(super) event: StreamEvent,
}

/// Values that each wait for their marks.
#[derive(Debug)]
pub(super) struct Deferred<T> {
    /// Pushed values that no thread has processed yet.
    incoming: SegQueue<(T, Vec<Mark>)>,
    /// Values that are pushed and not released.
    count: AtomicUsize,
    waiting: Mutex<Waiting<T>>,
    pub(super) events: EventPool,
}

#[derive(Debug)]
struct Waiting<T> {
    /// The streams to wait for, one lane each.
    lanes: Vec<Lane>,
    /// The values by age, each with the number of marks that have not passed.
    values: BTreeMap<u64, (T, usize)>,
    next: u64,
}

/// The marks of one stream, in order of arrival, which is nearly the order in which they pass.
#[derive(Debug)]
struct Lane {
    stream: Arc<Stream>,
    marks: VecDeque<(Arc<StreamEvent>, u64)>,
}

impl<T> Deferred<T> {
    pub(super) fn new() -> Self {
        let waiting = Waiting { lanes: Vec::new(), values: BTreeMap::new(), next: 0 };
        Self {
            incoming: SegQueue::new(),
            count: AtomicUsize::new(0),
            waiting: Mutex::new(waiting),
            events: EventPool::default(),
        }
    }

    /// Returns the number of pushed values that are not released.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Creates marks after all work submitted to these streams so far.
    pub(super) fn marks(&self, streams: &[Arc<Stream>]) -> Result<Vec<Mark>, SourceError> {
        let mark = |stream: &Arc<Stream>| {
            Ok(Mark { stream: Arc::clone(stream), event: self.events.record(stream)? })
        };
        streams.iter().map(mark).collect()
    }

    /// Pushes a value. Never waits.
    pub(super) fn push(&self, value: T, marks: Vec<Mark>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.incoming.push((value, marks));
    }

    /// Returns the values whose marks have all passed. Never waits: returns nothing if another thread is collecting.
    pub(super) fn passed(&self) -> Vec<T> {
        if self.len() == 0 {
            return Vec::new();
        }
        let mut waiting = match self.waiting.try_lock() {
            Ok(waiting) => waiting,
            // Ignores the poison, like `lock`.
            Err(TryLockError::Poisoned(waiting)) => waiting.into_inner(),
            Err(TryLockError::WouldBlock) => return Vec::new(),
        };
        waiting.take_in(&self.incoming);
        self.take_passed(&mut waiting)
    }

    /// As `passed`, but waits for a thread that is collecting.
    pub(super) fn passed_by_now(&self) -> Vec<T> {
        self.take_passed(&mut self.waiting())
    }

    /// Waits for the smallest set of marks that suffices, which may be empty by now. Returns `false` if all marks do
    /// not suffice. Calls `suffices` with all values first.
    pub(super) fn wait_for(&self, mut suffices: impl FnMut(&[&T]) -> bool) -> Result<bool, SourceError> {
        if self.len() == 0 {
            return Ok(false);
        }
        let events: Vec<Arc<StreamEvent>> = {
            let waiting = self.waiting();
            let (values, marks) = waiting.values_and_marks();
            let suffices = |given: &[usize]| {
                let given: Vec<&T> = given.iter().map(|&index| values[index]).collect();
                suffices(&given)
            };
            let Some(cut) = cheapest_cut(&marks, waiting.lanes.len(), suffices) else { return Ok(false) };
            let lanes = waiting.lanes.iter().zip(&cut);
            lanes
                .flat_map(|(lane, &count)| lane.marks.iter().take(count).rev())
                .map(|(event, _)| Arc::clone(event))
                .collect()
        };
        // Other threads may collect meanwhile. After the last mark of a lane the others have passed too. Only
        // concurrent frees can push their marks in another order than the stream's.
        for event in &events {
            if event.is_complete() != Ok(true) {
                event.synchronize()?;
            }
        }
        Ok(true)
    }

    /// Returns the number of values pushed so far.
    pub(super) fn pushed(&self) -> u64 {
        let waiting = &mut *self.waiting();
        waiting.next
    }

    /// Calls `ask` on the waiting values among the first `count` pushed ones; returns `None` if no value waits.
    pub(super) fn with_first<R>(&self, pushed: u64, ask: impl FnOnce(Vec<&T>) -> Option<R>) -> Option<R> {
        if self.len() == 0 {
            return None;
        }
        let waiting = &mut *self.waiting();
        ask(waiting.values.range(..pushed).map(|(_, (value, _))| value).collect())
    }

    /// Calls `ask` on all waiting values, the oldest first.
    pub(super) fn with_waiting<R>(&self, ask: impl FnOnce(Vec<&T>) -> R) -> R {
        if self.len() == 0 {
            return ask(Vec::new());
        }
        let waiting = self.waiting();
        ask(waiting.values.values().map(|(value, _)| value).collect())
    }

    /// Waits for all marks and returns the remaining values. Omits values whose marks cannot be waited for, unless the
    /// device is lost.
    pub(super) fn finish(&self) -> Vec<T> {
        let waiting = &mut *self.waiting();
        // Wait for all marks, as in `wait_for`: the last pushed mark is not always the last to pass.
        for (event, _) in waiting.lanes.iter().flat_map(|lane| lane.marks.iter().rev()) {
            if event.is_complete() != Ok(true) {
                // A failure shows in what has passed.
                let _ = event.synchronize();
            }
        }
        self.take_passed(waiting)
    }

    /// Leaks the remaining values.
    pub(super) fn leak(&self) {
        let waiting = &mut *self.waiting();
        std::mem::forget(std::mem::take(&mut waiting.values));
    }

    /// Locks the waiting values, including those pushed until now.
    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        let mut waiting = lock(&self.waiting);
        waiting.take_in(&self.incoming);
        waiting
    }

    fn take_passed(&self, waiting: &mut Waiting<T>) -> Vec<T> {
        let mut passed = Vec::new();
        for lane in &mut waiting.lanes {
            while let Some((event, value)) = lane.marks.front() {
                // A lost device runs no work, so nothing there is in use.
                match event.is_complete() {
                    Ok(true) => {}
                    Err(error) if error.is_poisoned() => {}
                    Ok(false) | Err(_) => break,
                }
                if let Some((_, left)) = waiting.values.get_mut(value) {
                    *left -= 1;
                    if *left == 0 {
                        passed.extend(waiting.values.remove(value).map(|(value, _)| value));
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
    /// Moves the pushed values into the lanes.
    fn take_in(&mut self, incoming: &SegQueue<(T, Vec<Mark>)>) {
        while let Some((value, marks)) = incoming.pop() {
            let number = self.next;
            self.next += 1;
            self.values.insert(number, (value, marks.len()));
            for Mark { stream, event } in marks {
                let mark = (Arc::new(event), number);
                match self.lanes.iter_mut().find(|lane| lane.stream == stream) {
                    Some(lane) => lane.marks.push_back(mark),
                    None => self.lanes.push(Lane { stream, marks: VecDeque::from([mark]) }),
                }
            }
        }
    }

    /// Returns the values by age and the marks of each.
    fn values_and_marks(&self) -> (Vec<&T>, Vec<Marks>) {
        let mut marks: BTreeMap<u64, Marks> = BTreeMap::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            for (place, (_, value)) in (1..).zip(&lane.marks) {
                marks.entry(*value).or_default().push((index, place));
            }
        }
        let values = self.values.values().map(|(value, _)| value).collect();
        let marks = self.values.keys().map(|value| marks.remove(value).unwrap_or_default()).collect();
        (values, marks)
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

    /// As when two threads free concurrently: the marks arrive in the reverse order.
    fn two_in_reverse() -> Deferred<&'static str> {
        let (device, stream) = device();
        let deferred = Deferred::new();
        let marks = ["earlier", "later"].map(|value| {
            device.launch(stream.handle(), &[]).unwrap();
            (value, deferred.marks(std::slice::from_ref(&stream)).unwrap())
        });
        for (value, marks) in marks.into_iter().rev() {
            deferred.push(value, marks);
        }
        deferred
    }

    #[test]
    fn marks_in_any_order_are_all_waited_for() {
        let deferred = two_in_reverse();
        assert_eq!(deferred.wait_for(|values| values.len() == 2), Ok(true));
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
        deferred.push("value", deferred.marks(std::slice::from_ref(&stream)).unwrap());
        let asked = || deferred.wait_for(|_| panic!("as planned"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(asked)).is_err());
        device.finish(stream.handle());
        assert_eq!(deferred.passed(), ["value"]);
    }
}
