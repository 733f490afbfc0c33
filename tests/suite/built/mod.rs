//! Builds and finds the programs of this workspace. After `cargo test --workspace` they exist already; a test that runs
//! alone must not use old ones.

use std::path::PathBuf;
use std::process::Command;

/// The path of an example.
pub(crate) fn example(name: &str) -> PathBuf {
    build(&["--example", name]).join("examples").join(file(name))
}

/// The command `highwater`.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn highwater() -> PathBuf {
    // The example selects the features of dev-dependencies, which count only if an example or a test is built.
    build(&["--bin", "highwater", "--example", "allocate"]).join(file("highwater"))
}

/// Builds a target in this test's profile and returns its folder. Uses the features of the whole workspace, so that
/// libraries are not built again.
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
