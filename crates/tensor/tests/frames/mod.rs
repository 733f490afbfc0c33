//! The functions of this workspace in a backtrace.

use std::backtrace::Backtrace;

/// The calls that lead from the latest call of `from` to the end of the trace: the called functions of this workspace, in
/// order, without closures. Functions that the compiler inlined count too.
pub(crate) fn calls(trace: &Backtrace, from: &str) -> Vec<String> {
    let text = trace.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    // A frame is a line with a number and a name, and a line with the place in the code.
    let mut calls = Vec::new();
    for frame in lines.windows(2) {
        let (Some((_, name)), Some(file)) = (frame[0].split_once(": "), frame[1].strip_prefix("at ")) else {
            continue;
        };
        let is_ours = file.contains("/src/") && !file.starts_with("/rustc/") && !file.contains("/registry/");
        if !is_ours || name.contains("{closure") {
            continue;
        }
        let name = name.split("::<").next().unwrap_or(name);
        let function = name.rsplit("::").next().unwrap_or(name);
        let function = function.split('<').next().unwrap_or(function);
        let file = file.rsplit("/src/").next().unwrap_or(file);
        let file = file.split(':').next().unwrap_or(file);
        let call = format!("{function} in {file}");
        if call == from {
            calls.reverse();
            return calls;
        }
        calls.push(call);
    }
    Vec::new()
}
