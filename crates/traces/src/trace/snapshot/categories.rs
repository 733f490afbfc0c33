//! Infers the categories of a snapshot's blocks from their stacks and lifetimes.
//!
//! ```text
//! stacks ── site: the part of the program that allocated     blocks ── timeline: backward passes, optimizer steps
//!
//! allocated by      and                                       category
//! optimizer         outlives the step                         optimizer state
//! model             is made by a constructor or by `to`       parameter
//! backward pass     outlives the pass                         gradient
//! forward pass      is freed by a later backward pass         activation
//! other code        is live when the forward pass begins      input
//! ```
//!
//! All other blocks are temporary. PyTorch runs the backward pass of a GPU on a thread without Python frames, so an
//! empty stack is evidence of that pass.

use bfc_core::Category;
use rustc_hash::FxHashSet;

use super::collect::Life;
use super::stacks::{NONE, Stacks};

mod earlier;
mod site;
#[cfg(test)]
mod tests;
mod timeline;

use site::{Part, Site, Sites};
use timeline::{NEVER, Timeline};

/// The bytes of workspaces that cuBLAS keeps for the rest of the run: the default of most GPUs, and that of Hopper.
const WORKSPACES: [u64; 2] = [8_519_680, 33_554_432];

/// The most blocks whose stacks are compared by their texts.
const MOST_COMPARED: usize = 1000;

/// The least allocations of a forward pass after an intermediate result, and their share of the pass, as a divisor.
const LEAST_LATER_OPS: usize = 8;
const LATER_SHARE: usize = 4;

/// Returns the category of each block. `lives` has the blocks that are older than the first event first, and then the
/// others in the order of their allocation.
pub(super) fn categories(lives: &[Life], stacks: &Stacks) -> Vec<Category> {
    let mut categories = vec![Category::Temporary; lives.len()];
    if stacks.len() == 0 {
        return categories;
    }
    let sites = Sites::of(stacks);
    let count = lives.iter().take_while(|life| life.born.is_none()).count();
    let (earlier, born) = lives.split_at(count);
    let mut inference = Inference {
        timeline: Timeline::of(born, &sites),
        knows_frees: has_stacks_of_frees(lives, stacks),
        sites: &sites,
        parameter_sizes: parameter_sizes(lives, &sites),
        gradient_sizes: FxHashSet::default(),
    };
    let (of_earlier, of_born) = categories.split_at_mut(count);
    // Sizes of gradients are evidence for other blocks.
    for (life, category) in born.iter().zip(&mut *of_born) {
        if inference.sites.of_block(life).part == Part::Backward {
            *category = inference.of_backward(life);
            if *category == Category::Gradient && inference.outlives_pass(life) {
                inference.gradient_sizes.insert(life.requested);
            }
        }
    }
    for (life, category) in born.iter().zip(&mut *of_born) {
        if inference.sites.of_block(life).part != Part::Backward {
            *category = inference.of_block(life);
        }
    }
    earlier::categories(&inference, earlier, born, of_born, of_earlier);
    categories
}

/// Returns whether a file has the stacks of frees. PyTorch can write the stack of the allocation instead.
fn has_stacks_of_frees(lives: &[Life], stacks: &Stacks) -> bool {
    let other = lives.iter().filter(|life| life.freed_stack != NONE && life.freed_stack != life.stack);
    // Equal stacks of a file in JSON can have different numbers.
    let mut other = other.take(MOST_COMPARED);
    other.any(|life| stacks.lines(life.freed_stack).ne(stacks.lines(life.stack)))
}

/// Returns the sizes of blocks that are probably parameters.
fn parameter_sizes(lives: &[Life], sites: &Sites) -> FxHashSet<u64> {
    let is_parameter = |life: &&Life| {
        let is_old = life.born.is_none() && life.freed.is_none() && life.stack == NONE;
        is_old || sites.of_block(life).part == Part::Model
    };
    lives.iter().filter(is_parameter).map(|life| life.requested).collect()
}

/// The evidence for the category of a block.
struct Inference<'a> {
    sites: &'a Sites,
    timeline: Timeline,
    /// Whether the file has the stacks of frees.
    knows_frees: bool,
    parameter_sizes: FxHashSet<u64>,
    gradient_sizes: FxHashSet<u64>,
}

