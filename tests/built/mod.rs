//! Programs of this workspace as tests run them. Cargo has built them already when it runs all tests, so that building
//! them here does nothing; a test that is run alone must not find old ones.

use std::path::PathBuf;
use std::process::Command;

/// The binary of an example.
pub(crate) fn example(name: &str) -> PathBuf {
    build(&["--example", name]).join("examples").join(file(name))
}

/// The command `highwater`.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn highwater() -> PathBuf {
    // The example is there for the features: those of what tests depend on count only where an example or test is built.
    build(&["--bin", "highwater", "--example", "allocate"]).join(file("highwater"))
}

/// Builds something as this test was built, and returns where it is. With the features that all of the workspace asks
/// for, as `cargo test --workspace` had it built: those of one package alone would build every library again.
fn build(what: &[&str]) -> PathBuf {
    // <target>/<profile>/deps/<this test>
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--manifest-path"]);
    cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).args(what);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    cargo.args((!cfg!(debug_assertions)).then_some("--release"));
    cargo.args((!cfg!(feature = "cuda")).then_some("--no-default-features"));
    assert!(cargo.status().unwrap().success());
    profile.to_owned()
}

fn file(name: &str) -> String {
    format!("{name}{}", std::env::consts::EXE_SUFFIX)
}
