//! The paths of the owners of a recording.

use highwater_files::boundary::count_within;

use super::recording::Owner;

/// The longest path, without the last name. A longer path loses the names in its middle, so that the paths of deep
/// owners take memory in proportion to the number of owners.
pub(super) const MAX_PATH: usize = 1024;

/// The names from below the root down to an owner, joined by dots.
pub(super) fn path<'a>(owners: &'a [Owner], owner: u32) -> String {
    let mut lineage = Vec::new();
    let (mut above, mut bytes) = (owner, 0);
    while above != 0 {
        let owner = &owners[above as usize];
        lineage.push(owner);
        bytes += owner.name.len() + 1;
        above = owner.parent;
    }
    lineage.reverse();
    let names =
        |lineage: &[&Owner]| lineage.iter().map(|owner| owner.name.as_str()).collect::<Vec<_>>().join(".");
    if bytes <= MAX_PATH {
        return names(&lineage);
    }
    // The end of a path is more informative.
    let name = |owner: &&'a Owner| owner.name.as_str();
    let outer = count_within(lineage.iter().map(name), MAX_PATH / 4);
    let inner = count_within(lineage.iter().rev().map(name), MAX_PATH / 2).clamp(1, lineage.len() - outer);
    let (begin, rest) = lineage.split_at(outer);
    let (omitted, end) = rest.split_at(rest.len() - inner);
    let Some(last) = omitted.last() else { return names(&lineage) };
    let omitted = format!("({} more {:016x})", omitted.len(), last.path_hash);
    [names(begin), omitted, names(end)]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(".")
}
