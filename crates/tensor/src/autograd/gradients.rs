//! Gradients: the result of a backward pass.

pub(crate) use self::leaf_map::LeafCursor;
use self::leaf_map::LeafMap;
use self::origin::Origins;
use super::Parameter;
use crate::error::Result;
use crate::shape::DType;
use crate::storage::leaf::LeafId;
use crate::tensor::Tensor;

mod clip;
mod leaf_map;
mod origin;
mod split;
mod sum;
mod unknown;
mod update;

/// The gradients of a backward pass, one per leaf that the loss depends on.
///
/// Before an optimizer step, gradients can be
/// - summed over several passes ([`accumulate`](Self::accumulate)),
/// - [scaled](Self::scale),
/// - clipped by their [norm](Self::clip_norm) or by [value](Self::clip_value),
/// - [divided](Self::split_off) among several optimizers.
#[derive(Debug, Default)]
pub struct Gradients {
    by_leaf: LeafMap,
    /// Which processes the gradients include, in training with several.
    origins: Origins,
}

impl Gradients {
    /// Returns the gradient of `leaf`; `None` if it is not a leaf or the loss does not depend on it.
    #[must_use]
    pub fn get(&self, leaf: &Tensor) -> Option<&Tensor> {
        self.by_leaf.get(leaf.leaf()?)
    }

    /// Removes and returns the gradient of `leaf`, so that its memory is freed after its use. It may be changed and
    /// [inserted](Self::insert) again.
    pub fn take(&mut self, leaf: &Tensor) -> Option<Tensor> {
        self.by_leaf.remove(leaf.leaf()?)
    }

    /// Returns the leaf's identifier and gradient. The search starts at the cursor.
    ///
    /// # Errors
    /// The element type of the gradient, if it precedes a conversion of the tensor.
    #[inline]
    pub(crate) fn find(
        &self,
        leaf: &Tensor,
        cursor: &mut LeafCursor,
    ) -> std::result::Result<Option<(LeafId, &Tensor)>, DType> {
        let Some(leaf) = leaf.leaf() else { return Ok(None) };
        let found = self.by_leaf.find_latest(leaf, cursor)?;
        Ok(found.map(|gradient| (leaf, gradient)))
    }

    /// Returns a cursor for a search in the order of the leaves.
    pub(crate) const fn cursor(&self) -> LeafCursor {
        self.by_leaf.cursor()
    }

    /// Returns the number of leaves with a gradient.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.by_leaf.len()
    }

    /// Returns whether no leaf has a gradient.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.by_leaf.is_empty()
    }

    /// Iterates over all gradients in the order of [`iter`](Self::iter). The caller may replace each with a
    /// tensor of the same shape.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.by_leaf.iter_mut().map(|(_, gradient)| gradient)
    }

    /// Iterates over all gradients, ordered by the creation of their leaves. A conversion does not change the
    /// place of a parameter.
    pub fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.by_leaf.iter().map(|(_, gradient)| gradient)
    }

    /// Sets the gradient of a parameter, for instance to a changed one that was [taken](Self::take_of) before.
    ///
    /// In training with several processes, the new gradient includes the same processes as the one that it replaces, and all
    /// of them if there was none.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) and
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) if the gradient does not match the parameter.
    pub fn insert(&mut self, parameter: &Parameter, gradient: Tensor) -> Result<()> {
        parameter.check_gradient("insert_gradient", &gradient)?;
        if let Some(leaf) = parameter.leaf() {
            self.by_leaf.insert(leaf, gradient);
        }
        Ok(())
    }

    /// Returns whether a leaf has a gradient.
    pub(super) fn has(&self, leaf: LeafId) -> bool {
        self.by_leaf.get(leaf).is_some()
    }

    /// Adds the gradients of other leaves.
    pub(super) fn extend(&mut self, other: Self) {
        self.by_leaf.extend(other.by_leaf);
        self.origins.extend(other.origins);
    }

    /// Removes and returns the gradient of a leaf, and forgets which processes it includes.
    fn remove(&mut self, leaf: LeafId) -> Option<Tensor> {
        self.origins.set(leaf, None);
        self.by_leaf.remove(leaf)
    }

    pub(super) const fn by_leaf_mut(&mut self) -> &mut LeafMap {
        &mut self.by_leaf
    }
}
