//! The log of glibc's `mtrace`: every call of `malloc`, `realloc` and `free` of a C program.
//!
//! ```text
//! = Start
//! @ ./prog:(main+0x15)[0x401156] + 0x1c3f6a0 0x64
//! @ ./prog:[0x401170] < 0x1c3f6a0
//! @ ./prog:[0x401170] > 0x1c3f710 0xc8
//! @ ./prog:[0x401190] - 0x1c3f710
//! = End
//! ```
//!
//! `+` is an allocation, `-` a free, `<` and `>` the old and the new block of `realloc`, and `!` a `realloc` that failed.
//! The label of a block is its caller: the function, or the address for `addr2line`. The reader skips frees without an
//! allocation, of which the log does not contain the size, and reports that it did.

use super::Format;
use crate::trace::TraceProblem;
use crate::trace::builder::Builder;
use crate::trace::lines::{bad_number, beginning, parse};

pub(super) const FORMAT: Format = Format::trace(
    "a log of mtrace",
    |start| start.has_line(|line| line == "= Start" || Call::of(line).is_some()),
    &[b"= Start\n", b"@ ./prog:[0x401156] + 0x1c3f6a0 0x64\n"],
    |reader, options| parse(reader, &options.limits, parse_line),
);

/// The text by which [`Trace::skipped`](crate::Trace::skipped) reports a log that starts late or frees a block twice.
const UNKNOWN_FREES: &str = "frees of blocks that the log does not allocate";

/// A line of the log.
struct Call<'a> {
    caller: &'a str,
    kind: &'a str,
    address: &'a str,
    bytes: Option<&'a str>,
}

impl<'a> Call<'a> {
    /// Splits a line from its end, because the caller's path may contain spaces.
    fn of(line: &'a str) -> Option<Self> {
        let line = line.strip_prefix("@ ")?;
        let (rest, last) = line.rsplit_once(' ')?;
        let (rest, middle) = rest.rsplit_once(' ')?;
        if matches!(middle, "-" | "<") {
            return Some(Self { caller: rest, kind: middle, address: last, bytes: None });
        }
        let (caller, kind) = rest.rsplit_once(' ')?;
        let bytes = Some(last);
        matches!(kind, "+" | ">" | "!").then_some(Self { caller, kind, address: middle, bytes })
    }

    /// Returns the caller without its address if the function is known: `prog:(main+0x15)`.
    fn label(&self) -> &'a str {
        match self.caller.rsplit_once('[') {
            Some((function, _)) if function.ends_with(')') => function,
            _ => self.caller,
        }
    }
}

/// Returns whether the line is an event of the trace.
fn parse_line(line: &str, builder: &mut Builder) -> Result<bool, TraceProblem> {
    if matches!(line, "= Start" | "= End") {
        return Ok(false);
    }
    let malformed =
        || TraceProblem::Malformed { expected: "`@ CALLER + ADDRESS SIZE`", found: beginning(line) };
    let call = Call::of(line).ok_or_else(malformed)?;
    // Failed requests have no address.
    if call.kind == "!" || call.address == "(nil)" {
        return Ok(false);
    }
    let address = hexadecimal(call.address)?;
    if let Some(bytes) = call.bytes {
        let label = builder.made_label(call.label())?;
        builder.alloc_at(address, hexadecimal(bytes)?, label)?;
    } else if builder.is_known(address) {
        builder.free(address)?;
    } else {
        builder.skip(UNKNOWN_FREES.to_owned());
        return Ok(false);
    }
    Ok(true)
}

/// Parses a number in the format of `printf("%#lx")`.
fn hexadecimal(text: &str) -> Result<u64, TraceProblem> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_valid = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = if is_valid { u64::from_str_radix(digits, 16).ok() } else { None };
    number.ok_or_else(|| bad_number(text))
}

#[cfg(test)]
mod tests {
    use crate::trace::{ReadOptions, Trace};

    fn read(log: &str) -> Result<Trace, String> {
        Trace::read(log.as_bytes(), &ReadOptions::default()).map_err(|error| error.to_string())
    }

    fn written(log: &str) -> Result<String, String> {
        let trace = read(log)?;
        let mut text = Vec::new();
        trace.write(&mut text).unwrap();
        Ok(String::from_utf8(text).unwrap())
    }

    #[test]
    fn calls_become_events_with_their_callers() {
        let log = "= Start\n\
            @ ./my prog:(main+0x15)[0x401156] + 0x10 0x64\n\
            @ /lib/libc.so.6:[0x7f12] + 0x20 0\n\
            @ ./my prog:[0x401170] < 0x10\n\
            @ ./my prog:[0x401170] > 0x30 0xc8\n\
            @ ./my prog:[0x401180] ! 0x30 0xffffffffff\n\
            @ ./my prog:[0x401180] + (nil) 0xffffffffff\n\
            @ ./my prog:[0x401190] - 0x999\n\
            @ ./my prog:[0x401190] - 0x30\n\
            = End\n";
        let expected = "a 0 100 ./my prog:(main+0x15)\n\
            a 1 0 /lib/libc.so.6:[0x7f12]\n\
            f 0\n\
            a 2 200 ./my prog:[0x401170]\n\
            f 2\n";
        assert_eq!(written(log).as_deref(), Ok(expected));
    }

    #[test]
    fn frees_without_an_allocation_are_reported_once() {
        let frees =
            "@ prog:[0x1] - 0x10\n@ prog:[0x1] < 0x20\n@ prog:[0x1] > 0x30 0x8\n@ prog:[0x1] - 0x30\n";
        let skipped = |log: &str| read(log).unwrap().skipped().to_vec();
        assert_eq!(skipped(&format!("= Start\n{frees}")), [super::UNKNOWN_FREES]);
        assert_eq!(skipped("@ prog:[0x1] + 0x10 0x8\n@ prog:[0x1] - 0x10\n"), [""; 0]);
    }

    #[test]
    fn bad_lines_are_refused_with_their_numbers() {
        for (line, message) in [
            (
                "@ prog:[0x1] * 0x10",
                "line 2: expected `@ CALLER + ADDRESS SIZE`, found \"@ prog:[0x1] * 0x10\"",
            ),
            ("+ 0x10 0x64", "line 2: expected `@ CALLER + ADDRESS SIZE`, found \"+ 0x10 0x64\""),
            ("@ prog:[0x1] + 0x10 +64", "line 2: \"+64\" is not an integer below 2^64"),
            (
                "@ prog:[0x1] + 0x10000000000000000 1",
                "line 2: \"0x10000000000000000\" is not an integer below 2^64",
            ),
        ] {
            assert_eq!(written(&format!("= Start\n{line}\n")), Err(message.to_owned()));
        }
    }
}
