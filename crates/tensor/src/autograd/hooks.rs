//! Hooks that store the gradients of parameters in memory of their own, and receive each one once it is complete.
//!
//! Training with several processes uses them: a hook sums gradients over the processes while the backward pass
//! continues.
//!
//! A gradient is complete once no remaining node leads to its leaf. A pass visits nodes by descending number. So before
//! the pass, a search finds the node with the smallest number that leads to each leaf. A part that runs again
//! ([`checkpoint`](crate::checkpoint())) adds nodes with higher numbers, which the pass visits next.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bfc_core::Allocator;

use super::Parameter;
use super::gradients::Gradients;
use super::node::Node;
use crate::error::{Error, Result};
use crate::layout::bytes_of;
use crate::op::saved::Input;
use crate::op::{Destination, Saved};
use crate::storage::leaf::LeafId;
use crate::tensor::Tensor;
use crate::tensor::edge::GradEdge;

/// Receives the gradients of parameters during backward passes. See [`hook_gradients`].
pub trait GradientHook: fmt::Debug + Send + Sync {
    /// Starts a backward pass that leads to parameters of this hook. `None` leaves all gradients to the pass, which marks
    /// them as [local](Gradients::is_local).
    ///
    /// # Errors
    /// An error of the hook ends the pass.
    fn begin(&self) -> Result<Option<Box<dyn GradientPass>>>;
}

/// A backward pass as its hook sees it. Parameters are numbered in the order of [`hook_gradients`].
///
/// A pass that fails drops this value without [`finish`](Self::finish).
pub trait GradientPass {
    /// Returns the memory for a parameter's gradient, of the gradient's exact size; `None` for memory of the device's
    /// pool. The op that computes the gradient may write to it immediately: see
    /// [`OpContext::gradient`](crate::OpContext::gradient). The gradient may still lie elsewhere, for example if the op
    /// returns its input.
    ///
    /// # Errors
    /// An error of the hook ends the pass.
    fn place(&mut self, parameter: usize) -> Result<Option<Arc<dyn Allocator>>>;

    /// Takes the complete gradient of a parameter.
    ///
    /// # Errors
    /// An error of the hook ends the pass.
    fn ready(&mut self, parameter: usize, gradient: Tensor) -> Result<()>;

    /// Ends the pass. Returns the gradients, which the pass adds to its result.
    ///
    /// # Errors
    /// An error of the hook ends the pass.
    fn finish(self: Box<Self>) -> Result<Gradients>;
}

/// A parameter with a hook.
struct Hooked {
    hook: Arc<dyn GradientHook>,
    /// The parameter's number for the hook.
    parameter: usize,
}

/// The hooks of all parameters, by the leaf's identity.
static HOOKS: RwLock<Option<HashMap<u64, Hooked>>> = RwLock::new(None);

/// The number of parameters with a hook. Passes without hooks read only this.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Lets a hook receive the gradients of these parameters in all later backward passes, until the result is dropped.
///
/// # Errors
/// [`Error::BadArgument`] if a parameter already has a hook.
pub fn hook_gradients(parameters: &[&Parameter], hook: Arc<dyn GradientHook>) -> Result<HookGuard> {
    let leaves: Vec<u64> =
        parameters.iter().filter_map(|parameter| parameter.leaf()).map(LeafId::identity).collect();
    let mut hooks = HOOKS.write().unwrap_or_else(PoisonError::into_inner);
    let hooks = hooks.get_or_insert_default();
    let mut seen = HashSet::new();
    if let Some(at) = leaves.iter().position(|leaf| hooks.contains_key(leaf) || !seen.insert(*leaf)) {
        return Err(Error::BadArgument {
            op: "hook_gradients",
            argument: "parameters",
            expected: "without another hook",
            got: format!("{:?}, which has one", parameters[at]),
        });
    }
    for (parameter, leaf) in leaves.iter().enumerate() {
        hooks.insert(*leaf, Hooked { hook: Arc::clone(&hook), parameter });
    }
    COUNT.fetch_add(leaves.len(), Ordering::Relaxed);
    Ok(HookGuard { leaves })
}

/// Removes the hook of its parameters on drop.
#[derive(Debug)]
#[must_use = "the hook is removed when the guard is dropped"]
pub struct HookGuard {
    leaves: Vec<u64>,
}

impl Drop for HookGuard {
    fn drop(&mut self) {
        let mut hooks = HOOKS.write().unwrap_or_else(PoisonError::into_inner);
        let Some(hooks) = hooks.as_mut() else { return };
        for leaf in &self.leaves {
            hooks.remove(leaf);
        }
        COUNT.fetch_sub(self.leaves.len(), Ordering::Relaxed);
    }
}

/// The hooks of one backward pass.
pub(super) struct HookedPass {
    /// The hooks with their passes.
    passes: Vec<(Arc<dyn GradientHook>, Box<dyn GradientPass>)>,
    /// The leaves of the graph that have a hook.
    leaves: HashMap<LeafId, HookedLeaf>,
    /// The leaves whose gradient is not complete. The last one is complete first.
    open: Vec<LeafId>,
    /// The numbers of all nodes that were searched.
    seen: HashSet<u64>,
}

