//! Failed requests in the report.

use std::fmt::{self, Write};

use highwater_tracking::table::bytes;
use highwater_tracking::{OutOfMemory, Recording};
use serde::Serialize;

use super::text::plain;

/// The most failures to print.
const PRINTED: u32 = 3;

/// The most failures in JSON.
const TOLD: u32 = 64;

/// A request that failed for lack of memory, in bytes.
#[derive(Debug, Serialize)]
pub(super) struct Failed<'a> {
    requested: u64,
    owner: String,
    pool: &'a str,
    /// The pool's report, if recorded.
    report: Option<&'a OutOfMemory>,
}

/// The first failures of a recording.
pub(super) fn failures(recording: &Recording) -> Vec<Failed<'_>> {
    let failed = |(number, failure): (u32, &highwater_tracking::Failure)| Failed {
        requested: failure.requested,
        owner: recording.owner_path(failure.owner),
        pool: recording.pools().get(failure.pool as usize).map_or("", |pool| &pool.name),
        report: recording.report_of(number),
    };
    (0..TOLD).zip(recording.failures()).map(failed).collect()
}

/// Prints the first failures in full.
pub(super) fn print(recording: &Recording, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let count = recording.failures().len();
    if count == 0 {
        return Ok(());
    }
    writeln!(f, "\nrequests that found no memory: {count}")?;
    for failed in failures(recording).iter().take(PRINTED as usize) {
        f.write_char('\n')?;
        match failed.report {
            // Names come from the file and may contain anything.
            Some(report) => {
                report.to_string().lines().try_for_each(|line| writeln!(f, "{}", plain(line)))?;
            }
            None => writeln!(f, "{} by {}", bytes(failed.requested), plain(&failed.owner))?,
        }
    }
    Ok(())
}
