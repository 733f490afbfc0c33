//! Error messages of the commands.

use std::process::{Command, Output};

fn highwater() -> Command {
    Command::new(env!("CARGO_BIN_EXE_highwater"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn each_cause_is_printed_once() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let nonsense = write("nonsense", "nonsense\n");
    let trace = write("trace", "highwater-trace 1\nalloc nonsense\n");
    let missing = folder.path().join("missing").to_str().unwrap().to_owned();
    let commands: [&[&str]; 8] = [
        &["report", &missing],
        &["report", &nonsense],
        &["replay", &missing],
        &["replay", &nonsense],
        &["replay", &trace],
        &["export", &nonsense, "--format", "svg"],
        &["plan", &nonsense],
        &["diff", &nonsense, &missing],
    ];
    for arguments in commands {
        let output = highwater().args(arguments).output().unwrap();
        let stderr = stderr(&output);
        assert!(!output.status.success() && !stderr.is_empty(), "{arguments:?}");
        for line in stderr.lines() {
            let mut parts: Vec<&str> = line.split(": ").collect();
            let all = parts.len();
            parts.sort_unstable();
            parts.dedup();
            assert_eq!(parts.len(), all, "{arguments:?}: {line}");
        }
    }
}

#[test]
fn an_unknown_variable_is_one_warning_with_the_closest_name() {
    let output = highwater().arg("devices").env("HIGHWATER_DEVCE", "cpu").output().unwrap();
    assert!(output.status.success());
    assert_eq!(
        stderr(&output),
        "warning: unknown variable HIGHWATER_DEVCE; did you mean HIGHWATER_DEVICE?\n"
    );
    assert!(String::from_utf8(output.stdout).unwrap().contains("usable for"));
}

#[test]
fn an_invalid_value_is_told_as_a_problem_of_the_device() {
    let output = highwater().arg("devices").env("HIGHWATER_DEVICE", "toaster").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("HIGHWATER_DEVICE: \"toaster\" is not valid"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn devices_shows_the_pool_limit_and_where_it_comes_from() {
    let devices = |name: &str, value: &str| {
        let output = highwater().arg("devices").env(name, value).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = devices("HIGHWATER_POOL_LIMIT", "");
    let row = text.lines().find(|line| line.trim_start().starts_with("pool limit ")).unwrap();
    assert!(row.contains(" less a reserve of "), "{text}");
    let text = devices("HIGHWATER_POOL_LIMIT_CPU", "1GiB");
    assert!(text.contains("1.00 GiB, HIGHWATER_POOL_LIMIT"), "{text}");
}
