//! `highwater settings`, and the surfaces of the rows: docs/settings.md and the help of commands.

use std::path::Path;
use std::process::{Command, Output};

use bfc_core::setting::{Setting, SettingScope};
use highwater_tensor::settings;

use crate::help::help;

const BEGIN: &str = "<!-- settings of: ";
const END: &str = "<!-- end of settings -->";

fn highwater(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(arguments).envs(variables.iter().copied());
    command.output().unwrap()
}

/// The table of the settings of some scopes, as the page shows it.
fn table(scopes: &str) -> String {
    let mut table =
        String::from("\n| setting | what it does, and its values | default | example |\n|---|---|---|---|\n");
    let is_listed = |setting: &&Setting| scopes.split(' ').any(|scope| scope == setting.scope.name());
    for setting in settings().iter().filter(is_listed) {
        let name = (setting.scope == SettingScope::Pool).then_some(setting.name);
        let names = name.into_iter().chain(setting.variable).chain(setting.option);
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        let text = setting.help_text().replace('[', "\\[").replace(']', "\\]");
        table +=
            &format!("| {} | {text} | {} | `{}` |\n", names.join(", "), setting.default, setting.example);
    }
    table + "\n"
}

/// Replaces the tables of the page. `HIGHWATER_UPDATE_GOLDEN=1` writes it.
#[test]
fn the_page_lists_every_setting() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (mut expected, mut rest, mut listed) = (String::new(), page.as_str(), Vec::new());
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (scopes, after) = after.split_once(" -->\n").unwrap();
        let (_, after) = after.split_once(END).unwrap();
        expected += &format!("{before}{BEGIN}{scopes} -->\n{}{END}", table(scopes));
        listed.extend(scopes.split(' ').map(str::to_owned));
        rest = after;
    }
    expected += rest;
    for setting in settings() {
        assert!(listed.iter().any(|scope| scope == setting.scope.name()), "no table has {setting}");
    }
    if std::env::var_os("HIGHWATER_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(committed == expected, "{} differs: run with HIGHWATER_UPDATE_GOLDEN=1", path.display());
}

#[test]
fn every_setting_of_pools_is_an_option_of_replays() {
    let help = help(&["replay", "--help"]);
    // The policies of replays, pools of one size, two options for growth, and requests that never wait.
    let others = ["allocator", "limit", "growth", "retry_ms"];
    for setting in settings().iter().filter(|setting| setting.scope == SettingScope::Pool) {
        let option = format!("--{}", setting.name.replace('_', "-"));
        let first_words: Vec<&str> = setting.help.split(' ').take(4).collect();
        let is_shown =
            help.lines().any(|line| line.contains(&option) && line.contains(&first_words.join(" ")));
        assert_eq!(is_shown, !others.contains(&setting.name), "{option}\n{help}");
    }
}

#[test]
fn values_are_listed_with_their_origin() {
    let variables =
        [("HIGHWATER_THREADS", "3"), ("HIGHWATER_POOL_LIMIT_CUDA_1", "50%"), ("HIGHWATER_THRED", "1")];
    let output =
        highwater(&["settings", "--pool-option", "retry_ms=0", "--pool-option", "cut=low"], &variables);
    let (text, warnings) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{warnings}");
    assert_eq!(warnings, "warning: unknown variable HIGHWATER_THRED; did you mean HIGHWATER_THREADS?\n");
    let row = |name: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("threads "), "threads HIGHWATER_THREADS environment 3");
    assert_eq!(row("limit of cuda:1 "), "limit of cuda:1 HIGHWATER_POOL_LIMIT_CUDA_1 environment 50 %");
    assert_eq!(row("retry_ms "), "retry_ms HIGHWATER_RETRY_MS option 0 ms");
    assert_eq!(row("split "), "split HIGHWATER_SPLIT default always");
    // Values begin in one column.
    let columns: Vec<usize> = ["option", "default", "environment"]
        .into_iter()
        .flat_map(|origin| text.lines().filter_map(move |line| line.find(&format!("  {origin}  "))))
        .collect();
    assert!(columns.len() >= 15 && columns.iter().all(|column| *column == columns[0]), "{text}");

    let output = highwater(&["settings", "--json", "--pool-option", "limit=1GiB"], &[]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["settings"].as_array().unwrap();
    assert_eq!(rows.len(), settings().len());
    let limit = rows.iter().find(|row| row["name"] == "limit").unwrap();
    assert_eq!((&limit["value"], &limit["origin"]), (&"1.00 GiB".into(), &"option".into()));
}

#[test]
fn wrong_names_and_values_are_refused_with_the_closest_and_the_allowed_ones() {
    for (arguments, variable, expected) in [
        (
            ["--pool-option", "limt=1"],
            ("A", "1"),
            "(did you mean limit?); the options are allocator, alloc_conf, limit,",
        ),
        (["--pool-option", "growth=doublin"], ("A", "1"), "proportional:PARTS (did you mean doubling?)"),
        (
            ["--pool-option", "cut=low"],
            ("HIGHWATER_TF32", "onn"),
            "HIGHWATER_TF32: \"onn\" is not valid: expected on or off",
        ),
        (["--pool-option", "cut=low"], ("HIGHWATER_THREADS", "0"), "expected a whole number from 1 to 1024"),
        (
            ["--pool-option", "cut=low"],
            ("HIGHWATER_CPU_INSTRUCTIONS", "avx22"),
            "one of baseline, avx2, avx512, avx512-bf16 (did you mean avx2?)",
        ),
    ] {
        let output = highwater(&[&["settings"], &arguments[..]].concat(), &[variable]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && error.contains(expected),
            "{arguments:?} {variable:?}: {error}"
        );
    }
}