impl Inference<'_> {
    /// Returns whether the program freed a block, not the engine of the backward pass; `None` if that is unknown.
    fn freed_by_program(&self, life: &Life) -> Option<bool> {
        (self.knows_frees && life.freed.is_some()).then(|| !self.sites.of_stack(life.freed_stack).is_engine)
    }

    fn has_size_of_parameter(&self, life: &Life) -> bool {
        self.parameter_sizes.contains(&life.requested) || self.gradient_sizes.contains(&life.requested)
    }

    /// Returns whether a block outlives the complete backward pass that allocated it.
    fn outlives_pass(&self, life: &Life) -> bool {
        let pass = self.timeline.passes.containing(born(life));
        pass.is_some_and(|pass| pass.end != NEVER && freed(life) >= pass.end)
    }

    /// Returns whether a block is a workspace that a library keeps.
    fn is_workspace(&self, life: &Life, site: Site) -> bool {
        let is_kept = || {
            let born = born(life);
            life.freed.is_none()
                && WORKSPACES.contains(&life.requested)
                && !self.parameter_sizes.contains(&life.requested)
                && self.timeline.passes.any_ends_after(born)
        };
        site.is_workspace || is_kept()
    }

    /// Returns the category of a block that the backward pass allocated.
    fn of_backward(&self, life: &Life) -> Category {
        let site = self.sites.of_block(life);
        let Some(pass) = self.timeline.passes.containing(born(life)) else { return Category::Temporary };
        if self.is_workspace(life, site) {
            return Category::Workspace;
        }
        let freed = freed(life);
        let is_gradient = if site.is_root {
            false
        } else if freed >= pass.end {
            pass.end != NEVER || self.has_size_of_parameter(life)
        } else if self.timeline.backwards.any_in(freed, pass.end) {
            // Freed in the middle of the pass. An optimizer that runs inside of it frees gradients there.
            self.has_size_of_parameter(life) && self.timeline.engine_steps.any_in(born(life), freed)
        } else {
            // Freed after the last allocation of the pass: by the program, if that sets gradients to `None`.
            self.freed_by_program(life).unwrap_or_else(|| self.has_size_of_parameter(life))
        };
        if is_gradient { Category::Gradient } else { Category::Temporary }
    }

    /// Returns the category of a block that another part of the program allocated after the first event.
    fn of_block(&self, life: &Life) -> Category {
        let site = self.sites.of_block(life);
        match site.part {
            _ if self.is_workspace(life, site) => Category::Workspace,
            Part::Optimizer => self.of_optimizer(life, site),
            Part::Model => Category::Parameter,
            Part::Data => Category::Input,
            Part::Other if !site.is_engine && self.is_own_parameter(life) => Category::Parameter,
            Part::Other if !site.is_engine && self.is_input(life, site) => Category::Input,
            Part::Forward | Part::Other if self.is_activation(life, site) => Category::Activation,
            Part::Forward if site.is_cache => Category::Cache,
            _ => Category::Temporary,
        }
    }

    fn of_optimizer(&self, life: &Life, site: Site) -> Category {
        let phases = if site.is_engine { &self.timeline.passes } else { &self.timeline.steps };
        let end = phases.containing(born(life)).map_or(NEVER, |phase| phase.end);
        let outlives = freed(life) >= end;
        // At the end of the file a step may be incomplete. Then its temporary blocks are live.
        let is_state = outlives && (end != NEVER || site.is_initial) || site.is_engine && site.is_initial;
        if is_state { Category::OptimizerState } else { Category::Temporary }
    }

    /// Returns whether a block is a parameter that the program made without a module.
    fn is_own_parameter(&self, life: &Life) -> bool {
        life.freed.is_none()
            && self.gradient_sizes.contains(&life.requested)
            && self.timeline.passes.any_ends_after(born(life))
            && self.timeline.before_first_forward(born(life))
    }

    /// Returns whether a block is live when the forward pass begins.
    fn is_input(&self, life: &Life, site: Site) -> bool {
        let (timeline, born, freed) = (&self.timeline, born(life), freed(life));
        let is_first = timeline.last_forward(born) <= timeline.last_end(born);
        let next_pass = timeline.passes.next_begin(born);
        match timeline.forwards.next(born) {
            Some(forward) if forward < freed && next_pass.is_none_or(|pass| forward < pass) => {
                // Between two forward passes only copies are clear evidence, if the stacks show them.
                is_first || !self.is_activation(life, site) && (site.is_copy || !self.sites.show_copies)
            }
            Some(_) => false,
            // The file ends before the forward pass.
            None => next_pass.is_none() && life.freed.is_none() && is_first,
        }
    }

    /// Returns whether a backward pass needs a block of the forward pass.
    fn is_activation(&self, life: &Life, site: Site) -> bool {
        let (timeline, born, freed) = (&self.timeline, born(life), freed(life));
        if site.is_engine {
            // The backward pass of a checkpoint computes it again. The rest of the pass needs it.
            let pass = timeline.passes.containing(born);
            let next = timeline.backwards.next(born).unwrap_or(NEVER);
            return pass.is_some_and(|pass| next < freed && freed <= pass.end);
        }
        let Some(next) = timeline.passes.next_begin(born) else {
            let is_training = !timeline.passes.is_empty() || !site.is_cache;
            return is_training
                && life.freed.is_none()
                && site.part == Part::Forward
                && timeline.ends_in_training;
        };
        if life.freed.is_none() && !timeline.passes.any_ends_after(born) {
            // Live when the file ends, inside of the backward pass that would free it.
            return site.part == Part::Forward;
        }
        let in_pass = timeline.passes.containing(freed).is_some_and(|pass| pass.begin >= next);
        if in_pass && self.freed_by_program(life) != Some(true) {
            return true;
        }
        // The program holds it longer than autograd does. Attention saves the keys and values that a cache holds too.
        site.is_cache || site.part == Part::Forward && self.is_intermediate(life, next)
    }

    /// Returns whether the forward pass goes on for long after a block that the program holds until the next step. Then
    /// the block is an operand of later ops, which save it. Outputs of the model come last.
    fn is_intermediate(&self, life: &Life, pass: u32) -> bool {
        let (timeline, born) = (&self.timeline, born(life));
        let begin = timeline.last_end(born).unwrap_or(0);
        let (all, later) = (timeline.forwards.count_in(begin, pass), timeline.forwards.count_in(born, pass));
        // A step can have two passes, such as those of a generator and of its discriminator.
        let next_but_one = timeline.passes.next_begin(pass).and_then(|next| timeline.passes.next_begin(next));
        let is_of_step = next_but_one.is_none_or(|next| freed(life) < next);
        freed(life) > pass && is_of_step && later >= LEAST_LATER_OPS.max(all / LATER_SHARE)
    }
}

/// Returns the step that allocated a block; 0 for one that is older.
fn born(life: &Life) -> u32 {
    life.born.unwrap_or(0)
}

/// Returns the step that freed a block, or [`NEVER`].
fn freed(life: &Life) -> u32 {
    life.freed.unwrap_or(NEVER)
}
