//! Dependencies point downward, between crates and between the layers of a crate.
//!
//! The tables below list the layers from bottom to top. A layer is a top-level module of its crate: a folder
//! or a file. The test reads the sources as text and reports each upward import with its file and line. An
//! import names its source layer (`crate::base::Bytes`, not `crate::Bytes`), since a name that the crate root
//! re-exports hides its layer.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

#[path = "suite/sources.rs"]
mod sources;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use sources::sources;

/// A crate's folder and its layers, bottom to top. Layers of one line are independent of each other.
const CRATES: &[(&str, &[&str])] = &[
    (
        "crates/bfc-core",
        &[
            "base",
            "packing",
            "source policy",
            "allocator",
            "accounting collections",
            "pool",
            "streams wrappers",
            "sim registry",
        ],
    ),
    (
        "crates/bfc-cuda",
        &[
            "kernels settings",
            "driver",
            "compute",
            "libraries",
            "graph",
            "stream emulator slices",
            "register self_check",
        ],
    ),
    (
        "crates/files",
        &["boundary lean varint", "file_kind gzip lines markup", "atomic_file pickle packing_text"],
    ),
    (
        "crates/tracking",
        &[
            "scope",
            "report",
            "tally",
            "heap",
            "record",
            "account",
            "training_log plan_chart",
            "page",
            "fuzz test_pool",
        ],
    ),
    ("crates/traces", &["trace", "export replay", "snapshot", "fuzz"]),
    (
        "crates/capi",
        &[
            "status",
            "error",
            "fork",
            "last_error",
            "guard text config live run",
            "memory",
            "pool",
            "table",
            "scopes python exit",
            "ffi",
        ],
    ),
    (
        "crates/kernels",
        &[
            "shape",
            "error",
            "layout",
            "storage",
            "rules step_time step_graphs window",
            "workspace cost",
            "operands cpu cuda",
            "emulator",
            "families",
            "backend",
            "testing",
        ],
    ),
    (
        "crates/tensor",
        &[
            "settings", "shape", "error", "layout", "storage", "speed", "backend", "device", "tensor", "op",
            "autograd", "ops", "step", "predict", "testing", "interop", "fuzz",
        ],
    ),
    ("crates/macros", &["methods parts"]),
    (
        "crates/nn",
        &[
            "file_kind",
            "io",
            "data",
            "recompute",
            "modules",
            "macros summary lora",
            "optim",
            "checkpoint",
            "fuzz",
        ],
    ),
    (
        "crates/models",
        &[
            "error",
            "fields parameters language_model",
            "llama_config",
            "gguf",
            "llama gpt2 bert",
            "config generate text",
            "load",
        ],
    ),
    (
        "crates/distributed",
        &[
            "launch operation shard",
            "error",
            "collective",
            "ordered rehearsal agree",
            "mpi nccl",
            "reduction",
            "world",
            "threads",
            "parallel",
            "rehearse",
        ],
    ),
    ("crates/train", &["figures position", "metrics stop fit", "output", "saves", "trainer", "cli"]),
    (
        "crates/cli",
        &[
            "error progress",
            "files",
            "pools",
            "report top",
            "diff export devices replay settings",
            "pack",
            "what_if",
        ],
    ),
];

/// A crate's folder and the crates of this workspace that it may depend on.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("crates/bfc-core", &[]),
    ("crates/bfc-cuda", &["bfc-core"]),
    ("crates/files", &["bfc-core"]),
    ("crates/tracking", &["bfc-core", "highwater-files"]),
    ("crates/traces", &["bfc-core", "highwater-files", "highwater-tracking"]),
    ("crates/capi", &["bfc-core", "bfc-cuda", "highwater-tracking"]),
    ("crates/kernels", &["bfc-core", "bfc-cuda"]),
    ("crates/tensor", &["bfc-core", "bfc-cuda", "highwater-tracking", "highwater-kernels"]),
    ("crates/macros", &[]),
    (
        "crates/nn",
        &["bfc-core", "highwater-files", "highwater-tracking", "highwater-tensor", "highwater-macros"],
    ),
    ("crates/models", &["bfc-core", "highwater-tensor", "highwater-nn"]),
    (
        "crates/distributed",
        &["bfc-core", "bfc-cuda", "highwater-tracking", "highwater-tensor", "highwater-nn"],
    ),
    (
        "crates/train",
        &["bfc-core", "highwater-tracking", "highwater-tensor", "highwater-nn", "highwater-distributed"],
    ),
];

/// Pairs of layers that import each other: the lower one, the higher one. ARCHITECTURE.md explains each.
const CYCLES: &[(&str, &str, &str)] = &[("crates/tensor", "tensor", "autograd")];

