//! docs/coming-from.md lists every op of the tables of tests, and docs/training.md every optimizer. CHANGELOG.md lists the
//! functions and the optimizers.

use std::collections::BTreeSet;

use crate::ops_table::cases;
use crate::ops_table::optimizers::OPTIMIZERS;
use crate::ops_table::others::others;
use highwater_tensor::backend::{Binary, Unary};

/// Returns the text of a file of the repository.
fn text(file: &str) -> String {
    std::fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Returns the words in code style of a part of a file of the repository, which starts and ends with a text.
fn words(file: &str, [start, end]: [&str; 2]) -> BTreeSet<String> {
    let text = text(file);
    let (_, part) = text.split_once(start).unwrap_or_else(|| panic!("{file}: no {start}"));
    let (part, _) = part.split_once(end).unwrap_or((part, ""));
    part.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether an op is listed, or the op of which it is a variant.
fn is_listed(op: &str, words: &BTreeSet<String>) -> bool {
    let variants = ["", "_keepdim", "_all", "_with", "_scalar", "_from", "_step"];
    let names = variants.iter().filter_map(|variant| op.strip_suffix(variant));
    names.into_iter().any(|name| words.contains(name)) || words.contains(&format!("{op}_"))
}

#[test]
fn every_op_is_in_the_docs() {
    let words = words("docs/coming-from.md", ["## Ops\n", "\n\nEach op"]);
    let of_cases = cases().into_iter().map(|case| case.name);
    let names = of_cases.chain(others().into_iter().map(|(name, _)| name.to_owned()));
    let ops: BTreeSet<String> = names.map(|name| name.split(',').next().unwrap().to_owned()).collect();
    // Other names are phrases, as in "sum of booleans".
    let missing: Vec<_> = ops.iter().filter(|op| !op.contains(' ') && !is_listed(op, &words)).collect();
    assert!(missing.is_empty(), "docs/coming-from.md does not list {missing:?}");
}

#[test]
fn every_function_is_in_the_changelog() {
    let words = words("CHANGELOG.md", ["Tensors and autograd:", "\n[end]"]);
    let functions = Unary::ALL.iter().map(|f| f.name()).chain(Binary::ALL.iter().map(|f| f.name()));
    let missing: Vec<_> = functions.filter(|&name| !words.contains(name)).collect();
    assert!(missing.is_empty(), "CHANGELOG.md does not list {missing:?}");
}

#[test]
fn every_optimizer_is_in_the_docs_and_the_changelog() {
    // A chapter names them in its programs too.
    let chapter: BTreeSet<String> =
        text("docs/training.md").split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect();
    for (file, names) in
        [("docs/training.md", chapter), ("CHANGELOG.md", words("CHANGELOG.md", ["- Optimizers ", "\n- "]))]
    {
        // `NAdam` is "nadam", and `RmsProp` is "rms_prop".
        let types: BTreeSet<_> = names.iter().map(|name| name.to_lowercase()).collect();
        let names = OPTIMIZERS.iter().map(|case| case.op());
        let missing: BTreeSet<_> = names.filter(|name| !types.contains(&name.replace('_', ""))).collect();
        assert!(missing.is_empty(), "{file} does not list {missing:?}");
    }
}
