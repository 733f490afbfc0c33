//! The recomputations of a model.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bfc_core::{ThreadScopedGuard, printable};
use serde::{Deserialize, Serialize};

use super::active::{ACTIVE, Active};
use super::recomputation::Recomputation;

/// The recomputations of a model, by the path of each chain. Other chains run plainly, as all chains do by default.
///
/// The path of a [`Sequential`](crate::modules::Sequential) is its own; the path of the model itself is empty. The path
/// of a `Vec` of blocks in [`chain`](crate::modules::chain) is the name of the field, such as `blocks`.
///
/// ```
/// use highwater::{Device, Rng, Tensor};
/// use highwater::nn::recompute::{Recompute, Recomputation};
/// use highwater::nn::{Module, Sequential, TransformerBlock};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let mut blocks = Sequential::new();
/// for layer in 0..4 {
///     blocks = blocks.with(&format!("block{layer}"), TransformerBlock::new(&device, 32, 4, &rng)?.causal());
/// }
/// let model = Sequential::new().with("blocks", blocks);
///
/// // The first three blocks run again in the backward pass.
/// let recompute = Recompute::new().with("blocks", Recomputation::of_blocks(4, 0..3));
/// let guard = recompute.enter();
/// let loss = model.forward(&Tensor::ones(&device, [2, 10, 32])?)?.square()?.mean_all()?;
/// assert_eq!(loss.backward()?.len(), model.parameters().len());
/// assert!(guard.unused().is_empty());
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Recompute {
    recomputations: BTreeMap<String, Recomputation>,
}

impl Recompute {
    /// Returns the default: no block runs again.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how a step recomputes blocks of the chain at `path`.
    #[must_use]
    pub fn with(mut self, path: impl Into<String>, recomputation: Recomputation) -> Self {
        self.recomputations.insert(path.into(), recomputation);
        self
    }

    /// Whether no block runs again.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.recomputations.values().all(Recomputation::is_plain)
    }

    /// Returns the recomputations with their paths, by path.
    pub fn recomputations(&self) -> impl Iterator<Item = (&str, &Recomputation)> {
        self.recomputations.iter().map(|(path, recomputation)| (path.as_str(), recomputation))
    }

    /// Applies the recomputations to forward passes on this thread until the guard is dropped. The innermost guard counts, for
    /// all chains.
    ///
    /// The backward pass uses the recomputations of its forward pass, with or without a guard.
    pub fn enter(&self) -> RecomputeGuard {
        let chains = self.recomputations.iter().map(|(path, recomputation)| {
            (path.clone(), Chain { recomputation: recomputation.clone(), used: AtomicBool::new(false) })
        });
        let chains = Arc::new(ActiveChains { chains: chains.collect() });
        let active = Active::now().with_chains(Arc::clone(&chains));
        RecomputeGuard { chains, _active: active.enter() }
    }
}

/// The paths and recomputations of the chains that run blocks again: `decoder: 4 (3); block0–5: (1) 2`. Numbered neighbors with
/// equal recomputations share an entry.
impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_plain() {
            return f.pad("no recomputation");
        }
        let chains = self.recomputations.iter().filter(|(_, recomputation)| !recomputation.is_plain());
        let mut chains: Vec<_> =
            chains.map(|(path, recomputation)| (NumberedPath::new(path), recomputation)).collect();
        chains.sort_by_key(|(path, _)| *path);
        let groups = chains.chunk_by(|(a, one), (b, other)| one == other && a.is_before(b));
        for (number, group) in groups.enumerate() {
            let ([(first, recomputation), ..], [.., (last, _)]) = (group, group) else { continue };
            write!(f, "{}{}: {recomputation}", if number > 0 { "; " } else { "" }, first.to(last))?;
        }
        Ok(())
    }
}

/// A path with its last number, such as `layers.12.mlp`. The order is that of the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NumberedPath<'a> {
    before: &'a str,
    after: &'a str,
    number: Option<u64>,
    digits: &'a str,
}

impl<'a> NumberedPath<'a> {
    fn new(path: &'a str) -> Self {
        let is_other = |letter: char| !letter.is_ascii_digit();
        let end = path.trim_end_matches(is_other).len();
        let (path, after) = path.split_at(end);
        let (before, digits) = path.split_at(path.trim_end_matches(|letter| !is_other(letter)).len());
        Self { before, after, number: digits.parse().ok(), digits }
    }

    /// Whether the other path has the next number and is equal otherwise.
    fn is_before(&self, other: &Self) -> bool {
        let next = self.number.and_then(|number| number.checked_add(1));
        (self.before, self.after) == (other.before, other.after) && next.is_some() && next == other.number
    }

    /// Writes the paths from this one to a later one.
    fn to(&self, last: &Self) -> String {
        let Self { before, after, digits, .. } = self;
        match (before.is_empty() && digits.is_empty() && after.is_empty(), digits == &last.digits) {
            (true, _) => "(model)".to_owned(),
            (false, true) => printable(format!("{before}{digits}{after}")).to_string(),
            (false, false) => printable(format!("{before}{digits}–{}{after}", last.digits)).to_string(),
        }
    }
}

/// Ends the recomputations on this thread when it is dropped, also after a panic. See [`Recompute::enter`].
///
/// Dropping a guard ends all guards that were made within it. So guards may be dropped in any order.
#[must_use = "dropping the guard ends the recomputations"]
#[derive(Debug)]
pub struct RecomputeGuard {
    chains: Arc<ActiveChains>,
    _active: ThreadScopedGuard<ACTIVE>,
}

impl RecomputeGuard {
    /// Returns the paths with a recomputation at which no chain has run so far. After a step, these are paths that the model
    /// does not have.
    #[must_use]
    pub fn unused(&self) -> Vec<String> {
        let unused = self.chains.chains.iter().filter(|(_, chain)| !chain.used.load(Ordering::Relaxed));
        unused.map(|(path, _)| path.clone()).collect()
    }
}

/// The recomputations that a guard applies.
#[derive(Debug)]
pub(super) struct ActiveChains {
    chains: BTreeMap<String, Chain>,
}

#[derive(Debug)]
struct Chain {
    recomputation: Recomputation,
    /// Whether a chain has run at this path.
    used: AtomicBool,
}

impl ActiveChains {
    /// Returns the recomputation of the chain at `path`, which runs now.
    pub(super) fn recomputation(&self, path: &str) -> Option<&Recomputation> {
        let chain = self.chains.get(path)?;
        chain.used.store(true, Ordering::Relaxed);
        Some(&chain.recomputation)
    }
}
