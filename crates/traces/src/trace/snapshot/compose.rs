//! Composes the recording of a snapshot: regions, granted bytes, streams and categories.

use bfc_core::{Category, MemoryKind};
use highwater_files::lean::{self, HeldMemory};
use highwater_tracking::{Composer, Phase, PlacedBlock};

use super::collect::{Collected, Effect, Life};
use super::segments::Segments;
use super::{NAME, PendingFree, Snapshot, categories, place, settings};
use crate::trace::profile::{facts, recording_limits};
use crate::trace::run::phase_of_unnamed;
use crate::trace::{TraceLimits, TraceProblem};

impl Snapshot {
    /// Makes the recording of collected events.
    pub(super) fn compose(
        &mut self,
        mut collected: Collected,
        segments: &mut Segments,
        limits: &TraceLimits,
        mut memory: HeldMemory,
    ) -> Result<(), TraceProblem> {
        let collected_bytes = collected.memory.held();
        memory.charge(collected_bytes)?;
        // Other programs, such as Highwater and PyTorch's profiler, write snapshots of other allocators.
        let is_exact = self.is_exported || !collected.has_units();
        let placed = place::place(&mut collected, segments, &settings::rounding(&self.settings), is_exact);
        if placed.contradictions > 0 && !is_exact {
            self.skipped.push(format!(
                "the exact sizes of freed blocks: {} live blocks differ from the rules of PyTorch's allocator",
                placed.contradictions
            ));
        }
        let categories = categories::categories(&collected.lives, &collected.stacks);

        let mut composer = Composer::new(recording_limits(limits), memory);
        composer.select_pool(&format!("device {}", self.device), MemoryKind::Device.name())?;
        let owners = owners(&mut composer, &collected.labels, self.is_exported)?;
        for &region in &placed.older {
            composer.region(region, true)?;
        }
        let first = collected.first_us();
        let mut lives = collected.lives.iter().zip(&categories);
        let place = |composer: &mut Composer, (life, &category): (&Life, &Category)| {
            let block = PlacedBlock {
                requested: life.requested,
                granted: life.granted,
                address: life.address,
                owner: owners[life.label as usize],
                category: life.stated.unwrap_or(category),
                stream: life.stream,
            };
            composer.place(block)
        };
        for life in lives.by_ref().take(collected.earlier_count) {
            place(&mut composer, life)?;
        }
        let mut events = (placed.older.len() + collected.earlier_count) as u32;
        if events > 0 {
            composer.carry()?;
        }
        let mut pending = collected.pending.iter().peekable();
        for (index, step) in (0_u32..).zip(&collected.steps) {
            while let Some(&(block, _)) = pending.next_if(|&&(_, step)| step <= index) {
                self.pending.push(PendingFree { block, event: events });
            }
            events += 1;
            composer.at(step.time_us.saturating_sub(first).saturating_mul(1000));
            match step.effect {
                Effect::Alloc => {
                    // Each such step has a block.
                    if let Some(life) = lives.next() {
                        place(&mut composer, life)?;
                    }
                }
                Effect::Free(number) => composer.free(number.into())?,
                Effect::Region(number) => {
                    let change = &collected.regions[number as usize];
                    composer.region(change.span, change.taken)?;
                }
                Effect::Oom(number) => {
                    let (bytes, label) = collected.ooms[number as usize];
                    composer.fail(bytes, owners[label as usize], Category::Temporary)?;
                    composer.mark(&format!("out of memory, {bytes} bytes requested"))?;
                    events += 1;
                }
            }
        }
        self.pending.extend(pending.map(|&(block, _)| PendingFree { block, event: events }));
        let mut facts = facts(NAME, NAME);
        facts.more.extend(self.skipped.iter().map(|what| ("without".to_owned(), what.clone())));
        if !is_exact {
            // Replays of what-if know the allocator by these facts.
            facts = facts.with("allocator", "pytorch");
            if let Some(conf) = self.alloc_conf().filter(|conf| !conf.is_empty()) {
                facts = facts.with("alloc_conf", conf);
            }
        }
        self.left_bytes = composer.memory().left() + composer.memory().reserved();
        self.recording = composer.finish(facts)?.0;
        self.streams = placed.streams;
        self.lost_beginning = collected.earlier_count > 0 || !placed.older.is_empty();
        Ok(())
    }
}

/// Names the owners of the labels, in their order.
fn owners(composer: &mut Composer, labels: &[String], has_phases: bool) -> Result<Vec<u32>, TraceProblem> {
    let unnamed = phase_of_unnamed(has_phases, labels);
    composer.memory().charge(labels.len() as u64 * lean::cost::<u32>())?;
    let mut owners = Vec::with_capacity(labels.len());
    for label in labels {
        let name = composer.name(label)?;
        owners.push(composer.owner(0, name, Some(Phase::of_suffix(label).unwrap_or(unnamed)))?);
    }
    Ok(owners)
}
