//! The prelude has every layer of the library.

use std::collections::BTreeSet;
use std::fs;

/// Parts of modules that few programs name.
const NOT_IN_PRELUDE: &[&str] =
    &["ModulePart", "Nonlinearity", "PartRef", "PartVisitor", "Parts", "chain", "chain_with"];

/// Returns the names of the `pub use` statements of a source that start with a path.
fn exported(source: &str, path: &str) -> BTreeSet<String> {
    let statements = source.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let names = statements.filter_map(|statement| statement.trim().strip_prefix(path));
    let names = names.flat_map(|names| names.split(['{', '}', ',', ':', '*']).map(str::trim));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_prelude_has_every_layer() {
    let read = |file: &str| fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let facade = read("src/lib.rs");
    let (_, prelude) = facade.split_once("pub mod prelude {").unwrap();
    let prelude = exported(prelude.split("\n}").next().unwrap(), "crate::nn::");
    // The prelude exports the module `activation` as a whole.
    assert!(prelude.contains("activation"));
    let modules = read("crates/nn/src/modules/mod.rs");
    let sources = modules.lines().filter_map(|line| line.strip_suffix(';')?.strip_prefix("mod "));
    let layers: BTreeSet<String> =
        sources.flat_map(|source| exported(&modules, &format!("{source}::"))).collect();
    assert!(layers.contains("Linear") && layers.contains("Upsample"), "{layers:?}");
    let missing: Vec<_> =
        layers.difference(&prelude).filter(|name| !NOT_IN_PRELUDE.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "add {missing:?} to the prelude in src/lib.rs");
}