#[test]
fn imports_point_downwards() {
    let faults: Vec<String> =
        CRATES.iter().flat_map(|(folder, layers)| upward_imports(folder, layers)).collect();
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn crates_depend_downwards() {
    let mut faults = Vec::new();
    for (folder, allowed) in DEPENDENCIES {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let dependencies =
            manifest.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap_or("");
        for line in dependencies.lines() {
            let name = line.split(['.', ' ', '=']).next().unwrap_or("");
            let is_member = name == "bfc-core" || name == "bfc-cuda" || name.starts_with("highwater");
            if is_member && !allowed.contains(&name) {
                faults.push(format!("{folder}/Cargo.toml: {name} is not below this crate"));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// Programs that train compile no trace tools: only the feature `traces` of the facade depends on them.
#[test]
fn traces_are_optional() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let uses = |section: &str| -> Vec<&str> {
        let lines = manifest.split("\n[").find_map(|text| text.strip_prefix(section)).unwrap();
        lines.lines().filter(|line| line.contains("traces") && !line.starts_with('#')).collect()
    };
    assert_eq!(uses("features]"), [r#"traces = ["dep:highwater-traces"]"#]);
    assert_eq!(uses("dependencies]"), ["highwater-traces = { workspace = true, optional = true }"]);
    assert_eq!(uses("dev-dependencies]"), [] as [&str; 0]);
}

#[test]
fn the_reader_of_imports_finds_each_form() {
    let source = "\
use crate::low::Name;
use crate::{high::{A, B}, low as other};
/* crate::ignored::X */ // crate::ignored::Y
fn f() { let text = \"crate::ignored::Z\"; super::super::high::call(); super::sibling() }
#[cfg(test)]
mod tests { use crate::ignored::T; }
fn g(x: crate::Name) {}
";
    let found = imports(source, &["low".into(), "inner".into()]);
    let found: Vec<_> = found.iter().map(|(line, name)| (*line, name.as_str())).collect();
    assert_eq!(found, [(1, "low"), (2, "high"), (2, "low"), (4, "high"), (7, "Name")]);
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the import violations of a crate, as `file:line: message`.
fn upward_imports(folder: &str, layers: &[&str]) -> Vec<String> {
    let rank: HashMap<&str, usize> = layers
        .iter()
        .enumerate()
        .flat_map(|(rank, line)| line.split(' ').map(move |layer| (layer, rank)))
        .collect();
    let mut faults = Vec::new();
    for path in sources(&root().join(folder).join("src")) {
        let shown = path.strip_prefix(root()).unwrap().display().to_string();
        let module = module_path(path.strip_prefix(root().join(folder).join("src")).unwrap());
        let Some(here) = module.first() else { continue };
        let Some(own) = rank.get(here.as_str()) else {
            faults.push(format!("{shown}: the module `{here}` is in no layer of {folder}"));
            continue;
        };
        for (line, target) in imports(&fs::read_to_string(&path).unwrap(), &module) {
            match rank.get(target.as_str()) {
                None => faults.push(format!("{shown}:{line}: `crate::{target}` names no layer")),
                Some(_) if target == *here || CYCLES.contains(&(folder, here, &target)) => {}
                Some(other) if other < own => {}
                Some(_) => faults
                    .push(format!("{shown}:{line}: `{here}` may not use `{target}`, which is not below it")),
            }
        }
    }
    faults
}

/// `pool/cache.rs` is `[pool, cache]`; the root of a crate is empty.
fn module_path(file: &Path) -> Vec<String> {
    let mut path: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if path.last().is_some_and(|last| last == "mod" || path.len() == 1 && (last == "lib" || last == "main")) {
        path.pop();
    }
    path
}

/// The line and the first name below the crate root of each path that starts at `crate` or climbs to the root by `super`.
fn imports(source: &str, module: &[String]) -> Vec<(usize, String)> {
    let code = without_tests(&without_comments(source));
    let mut found = Vec::new();
    let mut add = |at: usize, tree: &str| {
        let line = code[..at].matches('\n').count() + 1;
        found.extend(first_names(tree).into_iter().map(|name| (line, name)));
    };
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        let starts_word =
            !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$' || c == ':');
        if starts_word && let Some(tree) = rest.strip_prefix("crate::") {
            add(at, tree);
        } else if starts_word && rest.starts_with("super::") {
            let mut tree = rest;
            let mut up = 0;
            while let Some(inner) = tree.strip_prefix("super::") {
                (tree, up) = (inner, up + 1);
            }
            if up == module.len() {
                add(at, tree);
            }
        }
        at += rest.chars().next().map_or(1, char::len_utf8);
    }
    found
}

/// The first names of a path (`a::b`) or of a group of paths (`{a::b, c}`).
fn first_names(tree: &str) -> Vec<String> {
    let name =
        |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = tree.strip_prefix('{') else { return vec![name(tree)] };
    let mut names = vec![name(group)];
    let mut depth = 1;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => names.push(name(&group[at + 1..])),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The source without comments and string contents; line breaks stay.
fn without_comments(source: &str) -> String {
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
fn without_tests(source: &str) -> String {
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
