//! Children of `fork`, of a process whose threads use the library.

use std::ffi::CString;
use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bfc::*;
use highwater_tracking::{Recording, RecordingLimits};

use crate::support::{Block, allocate, free, message, open, push, push_op};

/// The variable that tells the parent its file.
const FILE: &str = "BFC_TEST_FORK";

/// The seconds after which a child that waits for a lock ends.
const CHILD_LIMIT_S: u32 = 20;

#[test]
fn children_fail_without_waiting_and_exit_silently() {
    if let Ok(path) = std::env::var(FILE) {
        return fork_while_threads_work(&path);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.hwm");
    let parent = Command::new(std::env::current_exe().unwrap())
        .args(["forked::", "--nocapture"])
        .env(FILE, &file)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&parent.stderr);
    assert!(parent.status.success() && !errors.contains("panicked"), "{errors}");
    let recording = Recording::read(File::open(&file).unwrap(), &RecordingLimits::default()).unwrap();
    assert!(recording.cut().is_none() && recording.summary().is_some());
    let owners: Vec<String> =
        (0..recording.owners().len() as u32).map(|at| recording.owner_path(at)).collect();
    assert!(owners.iter().any(|owner| owner.ends_with("parent")), "{owners:?}");
    assert!(!owners.iter().any(|owner| owner.ends_with("child")), "{owners:?}");
}

fn fork_while_threads_work(path: &str) {
    let pool = open("limit=64MiB,growth=on,retry_ms=0").unwrap();
    let path = CString::new(path).unwrap();
    // SAFETY: the path is a text that ends with NUL.
    assert_eq!(unsafe { bfc_recording_start(pool, path.as_ptr()) }, BFC_OK);
    let kept = allocate(pool, 1 << 20, "parent").unwrap();
    let (_scope, _op) = (push("open"), push_op(pool, "running"));
    let stopped = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    let block = allocate(pool, 1000, "parent").unwrap();
                    assert_eq!(free(pool, block), BFC_OK);
                }
            });
        }
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            // SAFETY: the child calls this library and functions of C alone, and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                run_child(pool, kept);
            }
            let mut status = 0;
            // SAFETY: the variable lives.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        stopped.store(true, Ordering::Relaxed);
    });
    assert_eq!(free(pool, kept), BFC_OK);
}

/// Ends with `exit`, which runs the exit handlers and drops the thread's values.
fn run_child(pool: bfc_pool, kept: Block) -> ! {
    // SAFETY: these functions have no requirements.
    unsafe { libc::alarm(CHILD_LIMIT_S) };
    let failed =
        allocate(pool, 500, "child") == Err(BFC_ERROR_FORKED) && free(pool, kept) == BFC_ERROR_FORKED;
    let is_explained = message().contains("child of fork()");
    let array = bfc_numpy_calloc(10, 10);
    bfc_numpy_free(array);
    bfc_numpy_free(kept.0);
    // SAFETY: the handlers at exit are those of this library and of C.
    unsafe { libc::exit(i32::from(!failed || !is_explained || array.is_null())) }
}
