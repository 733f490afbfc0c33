//! A recording as an HTML page. It shows the timeline by category, the pool map, regions at a chosen moment, the table of ops, the parts
//! of the peak, live memory with its age, growth from step to step, and failed requests. With the run's log, it also shows the loss and other curves over the
//! same time. The [plans](PlanChart) of a search that preceded the run have a section, and also a page of their own.
//!
//! The page needs no network. Its data is one JSON object, deflated and in base64, so that no name in it can end its
//! element. Scripts insert names only as text. Large data is downsampled: the timeline to an [`envelope`], the map to a
//! [`raster`] with single [`blocks`] around the peak, the state at other moments to a [`sample`], and logs to [`curves`].
//!
//! Figures, with the command and the machine, are in docs/benchmarks.md.

mod allocator;
mod blocks;
mod curves;
mod data;
mod envelope;
mod names;
mod oom;
mod raster;
mod regions;
mod sample;
mod space;

use std::io::{self, Write};

use base64::prelude::BASE64_STANDARD;
use base64::write::EncoderWriter;
use bfc_core::{Category, printable};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use highwater_files::markup::escaped;
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CharEscape, Formatter};

pub use allocator::{AllocatorFacts, CauseRow, GapRow, KeeperRow, ReplayedSettings};
pub use oom::oom_page;

use self::data::Extras;
use crate::plan_chart::PlanChart;
use crate::record::Recording;
use crate::training_log::TrainingLog;

/// The document, with placeholders for its title, style, sections, data and script.
const DOCUMENT: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// The sections of a run. Those of a search alone are in [`SEARCH`]. Both have a placeholder for [`PLANS`].
const RUN: &str = include_str!("page/run.html");
const SEARCH: &str = include_str!("page/search.html");
const PLANS: &str = include_str!("page/plans.html");

const RUN_SCRIPTS: &[&str] = &[
    include_str!("page/base.js"),
    include_str!("page/view.js"),
    include_str!("page/timeline.js"),
    include_str!("page/curves.js"),
    include_str!("page/map.js"),
    include_str!("page/segments.js"),
    include_str!("page/tables.js"),
    include_str!("page/allocator.js"),
    include_str!("page/plans_chart.js"),
    include_str!("page/plans.js"),
    include_str!("page/main.js"),
];
const SEARCH_SCRIPTS: &[&str] = &[
    include_str!("page/base.js"),
    include_str!("page/view.js"),
    include_str!("page/tables.js"),
    include_str!("page/plans_chart.js"),
    include_str!("page/plans.js"),
    include_str!("page/search.js"),
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
    write_run(recording, Extras { log, ..Extras::default() }, &mut out)
}

/// Like [`write_page`], with a section for the plans that a search compared before the run.
///
/// # Errors
/// Errors of the writer.
pub fn write_page_with_plans(
    recording: &Recording,
    log: Option<&TrainingLog>,
    plans: Option<&PlanChart>,
    mut out: impl Write,
) -> io::Result<()> {
    write_run(recording, Extras { log, plans, ..Extras::default() }, &mut out)
}

/// Like [`write_page`], with the settings of the allocator, the causes of the difference between reserved and requested
/// bytes, and the reserved bytes of other settings.
///
/// # Errors
/// Errors of the writer.
///
/// ```
/// use highwater_tracking::{AllocatorFacts, Recording, ReplayedSettings, write_page_with_allocator};
/// let mut facts = AllocatorFacts::new("PyTorch");
/// facts.options.push(ReplayedSettings::new("expandable_segments:True", 64 << 20));
/// let mut page = Vec::new();
/// write_page_with_allocator(&Recording::default(), None, &facts, &mut page)?;
/// assert!(page.starts_with(b"<!doctype html>"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write_page_with_allocator(
    recording: &Recording,
    log: Option<&TrainingLog>,
    allocator: &AllocatorFacts,
    mut out: impl Write,
) -> io::Result<()> {
    write_run(recording, Extras { log, allocator: Some(allocator), ..Extras::default() }, &mut out)
}

/// As the functions above. Not generic, like all functions below, so that it is compiled once and not in each crate
/// that writes a page.
fn write_run(recording: &Recording, extras: Extras<'_>, out: &mut dyn Write) -> io::Result<()> {
    let program = &recording.facts().program;
    let title = format!("{}: memory", if program.is_empty() { "a run" } else { program });
    write_document(&title, [RUN, PLANS], RUN_SCRIPTS, &data::Data::of(recording, extras), out)
}

