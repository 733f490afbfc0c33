//! A program that exits without stopping its recording.

use std::ffi::CString;
use std::fs::File;
use std::process::Command;

use bfc::*;
use highwater_tracking::{Recording, RecordingLimits};

use crate::support::{allocate, free, open};

/// The variable that tells the child process its file.
const FILE: &str = "BFC_TEST_RECORDING";

#[test]
fn a_recording_is_complete_after_a_normal_exit() {
    if let Ok(path) = std::env::var(FILE) {
        return record(&path);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.hwm");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["exit::", "--nocapture"])
        .env(FILE, &file)
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    let recording = Recording::read(File::open(&file).unwrap(), &RecordingLimits::default()).unwrap();
    assert_eq!(recording.peak().unwrap().bytes, 1 << 20);
    assert!(recording.cut().is_none() && recording.summary().is_some());
}

fn record(path: &str) {
    let pool = open("limit=8MiB").unwrap();
    let path = CString::new(path).unwrap();
    // SAFETY: the path is a text that ends with NUL.
    assert_eq!(unsafe { bfc_recording_start(pool, path.as_ptr()) }, BFC_OK);
    let block = allocate(pool, 1 << 20, "buffer").unwrap();
    assert_eq!((free(pool, block), bfc_pool_close(pool)), (BFC_OK, BFC_OK));
}
