//! The log of RAPIDS Memory Manager's `logging_resource_adaptor`.
//!
//! The header is `Thread,Time,Action,Pointer,Size,Stream`; copies of such logs may lack it. Each line is an allocation,
//! logged after it succeeded, or a free, logged before it happens. Therefore the pool could have served the lines in
//! this order. The trace does not distinguish threads and streams: it is that of the one pool below.

use std::borrow::Cow;

use super::Format;
use crate::trace::TraceProblem;
use crate::trace::builder::Builder;
use crate::trace::lines::{bad_number, beginning, fields, number, parse};

const EXPECTED: &str = "`Thread,Time,Action,Pointer,Size,Stream`";

pub(super) const FORMAT: Format = Format::trace(
    "an RMM log",
    |start| start.has_line(is_first_line),
    &[b"Thread,Time,Action,Pointer,Size,Stream\n"],
    |reader, options| parse(reader, &options.limits, parse_line),
);

/// Returns whether a file's first line belongs to such a log.
fn is_first_line(line: &str) -> bool {
    fields::<6>(line).is_some_and(|fields| is_header(&fields) || Action::of(&fields[2]).is_some())
}

#[derive(Clone, Copy)]
enum Action {
    Allocate,
    Fail,
    Free,
}

impl Action {
    fn of(text: &str) -> Option<Self> {
        match text {
            "allocate" => Some(Self::Allocate),
            "allocate failure" => Some(Self::Fail),
            "free" | "deallocate" => Some(Self::Free),
            _ => None,
        }
    }
}

/// Returns whether the line is an event of the trace.
fn parse_line(line: &str, builder: &mut Builder) -> Result<bool, TraceProblem> {
    let malformed = || TraceProblem::Malformed { expected: EXPECTED, found: beginning(line) };
    let fields = fields::<6>(line).ok_or_else(malformed)?;
    // Logs with several runs repeat the header.
    if is_header(&fields) {
        return Ok(false);
    }
    let [thread, time, action, address, bytes, stream] = fields;
    let action = Action::of(&action).ok_or_else(malformed)?;
    let (address, bytes) = (pointer(&address)?, number(&bytes)?);
    if let Some(time) = time_ns(&time) {
        builder.at(time);
    }
    match action {
        // Failed and empty requests use no memory.
        Action::Fail => return Ok(false),
        Action::Allocate | Action::Free if address == 0 && bytes == 0 => return Ok(false),
        Action::Allocate => {
            let label = builder.made_label(&format!("thread {thread} stream {stream}"))?;
            builder.alloc_at(address, bytes, label)?;
        }
        Action::Free => builder.free_at(address, bytes)?,
    }
    Ok(true)
}

/// Parses a time: `HH:MM:SS.microseconds`, in older versions with a colon before the microseconds, or seconds since
/// 1970. Returns `None` for others. A log that passes midnight stays at the last time of the day.
fn time_ns(text: &str) -> Option<u64> {
    let (whole, fraction) = match text.rsplit_once('.') {
        Some((whole, fraction)) => (whole, fraction),
        None if text.matches(':').count() == 3 => text.rsplit_once(':')?,
        None => (text, "0"),
    };
    let seconds = whole.split(':').try_fold(0_u64, |sum, part| {
        let digits = part.parse::<u32>().ok()?;
        sum.checked_mul(60)?.checked_add(digits.into())
    })?;
    let digits = fraction
        .get(..fraction.len().min(9))
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let scale = 10_u64.pow(9 - digits.len() as u32);
    seconds.checked_mul(1_000_000_000)?.checked_add(digits.parse::<u64>().ok()? * scale)
}

fn is_header(fields: &[Cow<'_, str>; 6]) -> bool {
    ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]
        .iter()
        .zip(fields)
        .all(|(name, field)| name.eq_ignore_ascii_case(field))
}

/// Parses an address in the format of `printf`.
fn pointer(text: &str) -> Result<u64, TraceProblem> {
    if matches!(text, "(nil)" | "0") {
        return Ok(0);
    }
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.starts_with('+') {
        return Err(bad_number(text));
    }
    u64::from_str_radix(digits, 16).map_err(|_| bad_number(text))
}
