//! Output of the examples with pretrained models.

use std::io::{self, Write};

use anyhow::Context;
use highwater::alloc::{Bytes, printable_lines};
use highwater::prelude::*;

/// Prints to standard output at once, with escaped control characters. A closed pipe, as in `… | head`, is not an error.
pub(crate) fn say(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match write!(stdout, "{}", printable_lines(text)).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// The peak of the device's pool, the categories that are part of it, and the mapped files.
pub(crate) fn peak(device: &Device) -> highwater::Result<String> {
    let mut categories = memory_report(device)?.categories;
    categories.retain(|row| row.peak_bytes > 0 && row.category != "mapped");
    categories.sort_by_key(|row| std::cmp::Reverse(row.peak_bytes));
    let parts = categories.iter().map(|row| format!("{} {}", row.category, Bytes(row.peak_bytes)));
    let parts = parts.collect::<Vec<_>>().join(", ");
    let [pool, mapped] =
        [device.memory_stats()?, device.external_memory()].map(|stats| Bytes(stats.peak_bytes_in_use));
    Ok(format!("peak {pool} in the pool ({parts}), and {mapped} of mapped files"))
}
