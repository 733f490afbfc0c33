//! Scopes, phases and ops, and the rows that they make.

use bfc::*;
use serde_json::Value;

use crate::support::{allocate, free, message, open, push, push_op, string};

/// Returns the report of a dry pool, which no other test changes.
fn report(pool: bfc_pool) -> Value {
    serde_json::from_str(&string(pool, bfc_report_json)).unwrap()
}

/// Returns one figure of a row.
fn figure(report: &Value, rows: &str, name: &str, path: &str, column: &str) -> u64 {
    let rows = report[rows].as_array().unwrap();
    let row = rows.iter().find(|row| row[name] == path).unwrap_or_else(|| panic!("{path} in {rows:?}"));
    row[column].as_u64().unwrap()
}

#[test]
fn scopes_are_popped_in_order_on_their_thread() {
    let [outer, inner] = [push("outer"), push("inner")];
    assert_eq!(bfc_scope_pop(outer), BFC_ERROR_SCOPE_ORDER);
    assert!(message().ends_with("pop those within it first (1)"), "{}", message());
    std::thread::scope(|threads| {
        threads.spawn(move || assert_eq!(bfc_scope_pop(inner), BFC_ERROR_INVALID_HANDLE));
    });
    assert_eq!((bfc_scope_pop(inner), bfc_scope_pop(outer)), (BFC_OK, BFC_OK));
    assert_eq!(bfc_scope_pop(inner), BFC_ERROR_INVALID_HANDLE);
}

#[test]
fn scopes_have_a_limit() {
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let scopes: Vec<bfc_scope> = (0..4096).map(|_| push("deep")).collect();
            let mut scope = 0;
            // SAFETY: the text ends with NUL, and the variable lives.
            let status = unsafe { bfc_scope_push(c"deep".as_ptr(), &raw mut scope) };
            assert_eq!((status, scope), (BFC_ERROR_INVALID_ARGUMENT, 0));
            // The end of the thread pops the others.
            assert_eq!(bfc_scope_pop(scopes[4095]), BFC_OK);
        });
    });
}

#[test]
fn scopes_and_owners_have_rows_with_their_peaks() {
    let pool = open("memory=dry,name=rows").unwrap();
    let net = push("net");
    let weights = allocate(pool, 1000, "weights").unwrap();
    let layer = push("fc1");
    let [a, b] = [allocate(pool, 3000, "x").unwrap(), allocate(pool, 1, "inner.y").unwrap()];
    assert_eq!(free(pool, a), BFC_OK);
    assert_eq!((bfc_scope_pop(layer), bfc_scope_pop(net)), (BFC_OK, BFC_OK));
    let report = report(pool);
    let scope = |path, column| figure(&report, "scopes", "scope", path, column);
    assert_eq!((scope("", "high_water_bytes"), scope("", "live_bytes")), (1024 + 3072 + 256, 1024 + 256));
    assert_eq!((scope("net.fc1", "high_water_bytes"), scope("net.fc1", "live_bytes")), (3072 + 256, 256));
    assert_eq!(scope("net.fc1.inner", "calls"), 1);
    assert_eq!(figure(&report, "ops", "op", "x", "total_bytes"), 3072);
    assert_eq!([weights, b].map(|block| free(pool, block)), [BFC_OK; 2]);
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}

#[test]
fn reports_of_deep_scopes_are_small() {
    // Names of one part, of thousands of parts, and of thousands of letters.
    for name in ["a", &"a.".repeat(2047), &"a".repeat(4095)] {
        let pool = open("memory=dry").unwrap();
        let scopes: Vec<bfc_scope> = (0..1000).map(|_| push(name)).collect();
        let block = allocate(pool, 1000, "x").unwrap();
        let (json, ledger) = (string(pool, bfc_report_json), string(pool, bfc_ledger_json));
        assert!(json.len() < 1 << 20 && ledger.len() < 1 << 20, "{} {}", json.len(), ledger.len());
        let report: Value = serde_json::from_str(&json).unwrap();
        let rows = report["scopes"].as_array().unwrap();
        assert_eq!(rows.len(), if name == "a".repeat(4095) { 4 } else { 256 });
        assert!(rows.iter().all(|row| row["live_bytes"] == 1024 && row["peak_bytes"] == 1024));
        assert!(string(pool, bfc_report_text).len() < 1 << 16);
        assert_eq!(free(pool, block), BFC_OK);
        for scope in scopes.into_iter().rev() {
            assert_eq!(bfc_scope_pop(scope), BFC_OK);
        }
        assert_eq!(bfc_pool_close(pool), BFC_OK);
    }
}

#[test]
fn the_blocks_of_an_op_count_for_one_call() {
    let pool = open("memory=dry,name=ops").unwrap();
    let mut backward = 0;
    // SAFETY: the variable lives.
    assert_eq!(unsafe { bfc_phase_push(BFC_BACKWARD as u32, &raw mut backward) }, BFC_OK);
    let op = push_op(pool, "matmul");
    let within = push_op(pool, "copy");
    let scratch = allocate(pool, 4096, "scratch").unwrap();
    assert_eq!(bfc_pool_close(pool), BFC_ERROR_POOL_IN_USE);
    assert!(
        message().contains("1 live block, 2 running ops or calls; held by scratch:backward"),
        "{}",
        message()
    );
    assert_eq!((free(pool, scratch), bfc_scope_pop(within)), (BFC_OK, BFC_OK));
    let mut result = std::ptr::null_mut();
    // SAFETY: the variable lives.
    assert_eq!(unsafe { bfc_allocate(pool, 1024, 0, std::ptr::null(), 6, &raw mut result) }, BFC_OK);
    assert_eq!((bfc_scope_pop(op), bfc_scope_pop(backward)), (BFC_OK, BFC_OK));
    let report = report(pool);
    let matmul = |column| figure(&report, "ops", "op", "matmul", column);
    assert_eq!((matmul("calls"), matmul("high_water_bytes"), matmul("total_bytes")), (1, 4096, 5120));
    assert_eq!((matmul("outliving_bytes"), matmul("live_bytes")), (1024, 1024));
    assert_eq!(report["ops"][0]["phase"], "backward");
    assert_eq!(figure(&report, "ops", "op", "scratch", "self_peak_bytes"), 4096);
    assert_eq!((free(pool, crate::support::Block(result)), bfc_pool_close(pool)), (BFC_OK, BFC_OK));
}

#[test]
fn a_thread_that_ends_within_an_op_ends_the_op() {
    let pool = open("memory=dry,name=ended").unwrap();
    std::thread::spawn(move || {
        push("ended");
        push_op(pool, "matmul");
    })
    .join()
    .unwrap();
    assert_eq!(figure(&report(pool), "ops", "op", "matmul", "calls"), 1);
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}
