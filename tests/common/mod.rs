//! What tests of examples share: the binary of an example, and its run.
#![allow(dead_code, unreachable_pub, reason = "each suite is a crate of its own and uses only part of it")]

use std::path::PathBuf;
use std::process::{Command, Output};

/// The binary of an example. Cargo has built it already when it runs the tests of the whole package, so that building it
/// here does nothing; a test that is run alone must not find an old one.
pub fn example(name: &str) -> PathBuf {
    // <target>/<profile>/deps/<this test>
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--example", name, "--manifest-path"]);
    cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    cargo.args((!cfg!(debug_assertions)).then_some("--release"));
    cargo.args((!cfg!(feature = "cuda")).then_some("--no-default-features"));
    assert!(cargo.status().unwrap().success());
    profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// Runs a binary. A backtrace must not show even where the environment asks for one.
pub fn run(binary: &std::path::Path, args: &[&str]) -> Output {
    Command::new(binary).args(args).env("RUST_BACKTRACE", "1").output().unwrap()
}
