//! Statistics, the ledger and reports.

use std::ffi::{c_char, c_void};

use bfc_core::{AllocatorSnapshot, Category, Ledger, printable_json};
use highwater_tracking::Report;
use serde_json::json;

use super::bfc_pool;
use crate::error::Error;
use crate::fork;
use crate::guard::guard;
use crate::last_error::c_text;
use crate::status::bfc_status;
use crate::{table, text};

/// The figures of a pool. All sizes are bytes. A block takes at least the requested bytes; the rest is rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bfc_stats {
    /// Set this to sizeof(bfc_stats) before the call. Afterwards it is the number of bytes that the library has set.
    pub size: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Blocks allocated since the pool was opened.
    pub total_blocks: u64,
    /// Bytes of live blocks.
    pub bytes_in_use: u64,
    /// The highest bytes_in_use. A dry pool predicts it.
    pub peak_bytes_in_use: u64,
    /// Requested bytes of the live blocks.
    pub bytes_requested: u64,
    /// Requested bytes when bytes_in_use reached its peak.
    pub peak_bytes_requested: u64,
    /// Bytes that the pool holds from its source, used or not.
    pub bytes_reserved: u64,
    /// The highest bytes_reserved.
    pub peak_bytes_reserved: u64,
    /// The most bytes that the pool may reserve; UINT64_MAX without a limit.
    pub bytes_limit: u64,
    /// The largest block that fits without growth.
    pub largest_free_block: u64,
    /// The largest block since the pool was opened.
    pub largest_block: u64,
    /// Requests that waited for other threads to free blocks.
    pub waits: u64,
    /// Requests that waited and failed.
    pub failed_waits: u64,
}

/// Receives the account of one owner: its path, its own live bytes, its live bytes with those of all owners below it, and
/// the highest of the latter. `owner` lives until the function returns. The function may call this library. It must
/// return: no C++ exception and no longjmp() may leave it.
pub type bfc_ledger_visitor =
    Option<unsafe extern "C" fn(user: *mut c_void, owner: *const c_char, own: u64, live: u64, peak: u64)>;

/// Stores the figures of the pool in `*stats`, of which the caller has set `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_pool_stats(pool: bfc_pool, stats: *mut bfc_stats) -> bfc_status {
    guard(|| {
        text::check_out(stats, "stats")?;
        // SAFETY: not null and aligned; the caller has set the first member.
        let size = unsafe { stats.cast::<u64>().read() };
        let known = size_of::<bfc_stats>() as u64;
        if !(8..=MAX_STRUCTURE).contains(&size) {
            let expected = format!("sizeof(bfc_stats), {known} in this version");
            return Err(Error::BadValue { argument: "stats->size", value: size, expected });
        }
        let found = table::with_pool(pool, |pool| Ok(pool.allocator().stats()))?;
        let written = size.min(known);
        let found = bfc_stats {
            size: written,
            live_blocks: found.live_allocs,
            total_blocks: found.num_allocs,
            bytes_in_use: found.bytes_in_use,
            peak_bytes_in_use: found.peak_bytes_in_use,
            bytes_requested: found.bytes_requested,
            peak_bytes_requested: found.peak_bytes_requested,
            bytes_reserved: found.bytes_reserved,
            peak_bytes_reserved: found.peak_bytes_reserved,
            bytes_limit: found.bytes_limit.unwrap_or(u64::MAX),
            largest_free_block: found.largest_free_block_bytes,
            largest_block: found.largest_alloc_bytes,
            waits: found.retry.waits,
            failed_waits: found.retry.timeouts,
        };
        let from = (&raw const found).cast::<u8>();
        // SAFETY: the caller's structure has `size` bytes, and this one has `known`.
        unsafe { from.copy_to_nonoverlapping(stats.cast(), written as usize) };
        Ok(())
    })
}

/// The largest structure of any version.
const MAX_STRUCTURE: u64 = 4096;

/// Calls `visitor` with `user` for each owner that the pool has ever charged. All figures are from one moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_ledger_visit(
    pool: bfc_pool,
    visitor: bfc_ledger_visitor,
    user: *mut c_void,
) -> bfc_status {
    guard(|| {
        let visitor = visitor.ok_or(Error::Null { argument: "visitor" })?;
        let ledger = table::with_pool(pool, |pool| Ok(pool.allocator().ledger()))?;
        for (owner, bytes) in ledger.owners() {
            let path = c_text(&owner.path());
            // SAFETY: the caller passes a function of this type, and the text lives during the call.
            unsafe { visitor(user, path.as_ptr(), bytes.own, bytes.live, bytes.peak) };
            // The visitor may have forked, and names of owners are behind a lock.
            fork::check()?;
        }
        Ok(())
    })
}

/// Stores the pool's ledger as JSON in `*json`: live bytes and peaks by owner and by category, from one moment. Free it
/// with bfc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_ledger_json(pool: bfc_pool, json: *mut *mut c_char) -> bfc_status {
    let make = || {
        table::with_pool(pool, |pool| {
            let AllocatorSnapshot { stats, ledger } = pool.allocator().snapshot();
            Ok(ledger_json(pool.name(), stats.bytes_in_use, &ledger))
        })
    };
    // SAFETY: the caller passes a live variable.
    guard(|| unsafe { give(json, "json", make) })
}

/// Stores the report as text in `*report`: tables of the ops, the scopes and their peaks. Free it with
/// bfc_string_free().
///
/// All pools with memory have one report; `pool` is one of them or 0. Each dry pool has its own report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_report_text(pool: bfc_pool, report: *mut *mut c_char) -> bfc_status {
    // SAFETY: the caller passes a live variable.
    guard(|| unsafe { give(report, "report", || Ok(report_of(pool)?.to_string())) })
}

/// Stores the report as JSON in `*report`. Free it with bfc_string_free(). See bfc_report_text().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_report_json(pool: bfc_pool, report: *mut *mut c_char) -> bfc_status {
    let make = || {
        let report = serde_json::to_string(&report_of(pool)?);
        report
            .map(|json| printable_json(json).to_string())
            .map_err(|error| Error::Internal(error.to_string()))
    };
    // SAFETY: the caller passes a live variable.
    guard(|| unsafe { give(report, "report", make) })
}

/// Stores a new string for the caller.
///
/// # Safety
/// `out` is null or a live variable.
unsafe fn give(
    out: *mut *mut c_char,
    argument: &'static str,
    make: impl FnOnce() -> Result<String, Error>,
) -> Result<(), Error> {
    text::check_out(out, argument)?;
    let string = text::give(&make()?);
    // SAFETY: not null and aligned; the caller promises that the variable lives.
    unsafe { out.write(string) };
    Ok(())
}

fn report_of(pool: bfc_pool) -> Result<Report, Error> {
    let run = table::run(pool)?;
    Ok(Report::new(run.tracker(), &table::pools_of(&run)))
}

fn ledger_json(pool: &str, bytes_in_use: u64, ledger: &Ledger) -> String {
    let owners: Vec<_> = ledger
        .owners()
        .map(|(owner, bytes)| {
            json!({"owner": owner.path(), "own": bytes.own, "live": bytes.live, "peak": bytes.peak})
        })
        .collect();
    let category = |category: Category| {
        let (live, peak) = (ledger.category(category), ledger.category_peak(category));
        json!({"category": category.name(), "live": live, "peak": peak})
    };
    let categories = Category::ALL.map(category);
    json!({
        "pool": pool,
        "bytes_in_use": bytes_in_use,
        "peak_bytes_in_use": ledger.peak(),
        "owners": owners,
        "categories": categories,
    })
    .to_string()
}
