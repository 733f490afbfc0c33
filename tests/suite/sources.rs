//! The sources of crates as text, for the tests of layers and of unsafe code.

use std::fs;
use std::path::{Path, PathBuf};

/// All source files below a folder, without those that hold only tests.
pub(crate) fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if stem == "tests" {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The source without comments and string contents; line breaks stay.
pub(crate) fn without_comments(source: &str) -> String {
    let mut kept = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = raw_string(rest) {
            length
        } else if c == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            end.map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("'\"'") || rest.starts_with("b'\"'") {
            rest.find("\"'").unwrap() + 2
        } else {
            0
        };
        let taken = if skipped == 0 { c.len_utf8() } else { skipped };
        if skipped == 0 {
            kept.push(c);
        } else {
            kept.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
        }
        rest = &rest[taken..];
    }
    kept
}

/// The length of the raw string at the start of a text.
fn raw_string(text: &str) -> Option<usize> {
    let marked = text.strip_prefix('r')?;
    let quoted = marked.trim_start_matches('#');
    let marks = marked.len() - quoted.len();
    let content = quoted.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(marks));
    let start = text.len() - content.len();
    Some(content.find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// The source without items for tests: `#[cfg(test)]` and the item after it.
pub(crate) fn without_tests(source: &str) -> String {
    let mut kept = source.to_owned();
    while let Some(start) =
        ["#[cfg(test", "#[cfg(all(test", "#[cfg(any(test"].iter().filter_map(|form| kept.find(form)).min()
    {
        let item = &kept[start..];
        let open = item.find('{').unwrap_or(item.len());
        let semicolon = item.find(';').unwrap_or(item.len());
        let end = if semicolon < open {
            semicolon + 1
        } else {
            let mut depth = 0;
            item.char_indices()
                .find(|(_, c)| {
                    depth += match c {
                        '{' => 1,
                        '}' => -1,
                        _ => 0,
                    };
                    *c == '}' && depth == 0
                })
                .map_or(item.len(), |(at, _)| at + 1)
        };
        let lines: String = item[..end].chars().filter(|c| *c == '\n').collect();
        kept.replace_range(start..start + end, &lines);
    }
    kept
}
