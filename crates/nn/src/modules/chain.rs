//! Blocks of a user's module in sequence.

use bfc_core::OwnerId;
use highwater_tensor::{Result, Tensor};

use super::module::Module;
use super::parts::PartVisitor;
use super::unchanged;
use crate::recompute;

/// Applies blocks in sequence, as `blocks.iter().try_fold(x, |x, block| block.forward(&x))`. The
/// [recomputation](crate::recompute) of the chain can let blocks run again in the backward pass.
///
/// The path of the chain is that of the field with the blocks: the part of the first block's path before its last name.
/// Graphs of parts that run again hold clones of the blocks. A clone of a module shares its parameters; a block with much
/// other data fits into an [`Arc`](std::sync::Arc).
///
/// ```
/// use highwater::nn::recompute::{Recompute, Recomputation};
/// use highwater::nn::{Linear, Module, TransformerBlock, chain, module};
/// use highwater::{Device, Result, Rng, Tensor};
///
/// #[derive(Debug, Module)]
/// struct Encoder {
///     blocks: Vec<TransformerBlock>,
///     head: Linear,
/// }
///
/// #[module]
/// impl Module for Encoder {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.head.forward(&chain(&self.blocks, x)?)
///     }
/// }
///
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let blocks = (0..3).map(|_| TransformerBlock::new(&device, 16, 2, &rng)).collect::<Result<_>>()?;
/// let model = Encoder { blocks, head: Linear::new(&device, 16, 4, &rng)? };
/// let recompute = Recompute::new().with("blocks", Recomputation::of_blocks(3, [0, 1]));
/// let guard = recompute.enter();
/// let loss = model.forward(&Tensor::ones(&device, [2, 5, 16])?)?.square()?.mean_all()?;
/// assert_eq!(loss.backward()?.len(), model.parameters().len());
/// assert!(guard.unused().is_empty());
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// The errors of the blocks, and [`Error::BadArgument`](highwater_tensor::Error::BadArgument) if the recomputation of the
/// chain has another number of blocks.
pub fn chain<M: Module + Clone + 'static>(blocks: &[M], x: &Tensor) -> Result<Tensor> {
    if let Some(y) = recompute::run(path(blocks), x, || blocks.to_vec(), |block, x| block.forward(&x))? {
        return Ok(y);
    }
    let mut result = None;
    for block in blocks {
        result = Some(block.forward(result.as_ref().unwrap_or(x))?);
    }
    Ok(result.unwrap_or_else(|| unchanged(x)))
}

/// As [`chain`], for blocks that need more than the result of the block before: `forward` also gets `context`, such as a mask.
/// It drops `x` after the first block. Graphs of parts that run again hold clones of it.
///
/// ```
/// use highwater::nn::{Linear, Module, chain_with, module};
/// use highwater::{Device, Result, Rng, Tensor};
///
/// #[derive(Debug, Module)]
/// struct Gated {
///     blocks: Vec<Linear>,
/// }
///
/// #[module]
/// impl Gated {
///     fn forward_with(&self, x: &Tensor, gate: &Tensor) -> Result<Tensor> {
///         chain_with(&self.blocks, x.clone(), gate, |block, x, gate| block.forward(x)?.mul(gate))
///     }
/// }
///
/// #[module]
/// impl Module for Gated {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.forward_with(x, &Tensor::ones(x.device(), [1])?)
///     }
/// }
///
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let model = Gated { blocks: (0..3).map(|_| Linear::new(&device, 4, 4, &rng)).collect::<Result<_>>()? };
/// let x = Tensor::ones(&device, [2, 4])?;
/// assert_eq!(model.forward_with(&x, &Tensor::zeros(&device, [2, 1])?)?.to_vec::<f32>()?, [0.0; 8]);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// See [`chain`].
pub fn chain_with<M: Module + Clone + 'static, C: Clone + Send + Sync + 'static>(
    blocks: &[M],
    mut x: Tensor,
    context: &C,
    forward: fn(&M, &Tensor, &C) -> Result<Tensor>,
) -> Result<Tensor> {
    let parts = || blocks.iter().map(|block| (block.clone(), context.clone(), forward)).collect();
    let run =
        recompute::run(path(blocks), &x, parts, |(block, context, forward), x| forward(block, &x, context))?;
    if let Some(y) = run {
        return Ok(y);
    }
    for block in blocks {
        x = forward(block, &x, context)?;
    }
    Ok(x)
}

/// Returns the path of a chain.
fn path<M: Module>(blocks: &[M]) -> Option<OwnerId> {
    PartVisitor::path_of(|visitor| blocks.iter().take(1).for_each(|first| visitor.part("0", first)))
}
