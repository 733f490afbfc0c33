//! Runs the blocks of a chain as the active recomputations say.

use std::ops::{Deref, Range};
use std::sync::Arc;

use bfc_core::OwnerId;
use highwater_tensor::{Error, Result, Tensor, checkpoint};

use super::active::Active;
use super::observe;
use super::recomputation::Segment;

/// Computes the output of a block.
pub(crate) type Forward<B> = fn(&B, Input<'_>) -> Result<Tensor>;

/// The input of a block.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// The result of the previous block. The block drops it as soon as it can.
    Owned(Tensor),
    Borrowed(&'a Tensor),
}

impl<'a> Input<'a> {
    /// The result of the previous block, or else the input of the chain.
    pub(crate) fn new(result: Option<Tensor>, x: &'a Tensor) -> Self {
        result.map_or(Self::Borrowed(x), Self::Owned)
    }
}

impl Deref for Input<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        match self {
            Self::Owned(x) => x,
            Self::Borrowed(x) => x,
        }
    }
}

/// Runs the blocks of the chain at `path` if there is an active recomputation for it, or an observer measures it. Returns `None`
/// otherwise: then the caller runs the blocks.
///
/// # Errors
/// [`Error::BadArgument`] if the recomputation has another number of blocks; the errors of `forward`.
#[inline]
pub(crate) fn run<B: Clone + Send + Sync + 'static>(
    path: Option<OwnerId>,
    x: &Tensor,
    blocks: impl FnOnce() -> Vec<B>,
    forward: Forward<B>,
) -> Result<Option<Tensor>> {
    if !Active::is_any() {
        return Ok(None);
    }
    match path {
        Some(path) => run_active(path, x, blocks(), forward),
        None => Ok(None),
    }
}

fn run_active<B: Clone + Send + Sync + 'static>(
    path: OwnerId,
    x: &Tensor,
    blocks: Vec<B>,
    forward: Forward<B>,
) -> Result<Option<Tensor>> {
    let active = Active::now();
    let count = blocks.len();
    let chain = Blocks { blocks: blocks.into(), forward };
    if let Some(observer) = &active.observer
        && observer.measures(path, count)
    {
        return observe::measure(path, &active, observer, &chain, x).map(Some);
    }
    let path = &path.path();
    let Some(recomputation) = active.chains.as_ref().and_then(|chains| chains.recomputation(path)) else {
        return Ok(None);
    };
    if recomputation.blocks() != count {
        let (op, argument) = ("recompute", "recomputation");
        let expected = "for as many blocks as the chain has";
        let chain = if path.is_empty() { "the model" } else { path };
        let got = format!("{} blocks for the {count} of {chain}", recomputation.blocks());
        return Err(Error::BadArgument { op, argument, expected, got });
    }
    chain.run_segments(recomputation.segments(), 0, &active, x).map(Some)
}

/// The blocks of a chain. Clones share them.
pub(super) struct Blocks<B> {
    blocks: Arc<[B]>,
    forward: Forward<B>,
}

impl<B> Clone for Blocks<B> {
    fn clone(&self) -> Self {
        Self { blocks: Arc::clone(&self.blocks), forward: self.forward }
    }
}

impl<B: Send + Sync + 'static> Blocks<B> {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Runs these blocks. Drops each result as soon as the next one exists, unless backward needs it.
    pub(super) fn run(&self, range: Range<usize>, x: Input<'_>) -> Result<Tensor> {
        let mut x = x;
        for block in self.blocks.get(range).unwrap_or_default() {
            x = Input::Owned((self.forward)(block, x)?);
        }
        Ok(match x {
            Input::Owned(y) => y,
            Input::Borrowed(x) => x.clone(),
        })
    }

    /// Runs the blocks of these segments, which begin at the block `first`.
    fn run_segments(
        &self,
        segments: &[Segment],
        mut first: usize,
        active: &Active,
        x: &Tensor,
    ) -> Result<Tensor> {
        let mut x = Input::Borrowed(x);
        for segment in segments {
            let y = match segment {
                Segment::Keep => self.run(first..first + 1, x)?,
                Segment::Again(segments) => {
                    let (chain, segments, active) = (self.clone(), segments.clone(), active.clone());
                    // The second run uses the recomputations of the first for chains inside the blocks.
                    checkpoint(&x, move |x| {
                        let _active = active.clone().enter();
                        chain.run_segments(&segments, first, &active, x)
                    })?
                }
            };
            first += segment.blocks();
            x = Input::Owned(y);
        }
        self.run(0..0, x)
    }
}
