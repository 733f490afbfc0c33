//! Owners of memory, as interned names.
//!
//! An owner is a node of a tree: a module path such as `net.fc1`, and below it the ops that ran there. Pools count live
//! bytes by owner (see [`Ledger`](crate::Ledger)), so an out-of-memory report can name the holders without a dependency
//! on higher crates. Names are interned once per process and never removed, so ids stay valid everywhere.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::base::printable::printable;

/// The longest path, in bytes. Each row of a report contains a path, so this bounds the size of a row.
const MAX_PATH_BYTES: u32 = 16 << 10;

/// The limits of a scope's path. The rest is for the names of ops in it.
const MAX_SCOPE_DEPTH: u32 = OwnerId::MAX_DEPTH - 1;
const MAX_SCOPE_BYTES: u32 = 12 << 10;

/// An interned owner: a small copyable value that every allocation carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(u32);

#[derive(Debug)]
struct PathNode {
    parent: OwnerId,
    name: Arc<str>,
    /// The number of names in its path.
    depth: u32,
    /// The length of its path, with a dot before the first name.
    path_bytes: u32,
}

#[derive(Debug)]
struct Table {
    entries: Vec<PathNode>,
    /// Children by name, per parent. Two levels avoid building a combined key for lookups.
    children: HashMap<OwnerId, HashMap<Arc<str>, OwnerId>>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(|| {
    let root = PathNode { parent: OwnerId::ROOT, name: Arc::from(""), depth: 0, path_bytes: 0 };
    RwLock::new(Table { entries: vec![root], children: HashMap::new() })
});

impl Table {
    fn find(&self, parent: OwnerId, name: &str) -> Option<OwnerId> {
        self.children.get(&parent)?.get(name).copied()
    }

    /// Returns the entry of a new owner; `None` if a limit is reached.
    fn entry(&self, parent: OwnerId, name: &str) -> Option<PathNode> {
        let above = self.entries.get(parent.index())?;
        let path_bytes = above.path_bytes_below(name, OwnerId::MAX_DEPTH, MAX_PATH_BYTES)?;
        let is_full = self.entries.len() >= OwnerId::MAX_COUNT as usize;
        (!is_full).then(|| PathNode { parent, name: Arc::from(name), depth: above.depth + 1, path_bytes })
    }
}

impl PathNode {
    /// Returns the length of the path of `name` below this owner; `None` if the path exceeds the limits.
    fn path_bytes_below(&self, name: &str, max_depth: u32, max_bytes: u32) -> Option<u32> {
        let bytes = self.path_bytes.checked_add(u32::try_from(name.len()).ok()?)?.checked_add(1)?;
        (self.depth < max_depth && bytes <= max_bytes).then_some(bytes)
    }
}

impl OwnerId {
    /// The root of the tree, which is charged for memory without an owner.
    pub const ROOT: Self = Self(0);

    /// The most names in a path.
    pub const MAX_DEPTH: u32 = 256;

    /// The most owners. Later names get the owner above them.
    pub const MAX_COUNT: u32 = 1 << 20;

    /// Returns the owner called `name` below `parent`, interned on first use.
    ///
    /// Returns `parent` instead if the path has more than [`MAX_DEPTH`](Self::MAX_DEPTH) names or 16 KiB, or if 2²⁰ owners
    /// exist. The memory of a report is therefore proportional to the number of its rows.
    ///
    /// ```
    /// use bfc_core::OwnerId;
    /// let layer = OwnerId::intern(OwnerId::intern(OwnerId::ROOT, "net"), "fc1");
    /// assert_eq!(layer.path(), "net.fc1");
    /// assert_eq!(layer.parent().path(), "net");
    /// ```
    #[must_use]
    pub fn intern(parent: Self, name: &str) -> Self {
        if let Some(id) = TABLE.read().unwrap_or_else(PoisonError::into_inner).find(parent, name) {
            return id;
        }
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have interned it between the two locks.
        if let Some(id) = table.find(parent, name) {
            return id;
        }
        let Some(entry) = table.entry(parent, name) else { return parent };
        let (next, name) = (Self::from_index(table.entries.len()), Arc::clone(&entry.name));
        table.entries.push(entry);
        table.children.entry(parent).or_default().insert(name, next);
        next
    }

