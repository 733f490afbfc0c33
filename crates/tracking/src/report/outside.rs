//! Memory outside the pools: bytes that a library allocates itself and reports, and the heap by scope.

use bfc_core::Bytes;
use serde::{Deserialize, Serialize};

use super::table::{Table, bytes, count};

/// Memory outside the pools: of a library such as NCCL, or of the heap in one scope. The peak does not include it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OutsideRow {
    /// The library's name, or `heap` and the path of a module.
    pub name: String,
    /// Bytes that the library reports, or live bytes of the heap.
    pub bytes: u64,
    /// The most live bytes of this row at one time, for the heap. Rows peak at different moments, so the sum of their
    /// peaks may exceed the peak of the whole heap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Allocations and reallocations, for the heap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
}

/// Sets the bytes of one library: replaces its row, or adds one.
pub(crate) fn set_outside(rows: &mut Vec<OutsideRow>, name: &str, bytes: Bytes) {
    let bytes = bytes.get();
    match rows.iter_mut().find(|row| row.name == name) {
        Some(row) => row.bytes = bytes,
        None => rows.push(OutsideRow { name: name.to_owned(), bytes, ..OutsideRow::default() }),
    }
}

/// The table of memory outside the pools.
pub(super) fn outside_table(rows: &[OutsideRow], top: usize) -> Table {
    let mut table = Table::new(&["outside the pools", "bytes", "peak", "calls"]);
    let known = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());
    for row in rows.iter().take(top) {
        let (peak, calls) = (known(row.peak_bytes.map(bytes)), known(row.calls.map(count)));
        table.line(&row.name, [bytes(row.bytes), peak, calls]);
    }
    table.rest(rows.len(), top);
    table.without_empty_columns()
}
