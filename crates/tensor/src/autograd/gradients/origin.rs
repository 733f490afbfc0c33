//! Training with several processes: which of them a gradient includes.
//!
//! A gradient without an entry is the same on all processes, or there is only one. The other gradients are parts of a
//! mean over all processes.

use std::collections::BTreeMap;

use super::Gradients;
use super::sum::{make_writable, scale};
use crate::autograd::Parameter;
use crate::error::{Error, Result};
use crate::storage::leaf::LeafId;
use crate::tensor::Tensor;

/// The processes that a gradient includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// This process only. The others have their own gradients.
    Local,
    /// All processes, and only this one has the gradient.
    Owned {
        /// The number of processes.
        processes: usize,
    },
}

/// The origins by the identity of the leaf. They outlive a gradient that is taken, until another one takes its place.
#[derive(Debug, Default)]
pub(super) struct Origins(BTreeMap<u64, Origin>);

impl Origins {
    pub(super) fn get(&self, leaf: LeafId) -> Option<Origin> {
        self.0.get(&leaf.identity()).copied()
    }

    pub(super) fn set(&mut self, leaf: LeafId, origin: Option<Origin>) {
        match origin {
            Some(origin) => drop(self.0.insert(leaf.identity(), origin)),
            None => drop(self.0.remove(&leaf.identity())),
        }
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Moves the origins of these leaves to a new value.
    pub(super) fn split_off(&mut self, leaves: impl Iterator<Item = LeafId>) -> Self {
        if self.0.is_empty() {
            return Self::default();
        }
        Self(leaves.filter_map(|leaf| self.0.remove_entry(&leaf.identity())).collect())
    }
}

/// The sum of two gradients.
pub(super) struct Sum {
    /// The factors of both before the addition.
    pub(super) factors: [f64; 2],
    pub(super) origin: Option<Origin>,
}

impl Sum {
    /// Returns how to add two gradients. A sum with a local gradient is local: the mean of such sums over all processes
    /// is the whole gradient. There, a gradient that only its owner has counts once per process.
    pub(super) fn of(origins: [Option<Origin>; 2]) -> Self {
        if !origins.contains(&Some(Origin::Local)) {
            return Self { factors: [1.0; 2], origin: origins[0].or(origins[1]) };
        }
        Self { factors: origins.map(factor), origin: Some(Origin::Local) }
    }
}

/// The factor of a gradient in a mean over all processes.
fn factor(origin: Option<Origin>) -> f64 {
    match origin {
        Some(Origin::Owned { processes }) => processes as f64,
        Some(Origin::Local) | None => 1.0,
    }
}

/// # Training with several processes
impl Gradients {
    /// Returns whether a gradient of a parameter includes only this process, although a [hook](crate::GradientHook) sums
    /// the gradients of all processes. The optimizer sums such gradients before it steps.
    #[must_use]
    pub fn has_local(&self) -> bool {
        self.origins_of_present().any(|origin| origin == Origin::Local)
    }

    /// Returns whether the gradient of this parameter includes only this process. See [`has_local`](Self::has_local).
    #[must_use]
    pub fn is_local(&self, parameter: &Parameter) -> bool {
        let leaf = parameter.leaf().filter(|leaf| self.has(*leaf));
        leaf.and_then(|leaf| self.origins.get(leaf)) == Some(Origin::Local)
    }

    /// Sets the gradient of a parameter to the mean over `processes` processes, which only this one has.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    #[doc(hidden)]
    pub fn insert_owned(&mut self, parameter: &Parameter, gradient: Tensor, processes: usize) -> Result<()> {
        self.insert(parameter, gradient)?;
        if let Some(leaf) = parameter.leaf() {
            self.origins.set(leaf, Some(Origin::Owned { processes }));
        }
        Ok(())
    }

    /// Removes the gradient of a parameter, and returns what this process adds to the mean over all processes.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the allocation of a copy of a shared buffer fails. The gradient is lost then.
    #[doc(hidden)]
    pub fn take_part_of_mean(&mut self, parameter: &Parameter) -> Result<Option<Tensor>> {
        let Some(leaf) = parameter.leaf() else { return Ok(None) };
        let factor = factor(self.origins.get(leaf));
        let Some(mut gradient) = self.remove(leaf) else { return Ok(None) };
        make_writable(&mut gradient)?;
        scale(&mut gradient, factor)?;
        Ok(Some(gradient))
    }

    /// Returns the origins of the gradients that have one.
    fn origins_of_present(&self) -> impl Iterator<Item = Origin> {
        let gradients = (!self.origins.0.is_empty()).then(|| self.by_leaf.iter());
        gradients.into_iter().flatten().filter_map(|(leaf, _)| self.origins.get(leaf))
    }

    /// Marks the gradient of a leaf as one of this process only.
    pub(in crate::autograd) fn mark_local(&mut self, leaf: LeafId) {
        if self.has(leaf) {
            self.origins.set(leaf, Some(Origin::Local));
        }
    }

    /// Checks that each gradient includes all processes.
    pub(super) fn check_not_local(&self, op: &'static str) -> Result<()> {
        if self.has_local() {
            return Err(incomplete(op, "gradients of this process only, from `no_sync`"));
        }
        Ok(())
    }

    /// Checks that this process has the gradients of all processes.
    pub(super) fn check_whole(&self, op: &'static str) -> Result<()> {
        self.check_not_local(op)?;
        if self.origins_of_present().next().is_some() {
            return Err(incomplete(op, "only those of this process's own parameters"));
        }
        Ok(())
    }
}

#[cold]
fn incomplete(op: &'static str, got: &str) -> Error {
    let expected = "those of all processes: call `clip_norm` or `sync_gradients` of the optimizer";
    Error::BadArgument { op, argument: "gradients", expected, got: got.to_owned() }
}
