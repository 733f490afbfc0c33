//! docs/features.md lists every op of the tables of tests.

use std::collections::BTreeSet;

use crate::ops_table::cases;
use crate::ops_table::others::others;

/// Returns the words in code style of a section of docs/features.md.
fn words(section: &str) -> BTreeSet<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/features.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once(section).unwrap_or_else(|| panic!("docs/features.md: no {section}"));
    let (table, _) = section.split_once("\n\nEach op").unwrap();
    table.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether an op is listed, or the op of which it is a variant.
fn is_listed(op: &str, words: &BTreeSet<String>) -> bool {
    let variants = ["", "_keepdim", "_all", "_with", "_scalar", "_from", "_step"];
    let names = variants.iter().filter_map(|variant| op.strip_suffix(variant));
    names.into_iter().any(|name| words.contains(name)) || words.contains(&format!("{op}_"))
}

#[test]
fn every_op_is_in_the_docs() {
    let words = words("## Ops\n");
    let of_cases = cases().into_iter().map(|case| case.name);
    let names = of_cases.chain(others().into_iter().map(|(name, _)| name.to_owned()));
    let ops: BTreeSet<String> = names.map(|name| name.split(',').next().unwrap().to_owned()).collect();
    // Other names are phrases, as in "sum of booleans".
    let missing: Vec<_> = ops.iter().filter(|op| !op.contains(' ') && !is_listed(op, &words)).collect();
    assert!(missing.is_empty(), "docs/features.md does not list {missing:?}");
}
