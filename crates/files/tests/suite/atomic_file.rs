//! Atomic writes while other writers run, fail or are killed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, thread};

use highwater_files::AtomicFile;

/// The target of a writer in a child process.
const TARGET: &str = "HIGHWATER_TEST_ATOMIC_TARGET";

fn write(path: &Path, contents: &[u8]) {
    let mut file = AtomicFile::create(path).unwrap();
    file.write_all(contents).unwrap();
    file.commit().unwrap();
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Runs in a child process: writes half of a file and waits to be killed.
#[test]
#[ignore = "a part of other tests"]
fn half_a_write() {
    let Some(target) = env::var_os(TARGET) else { return };
    let mut file = AtomicFile::create(PathBuf::from(target)).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.flush().unwrap();
    println!("half");
    loop {
        thread::park();
    }
}

/// A process in the middle of a write.
fn writer(target: &Path) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["half_a_write", "--ignored", "--nocapture"])
        .env(TARGET, target)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.contains("half")));
    child
}

#[test]
fn the_next_write_removes_what_a_killed_one_left() {
    let folder = tempfile::tempdir().unwrap();
    let [target, other] = ["model.pt", "model.pt.best"].map(|name| folder.path().join(name));
    write(&target, b"old");
    let mut child = writer(&target);
    // While the process runs, its file stays.
    write(&target, b"newer");
    let found = names(folder.path());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with(".model.pt.") && found[0].ends_with(".tmp"), "{found:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"newer");
    // A write of another target leaves it.
    write(&other, b"best");
    assert_eq!(names(folder.path()).len(), 3);
    write(&target, b"newest");
    assert_eq!(names(folder.path()), ["model.pt", "model.pt.best"]);
    assert_eq!(fs::read(&target).unwrap(), b"newest");
}

#[test]
fn files_that_only_look_similar_stay() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    let stale = ".a.0123456789abcdef.tmp";
    let kept = [".0123456789abcdef.tmp", ".a.0123456789abcde.tmp", ".a.tmp", ".b.0123456789abcdef.tmp"];
    for name in kept.iter().chain([&stale]) {
        fs::write(folder.path().join(name), b"x").unwrap();
    }
    fs::create_dir(folder.path().join(".a.0123456789abcdee.tmp")).unwrap();
    write(&target, b"new");
    assert_eq!(names(folder.path()), [kept[0], kept[1], ".a.0123456789abcdee.tmp", kept[2], kept[3], "a"]);
}

#[test]
fn concurrent_writes_of_one_file_leave_one_of_them_whole() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("shared");
    thread::scope(|scope| {
        for byte in 0..8_u8 {
            let target = &target;
            scope.spawn(move || (0..50).for_each(|_| write(target, &[byte; 20_000])));
        }
    });
    let contents = fs::read(&target).unwrap();
    assert_eq!(contents, vec![contents[0]; 20_000]);
    assert_eq!(names(folder.path()), ["shared"]);
}

#[test]
fn a_write_that_is_given_up_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    write(&target, b"old");
    let mut file = AtomicFile::create(&target).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    drop(file);
    assert_eq!(fs::read(&target).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["a"]);
}
