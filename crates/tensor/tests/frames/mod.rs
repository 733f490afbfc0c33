//! The functions of this workspace in a backtrace.

use std::backtrace::Backtrace;

/// The crates whose functions count.
const CRATES: [&str; 3] = ["bfc_core", "highwater_tensor", "highwater_tracking"];

/// The calls that lead from the function `from` to the function `to`: the called functions of this workspace, in order,
/// without closures. Names match by their ends. Functions that the compiler inlined count too.
pub(crate) fn calls(trace: &Backtrace, from: &str, to: &str) -> Vec<String> {
    let text = trace.to_string();
    // A line is a number and a name, or the place of the code, which begins with "at".
    let names = text.lines().filter_map(|line| Some(line.trim().split_once(": ")?.1));
    let names = names.map(without_generics).filter(|name| {
        let start = name.trim_start_matches(['<', '&']);
        CRATES.iter().any(|krate| start.starts_with(krate)) && !name.contains("{{closure}}")
    });
    let mut calls: Vec<String> = names.collect();
    calls.reverse();
    calls.dedup();
    let start = calls.iter().rposition(|name| name.ends_with(from)).map_or(0, |index| index + 1);
    let end = calls.iter().rposition(|name| name.ends_with(to)).map_or(calls.len(), |index| index + 1);
    calls.truncate(end);
    calls.split_off(start.min(end))
}

/// The name without the type arguments at its end.
fn without_generics(name: &str) -> String {
    match name.split_once("::<") {
        Some((name, _)) => name.to_owned(),
        None => name.to_owned(),
    }
}
