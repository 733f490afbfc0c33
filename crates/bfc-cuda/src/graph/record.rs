//! What a step did in earlier runs.

use super::work::Work;
use crate::compute::StepCounts;

/// The most variants of a stretch that are kept: those used last.
const MOST_VARIANTS: usize = 4;
/// The most stretches of a step that are kept.
const MOST_STRETCHES: usize = 256;

/// A step: stretches of work between the points where the host comes in.
pub(super) struct Record<G> {
    /// Each stretch in its variants, the one used last first.
    stretches: Vec<Vec<Variant<G>>>,
    pub(super) counts: StepCounts,
}

/// What a stretch was in a run.
pub(super) struct Variant<G> {
    pub(super) work: Vec<Work>,
    pub(super) prepared: Prepared<G>,
}

/// The graph of a variant.
pub(super) enum Prepared<G> {
    /// It was seen once.
    NotYet,
    /// There was no memory for it.
    Again,
    Graph(G),
    /// The device refused.
    Never,
}

impl<G> Default for Record<G> {
    fn default() -> Self {
        Self { stretches: Vec::new(), counts: StepCounts::default() }
    }
}

impl<G> Record<G> {
    pub(super) fn variants(&self, stretch: usize) -> &[Variant<G>] {
        self.stretches.get(stretch).map_or(&[], Vec::as_slice)
    }

    /// Adds a variant, in the place of the one that was not used for the longest time if there are many.
    pub(super) fn add(&mut self, stretch: usize, work: Vec<Work>) {
        if stretch >= MOST_STRETCHES {
            return;
        }
        while self.stretches.len() <= stretch {
            self.stretches.push(Vec::new());
        }
        let variants = &mut self.stretches[stretch];
        variants.truncate(MOST_VARIANTS - 1);
        variants.insert(0, Variant { work, prepared: Prepared::NotYet });
    }

    /// A variant, which is now the one used last.
    pub(super) fn touch(&mut self, stretch: usize, variant: usize) -> Option<&mut Variant<G>> {
        let variants = self.stretches.get_mut(stretch)?;
        variants.get_mut(..=variant)?.rotate_right(1);
        variants.first_mut()
    }
}
