//! The categories of blocks that are older than the first event.
//!
//! Most have no stack. In the middle of a training run those that stay live are the parameters, the state of the
//! optimizer and possibly the gradients. All of them have the sizes of parameters, so the number of blocks of each size
//! shows how many copies there are.

use bfc_core::Category;
use rustc_hash::FxHashMap;

use super::site::Part;
use super::{Inference, born};
use crate::trace::snapshot::collect::Life;
use crate::trace::snapshot::stacks::NONE;

/// The most copies of the parameters that are searched for.
const MOST_COPIES: usize = 8;

/// Writes the categories of earlier blocks. `born` has the other blocks, with their categories.
pub(super) fn categories(
    inference: &Inference<'_>,
    earlier: &[Life],
    born: &[Life],
    of_born: &[Category],
    categories: &mut [Category],
) {
    let mut frees_gradients = false;
    let mut kept = Vec::new();
    for (index, life) in earlier.iter().enumerate() {
        categories[index] = if life.stack != NONE {
            of_stack(inference, life, born.is_empty())
        } else if let Some(freed) = life.freed {
            let category = of_freed(inference, life, freed);
            frees_gradients |= category == Category::Gradient;
            category
        } else {
            kept.push(index);
            continue;
        }
    }
    kept.sort_unstable_by_key(|&index| (earlier[index].requested, earlier[index].address));
    let copies = Copies::of(inference, earlier, &kept, gradients(inference, born, of_born), frees_gradients);
    for equal in kept.chunk_by(|&one, &other| earlier[one].requested == earlier[other].requested) {
        let (parameters, gradients) = copies.of_size(earlier[equal[0]].requested, equal.len());
        // Programs make parameters first, and state in the first step after the first backward pass.
        for (place, &index) in equal.iter().enumerate() {
            categories[index] = match place {
                _ if place < parameters => Category::Parameter,
                _ if place < parameters + gradients => Category::Gradient,
                _ => Category::OptimizerState,
            };
        }
    }
}

/// Returns the category of a block whose allocation is no longer among the events, but has a stack.
fn of_stack(inference: &Inference<'_>, life: &Life, has_no_events: bool) -> Category {
    let site = inference.sites.of_block(life);
    match site.part {
        _ if site.is_workspace => Category::Workspace,
        Part::Optimizer => Category::OptimizerState,
        Part::Model => Category::Parameter,
        Part::Backward if !has_no_events || inference.has_size_of_parameter(life) => Category::Gradient,
        Part::Other if inference.gradient_sizes.contains(&life.requested) => Category::Parameter,
        Part::Data | Part::Other => Category::Input,
        Part::Forward if site.is_cache && inference.timeline.passes.is_empty() => Category::Cache,
        Part::Forward if has_no_events => Category::Activation,
        _ => Category::Temporary,
    }
}

/// Returns the category of a block without a stack that was freed.
fn of_freed(inference: &Inference<'_>, life: &Life, freed: u32) -> Category {
    let is_in_pass = inference.timeline.passes.containing(freed).is_some();
    let by_program = inference.freed_by_program(life) == Some(true);
    if inference.has_size_of_parameter(life) && (!is_in_pass || by_program) {
        Category::Gradient
    } else if is_in_pass && !by_program {
        Category::Activation
    } else {
        Category::Temporary
    }
}

/// Returns the largest number of gradients of each size that one backward pass leaves.
fn gradients(inference: &Inference<'_>, lives: &[Life], categories: &[Category]) -> FxHashMap<u64, usize> {
    let mut most: FxHashMap<u64, usize> = FxHashMap::default();
    let mut blocks = lives.iter().zip(categories).peekable();
    for pass in inference.timeline.passes.iter() {
        let mut counts: FxHashMap<u64, usize> = FxHashMap::default();
        while let Some((life, category)) = blocks.next_if(|(life, _)| born(life) < pass.end) {
            if *category == Category::Gradient {
                *counts.entry(life.requested).or_default() += 1;
            }
        }
        for (bytes, count) in counts {
            let entry = most.entry(bytes).or_default();
            *entry = count.max(*entry);
        }
    }
    most
}

/// The number of blocks that each parameter has.
struct Copies {
    /// The number of gradients of each size.
    gradients: FxHashMap<u64, usize>,
    /// All copies of a parameter, its gradient among them if that stays live.
    count: usize,
    keeps_gradients: bool,
    /// Whether the file shows no training.
    is_inference: bool,
}

impl Copies {
    fn of(
        inference: &Inference<'_>,
        earlier: &[Life],
        kept: &[usize],
        gradients: FxHashMap<u64, usize>,
        frees_gradients: bool,
    ) -> Self {
        let sizes = kept.chunk_by(|&one, &other| earlier[one].requested == earlier[other].requested);
        let sizes: Vec<(u64, usize)> =
            sizes.map(|equal| (earlier[equal[0]].requested, equal.len())).collect();
        let bytes = |bytes: u64, count: usize| u128::from(bytes) * count as u128;
        let sum = |divisor: usize| -> u128 {
            let equal = sizes.iter().filter(|(_, count)| count % divisor == 0);
            equal.map(|&(size, count)| bytes(size, count)).sum()
        };
        let total = sum(1);
        let seen = |&(size, count): &(u64, usize)| {
            bytes(size, gradients.get(&size).map_or(0, |&gradients| count.min(gradients)))
        };
        let seen: u128 = sizes.iter().map(seen).sum();
        let (passes, steps) = (&inference.timeline.passes, &inference.timeline.steps);
        let keeps_gradients = !passes.is_empty() && seen * 10 < total && !frees_gradients;
        let expected = inference.sites.states.map(|states| 1 + states + usize::from(keeps_gradients));
        let expected = expected.filter(|&count| sum(count) * 2 >= total);
        let fits = |&count: &usize| sum(count) * 10 >= total * 9;
        let count = expected.or_else(|| (1..=MOST_COPIES).rev().find(fits)).unwrap_or(1);
        Self { gradients, count, keeps_gradients, is_inference: passes.is_empty() && steps.is_empty() }
    }

    /// Returns the numbers of parameters and of gradients among `count` blocks of a size.
    fn of_size(&self, bytes: u64, count: usize) -> (usize, usize) {
        let equal = count / self.count;
        match self.gradients.get(&bytes) {
            _ if self.is_inference => (count, 0),
            Some(&gradients) if !self.keeps_gradients => (gradients.min(count), 0),
            _ if count % self.count != 0 => (count, 0),
            _ if self.keeps_gradients && self.count > 1 => (equal, equal),
            _ => (equal, 0),
        }
    }
}
