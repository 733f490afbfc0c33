//! `highwater devices` as a user calls it.

use std::process::{Command, Output};

use serde_json::Value;

fn highwater(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_list_names_the_cpu_its_cores_and_each_use() {
    let output = highwater(&["devices"]);
    assert!(output.status.success());
    let text = text(&output.stdout);
    assert!(text.starts_with("cpu:0\n"), "{text}");
    for name in ["cores", "instruction sets", "usable for"] {
        assert!(text.contains(&format!("\n  {name}  ")), "{name} in {text}");
    }
    let paragraphs = text.split("\n\n").count();
    assert!(paragraphs >= 2, "the cpu, and cuda or why not: {text}");
    assert_eq!(text.matches("\n  usable for  ").count(), paragraphs, "{text}");
    assert_eq!(output.stderr, b"");
}

#[test]
fn json_has_the_same_devices_and_a_reason_where_there_is_none() {
    let output = highwater(&["devices", "--json"]);
    assert!(output.status.success());
    let inventory: Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = inventory["devices"].as_array().unwrap();
    assert_eq!(devices[0]["id"], "cpu:0");
    assert!(devices[0]["cores"].as_u64().unwrap() >= 1);
    let cuda = devices.iter().filter(|device| device["id"].as_str().unwrap().starts_with("cuda:")).count();
    let reason = inventory["unavailable"][0]["reason"].as_str();
    assert_eq!(cuda == 0, reason.is_some_and(|reason| !reason.is_empty()), "{inventory}");
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_build_without_cuda_says_so() {
    let text = text(&highwater(&["devices"]).stdout);
    assert!(text.contains("built without CUDA support"), "{text}");
}

#[test]
fn a_wrong_call_exits_with_code_2_and_the_usage() {
    for arguments in [&["devcies"][..], &["devices", "--jsno"], &[]] {
        let output = highwater(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(output.stdout, b"");
        assert!(text(&output.stderr).contains("Usage: highwater"), "{arguments:?}");
    }
}

#[test]
fn help_and_version_succeed() {
    assert!(text(&highwater(&["--help"]).stdout).contains("devices"));
    assert!(text(&highwater(&["devices", "--help"]).stdout).contains("--json"));
    let version = text(&highwater(&["--version"]).stdout);
    assert_eq!(version.trim(), concat!("highwater ", env!("CARGO_PKG_VERSION")));
}

/// `/dev/full` refuses all output: only the exit code shows the error.
#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_ends_with_code_1_and_no_panic() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_highwater")).arg("devices").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = text(&output.stderr);
    assert!(text.starts_with("highwater: ") && !text.contains("panicked"), "{text}");
}
