//! The parts of a snapshot file: the device, its events, and the lists of segments and annotations.

use std::collections::BTreeSet;

use highwater_files::pickle::{Heap, Value};

use super::SnapshotProblem;
use super::fields::{Fields, Key};

/// The objects of a file.
pub(super) struct SnapshotFile<'a> {
    pub(super) heap: &'a Heap,
    pub(super) root: Value,
}

/// A device with its events.
pub(super) struct Device<'a> {
    pub(super) number: u32,
    pub(super) events: &'a [Value],
}

impl<'a> SnapshotFile<'a> {
    /// Returns the events of the requested device, or of the only device with events. Without any events, returns the
    /// device with segments.
    pub(super) fn device(&self, asked: Option<u32>) -> Result<Device<'a>, SnapshotProblem> {
        let shape = |what| SnapshotProblem::Shape { what, expected: "a list" };
        if self.is_list() {
            return self.device_of_segments(asked);
        }
        if self.heap.entries(self.root).is_none() {
            return Err(SnapshotProblem::Shape { what: "the snapshot", expected: "a dictionary" });
        }
        let traces = self.list("device_traces").ok_or(shape("`device_traces`"))?;
        let mut devices = Vec::new();
        for (number, &trace) in (0..).zip(traces) {
            let events = self.heap.as_list(trace).ok_or(shape("an item of `device_traces`"))?;
            if !events.is_empty() && asked.is_none_or(|asked| asked == number) {
                devices.push(Device { number, events });
            }
        }
        if let [first, second, ..] = devices.as_slice() {
            let (first, second) = (first.number, second.number);
            return Err(SnapshotProblem::SeveralDevices { count: devices.len(), first, second });
        }
        devices.pop().map_or_else(|| self.device_of_segments(asked), Ok)
    }

    /// Returns whether this is a bare list of segments, which has no events.
    pub(super) const fn is_list(&self) -> bool {
        matches!(self.root, Value::List(_))
    }

    /// Returns whether Highwater wrote the snapshot, with the facts of the run in place of PyTorch's settings.
    pub(super) fn is_exported(&self) -> bool {
        let settings = self.settings();
        settings.is_some_and(|settings| self.heap.get(settings, "program").is_some())
    }

    /// Returns the dictionary of the allocator's settings.
    pub(super) fn settings(&self) -> Option<Value> {
        self.heap.get(self.root, "allocator_settings")
    }

    /// Returns the list of segments.
    pub(super) fn segments(&self) -> Option<&'a [Value]> {
        if self.is_list() { self.heap.as_list(self.root) } else { self.list("segments") }
    }

    /// Returns a list of the snapshot.
    pub(super) fn list(&self, key: &str) -> Option<&'a [Value]> {
        self.heap.get(self.root, key).and_then(|list| self.heap.as_list(list))
    }

    /// Returns the device of the segments: the requested one, or the only one with segments.
    fn device_of_segments(&self, asked: Option<u32>) -> Result<Device<'a>, SnapshotProblem> {
        let mut devices = BTreeSet::new();
        for &segment in self.segments().unwrap_or_default() {
            let number = Fields::of(self.heap, segment, "a segment")?.number(Key::Device).unwrap_or(0);
            let number = u32::try_from(number).map_err(|_| SnapshotProblem::Shape {
                what: "a segment's `device`",
                expected: "below 2^32",
            })?;
            if asked.is_none_or(|asked| asked == number) {
                devices.insert(number);
            }
        }
        let mut numbers = devices.iter().copied();
        match (numbers.next(), numbers.next()) {
            (Some(first), Some(second)) => {
                Err(SnapshotProblem::SeveralDevices { count: devices.len(), first, second })
            }
            (Some(number), None) => Ok(Device { number, events: &[] }),
            (None, _) => Err(SnapshotProblem::NoEvents { device: asked }),
        }
    }
}
