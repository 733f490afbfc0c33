//! The result of a backward pass.

use self::by_leaf::ByLeaf;
pub(crate) use self::by_leaf::Cursor;
use crate::shape::DType;
use crate::storage::leaf::LeafId;
use crate::tensor::Tensor;

mod by_leaf;
mod clip;
mod split;
mod sum;
mod unknown;
mod update;

/// The gradients that a backward pass computed, for each leaf that the loss depends on.
///
/// Between the backward pass and the step of an optimiser they can be summed over several passes
/// ([`accumulate`](Self::accumulate)), [scaled](Self::scale), clipped by their [norm](Self::clip_norm) or by
/// [value](Self::clip_value), and [divided](Self::split_off) among several optimisers.
#[derive(Debug, Default)]
pub struct Gradients {
    by_leaf: ByLeaf,
}

impl Gradients {
    /// The gradient of `leaf`; `None` if the loss does not depend on it or it is no leaf.
    #[must_use]
    pub fn get(&self, leaf: &Tensor) -> Option<&Tensor> {
        self.by_leaf.get(leaf.leaf()?)
    }

    /// Takes the gradient of `leaf` out, so that its memory is freed as soon as it was used.
    pub fn take(&mut self, leaf: &Tensor) -> Option<Tensor> {
        self.by_leaf.remove(leaf.leaf()?)
    }

    /// Under which leaf there is a gradient for a tensor, and that gradient. Where a walk has come to it is looked for first.
    ///
    /// # Errors
    /// The type of a gradient that is of what the tensor was before it was converted.
    #[inline]
    pub(crate) fn find(
        &self,
        leaf: &Tensor,
        cursor: &mut Cursor,
    ) -> std::result::Result<Option<(LeafId, &Tensor)>, DType> {
        let Some(leaf) = leaf.leaf() else { return Ok(None) };
        let found = self.by_leaf.find_latest(leaf, cursor)?;
        Ok(found.map(|gradient| (leaf, gradient)))
    }

    /// Where a walk from the smallest leaf on begins.
    pub(crate) const fn cursor(&self) -> Cursor {
        self.by_leaf.cursor()
    }

    /// The gradient of a leaf.
    pub(crate) fn of(&self, leaf: LeafId) -> Option<&Tensor> {
        self.by_leaf.get(leaf)
    }

    /// How many leaves have a gradient.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.by_leaf.len()
    }

    /// Whether no leaf has a gradient.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.by_leaf.is_empty()
    }

    /// All gradients as [`iter`](Self::iter) lists them, to be replaced by others of the same shape.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.by_leaf.iter_mut().map(|(_, gradient)| gradient)
    }

    /// All gradients, in the order in which their leaves were made; a parameter keeps its place when it is converted.
    pub fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.by_leaf.iter().map(|(_, gradient)| gradient)
    }

    pub(super) const fn by_leaf_mut(&mut self) -> &mut ByLeaf {
        &mut self.by_leaf
    }
}
