//! A map from leaves to tensors, sorted by leaf.

use crate::error::Result;
use crate::shape::DType;
use crate::storage::leaf::LeafId;
use crate::tensor::Tensor;

/// A sorted list, largest leaf first. Backward passes reach the leaves roughly in that order, and optimizers
/// remove gradients from the smallest leaf on. Both happen at the end of the list, so nothing else moves.
#[derive(Debug, Default)]
pub(crate) struct LeafMap(Vec<(LeafId, Tensor)>);

/// The position of the last search. It makes searches in the order of the leaves fast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafCursor(usize);

impl LeafMap {
    /// Returns the position of a leaf, or else the position for its insertion.
    #[inline]
    fn find(&self, leaf: LeafId) -> std::result::Result<usize, usize> {
        match self.0.last() {
            None => Err(0),
            Some((last, _)) if *last > leaf => Err(self.0.len()),
            Some((last, _)) if *last == leaf => Ok(self.0.len() - 1),
            Some(_) => self.0.binary_search_by(|(other, _)| leaf.cmp(other)),
        }
    }

    #[inline]
    pub(crate) fn get(&self, leaf: LeafId) -> Option<&Tensor> {
        self.find(leaf).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_mut(&mut self, leaf: LeafId) -> Option<&mut Tensor> {
        self.find(leaf).ok().map(|at| &mut self.0[at].1)
    }

    /// Inserts a tensor for a leaf, and drops the previous one.
    pub(crate) fn insert(&mut self, leaf: LeafId, tensor: Tensor) {
        match self.find(leaf) {
            Ok(at) => self.0[at].1 = tensor,
            Err(at) => self.insert_at(at, leaf, tensor),
        }
    }

    /// Adds a tensor to that of a leaf. Removes the existing tensor during the call of `sum`, so that its
    /// buffer has a single owner.
    ///
    /// # Errors
    /// The error of `sum`; the leaf has no tensor then.
    #[inline]
    pub(crate) fn add(
        &mut self,
        leaf: LeafId,
        tensor: Tensor,
        sum: impl FnOnce(Tensor, Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        match self.find(leaf) {
            Ok(at) => {
                let (_, first) = self.0.remove(at);
                self.0.insert(at, (leaf, sum(first, tensor)?));
            }
            Err(at) => self.insert_at(at, leaf, tensor),
        }
        Ok(())
    }

    /// Inserts a new leaf at its position.
    #[inline]
    fn insert_at(&mut self, at: usize, leaf: LeafId, tensor: Tensor) {
        self.0.insert(at, (leaf, tensor));
    }

    #[inline]
    pub(crate) fn remove(&mut self, leaf: LeafId) -> Option<Tensor> {
        let at = self.find(leaf).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Returns a cursor for a search from the smallest leaf on.
    pub(crate) const fn cursor(&self) -> LeafCursor {
        LeafCursor(self.0.len())
    }

    /// Returns the tensor of a leaf. The search starts at the cursor.
    ///
    /// # Errors
    /// The element type of an existing tensor that precedes a conversion of the leaf.
    #[inline]
    pub(crate) fn find_latest(
        &self,
        leaf: LeafId,
        cursor: &mut LeafCursor,
    ) -> std::result::Result<Option<&Tensor>, DType> {
        let next = cursor.0.wrapping_sub(1);
        let found = match self.0.get(next) {
            Some((other, _)) if *other == leaf => Ok(next),
            _ => self.find(leaf),
        };
        // An earlier version of the leaf precedes it in the order of leaves, so it follows here.
        let (Ok(next) | Err(next)) = found.map(|at| at + 1);
        if let Some((earlier, tensor)) = self.0.get(next)
            && earlier.was_converted_to(leaf)
        {
            return Err(tensor.dtype());
        }
        let Ok(at) = found else { return Ok(None) };
        *cursor = LeafCursor(at);
        Ok(self.0.get(at).map(|(_, tensor)| tensor))
    }

    /// Moves the gradients of these leaves to a new map, including gradients that precede a conversion. Takes
    /// linear time if the leaves are sorted.
    pub(crate) fn split_off(&mut self, leaves: impl Iterator<Item = LeafId>) -> Self {
        let mut identities: Vec<u64> = leaves.map(LeafId::identity).collect();
        // The largest last, because this list starts with the largest leaf.
        identities.sort_unstable();
        let mut is_wanted = |leaf: LeafId| {
            while identities.last().is_some_and(|last| *last > leaf.identity()) {
                identities.pop();
            }
            identities.last() == Some(&leaf.identity())
        };
        Self(self.0.extract_if(.., |(leaf, _)| is_wanted(*leaf)).collect())
    }

    /// Inserts the tensors of other leaves.
    pub(crate) fn extend(&mut self, mut other: Self) {
        std::mem::take(&mut other.0).into_iter().for_each(|(leaf, tensor)| self.insert(leaf, tensor));
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the smallest leaf.
    pub(crate) fn first(&self) -> Option<LeafId> {
        self.0.last().map(|(leaf, _)| *leaf)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LeafId, &Tensor)> {
        self.0.iter().rev().map(|(leaf, tensor)| (*leaf, tensor))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (LeafId, &mut Tensor)> {
        self.0.iter_mut().rev().map(|(leaf, tensor)| (*leaf, tensor))
    }
}

impl Drop for LeafMap {
    /// Drops tensors in the order of the leaves, so that every run frees memory in the same order.
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn find_latest_detects_gradients_before_a_conversion() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let id = |leaf: &Tensor| leaf.leaf().unwrap();
        let values = || Tensor::ones(&device, 1).unwrap();
        let leaves: Vec<Tensor> = (0..3).map(|_| values().requiring_grad().unwrap()).collect();
        for (at, leaf) in leaves.iter().enumerate() {
            let latest = id(&values().requiring_grad_as_conversion_of(leaf).unwrap());
            let latest_of_all =
                leaves.iter().map(|leaf| id(&values().requiring_grad_as_conversion_of(leaf).unwrap()));
            for with_latest in [false, true] {
                let mut list = LeafMap::default();
                leaves.iter().for_each(|leaf| list.insert(id(leaf), leaf.clone()));
                if with_latest {
                    list.insert(latest, leaf.clone());
                }
                let find = |list: &LeafMap, latest| {
                    // The result does not depend on the cursor.
                    let found =
                        |place| list.find_latest(latest, &mut LeafCursor(place)).map(|found| found.is_some());
                    let everywhere = (0..=list.len() + 1).map(found).collect::<Vec<_>>();
                    assert!(everywhere.iter().all(|found| *found == everywhere[0]), "{everywhere:?}");
                    everywhere[0]
                };
                assert_eq!(find(&list, latest), Err(DType::F32));
                list.remove(id(leaf));
                assert_eq!(find(&list, latest), Ok(with_latest));
                for (other, latest) in latest_of_all.clone().enumerate() {
                    assert_eq!(find(&list, latest).is_err(), other != at);
                }
            }
        }
    }

    #[test]
    fn iteration_is_sorted_for_any_order_of_insertion() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let leaf = || {
            let leaf = Tensor::ones(&device, 1).unwrap().requiring_grad().unwrap();
            (leaf.leaf().unwrap(), leaf)
        };
        let leaves: Vec<_> = (0..5).map(|_| leaf()).collect();
        let ids = |list: &LeafMap| list.iter().map(|(id, _)| id).collect::<Vec<_>>();
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]] {
            let mut list = LeafMap::default();
            for at in order {
                assert!(list.get(leaves[at].0).is_none() && list.remove(leaves[at].0).is_none());
                list.insert(leaves[at].0, leaves[at].1.clone());
                list.insert(leaves[at].0, leaves[at].1.clone());
            }
            assert_eq!(ids(&list), leaves.iter().map(|(id, _)| *id).collect::<Vec<_>>());
            assert_eq!((list.len(), list.first()), (5, Some(leaves[0].0)));
            for (id, leaf) in &leaves {
                assert!(list.get(*id).unwrap().shares_buffer_with(leaf));
                assert!(list.get_mut(*id).unwrap().shares_buffer_with(leaf));
            }
            assert_eq!(list.iter_mut().count(), 5);
            for at in order {
                assert!(list.remove(leaves[at].0).unwrap().shares_buffer_with(&leaves[at].1));
            }
            assert!(list.is_empty() && list.first().is_none());
        }
    }
}
