//! Statistics, ledgers and recordings.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::File;

use bfc::*;
use highwater_tracking::{Recording, RecordingLimits, Report};
use serde_json::json;

use crate::support::{allocate, free, message, open, stats, string};

#[test]
fn statistics_fill_structures_of_other_versions() {
    let pool = open("memory=dry,limit=1MiB,name=stats").unwrap();
    let block = allocate(pool, 1000, "x").unwrap();
    let whole = stats(pool);
    assert_eq!((whole.live_blocks, whole.bytes_in_use, whole.bytes_requested), (1, 1024, 1000));
    assert_eq!((whole.bytes_limit, whole.largest_free_block), (1 << 20, (1 << 20) - 1024));

    // An older program knows fewer members, a newer one more.
    let mut members = [u64::MAX; 20];
    let known = size_of::<bfc_stats>() as u64 / 8;
    for (size, written) in [(3, 3), (20, known)] {
        members.fill(u64::MAX);
        members[0] = size * 8;
        // SAFETY: the array has the stated size.
        assert_eq!(unsafe { bfc_pool_stats(pool, (&raw mut members).cast()) }, BFC_OK);
        assert_eq!(members[..3], [written * 8, 1, 1]);
        assert!(members[written as usize..].iter().all(|member| *member == u64::MAX));
    }
    for size in [0, 7, 1 << 20] {
        members[0] = size;
        // SAFETY: the first member is readable, and the others are not used.
        let status = unsafe { bfc_pool_stats(pool, (&raw mut members).cast()) };
        assert_eq!(status, BFC_ERROR_INVALID_ARGUMENT);
    }
    assert_eq!((free(pool, block), bfc_pool_close(pool)), (BFC_OK, BFC_OK));
}

type Rows = Vec<(String, u64, u64, u64)>;

unsafe extern "C" fn collect(user: *mut c_void, owner: *const c_char, own: u64, live: u64, peak: u64) {
    // SAFETY: the test passes its rows, which nothing else uses during the call.
    let rows = unsafe { &mut *user.cast::<Rows>() };
    // SAFETY: the text ends with NUL and lives during the call.
    let owner = unsafe { CStr::from_ptr(owner) };
    rows.push((owner.to_str().unwrap().to_owned(), own, live, peak));
}

#[test]
fn the_ledger_lists_owners_with_their_bytes() {
    let pool = open("memory=dry,name=ledger").unwrap();
    let [a, b] =
        [allocate(pool, 1000, "ledger-net.a").unwrap(), allocate(pool, 256, "ledger-net.b").unwrap()];
    assert_eq!(free(pool, a), BFC_OK);
    let mut rows = Rows::new();
    // SAFETY: the function expects the rows.
    let status = unsafe { bfc_ledger_visit(pool, Some(collect), (&raw mut rows).cast()) };
    assert_eq!(status, BFC_OK);
    let row = |owner: &str, own, live, peak| (owner.to_owned(), own, live, peak);
    rows.sort();
    let expected = [
        row("", 0, 256, 1280),
        row("ledger-net", 0, 256, 1280),
        row("ledger-net.a", 0, 0, 1024),
        row("ledger-net.b", 256, 256, 256),
    ];
    assert_eq!(rows, expected);

    let ledger: serde_json::Value = serde_json::from_str(&string(pool, bfc_ledger_json)).unwrap();
    assert_eq!((&ledger["pool"], &ledger["bytes_in_use"]), (&json!("ledger"), &json!(256)));
    assert_eq!(ledger["categories"][6], json!({"category": "output", "live": 256, "peak": 1280}));
    assert!(
        ledger["owners"]
            .as_array()
            .unwrap()
            .contains(&json!({"owner": "ledger-net.b", "own": 256, "live": 256, "peak": 256}))
    );
    assert_eq!((free(pool, b), bfc_pool_close(pool)), (BFC_OK, BFC_OK));
}

#[test]
fn a_recording_contains_the_blocks_and_the_pools() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.hwm");
    let path = CString::new(file.to_str().unwrap()).unwrap();
    let pool = open("memory=dry,name=recorded").unwrap();
    assert_eq!(bfc_recording_stop(pool), BFC_ERROR_RECORDING);
    // SAFETY: the texts end with NUL.
    unsafe {
        assert_eq!(bfc_recording_start(pool, c"/no/such/folder/run.hwm".as_ptr()), BFC_ERROR_IO);
        assert_eq!(bfc_recording_start(pool, path.as_ptr()), BFC_OK);
        assert_eq!(bfc_recording_start(pool, path.as_ptr()), BFC_ERROR_RECORDING);
        assert_eq!(bfc_mark(pool, c"step".as_ptr()), BFC_OK);
    }
    assert!(message().ends_with("runs already: stop it first"), "{}", message());
    let block = allocate(pool, 1000, "recorded-net.weights").unwrap();
    assert_eq!(bfc_pool_close(pool), BFC_ERROR_RECORDING);
    assert_eq!(bfc_recording_stop(pool), BFC_OK);
    let recording = Recording::read(File::open(&file).unwrap(), &RecordingLimits::default()).unwrap();
    let report = Report::from_recording(&recording);
    assert_eq!(report.places[0].path(), "recorded-net.weights");
    assert_eq!((report.places[0].live_bytes, report.pools[0].name.as_str()), (1024, "recorded"));
    assert_eq!((free(pool, block), bfc_pool_close(pool)), (BFC_OK, BFC_OK));
}

#[test]
fn a_dry_pool_predicts_the_peak_of_a_pool_with_memory() {
    let peaks = ["dry", "host"].map(|memory| {
        let pool = open(&format!("memory={memory},limit=1MiB,name=predict-{memory}")).unwrap();
        let first = allocate(pool, 100_000, "a").unwrap();
        let second = allocate(pool, 200_000, "b").unwrap();
        assert_eq!(free(pool, first), BFC_OK);
        let third = allocate(pool, 50_000, "c").unwrap();
        assert_eq!([second, third].map(|block| free(pool, block)), [BFC_OK; 2]);
        let stats = stats(pool);
        assert_eq!(bfc_pool_close(pool), BFC_OK);
        (stats.peak_bytes_in_use, stats.peak_bytes_requested, stats.total_blocks)
    });
    assert_eq!(peaks[0], peaks[1]);
    assert_eq!((peaks[0].1, peaks[0].2), (300_000, 3));
}

#[test]
fn trimming_returns_the_regions_without_blocks() {
    let pool = open("memory=dry,limit=64MiB,growth=on,name=trimmed").unwrap();
    let block = allocate(pool, 1000, "x").unwrap();
    assert_eq!(free(pool, block), BFC_OK);
    let (reserved, mut released) = (stats(pool).bytes_reserved, 0);
    // SAFETY: the variable lives.
    assert_eq!(unsafe { bfc_pool_trim(pool, 0, &raw mut released) }, BFC_OK);
    assert!(reserved > 0);
    assert_eq!((released, stats(pool).bytes_reserved), (reserved, 0));
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}
