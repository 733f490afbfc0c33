//! The steps of a recorded run, the age of its live memory, and the memory that grows from step to step.
//!
//! A step ends with the last optimizer op in a row after a backward op. A run without such steps ends a step at each
//! mark that repeats, such as `step 1`, `step 2`. Memory grows if the least bytes that an owner holds after a step rise
//! in each quarter of the run after its first steps. So neither memory of the first steps, such as the state of an
//! optimizer, nor a cache that fills, nor memory that a loop frees from time to time counts as growth.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::recording::{EventKind, Recording};
use crate::report::{GrowthRow, LiveRow};
use crate::scope::Phase;

/// The fewest steps that show growth: one to begin, and one in each quarter of the rest.
const MIN_STEPS: usize = QUARTERS + 1;

const QUARTERS: usize = 4;

/// The share of steps at the beginning in which memory may grow: one of this many.
const WARM_UP_SHARE: usize = 8;

/// A part of a step. An optimizer that allocates its state before the first backward pass begins no part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StepPart {
    /// Before the backward pass.
    #[default]
    Forward,
    /// From the first backward op on.
    Backward,
    /// From the first optimizer op after a backward op on.
    Optimizer,
}

impl StepPart {
    /// Returns the part that an op of this phase belongs to, after an op of `self`. A step ends where `Optimizer` is
    /// followed by another part.
    #[inline]
    pub(crate) const fn followed_by(self, phase: Phase) -> Self {
        match (self, phase) {
            (Self::Backward | Self::Optimizer, Phase::Optimizer) => Self::Optimizer,
            (Self::Forward | Self::Optimizer, Phase::Forward | Phase::Unknown)
            | (Self::Forward, Phase::Optimizer) => Self::Forward,
            (_, Phase::Backward) | (Self::Backward, Phase::Forward | Phase::Unknown) => Self::Backward,
        }
    }
}

impl Recording {
    /// Returns the last event of each completed step.
    ///
    /// A step ends with the last optimizer op in a row after a backward op, on the first thread that runs one. A run with fewer than two
    /// such steps ends its steps before the marks whose text differs only in digits from the first mark.
    #[must_use]
    pub fn steps(&self) -> Vec<u32> {
        let steps = self.optimizer_steps();
        if steps.len() > 1 { steps } else { self.marked_steps().unwrap_or(steps) }
    }

    fn optimizer_steps(&self) -> Vec<u32> {
        let thread = |entered: u32| self.events[entered as usize].thread;
        let phase = |owner: u32| self.owner(owner).phase.unwrap_or_default();
        let first = self.executions.iter().find(|execution| phase(execution.owner) == Phase::Backward);
        let Some(first) = first.map(|execution| thread(execution.entered)) else { return Vec::new() };
        let (mut steps, mut last, mut part) = (Vec::new(), None, StepPart::default());
        for execution in self.executions.iter().filter(|execution| thread(execution.entered) == first) {
            part = part.followed_by(phase(execution.owner));
            if part != StepPart::Optimizer {
                steps.extend(last.take());
            } else if let Some(left) = execution.left {
                last = Some(left);
            }
        }
        steps.extend(last);
        // A damaged file may contain ops that end out of order.
        steps.sort_unstable();
        steps.dedup();
        steps
    }

    fn marked_steps(&self) -> Option<Vec<u32>> {
        let pattern = |text: &str| text.replace(|char: char| char.is_ascii_digit(), "");
        let first = pattern(self.marks.first()?);
        let mut marks = (0_u32..).zip(&self.events).filter(|(_, event)| match event.kind {
            EventKind::Mark(mark) => pattern(&self.marks[mark as usize]) == first,
            _ => false,
        });
        // The first mark begins the first step.
        marks.next();
        Some(marks.map(|(event, _)| event).collect())
    }

