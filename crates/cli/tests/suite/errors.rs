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
    let commands: &[&[&str]] = &[
        &["report", &missing],
        &["report", &nonsense],
        &["replay", &missing],
        &["replay", &nonsense],
        &["replay", &trace],
        &["export", &nonsense, "--format", "svg"],
        &["pack", &nonsense],
        &["diff", &nonsense, &missing],
    ];
    for &arguments in commands {
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

/// Changes the color and the title of a terminal, and reverses the text after it.
const EVIL: &str = "x\x1b[31m\x1b]0;t\x07\u{202e}\u{9b}2J";

/// Checks that an output has no control character but line ends. Returns whether it shows an escaped name.
#[track_caller]
fn shows_escapes(arguments: &[&str], output: &Output) -> bool {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    let found = text.chars().find(|&letter| !bfc_core::is_printable(letter) && letter != '\n');
    assert_eq!(found, None, "{arguments:?}: {text:?}");
    // The parser of the command line removes escape sequences itself.
    [r"\u{1b}", r"\u001b", r"\u{202e}"].iter().any(|escape| text.contains(escape))
}

#[test]
fn names_reach_the_terminal_as_escapes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (profile, missing) = (path(EVIL), path(&format!("{EVIL}missing")));
    // Heap profiles whose function and pool have such names, without and with a valid unit.
    let data =
        |name: &str| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/tests/data").join(name);
    let refused = path(&format!("{EVIL}refused"));
    std::fs::copy(data("control_characters.pb"), &refused).unwrap();
    std::fs::copy(data("control_characters_in_names.pb"), &profile).unwrap();
    let (trace, text, nonsense) = (path("trace"), path("text\x1b"), path("nonsense\x1b"));
    std::fs::write(&trace, format!("# mark: {EVIL}\na 0 5 {EVIL}\nf 0\na 1 5 {EVIL}\nf 1\n")).unwrap();
    std::fs::write(&text, format!("a 0 {EVIL} x\n")).unwrap();
    std::fs::write(&nonsense, format!("{EVIL}\n")).unwrap();
    let output = path("out\x1b");
    let commands: Vec<Vec<&str>> = vec![
        vec!["report", &profile],
        vec!["report", &profile, "--json"],
        vec!["report", &profile, "--wide"],
        vec!["report", &profile, &profile],
        vec!["report", &profile, "--html", &output],
        vec!["report", &missing],
        vec!["report", &refused],
        vec!["report", &nonsense],
        vec!["top", &profile, "--once"],
        vec!["top", &missing, "--once"],
        vec!["diff", &profile, &profile],
        vec!["diff", &profile, &missing],
        vec!["export", &profile, "--format", "chrome"],
        vec!["export", &profile, "--format", "svg"],
        vec!["export", &profile, "--format", "chrome", "--output", &output],
        vec!["export", &profile, "--format", EVIL],
        vec!["what-if", &profile],
        vec!["what-if", &profile, "--json"],
        vec!["what-if", &profile, "--of", EVIL],
        vec!["replay", &profile],
        vec!["replay", &profile, "--json"],
        vec!["replay", &text],
        vec!["replay", &profile, "--policy", EVIL],
        vec!["pack", &text, "--output", &output],
        vec!["pack", &trace, "--output", &output],
        vec!["pack", &trace, "--step", EVIL, "--output", &output],
        vec!["pack", &trace, "--step", "marks:\x1b..y", "--output", &output],
        vec![EVIL],
        vec!["report", "--\x1b[31m\u{202e}"],
        vec!["report", &profile, "--max-events", EVIL],
    ];
    let mut without = Vec::new();
    for arguments in commands {
        let output = highwater().args(&arguments).output().unwrap();
        if !shows_escapes(&arguments, &output) {
            without.push(arguments);
        }
    }
    // Two equal runs, replays and other formats have no names of functions or replace their letters.
    assert!(without.len() < 8, "{without:?}");
    let variables = [("HIGHWATER_DEVICE", EVIL), ("HIGHWATER_POOL_LIMIT", EVIL), ("HIGHWATER_\x1b[31m", "1")];
    for (name, value) in variables {
        let output = highwater().arg("devices").env(name, value).output().unwrap();
        assert!(shows_escapes(&[name], &output), "{name}");
    }
}