#[derive(Clone, Copy)]
struct HookedLeaf {
    /// The index of the pass; `None` if the hook leaves the gradient to the backward pass.
    pass: Option<usize>,
    /// The parameter's number for the hook.
    parameter: usize,
    /// The smallest number of the nodes that lead to the leaf.
    last_user: u64,
    is_complete: bool,
}

impl HookedPass {
    /// Finds the hooks of the graph; `None` if it has none.
    pub(super) fn begin(root: &GradEdge) -> Result<Option<Self>> {
        if COUNT.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let mut pass =
            Self { passes: Vec::new(), leaves: HashMap::new(), open: Vec::new(), seen: HashSet::new() };
        pass.search(root)?;
        Ok((!pass.leaves.is_empty()).then_some(pass))
    }

    /// Searches a graph for leaves with hooks.
    pub(super) fn search(&mut self, root: &GradEdge) -> Result<()> {
        let hooks = HOOKS.read().unwrap_or_else(PoisonError::into_inner);
        let Some(hooks) = hooks.as_ref() else { return Ok(()) };
        let mut found: Vec<(LeafId, u64)> = Vec::new();
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut visit = |edge: &GradEdge, from: u64, nodes: &mut Vec<Arc<Node>>| match edge {
            GradEdge::Leaf(leaf) => found.push((*leaf, from)),
            GradEdge::Node(node) => {
                if self.seen.insert(node.number) {
                    nodes.push(Arc::clone(node));
                }
            }
        };
        visit(root, u64::MAX, &mut nodes);
        while let Some(node) = nodes.pop() {
            node.visit(|edge| visit(edge, node.number, &mut nodes), |_| {});
        }
        for (leaf, user) in found {
            if let Some(known) = self.leaves.get_mut(&leaf) {
                known.last_user = known.last_user.min(user);
                continue;
            }
            let Some(Hooked { hook, parameter }) = hooks.get(&leaf.identity()) else { continue };
            let pass = match self.passes.iter().position(|(known, _)| Arc::ptr_eq(known, hook)) {
                Some(pass) => Some(pass),
                None => hook.begin()?.map(|pass| {
                    self.passes.push((Arc::clone(hook), pass));
                    self.passes.len() - 1
                }),
            };
            let leaf_of = HookedLeaf { pass, parameter: *parameter, last_user: user, is_complete: false };
            self.leaves.insert(leaf, leaf_of);
            self.open.push(leaf);
        }
        let leaves = &self.leaves;
        self.open.sort_by_key(|leaf| leaves.get(leaf).map(|leaf| (leaf.last_user, leaf.parameter)));
        Ok(())
    }

    /// Returns memory of the hooks for the gradients that an op is about to compute. Only for leaves without a gradient so
    /// far that are one input of the op: gradients of several inputs are added.
    pub(super) fn destinations(&mut self, saved: &Saved, gradients: &Gradients) -> Result<Vec<Destination>> {
        let mut destinations = Vec::new();
        for (number, input) in saved.inputs.iter().enumerate() {
            let Some(leaf) = input.edge.as_ref().and_then(GradEdge::leaf) else { continue };
            let Some(HookedLeaf { pass: Some(pass), parameter, .. }) = self.leaves.get(&leaf).copied() else {
                continue;
            };
            let is_leaf = |input: &&Input| input.edge.as_ref().and_then(GradEdge::leaf) == Some(leaf);
            if gradients.has(leaf) || saved.inputs.iter().filter(is_leaf).count() > 1 {
                continue;
            }
            let Some(bytes) = bytes_of(&input.shape, input.dtype) else { continue };
            if let Some(memory) = self.passes[pass].1.place(parameter)? {
                destinations.push(Destination { input: number, bytes, memory });
            }
        }
        Ok(destinations)
    }

    /// Checks that a leaf which receives a gradient is not complete yet.
    pub(super) fn check_open(&self, edge: &GradEdge) -> Result<()> {
        match edge.leaf().and_then(|leaf| self.leaves.get(&leaf)) {
            Some(leaf) if leaf.is_complete => Err(Error::LateGradient),
            _ => Ok(()),
        }
    }

    /// Passes on all gradients that are complete once the next node is `next`, or none remains.
    pub(super) fn advance(&mut self, next: Option<u64>, gradients: &mut Gradients) -> Result<()> {
        while let Some(leaf) = self.open.last().and_then(|leaf| self.leaves.get_mut(leaf)) {
            if next.is_some_and(|next| next >= leaf.last_user) {
                return Ok(());
            }
            leaf.is_complete = leaf.pass.is_some();
            let (pass, parameter) = (leaf.pass, leaf.parameter);
            let Some(id) = self.open.pop() else { return Ok(()) };
            let Some(pass) = pass else { continue };
            if let Some(gradient) = gradients.by_leaf_mut().remove(id) {
                self.passes[pass].1.ready(parameter, gradient)?;
            }
        }
        Ok(())
    }

    /// Ends the pass of each hook, and adds the gradients.
    pub(super) fn finish(mut self, gradients: &mut Gradients) -> Result<()> {
        self.advance(None, gradients)?;
        for (leaf, _) in self.leaves.iter().filter(|(_, leaf)| leaf.pass.is_none()) {
            gradients.mark_local(*leaf);
        }
        // In the order of their beginning, which all processes share.
        for (_, pass) in self.passes {
            gradients.extend(pass.finish()?);
        }
        Ok(())
    }
}
