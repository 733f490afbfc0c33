//! Room in the tables that are as long as a pool has chunks.

/// A table that grows has room for so many more entries of as many as it has: one in so many is never used in the end.
const SPARE: usize = 32;

/// As many more entries as a short table has room for; up to this many, the room doubles.
const SHORT: usize = 1024;

/// Makes room for `entries` entries in all, and for some more. `Vec` alone would double the room, so that a table could be
/// twice as large as what it holds: with 60 bytes a chunk that is the price of another chunk. In return a long table is
/// moved more often, though only when more chunks exist than ever before, and of pages that hold much the system moves the
/// addresses alone.
#[cold]
pub(crate) fn make_room<T>(table: &mut Vec<T>, entries: usize) {
    if entries > table.capacity() {
        let spare = (entries / SPARE).max(entries.min(SHORT));
        table.reserve_exact(entries + spare - table.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_table_has_little_room_to_spare_and_is_not_moved_for_each_entry() {
        let (mut table, mut moves) = (Vec::<u8>::new(), 0);
        for entries in 1..=200_000 {
            let before = table.capacity();
            make_room(&mut table, entries);
            table.push(0);
            moves += u32::from(table.capacity() != before);
            assert!(table.capacity() <= entries + (entries / SPARE).max(SHORT), "{entries}");
        }
        assert!(moves < 150, "{moves}");
    }
}
