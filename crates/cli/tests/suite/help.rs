//! The help of every command.

use std::process::Command;

/// The columns of a common terminal that is not narrow.
const COLUMNS: usize = 120;

pub(crate) fn help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_highwater")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The names of the commands, as the help lists them.
fn commands() -> Vec<String> {
    let all = help(&["--help"]);
    let list =
        all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    list.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn no_line_of_a_help_is_wider_than_a_terminal() {
    let commands = commands();
    assert!(commands.len() >= 8, "{commands:?}");
    for command in commands.iter().filter(|command| *command != "help") {
        for flag in ["-h", "--help"] {
            for line in help(&[command, flag]).lines() {
                assert!(line.chars().count() <= COLUMNS, "{command} {flag}: {line}");
            }
        }
    }
}

#[test]
fn what_an_option_takes_is_named_in_the_help() {
    for command in ["replay", "what-if"] {
        let help = help(&[command, "--help"]);
        let line = help.lines().find(|line| line.contains("--growth <")).unwrap();
        assert!(["fixed", "regions", "extend"].iter().all(|value| line.contains(value)), "{line}");
    }
}

#[test]
fn the_help_lists_the_exit_codes() {
    let help = help(&["--help"]);
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/digits.trace.gz");
    let commands: &[(&[&str], i32)] = &[
        (&["pack", digits, "-o", "-"], 0),
        (&["replay", digits, "--pool", "1MiB"], 1),
        (&["pack", digits, "-o", "/no/such/folder/file"], 1),
        (&[], 2),
        (&["remport"], 2),
        (&["report", "/no/such/file"], 2),
    ];
    for &(arguments, code) in commands {
        let output = Command::new(env!("CARGO_BIN_EXE_highwater")).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(help.contains(&format!("\n  {code}  ")), "{help}");
    }
}
