//! A map of few entries: a sorted vector, which compiles to a tenth of what a tree does.

/// A map with its entries in the order of their keys. Entries come and go in a time that grows with their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sorted<K, V>(Vec<(K, V)>);

impl<K: Ord, V> Sorted<K, V> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    fn place(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.cmp(key))
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        match self.place(&key) {
            Ok(place) => self.0[place].1 = value,
            Err(place) => self.0.insert(place, (key, value)),
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.place(key).ok()?;
        Some(self.0.remove(place).1)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.place(key).ok().map(|place| &self.0[place].1)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.place(key).ok().map(|place| &mut self.0[place].1)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.place(key).is_ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The entries, in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The values, in the order of their keys.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> Default for Sorted<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_as_in_a_tree_whatever_the_order_in_which_they_come_and_go() {
        let (mut sorted, mut tree) = (Sorted::new(), std::collections::BTreeMap::new());
        for step in 0..500_u64 {
            let key = step * 7919 % 61;
            if step % 3 == 2 {
                assert_eq!(sorted.remove(&key), tree.remove(&key));
            } else {
                sorted.insert(key, step);
                tree.insert(key, step);
            }
            assert!(sorted.iter().eq(tree.iter()));
            assert!(sorted.values().eq(tree.values()));
            assert_eq!((sorted.get(&key), sorted.len()), (tree.get(&key), tree.len()));
            assert_eq!(sorted.contains_key(&key), tree.contains_key(&key));
            assert_eq!(sorted.get_mut(&key), tree.get_mut(&key));
        }
    }
}