    /// Returns the scope called `name` below `parent`, as [`intern`](Self::intern) does.
    ///
    /// The path of a scope has at most 255 names and 12 KiB, so that ops in it have owners of their own.
    #[must_use]
    pub fn intern_scope(parent: Self, name: &str) -> Self {
        let fits = parent.with_entry(|above| above.path_bytes_below(name, MAX_SCOPE_DEPTH, MAX_SCOPE_BYTES));
        if fits.is_some() { Self::intern(parent, name) } else { parent }
    }

    /// Returns the parent; the root is its own parent.
    #[must_use]
    pub fn parent(self) -> Self {
        self.with_entry(|entry| entry.parent)
    }

    /// Whether this is `other`, or an owner below it.
    #[must_use]
    pub fn is_below(self, other: Self) -> bool {
        // Children have higher numbers than their parents.
        let mut id = self;
        while id.0 > other.0 {
            id = id.parent();
        }
        id == other
    }

    /// Returns the owner's own name, without its path; empty for the root.
    #[must_use]
    pub fn name(self) -> Arc<str> {
        self.with_entry(|entry| Arc::clone(&entry.name))
    }

    /// Returns the names from below the root down to this owner, joined by dots; empty for the root.
    #[must_use]
    pub fn path(self) -> String {
        let mut names = Vec::new();
        let mut id = self;
        while id != Self::ROOT {
            names.push(id.name());
            id = id.parent();
        }
        names.reverse();
        names.join(".")
    }

    /// Returns the id as an index into tables by owner.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    fn with_entry<R>(self, read: impl FnOnce(&PathNode) -> R) -> R {
        let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
        // Only `intern` creates ids, so the fallback to the root never happens in practice.
        read(table.entries.get(self.index()).unwrap_or(&table.entries[0]))
    }

    /// Returns the owner of a table index, for tables that [`OwnerId::index`] indexes.
    #[inline]
    pub const fn from_index(index: usize) -> Self {
        if index < Self::MAX_COUNT as usize { Self(index as u32) } else { Self::ROOT }
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ROOT { f.pad("(no owner)") } else { fmt::Display::fmt(&printable(self.path()), f) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_below_the_same_parent_is_the_same_owner() {
        let net = OwnerId::intern(OwnerId::ROOT, "owner-test");
        assert_eq!(net, OwnerId::intern(OwnerId::ROOT, "owner-test"));
        assert_ne!(OwnerId::intern(net, "a"), OwnerId::intern(net, "b"));
        assert_eq!(OwnerId::intern(net, "a").path(), "owner-test.a");
    }

    #[test]
    fn an_owner_is_below_itself_and_all_above_it_and_no_other() {
        let net = OwnerId::intern(OwnerId::ROOT, "owner-below");
        let (a, b) = (OwnerId::intern(net, "a"), OwnerId::intern(net, "b"));
        for above in [OwnerId::ROOT, net, a] {
            assert!(a.is_below(above));
        }
        assert!(!a.is_below(b) && !b.is_below(a) && !net.is_below(a));
    }

    #[test]
    fn an_owner_beyond_the_limits_of_a_path_counts_as_its_parent() {
        let below = |intern: fn(OwnerId, &str) -> OwnerId, name: &str| {
            let deepest = (0..1000).fold(OwnerId::ROOT, |above, _| intern(above, name));
            assert_eq!(intern(deepest, name), deepest);
            deepest
        };
        let names = |owner: OwnerId| owner.path().split('.').count();
        let long = "x".repeat(4000);
        assert_eq!(names(below(OwnerId::intern, "owner-deep")), 256);
        assert_eq!(names(below(OwnerId::intern, &long)), 4);
        // Ops have space below the deepest scope.
        for (name, depth) in [("owner-deep", 255), (&*long, 3)] {
            let scope = below(OwnerId::intern_scope, name);
            assert_eq!(names(scope), depth);
            assert_eq!(OwnerId::intern(scope, &long).parent(), scope);
        }
        let longest = "x".repeat(MAX_PATH_BYTES as usize);
        assert_eq!(OwnerId::intern(OwnerId::ROOT, &longest), OwnerId::ROOT);
        assert_eq!(names(OwnerId::intern(OwnerId::ROOT, &longest[1..])), 1);
    }

    #[test]
    fn the_root_has_no_path_and_is_its_own_parent() {
        assert_eq!(OwnerId::ROOT.path(), "");
        assert_eq!(OwnerId::ROOT.parent(), OwnerId::ROOT);
        assert_eq!(OwnerId::ROOT.to_string(), "(no owner)");
    }
}
