//! Names of ops that are not known at compile time.

use std::collections::HashSet;
use std::sync::{LazyLock, PoisonError, RwLock};

/// The most names. They are never freed, so that hostile input cannot grow the table without limit.
const MAX_NAMES: usize = 1 << 16;

/// The name of all ops beyond the limit.
const OTHER: &str = "(other)";

static NAMES: LazyLock<RwLock<HashSet<&'static str>>> = LazyLock::new(RwLock::default);

/// Returns a copy of `name` for [`Tracker::begin`](crate::Tracker::begin), for programs that read the names of ops at run
/// time. Equal names return the same copy, which is never freed. After 65,536 names, new ones return `(other)`.
///
/// ```
/// use highwater_tracking::{Tracker, op_name};
/// let (tracker, layer) = (Tracker::new(), 3);
/// drop(tracker.begin(op_name(&format!("block{layer}"))));
/// assert_eq!(tracker.op_totals()[0].op, "block3");
/// ```
#[must_use]
pub fn op_name(name: &str) -> &'static str {
    if let Some(known) = NAMES.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return known;
    }
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have added it between the two locks.
    if let Some(known) = names.get(name) {
        return known;
    }
    if names.len() >= MAX_NAMES {
        return OTHER;
    }
    let copy: &'static str = Box::leak(Box::from(name));
    names.insert(copy);
    copy
}
