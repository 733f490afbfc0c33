//! Tensors by leaf, in the order of the leaves.

use crate::autograd::node::LeafId;
use crate::dtype::DType;
use crate::tensor::Tensor;

/// A sorted list, largest leaf first. A backward pass comes to the leaves about in that order, and an optimiser takes the
/// gradients out from the smallest on: both at the end of the list, so that nothing else has to move.
#[derive(Debug, Default)]
pub(crate) struct ByLeaf(Vec<(LeafId, Tensor)>);

/// Room that is made at once: that of a small model.
const ROOM: usize = 16;

impl ByLeaf {
    /// Where a leaf is, or where it belongs.
    #[inline]
    fn find(&self, leaf: LeafId) -> Result<usize, usize> {
        match self.0.last() {
            None => Err(0),
            Some((last, _)) if *last > leaf => Err(self.0.len()),
            Some((last, _)) if *last == leaf => Ok(self.0.len() - 1),
            Some(_) => self.0.binary_search_by(|(other, _)| leaf.cmp(other)),
        }
    }

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
            Err(at) => {
                if self.0.is_empty() {
                    self.0.reserve(ROOM);
                }
                // To move what is behind takes a call, also where there is nothing.
                if at == self.0.len() {
                    self.0.push((leaf, tensor));
                } else {
                    self.0.insert(at, (leaf, tensor));
                }
            }
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, leaf: LeafId) -> Option<Tensor> {
        let at = self.find(leaf).ok()?;
        let removed = if at + 1 == self.0.len() { self.0.pop() } else { Some(self.0.remove(at)) };
        removed.map(|(_, tensor)| tensor)
    }

    /// The same, unless there is a gradient of what the leaf was before it was converted: its type is told then.
    #[inline]
    pub(crate) fn remove_latest(&mut self, leaf: LeafId) -> Result<Option<Tensor>, DType> {
        match self.0.last() {
            // As a rule it is the first one, and nothing that it was can stand before it.
            Some((first, _)) if *first == leaf => Ok(self.0.pop().map(|(_, tensor)| tensor)),
            Some((first, _)) if *first < leaf => self.remove_latest_behind(leaf),
            _ => Ok(None),
        }
    }

    /// The same for a leaf behind others.
    fn remove_latest_behind(&mut self, leaf: LeafId) -> Result<Option<Tensor>, DType> {
        match self.former(leaf) {
            Some(former) => Err(former.dtype()),
            None => Ok(self.remove(leaf)),
        }
    }

    /// The gradient of what a leaf was before it was converted, if there is one.
    fn former(&self, leaf: LeafId) -> Option<&Tensor> {
        // What was converted to it stands right before it.
        let before = self.0.partition_point(|(other, _)| *other >= leaf);
        self.0.get(before).filter(|(other, _)| other.became(leaf)).map(|(_, tensor)| tensor)
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
    use crate::autograd::GradEdge;
    use crate::runtime::Runtime;

    #[test]
    fn a_gradient_of_what_a_leaf_was_is_found_wherever_it_stands() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let id = |leaf: &Tensor| match leaf.grad_edge() {
            Some(GradEdge::Leaf(id)) => *id,
            _ => panic!("a leaf"),
        };
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
                assert_eq!(list.remove_latest(latest).unwrap_err(), DType::F32);
                list.remove(id(leaf));
                assert_eq!(list.remove_latest(latest).unwrap().is_some(), with_latest);
                assert_eq!(list.len(), 2);
                for (other, latest) in latest_of_all.clone().enumerate() {
                    assert_eq!(list.remove_latest(latest).is_err(), other != at);
                }
            }
        }
    }

    #[test]
    fn leaves_are_found_and_told_in_their_order_however_they_came() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let leaf = || {
            let leaf = Tensor::ones(&device, 1).unwrap().requiring_grad().unwrap();
            let Some(GradEdge::Leaf(id)) = leaf.grad_edge().cloned() else { panic!("a leaf") };
            (id, leaf)
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
