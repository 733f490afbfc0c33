//! Activation checkpointing of modules.

use std::fmt;
use std::sync::Arc;

use highwater_tensor::{Result, Tensor, checkpoint};

use super::linear::Linear;
use super::module;
use super::module::Module;
use super::parts::{PartVisitor, Parts};

/// Activation checkpointing: runs the module again in the backward pass instead of storing its activations. See
/// [`checkpoint`].
///
/// The paths of the parameters do not change.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::{Checkpointed, Module, Sequential, TransformerBlock};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let mut blocks = Sequential::new();
/// for layer in 0..4 {
///     let block = TransformerBlock::new(&device, 32, 4, &rng)?.causal();
///     blocks = blocks.with(&format!("block{layer}"), Checkpointed::new(block));
/// }
/// let loss = blocks.forward(&Tensor::ones(&device, [2, 10, 32])?)?.square()?.mean_all()?;
/// assert_eq!(loss.backward()?.len(), blocks.parameters().len());
/// # Ok::<(), highwater::Error>(())
/// ```
pub struct Checkpointed<M> {
    // The graph also holds the module until backward has finished.
    module: Arc<M>,
}

impl<M: Module + 'static> Checkpointed<M> {
    /// Wraps a module.
    #[must_use]
    pub fn new(module: M) -> Self {
        Self { module: Arc::new(module) }
    }

    /// Returns the wrapped module.
    #[must_use]
    pub fn get(&self) -> &M {
        &self.module
    }
}

impl<M: Module + 'static> Parts for Checkpointed<M> {
    fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
        self.module.visit_parts(visitor);
    }
}

#[module]
impl<M: Module + 'static> Module for Checkpointed<M> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let module = Arc::clone(&self.module);
        checkpoint(x, move |x| module.forward(x))
    }

    fn as_linear(&self) -> Option<&Linear> {
        self.module.as_linear()
    }

    // Clones share the module.
    fn identity(&self) -> (usize, &'static str) {
        self.module.identity()
    }
}

impl<M> Clone for Checkpointed<M> {
    fn clone(&self) -> Self {
        Self { module: Arc::clone(&self.module) }
    }
}

impl<M: fmt::Debug> fmt::Debug for Checkpointed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Checkpointed").field(&self.module).finish()
    }
}
