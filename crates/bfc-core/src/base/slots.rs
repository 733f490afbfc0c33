//! A table whose entries are found by a small number that is used again once the entry is taken out.

/// Entries by slot. A free slot is used before a new one is made, the one freed last first.
#[derive(Clone, Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Keeps `entry` and tells its slot; `None`, and the entry is dropped, if no more slots can be numbered.
    pub(crate) fn insert(&mut self, entry: T) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            self.entries[slot as usize] = Some(entry);
            return Some(slot);
        }
        let slot = u32::try_from(self.entries.len()).ok()?;
        self.entries.push(Some(entry));
        Some(slot)
    }

    /// Takes the entry of a slot out.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self.entries.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(entry)
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.as_ref()
    }

    /// All entries, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().enumerate().filter_map(|(slot, entry)| Some((slot as u32, entry.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(slot, entry)| Some((slot as u32, entry.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_slot_is_used_before_a_new_one_is_made() {
        let mut slots = Slots::default();
        assert_eq!([slots.insert('a'), slots.insert('b'), slots.insert('c')], [Some(0), Some(1), Some(2)]);
        assert_eq!(slots.remove(1), Some('b'));
        assert_eq!(slots.get(1), None);
        assert_eq!(slots.insert('d'), Some(1));
        assert_eq!(slots.iter().map(|(_, entry)| *entry).collect::<String>(), "adc");
    }

    #[test]
    fn an_empty_or_unknown_slot_gives_nothing() {
        let mut slots = Slots::<u8>::default();
        assert_eq!((slots.remove(0), slots.get(7)), (None, None));
        let slot = slots.insert(1).unwrap();
        assert_eq!((slots.remove(slot), slots.remove(slot)), (Some(1), None));
    }
}
