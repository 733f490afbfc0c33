//! The record of a step: the commands of earlier runs, by segment.

use crate::compute::GraphCounts;

use super::command::Command;

/// The most variants kept per segment: the most recently used ones.
const MAX_VARIANTS: usize = 4;
/// The most segments kept per step.
const MAX_SEGMENTS: usize = 256;

/// A step: segments of commands between the points where the host needs the device.
pub(super) struct StepRecord<G> {
    /// The variants of each segment, the most recently used first.
    segments: Vec<Vec<Variant<G>>>,
    pub(super) counts: GraphCounts,
}

/// The commands of a segment in one or more runs.
pub(super) struct Variant<G> {
    pub(super) commands: Vec<Command>,
    pub(super) graph: GraphState<G>,
}

/// The graph of a variant.
pub(super) enum GraphState<G> {
    /// The variant was seen once.
    NotBuilt,
    /// The device had no memory for the graph; one more attempt is allowed.
    Retry,
    Ready(G),
    /// The device refused to build the graph.
    Unavailable,
}

impl<G> Default for StepRecord<G> {
    fn default() -> Self {
        Self { segments: Vec::new(), counts: GraphCounts::default() }
    }
}

impl<G> StepRecord<G> {
    pub(super) fn variants(&self, segment: usize) -> &[Variant<G>] {
        self.segments.get(segment).map_or(&[], Vec::as_slice)
    }

    /// Adds a variant. It replaces the least recently used one if the segment is full.
    pub(super) fn add(&mut self, segment: usize, commands: Vec<Command>) {
        if segment >= MAX_SEGMENTS {
            return;
        }
        while self.segments.len() <= segment {
            self.segments.push(Vec::new());
        }
        let variants = &mut self.segments[segment];
        variants.truncate(MAX_VARIANTS - 1);
        variants.insert(0, Variant { commands, graph: GraphState::NotBuilt });
    }

    /// Returns a variant and marks it as the most recently used.
    pub(super) fn touch(&mut self, segment: usize, variant: usize) -> Option<&mut Variant<G>> {
        let variants = self.segments.get_mut(segment)?;
        variants.get_mut(..=variant)?.rotate_right(1);
        variants.first_mut()
    }
}
