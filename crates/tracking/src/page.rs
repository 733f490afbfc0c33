//! A recording as an HTML page. It shows the timeline by category, the pool map, the table of ops, the parts
//! of the peak, live memory with its age, growth from step to step, and failed requests. With the run's log, it also shows the loss and other curves over the
//! same time.
//!
//! The page needs no network. Its data is one JSON object, deflated and in base64, so that no name in it can end its
//! element. Scripts insert names only as text. Large data is downsampled: the timeline to an [`envelope`], the map to a
//! [`raster`] with single [`blocks`] around the peak, and logs to [`curves`].
//!
//! Figures, with the command and the machine, are in docs/benchmarks.md.

mod blocks;
mod curves;
mod data;
mod envelope;
mod names;
mod oom;
mod raster;
mod space;

use std::io::{self, Write};

use base64::prelude::BASE64_STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;

pub use oom::oom_page;

use crate::files::escaped;
use crate::record::Recording;
use crate::training_log::TrainingLog;

const HEAD: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPTS: [&str; 7] = [
    include_str!("page/base.js"),
    include_str!("page/view.js"),
    include_str!("page/timeline.js"),
    include_str!("page/curves.js"),
    include_str!("page/map.js"),
    include_str!("page/tables.js"),
    include_str!("page/main.js"),
];

/// Writes a recording as one self-contained HTML page. With a `log` of the run, the page shows its curves above the
/// memory.
///
/// # Errors
/// Errors of the writer.
///
/// ```
/// use bfc_core::Bytes;
/// use highwater_tracking::{Tracker, TrainingLog, TrainingLogLimits, write_page};
/// let tracker = Tracker::new();
/// tracker.start_log(Bytes::mib(1));
/// let lines = "{\"step\": 0, \"seconds\": 0.5, \"loss\": 2.25}\n";
/// let log = TrainingLog::read(lines.as_bytes(), &TrainingLogLimits::default())?;
/// let mut page = Vec::new();
/// write_page(&tracker.take_log(), Some(&log), &mut page)?;
/// assert!(page.starts_with(b"<!doctype html>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_page(recording: &Recording, log: Option<&TrainingLog>, mut out: impl Write) -> io::Result<()> {
    let program = &recording.facts().program;
    let title = if program.is_empty() { "a run" } else { program };
    // The template's placeholders in their order.
    let mut rest = HEAD;
    for (mark, fill) in [("{title}", None), ("{style}", Some(STYLE)), ("{data}", None), ("{script}", None)] {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        out.write_all(before.as_bytes())?;
        match (mark, fill) {
            (_, Some(text)) => out.write_all(text.as_bytes())?,
            ("{title}", _) => out.write_all(escaped(title).as_bytes())?,
            ("{data}", _) => write_data(recording, log, &mut out)?,
            _ => SCRIPTS.iter().try_for_each(|script| out.write_all(script.as_bytes()))?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

fn write_data(recording: &Recording, log: Option<&TrainingLog>, out: &mut impl Write) -> io::Result<()> {
    let base64 = EncoderWriter::new(out, &BASE64_STANDARD);
    let mut deflate = ZlibEncoder::new(base64, Compression::default());
    serde_json::to_writer(&mut deflate, &data::Data::of(recording, log))?;
    deflate.finish()?.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests;
