//! Memory outside the pools: bytes that a library allocates itself and reports.

use bfc_core::Bytes;
use serde::{Deserialize, Serialize};

use super::table::{Table, bytes};

/// Memory that a library holds outside the pools, such as NCCL. The peak does not include it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OutsideRow {
    /// The library's name.
    pub name: String,
    /// Bytes that it reports.
    pub bytes: u64,
}

/// Sets the bytes of one library: replaces its row, or adds one.
pub(crate) fn set_outside(rows: &mut Vec<OutsideRow>, name: &str, bytes: Bytes) {
    let bytes = bytes.get();
    match rows.iter_mut().find(|row| row.name == name) {
        Some(row) => row.bytes = bytes,
        None => rows.push(OutsideRow { name: name.to_owned(), bytes }),
    }
}

/// The table of memory outside the pools.
pub(super) fn outside_table(rows: &[OutsideRow], top: usize) -> Table {
    let mut table = Table::new(&["outside the pools", "bytes"]);
    for row in rows.iter().take(top) {
        table.line(&row.name, [bytes(row.bytes)]);
    }
    table.rest(rows.len(), top);
    table
}
