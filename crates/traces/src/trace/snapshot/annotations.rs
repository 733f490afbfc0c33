//! The calls of `torch.profiler.record_function` in a snapshot.

use std::collections::HashMap;

use highwater_files::boundary::floor_boundary;
use highwater_files::lean::{self, HeldMemory};
use highwater_tracking::Recording;

use super::fields::{Fields, Key};
use super::file::SnapshotFile;
use crate::trace::builder::MAX_LABEL;
use crate::trace::{TraceLimits, TraceProblem};

/// A call of `record_function`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Annotation {
    /// Its name.
    pub name: String,
    /// The first event of the recording at or after its begin. The number of events if there is none.
    pub begin: u32,
    /// The event after the last one before its end. The number of events for a call that does not end.
    pub end: u32,
    /// The time of its begin, and that of its end if it ends, in microseconds since the epoch.
    pub time_us: (u64, Option<u64>),
}

/// The begin or the end of a call.
#[derive(Debug)]
pub(super) struct Mark {
    name: String,
    time_us: u64,
    begins: bool,
}

/// The cost of an annotation besides its name.
const MARK_BYTES: u64 = 4 * size_of::<Annotation>() as u64;

/// Reads the begins and ends of calls.
pub(super) fn read(
    file: &SnapshotFile<'_>,
    device: u32,
    limits: &TraceLimits,
    memory: &mut HeldMemory,
) -> Result<Vec<Mark>, TraceProblem> {
    let mut marks = Vec::new();
    for &value in file.list("external_annotations").unwrap_or_default() {
        let fields = Fields::of(file.heap, value, "an annotation")?;
        if fields.number(Key::Device).is_some_and(|number| number != u64::from(device)) {
            continue;
        }
        let begins = match fields.text(Key::Stage) {
            Some("START") => true,
            Some("END") => false,
            _ => continue,
        };
        let (Some(name), Some(time_us)) = (fields.text(Key::Name), fields.number(Key::TimeUs)) else {
            continue;
        };
        if marks.len() >= limits.comments as usize {
            break;
        }
        let name = &name[..floor_boundary(name, MAX_LABEL)];
        memory.charge(MARK_BYTES + 2 * name.len() as u64)?;
        let clean = |letter: char| if letter.is_control() { ' ' } else { letter };
        lean::push(&mut marks, Mark { name: name.chars().map(clean).collect(), time_us, begins });
    }
    Ok(marks)
}

/// Matches the begin and the end of each call.
pub(super) fn matched(marks: Vec<Mark>, recording: &Recording, first_us: u64) -> Vec<Annotation> {
    let events = recording.events();
    let number = |time_us: u64, is_end: bool| {
        let at_ns = time_us.saturating_sub(first_us).saturating_mul(1000);
        events.partition_point(|event| event.at_ns < at_ns || is_end && event.at_ns == at_ns) as u32
    };
    let mut found: Vec<Annotation> = Vec::new();
    // The calls that did not end yet, by name.
    let mut open: HashMap<String, Vec<usize>> = HashMap::new();
    for Mark { name, time_us, begins } in marks {
        if begins {
            open.entry(name.clone()).or_default().push(found.len());
            let (begin, end) = (number(time_us, false), events.len() as u32);
            found.push(Annotation { name, begin, end, time_us: (time_us, None) });
        } else if let Some(index) = open.get_mut(&name).and_then(Vec::pop) {
            let annotation = &mut found[index];
            annotation.end = number(time_us, true).max(annotation.begin);
            annotation.time_us.1 = Some(time_us);
        }
    }
    found
}
