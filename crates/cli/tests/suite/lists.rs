//! The lists in the docs and in help texts have every name of the tables in the code, and no other.

use std::collections::BTreeSet;
use std::path::Path;

use bfc_core::AllocatorChoice;
use highwater_traces::{ExportFormat, Trace};

use crate::help::help;

/// Reads a file of the repository.
fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// Checks that the first column below this table header has exactly these names. Names may share a row.
fn assert_listed<'a>(path: &str, header: &str, names: impl IntoIterator<Item = &'a str>) {
    let text = file(path);
    let (_, table) = text.split_once(header).unwrap_or_else(|| panic!("{path}: no table {header}"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('|').nth(1).unwrap().trim());
    let listed: BTreeSet<&str> = cells.flat_map(names_in).collect();
    let names: BTreeSet<&str> = names.into_iter().collect();
    let missing: Vec<_> = names.difference(&listed).collect();
    let unknown: Vec<_> = listed.difference(&names).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "{path}: missing {missing:?}, unknown {unknown:?}");
}

/// The names in a cell: those in backticks, or the text of a cell without.
fn names_in(cell: &str) -> Vec<&str> {
    if cell.contains('`') { cell.split('`').skip(1).step_by(2).collect() } else { vec![cell] }
}

#[test]
fn policies_are_listed() {
    let names = || AllocatorChoice::ALL.map(AllocatorChoice::name);
    assert_listed("docs/traces.md", "| policy | allocator |", names());
    for (choice, name) in AllocatorChoice::ALL.into_iter().zip(names()) {
        for command in ["replay", "what-if"] {
            let help = help(&[command, "--help"]);
            let is_row =
                |line: &str| line.trim().starts_with(&format!("{name} ")) && line.contains(choice.about());
            assert!(help.lines().any(is_row), "{command} --help: missing {name}");
        }
    }
}

#[test]
fn formats_of_traces_are_listed() {
    assert_listed("docs/traces.md", "| format | how to record | Highwater shows |", Trace::format_names());
}

#[test]
fn formats_of_exports_are_listed() {
    let names = ExportFormat::ALL.map(ExportFormat::name);
    assert_listed("docs/memory.md", "| `--format` | opens in | shows |", names);
    // The scripts check-exports and check-traces read these lines.
    let help = help(&["export", "--help"]);
    let listed = help.lines().filter_map(|line| line.trim().strip_prefix("- ")?.split(':').next());
    assert_eq!(listed.collect::<Vec<_>>(), names);
}