    /// Returns what is live at the end by op, module and category, with its age, the most bytes first.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use bfc_core::{Allocation, Allocator, BfcAllocator, BfcConfig, Bytes, HostMemory, Request};
    /// use highwater_tracking::Tracker;
    /// let pool = BfcAllocator::new("cpu", Arc::new(HostMemory::new()), BfcConfig::new(Bytes::mib(1)));
    /// let (pool, tracker): (Arc<dyn Allocator>, _) = (Arc::new(pool), Tracker::new());
    /// tracker.start_log(Bytes::mib(1));
    /// let run = tracker.begin("matmul");
    /// let _kept = Allocation::new(&run.track(&pool), &Request::new(1000))?;
    /// drop(run);
    /// let live = tracker.take_log().live_at_end();
    /// assert_eq!((live[0].op.as_str(), live[0].blocks, live[0].bytes), ("matmul", 1, 1024));
    /// # Ok::<(), bfc_core::AllocError>(())
    /// ```
    #[must_use]
    pub fn live_at_end(&self) -> Vec<LiveRow> {
        self.live_since(&self.steps())
    }

    /// Like [`live_at_end`](Self::live_at_end), with these [steps](Self::steps).
    pub(super) fn live_since(&self, steps: &[u32]) -> Vec<LiveRow> {
        let mut rows: HashMap<_, LiveRow> = HashMap::new();
        for live in self.live_after(u32::MAX) {
            let born = self.block(live.block).born;
            let ended = steps.len() - steps.partition_point(|&step| step < born);
            let row = rows.entry((live.owner, live.category)).or_default();
            let age_ns = self.end_ns().saturating_sub(self.time_of(born));
            row.add(live.bytes, (!steps.is_empty()).then_some(ended as u64), Some(age_ns));
        }
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by_key(|((owner, category), row)| (Reverse(row.bytes), *owner, category.index()));
        let outside = self.phase_outside_of_ops();
        let named = |((owner, category), row): ((u32, bfc_core::Category), LiveRow)| {
            let (scope, op, phase) = self.place_of(owner, outside);
            LiveRow { scope, op, phase, category: category.name().to_owned(), ..row }
        };
        rows.into_iter().map(named).collect()
    }

    /// Returns the ops whose live bytes rise from step to step, the largest growth first. Takes at least five
    /// [steps](Self::steps).
    #[must_use]
    pub fn growth(&self) -> Vec<GrowthRow> {
        self.growth_over(&self.steps())
    }

    /// Like [`growth`](Self::growth), with these [steps](Self::steps).
    pub(super) fn growth_over(&self, steps: &[u32]) -> Vec<GrowthRow> {
        if steps.len() < MIN_STEPS {
            return Vec::new();
        }
        let mut rows: Vec<(u32, GrowthRow)> = Vec::new();
        for (owner, changes) in (0..).zip(self.levels_after(steps)) {
            if let Some(growth) = growth(&changes, steps.len()) {
                rows.push((owner, growth));
            }
        }
        rows.sort_by_key(|(owner, row)| (Reverse(row.bytes_per_step), *owner));
        let outside = self.phase_outside_of_ops();
        let named = |(owner, row): (u32, GrowthRow)| {
            let (scope, op, phase) = self.place_of(owner, outside);
            GrowthRow { scope, op, phase, ..row }
        };
        rows.into_iter().map(named).collect()
    }

    /// Returns by owner the steps after which it holds other bytes than after the step before, with these bytes.
    fn levels_after(&self, steps: &[u32]) -> Vec<Vec<(usize, u64)>> {
        let mut held = vec![0_u64; self.owners.len()];
        let mut levels: Vec<Vec<(usize, u64)>> = vec![Vec::new(); self.owners.len()];
        let mut changed: Vec<u32> = Vec::new();
        let mut step = 0;
        for (event, at) in self.events.iter().zip(0_u32..) {
            let mut change = |owner: u32, bytes: &dyn Fn(u64) -> u64| {
                held[owner as usize] = bytes(held[owner as usize]);
                changed.push(owner);
            };
            match event.kind {
                EventKind::Alloc(block) => {
                    let block = self.block(block);
                    change(block.owner, &|held| held + block.granted);
                }
                EventKind::Free(block) => {
                    let block = self.block(block);
                    change(block.last_owner, &|held| held - block.granted);
                }
                EventKind::Retag(retag) => {
                    let retag = self.retags[retag as usize];
                    let bytes = self.block(retag.block).granted;
                    change(retag.old_owner, &|held| held - bytes);
                    change(retag.owner, &|held| held + bytes);
                }
                _ => {}
            }
            if steps.get(step) == Some(&at) {
                for owner in changed.drain(..) {
                    let (levels, now) = (&mut levels[owner as usize], held[owner as usize]);
                    if levels.last().map_or(0, |&(_, bytes)| bytes) != now {
                        levels.push((step, now));
                    }
                }
                step += 1;
            }
        }
        levels
    }

