//! Links between the pages of `docs` lead to files in the repository and to modules in the documentation of the crate.

use std::collections::BTreeSet;
use std::path::Path;

/// The name and the target of a line such as `[name]: page.md#chapter`.
fn definition(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix('[')?.split_once("]: ")
}

fn is_page(target: &str) -> bool {
    target.contains(".md") && !target.contains('/')
}

#[test]
fn the_crate_defines_every_link_of_a_page_to_another_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = std::fs::read_to_string(root.join("src/lib.rs")).unwrap();
    let mut defined = BTreeSet::new();
    let mut pages = 0;
    for line in library.lines() {
        if let Some((_, rest)) = line.split_once("#[doc = \"[") {
            defined.extend(rest.split_once("]: ").map(|(name, _)| name));
        }
        let Some((_, rest)) = line.split_once("include_str!(\"../docs/") else { continue };
        let Some((name, _)) = rest.split_once(".md\"") else { continue };
        let page = std::fs::read_to_string(root.join("docs").join(name).with_extension("md")).unwrap();
        for text in page.lines() {
            let mut targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            assert!(!targets.any(is_page), "docs/{name}.md: use a reference: {text}");
            let Some((link, target)) = definition(text) else { continue };
            assert!(
                !is_page(target) || defined.contains(link),
                "src/lib.rs: docs/{name}.md needs a definition of [{link}]"
            );
        }
        defined.clear();
        pages += 1;
    }
    assert!(pages > 10);
}