/// Writes the plans of a search as one self-contained HTML page: peak memory against step time, and a table.
///
/// # Errors
/// Errors of the writer.
///
/// ```
/// use highwater_tracking::{PlanChart, PlanRow, write_plans_page};
/// let mut plans = PlanChart::new("rtx-4090").with_limit(24 << 30).with_chosen(0);
/// plans.rows.push(PlanRow::new("micro-batch 8 × 4, bf16", 20 << 30, 0.4, 80.0).with_is_on_front(true));
/// let mut page = Vec::new();
/// write_plans_page(&plans, &mut page)?;
/// assert!(page.starts_with(b"<!doctype html>"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write_plans_page(plans: &PlanChart, mut out: impl Write) -> io::Result<()> {
    write_plans(plans, &mut out)
}

fn write_plans(plans: &PlanChart, out: &mut dyn Write) -> io::Result<()> {
    let title = format!("{}: plans", if plans.device.is_empty() { "a device" } else { &plans.device });
    write_document(&title, [SEARCH, PLANS], SEARCH_SCRIPTS, &data::SearchData { plans }, out)
}

/// Writes a page. The second part of `sections` replaces the placeholder in the first.
fn write_document(
    title: &str,
    [sections, plans]: [&str; 2],
    scripts: &[&str],
    data: &impl Serialize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (before_plans, after_plans) = sections.split_once("{plans}").unwrap_or((sections, ""));
    // The template's placeholders in their order.
    let mut rest = DOCUMENT;
    for mark in ["{title}", "{style}", "{sections}", "{data}", "{script}"] {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        out.write_all(before.as_bytes())?;
        match mark {
            "{title}" => out.write_all(escaped(title).as_bytes())?,
            "{style}" => out.write_all(STYLE.as_bytes())?,
            "{sections}" => [before_plans, plans, after_plans]
                .iter()
                .try_for_each(|part| out.write_all(part.as_bytes()))?,
            "{data}" => write_data(data, out)?,
            _ => scripts.iter().try_for_each(|script| out.write_all(script.as_bytes()))?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// Returns the colors of a category on the page: on a light and on a dark background, as `#0a66a8`.
///
/// ```
/// let [light, dark] = highwater_tracking::category_colors(bfc_core::Category::Parameter);
/// assert!(light.starts_with('#') && dark.starts_with('#') && light != dark);
/// ```
#[must_use]
pub fn category_colors(category: Category) -> [&'static str; 2] {
    // The style defines `--parameter: #0a66a8;` once for each background.
    let definition = format!("--{}: ", category.name());
    let mut found = STYLE.split(&definition).skip(1).filter_map(|rest| rest.split(';').next());
    std::array::from_fn(|_| found.next().unwrap_or_default())
}

fn write_data(data: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    let base64 = EncoderWriter::new(out, &BASE64_STANDARD);
    let mut deflate = ZlibEncoder::new(base64, Compression::default());
    data.serialize(&mut Serializer::with_formatter(&mut deflate, ShownText))?;
    deflate.finish()?.finish()?;
    Ok(())
}

/// JSON whose texts are shown by a browser: an unprintable character becomes its visible escape, because bidirectional
/// controls would reorder the text of the page.
struct ShownText;

impl Formatter for ShownText {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        // Fragments have no backslashes of their own.
        out.write_all(printable(fragment).to_string().replace('\\', r"\\").as_bytes())
    }

    fn write_char_escape<W: ?Sized + Write>(&mut self, out: &mut W, escape: CharEscape) -> io::Result<()> {
        let character = match escape {
            CharEscape::Quote => return out.write_all(br#"\""#),
            CharEscape::ReverseSolidus => return out.write_all(br"\\"),
            CharEscape::Solidus => '/',
            CharEscape::Backspace => '\u{8}',
            CharEscape::FormFeed => '\u{c}',
            CharEscape::LineFeed => '\n',
            CharEscape::CarriageReturn => '\r',
            CharEscape::Tab => '\t',
            CharEscape::AsciiControl(byte) => char::from(byte),
        };
        self.write_string_fragment(out, character.encode_utf8(&mut [0; 4]))
    }
}

#[cfg(test)]
mod tests;
