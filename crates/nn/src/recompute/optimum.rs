//! The fastest recomputations for each peak of memory.
//!
//! Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova (2019), "Optimal checkpointing for heterogeneous chains", solve a
//! dynamic program for one limit of memory, in which the first segment of each interval is kept or runs again:
//!
//! ```text
//! best [i, m] = keep i, then best [i+1, m]
//!             | run [i, k) without saving, then best [k, m], then again best [i, k)    for each k
//! ```
//!
//! Here each interval has a Pareto front of bytes and seconds in place of one optimum, so one pass answers all limits. A
//! front has at most [`POINTS`] ways: see [`Front::thin`].

use serde::{Deserialize, Serialize};

use super::chains::Recompute;
use super::costs::ObservedChain;
use super::front::{Buffers, Choice, Front, Pairs, Point};
use super::model::{Stage, Step};
use super::recomputation::{Recomputation, Segment};

/// The most ways on the front of an interval inside a segment that runs again.
const POINTS: usize = 48;
/// The most ways on the front of the complete step.
const STEP_POINTS: usize = 256;

/// The recomputations of a step, its peak and its extra time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TradeOff {
    /// The recomputations of all chains, including those that run plainly.
    pub recompute: Recompute,
    /// The modeled peak of the step in bytes. A dry run with these recomputations has the exact one.
    pub bytes: u64,
    /// The time of all second runs in seconds. Without estimated times, the number of blocks that run again.
    pub seconds: f64,
}

/// Returns the fastest recomputations for each peak of the step, from the smallest peak to the plain step. `chains` are those
/// of one level, as [`observe`](super::observe()) returns them.
///
/// No recomputation that nests segments in any way has both a smaller modeled peak and less extra time, up to the width of a
/// front's ranges for chains with many different blocks.
#[must_use]
pub fn trade_offs(chains: &[ObservedChain]) -> Vec<TradeOff> {
    let step = Step::new(chains);
    let optimum = Optimum::new(&step.stages, POINTS, STEP_POINTS);
    let mut found: Vec<TradeOff> = Vec::new();
    for (index, point) in optimum.points().iter().enumerate() {
        let bytes = step.peak(point.bytes);
        // Ways whose peak is outside of the chains differ in time alone.
        if found.last().is_some_and(|last| last.bytes == bytes) {
            found.pop();
        }
        found.push(TradeOff {
            recompute: recomputations(chains, &optimum.step_segments(index)),
            bytes,
            seconds: point.seconds,
        });
    }
    found
}

/// Divides the segments of the stages among the chains.
fn recomputations(chains: &[ObservedChain], segments: &[Segment]) -> Recompute {
    let mut segments = segments.iter();
    let mut recompute = Recompute::new();
    for chain in chains {
        let mut own = Vec::new();
        let mut blocks = 0;
        while blocks < chain.blocks.len()
            && let Some(segment) = segments.next()
        {
            blocks += segment.blocks();
            own.push(segment.clone());
        }
        // The ops after the chain.
        segments.next();
        recompute = recompute.with(chain.path.clone(), Recomputation::new(own));
    }
    recompute
}

/// The fronts of all intervals.
pub(super) struct Optimum<'a> {
    stages: &'a [Stage],
    /// The fronts of the stages `i..=m` of one chain inside a segment that runs again, at `i` and `m - i`.
    inside: Vec<Vec<Fronts>>,
    /// The fronts of the stages from `i` to the end of the step.
    step: Vec<Fronts>,
}

/// The front of an interval whose input only this interval keeps, and the front if something else keeps it. The latter is
/// empty if the first stage saves its input, which makes both equal.
type Fronts = [Front; 2];

/// An interval of stages.
#[derive(Clone, Copy, Debug)]
struct Interval {
    first: usize,
    last: usize,
    /// Whether the interval is the end of the step, in whose forward pass no gradient exists yet. Others are inside of a
    /// segment that runs again.
    is_step: bool,
    /// Whether something else keeps the input.
    is_held: bool,
}

impl<'a> Optimum<'a> {
    pub(super) fn new(stages: &'a [Stage], points: usize, step_points: usize) -> Self {
        let mut optimum = Self { stages, inside: Vec::new(), step: Vec::new() };
        optimum.inside.resize_with(stages.len(), Vec::new);
        optimum.step.resize_with(stages.len(), Fronts::default);
        let mut buffers = Buffers::default();
        for first in (0..stages.len()).rev() {
            for last in first..optimum.chain_end(first) {
                let interval = Interval { first, last, is_step: false, is_held: false };
                let fronts = optimum.fronts(interval, points, &mut buffers);
                optimum.inside[first].push(fronts);
            }
            let interval = Interval { first, last: stages.len() - 1, is_step: true, is_held: false };
            optimum.step[first] = optimum.fronts(interval, step_points, &mut buffers);
        }
        optimum
    }