    /// Returns the phase of memory that no op holds: unknown in a recording without phases.
    fn phase_outside_of_ops(&self) -> Phase {
        let has_unknown = self.owners.iter().any(|owner| owner.phase == Some(Phase::Unknown));
        if has_unknown { Phase::Unknown } else { Phase::default() }
    }

    /// Returns the path of an owner's module, and the name and phase of its op, or the phase outside of ops.
    fn place_of(&self, owner: u32, outside: Phase) -> (String, String, Phase) {
        let found = self.owner(owner);
        let op = if found.is_op() { found.op_name().to_owned() } else { String::new() };
        (self.owner_path(self.module_of(owner)), op, found.phase.unwrap_or(outside))
    }
}

/// Returns the growth of an owner with these levels after the steps at which they change; `None` if it does not grow.
fn growth(levels: &[(usize, u64)], steps: usize) -> Option<GrowthRow> {
    let &(_, last) = levels.last()?;
    let warm_up = (steps / WARM_UP_SHARE).max(1);
    let quarter = |number: usize| warm_up + (steps - warm_up) * number / QUARTERS;
    let least: [u64; QUARTERS] =
        std::array::from_fn(|number| least_in(levels, quarter(number)..quarter(number + 1)));
    let rises = least.windows(2).all(|pair| pair[0] < pair[1]);
    // The growth of a cache that fills becomes smaller.
    let total = least[QUARTERS - 1] - least[0].min(least[QUARTERS - 1]);
    let recent = least[QUARTERS - 1].saturating_sub(least[QUARTERS - 2]);
    if !rises || recent < total / (2 * QUARTERS as u64) {
        return None;
    }
    let since = first_of_growth(levels, quarter(1), total as f64 / (quarter(QUARTERS) - quarter(1)) as f64);
    let before = since.checked_sub(1).map_or(0, |before| levels[before].1);
    let since = levels.get(since)?.0;
    Some(GrowthRow {
        bytes_per_step: last.saturating_sub(before) / (steps - since) as u64,
        since_step: since as u64 + 1,
        live_bytes: last,
        ..GrowthRow::default()
    })
}

/// Returns the index of the level with which growth of about `rate` bytes per step begins. Goes back from the level of
/// step `known`, as long as the earlier levels rise at a similar rate.
fn first_of_growth(levels: &[(usize, u64)], known: usize, rate: f64) -> usize {
    let mut first = levels.partition_point(|&(step, _)| step < known);
    while let Some(earlier) = first.checked_sub(1) {
        let before = earlier.checked_sub(1).map_or(0, |before| levels[before].1);
        let (step, bytes) = levels[earlier];
        let Some(next) = levels.get(first) else { break };
        if bytes <= before || (bytes - before) as f64 > 4.0 * rate * (next.0 - step) as f64 {
            break;
        }
        first = earlier;
    }
    first
}

/// Returns the least level after one of these steps.
fn least_in(levels: &[(usize, u64)], steps: std::ops::Range<usize>) -> u64 {
    let begin = levels.partition_point(|&(step, _)| step <= steps.start);
    let at_begin = begin.checked_sub(1).map_or(0, |before| levels[before].1);
    let within = levels[begin..].iter().take_while(|&&(step, _)| step < steps.end);
    within.fold(at_begin, |least, &(_, bytes)| least.min(bytes))
}

#[cfg(test)]
mod tests;
