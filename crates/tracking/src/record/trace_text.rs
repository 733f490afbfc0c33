//! Recordings as allocation traces in text, the input of `highwater pack` and `highwater replay`.
//!
//! ```text
//! # events: 4
//! # peak_live_bytes: 1500
//! # mark: step 0
//! a 0 1000 net.fc1.matmul
//! a 1 500 net.fc1.matmul:backward
//! f 0
//! f 1
//! ```

use std::collections::HashMap;
use std::io::{self, Write};

use super::recording::{EventKind, MAX_LABEL, Recording};

/// The most marks; later ones are omitted. Readers accept 65,536 comments.
const MOST_MARKS: usize = 65_000;

/// Writes a recording as an allocation trace: a line for each allocation with its requested bytes and the path of its
/// owner, one for each free, and a comment for each mark. Comments with `headers`, the number of events and the peak of
/// requested bytes come first.
///
/// ```
/// use bfc_core::{Allocation, Allocator, AddressOnlyMemory, BfcAllocator, BfcConfig, Bytes, Request};
/// use highwater_tracking::{Tracker, write_trace};
/// # use std::sync::Arc;
/// let config = BfcConfig::new(Bytes::mib(1));
/// let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("cpu", Arc::new(AddressOnlyMemory::new()), config));
/// let tracker = Tracker::new();
/// tracker.start_log(Bytes::mib(1));
/// drop(Allocation::new(&tracker.begin("read").track(&pool), &Request::new(100)).unwrap());
/// let mut text = Vec::new();
/// write_trace(&tracker.take_log(), &["trace: example".to_owned()], &mut text)?;
/// assert_eq!(text, b"# trace: example\n# events: 2\n# peak_live_bytes: 100\na 0 100 read\nf 0\n");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Errors of the writer.
pub fn write_trace(recording: &Recording, headers: &[String], mut out: impl Write) -> io::Result<()> {
    write(recording, headers, &mut out)
}

/// As [`write_trace`]. Not generic, so that it is compiled once.
fn write(recording: &Recording, headers: &[String], out: &mut dyn Write) -> io::Result<()> {
    for header in headers {
        writeln!(out, "# {}", one_line(header))?;
    }
    let (events, peak) = events_and_peak(recording);
    writeln!(out, "# events: {events}\n# peak_live_bytes: {peak}")?;
    if recording.overflowed() {
        writeln!(out, "# events lost at the beginning: {}", recording.lost_events())?;
    }
    let mut labels: HashMap<u32, String> = HashMap::new();
    for event in recording.events() {
        match event.kind {
            EventKind::Alloc(number) => {
                let block = recording.block(number);
                let label = labels.entry(block.owner).or_insert_with(|| recording.owner_label(block.owner));
                writeln!(out, "a {number} {} {label}", block.requested)?;
            }
            EventKind::Free(number) => writeln!(out, "f {number}")?,
            EventKind::Mark(mark) if (mark as usize) < MOST_MARKS => {
                let text: String = recording.marks()[mark as usize].chars().take(MAX_LABEL).collect();
                writeln!(out, "{}", format!("# mark: {}", one_line(&text).trim()).trim_end())?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the number of allocations and frees, and the peak of requested bytes.
fn events_and_peak(recording: &Recording) -> (usize, u64) {
    let (mut events, mut live, mut peak) = (0, 0_u64, 0);
    for event in recording.events() {
        match event.kind {
            EventKind::Alloc(number) => live = live.saturating_add(recording.block(number).requested),
            EventKind::Free(number) => live = live.saturating_sub(recording.block(number).requested),
            _ => continue,
        }
        events += 1;
        peak = live.max(peak);
    }
    (events, peak)
}

/// Replaces line breaks and other control characters by spaces.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}