    /// The ways through the complete step.
    pub(super) fn points(&self) -> &[Point] {
        if self.stages.is_empty() { &[] } else { &self.front(self.step_interval()).points }
    }

    /// The complete step. The caller keeps the input of the first chain.
    fn step_interval(&self) -> Interval {
        Interval { first: 0, last: self.stages.len().saturating_sub(1), is_step: true, is_held: true }
    }

    /// The index after the last block of the chain at this stage. Ops between chains are in no segment that runs again.
    fn chain_end(&self, first: usize) -> usize {
        let chain = self.stages[first].chain;
        let same = self.stages[first..].iter().take_while(|stage| chain.is_some() && stage.chain == chain);
        first + same.count()
    }

    /// The front of an interval that is already known.
    fn front(&self, Interval { first, last, is_step, is_held }: Interval) -> &Front {
        let fronts = if is_step { &self.step[first] } else { &self.inside[first][last - first] };
        &fronts[usize::from(is_held && self.stages[first].unsaved_input > 0)]
    }

    fn fronts(&self, interval: Interval, points: usize, buffers: &mut Buffers) -> Fronts {
        let mut front = |is_held| {
            let mut front = self.find(Interval { is_held, ..interval }, buffers);
            front.thin(points);
            front
        };
        let alone = front(false);
        let differs = self.stages[interval.first].unsaved_input > 0;
        [alone, if differs { front(true) } else { Front::default() }]
    }

    /// Finds the front of an interval from those of shorter ones.
    fn find(&self, interval: Interval, buffers: &mut Buffers) -> Front {
        let Interval { first, last, is_step, is_held } = interval;
        let stage = &self.stages[first];
        let pending = if is_step { 0 } else { self.stages[last].pending };
        let own = stage.peak(pending, is_held);
        let mut front = Front::default();
        if first == last {
            front.points.push(Point { bytes: own, seconds: 0.0, choice: Choice::Last });
            return front;
        }
        let rest = self.front(Interval { first: first + 1, is_held: stage.saves_output, ..interval });
        let keep = rest.points.iter().enumerate().map(|(index, point)| Point {
            bytes: (stage.added(is_held) + point.bytes).max(own),
            seconds: point.seconds,
            choice: Choice::Keep { rest: index as u32 },
        });
        front.merge(keep, buffers);
        // The unrecorded run of the stages before `split`.
        let (mut forward, mut seconds, mut input) = (0, 0.0, 0);
        for split in first + 1..=last.min(self.chain_end(first)) {
            let stage = &self.stages[split - 1];
            forward = forward.max(input + stage.forward);
            (input, seconds) = (stage.output, seconds + stage.seconds);
            let rest = self.front(Interval { first: split, is_held: false, ..interval });
            let inside = self.front(Interval { first, last: split - 1, is_step: false, is_held });
            let pairs = Pairs::new(rest, inside, stage.output, pending + forward);
            // All of these ways take at least the time of the second run.
            let most = front.bytes_within(seconds);
            if pairs.least() >= most {
                continue;
            }
            let ways = pairs.take_while(|&(.., bytes, _)| bytes < most);
            let ways = ways.map(|(rest, inside, bytes, more)| Point {
                bytes,
                seconds: seconds + more,
                choice: Choice::Again { split: split as u32, inside: inside as u32, rest: rest as u32 },
            });
            front.merge(ways, buffers);
        }
        front
    }

    /// The segments of a way through the complete step.
    pub(super) fn step_segments(&self, point: usize) -> Vec<Segment> {
        if self.stages.is_empty() { Vec::new() } else { self.segments(self.step_interval(), point) }
    }

    fn segments(&self, mut interval: Interval, mut point: usize) -> Vec<Segment> {
        let mut segments = Vec::new();
        while let Some(way) = self.front(interval).points.get(point) {
            let first = interval.first;
            match way.choice {
                Choice::Last => {
                    segments.push(Segment::Keep);
                    break;
                }
                Choice::Keep { rest } => {
                    segments.push(Segment::Keep);
                    let is_held = self.stages[first].saves_output;
                    (interval, point) = (Interval { first: first + 1, is_held, ..interval }, rest as usize);
                }
                Choice::Again { split, inside, rest } => {
                    let split = split as usize;
                    let segment = Interval { last: split - 1, is_step: false, ..interval };
                    segments.push(Segment::Again(self.segments(segment, inside as usize)));
                    (interval, point) =
                        (Interval { first: split, is_held: false, ..interval }, rest as usize);
                }
            }
        }
        segments
    }
}

#[cfg(test)]
mod tests;
