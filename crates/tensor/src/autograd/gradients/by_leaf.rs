//! Tensors by leaf, in the order of the leaves.

use crate::error::Result;
use crate::shape::DType;
use crate::storage::leaf::LeafId;
use crate::tensor::Tensor;

/// A sorted list, largest leaf first. A backward pass comes to the leaves about in that order, and an optimiser takes the
/// gradients out from the smallest on: both at the end of the list, so that nothing else has to move.
#[derive(Debug, Default)]
pub(crate) struct ByLeaf(Vec<(LeafId, Tensor)>);

/// Where a walk over the leaves has come to: what was seen last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor(usize);

impl ByLeaf {
    /// Where a leaf is, or where it belongs.
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

    /// Puts a tensor in the place of a leaf; that which was there is dropped.
    pub(crate) fn insert(&mut self, leaf: LeafId, tensor: Tensor) {
        match self.find(leaf) {
            Ok(at) => self.0[at].1 = tensor,
            Err(at) => self.insert_at(at, leaf, tensor),
        }
    }

    /// Adds a tensor to what a leaf has, which is taken out while `sum` makes one of both: so its buffer has a single owner.
    ///
    /// # Errors
    /// What `sum` says: the leaf has nothing any more then.
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

    /// Puts a leaf that is not there where it belongs.
    #[inline]
    fn insert_at(&mut self, at: usize, leaf: LeafId, tensor: Tensor) {
        self.0.insert(at, (leaf, tensor));
    }

    #[inline]
    pub(crate) fn remove(&mut self, leaf: LeafId) -> Option<Tensor> {
        let at = self.find(leaf).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Where a walk from the smallest leaf on begins.
    pub(crate) const fn cursor(&self) -> Cursor {
        Cursor(self.0.len())
    }

    /// What a leaf has. Where a walk has come to it is looked for first.
    ///
    /// # Errors
    /// The type of what there is of the leaf before it was converted.
    #[inline]
    pub(crate) fn find_latest(
        &self,
        leaf: LeafId,
        cursor: &mut Cursor,
    ) -> std::result::Result<Option<&Tensor>, DType> {
        let next = cursor.0.wrapping_sub(1);
        let found = match self.0.get(next) {
            Some((other, _)) if *other == leaf => Ok(next),
            _ => self.find(leaf),
        };
        // What was converted to it stands right before it in their order, and so behind it here.
        let (Ok(behind) | Err(behind)) = found.map(|at| at + 1);
        if let Some((former, tensor)) = self.0.get(behind)
            && former.became(leaf)
        {
            return Err(tensor.dtype());
        }
        let Ok(at) = found else { return Ok(None) };
        *cursor = Cursor(at);
        Ok(self.0.get(at).map(|(_, tensor)| tensor))
    }

    /// Moves the gradients of these leaves to a list of their own, with those from before a conversion. Linear where the leaves
    /// come in order.
    pub(crate) fn split_off(&mut self, leaves: impl Iterator<Item = LeafId>) -> Self {
        let mut families: Vec<u64> = leaves.map(LeafId::family).collect();
        // The largest last, as this list begins with the largest leaf.
        families.sort_unstable();
        let mut is_wanted = |leaf: LeafId| {
            while families.last().is_some_and(|last| *last > leaf.family()) {
                families.pop();
            }
            families.last() == Some(&leaf.family())
        };
        Self(self.0.extract_if(.., |(leaf, _)| is_wanted(*leaf)).collect())
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest leaf.
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

impl Drop for ByLeaf {
    /// In the order of the leaves, so that memory is freed in the same order in every run.
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn a_gradient_of_what_a_leaf_was_is_found_wherever_it_stands() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let id = |leaf: &Tensor| leaf.leaf().unwrap();
        let values = || Tensor::ones(&device, 1).unwrap();
        let leaves: Vec<Tensor> = (0..3).map(|_| values().requiring_grad().unwrap()).collect();
        for (at, leaf) in leaves.iter().enumerate() {
            let latest = id(&values().requiring_grad_after(leaf).unwrap());
            let latest_of_all = leaves.iter().map(|leaf| id(&values().requiring_grad_after(leaf).unwrap()));
            for with_latest in [false, true] {
                let mut list = ByLeaf::default();
                leaves.iter().for_each(|leaf| list.insert(id(leaf), leaf.clone()));
                if with_latest {
                    list.insert(latest, leaf.clone());
                }
                let find = |list: &ByLeaf, latest| {
                    // Wherever it is looked for first.
                    let found =
                        |place| list.find_latest(latest, &mut Cursor(place)).map(|found| found.is_some());
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
    fn leaves_are_found_and_told_in_their_order_however_they_came() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let leaf = || {
            let leaf = Tensor::ones(&device, 1).unwrap().requiring_grad().unwrap();
            (leaf.leaf().unwrap(), leaf)
        };
        let leaves: Vec<_> = (0..5).map(|_| leaf()).collect();
        let ids = |list: &ByLeaf| list.iter().map(|(id, _)| id).collect::<Vec<_>>();
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]] {
            let mut list = ByLeaf::default();
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
