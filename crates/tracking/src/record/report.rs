//! Builds the report of a complete recording.

use std::collections::BTreeMap;

use bfc_core::{Category, OomReport};

use super::parts;
use super::recording::{BlockLife, EventKind, Execution, Recording};
use super::tally::{Charge, Level, Tally};
use crate::report::{FailureRow, MarkRow, RecordedRun, Report, StreamRow, ThreadRow};

/// The most failures that a report lists.
const MAX_FAILURES: usize = 64;

/// The most marks that a report lists.
const MAX_MARKS: usize = 1000;

impl Report {
    /// Reports a recording. The pools and the memory outside them come from its summary, at the end of the run. Everything else is
    /// counted from the events, so it also works for a truncated file.
    ///
    /// ```
    /// use bfc_core::Bytes;
    /// use highwater_tracking::{Report, Tracker};
    /// let tracker = Tracker::new();
    /// tracker.start_log(Bytes::mib(1));
    /// drop(tracker.begin("matmul"));
    /// assert_eq!(Report::from_recording(&tracker.take_log()).ops[0].calls, 1);
    /// ```
    #[must_use]
    pub fn from_recording(recording: &Recording) -> Self {
        let (summary, steps) = (recording.summary(), recording.steps());
        let mut count = Count::new(recording);
        let mut marks = Vec::new();
        for (number, event) in (0_u32..).zip(recording.events()) {
            count.take(event);
            let EventKind::Mark(mark) = event.kind else { continue };
            if marks.len() < MAX_MARKS {
                marks.push(MarkRow {
                    text: recording.marks()[mark as usize].clone(),
                    at_ns: event.at_ns,
                    // A mark may itself end a step.
                    completed_steps: steps.partition_point(|&step| step <= number) as u64,
                    live_bytes: count.tally.live(),
                });
            }
        }
        let mut report = count.finish();
        report.marks = marks;
        report.completed_steps = steps.len() as u64;
        report.live = recording.live_since(&steps);
        report.growth = recording.growth_over(&steps);
        report.peak_parts = parts::peak_parts(recording);
        report.pools = summary.map(|summary| summary.report.pools.clone()).unwrap_or_default();
        report.outside = summary.map(|summary| summary.report.outside.clone()).unwrap_or_default();
        report.failures = failures(recording);
        report.run = Some(RecordedRun {
            facts: recording.facts().clone(),
            events: recording.events().len() as u64,
            blocks: recording.blocks().len() as u64,
            duration_ns: recording.end_ns(),
            lost_events: recording.lost_events(),
            skipped_events: recording.skipped_events(),
            outside: summary.map(|summary| summary.outside).unwrap_or_default(),
            cut: recording.cut().cloned(),
            failures: recording.failures().len() as u64,
            marks: recording.marks().len() as u64,
        });
        report
    }
}

struct Count<'a> {
    recording: &'a Recording,
    /// Whether the ops of the run computed something.
    is_timed: bool,
    tally: Tally,
    /// By block: when it became an activation; `u64::MAX` if it never was one.
    saved_at: Vec<u64>,
    threads: Vec<ThreadRow>,
    streams: Streams,
}

impl<'a> Count<'a> {
    fn new(recording: &'a Recording) -> Self {
        let mut tally = Tally::default();
        recording.owners().iter().skip(1).for_each(|owner| tally.add_owner(owner.parent));
        let thread = |&thread: &u64| ThreadRow { thread, ..ThreadRow::default() };
        Self {
            recording,
            is_timed: !recording.is_dry(),
            tally,
            saved_at: vec![u64::MAX; recording.blocks().len()],
            threads: recording.threads().iter().map(thread).collect(),
            streams: Streams::default(),
        }
    }

    fn take(&mut self, event: &super::Event) {
        let now = event.at_ns;
        let thread = &mut self.threads[event.thread as usize];
        match event.kind {
            EventKind::Alloc(number) => {
                let block = self.recording.block(number);
                let mut charge = Charge::of(block);
                // Before the tally, which may raise the peak with this block.
                self.streams.allocate(block, self.tally.peaks());
                self.tally.allocate(&mut charge, block.requested, now);
                self.saved_at[number as usize] = charge.saved_at;
                thread.allocations += 1;
                thread.requested_bytes = thread.requested_bytes.saturating_add(block.requested);
                thread.total_bytes = thread.total_bytes.saturating_add(block.granted);
            }
            EventKind::Free(number) => {
                let block = self.recording.block(number);
                self.streams.free(block, self.tally.peaks());
                thread.frees += 1;
                self.tally.free(&self.last_charge(number), now);
            }
            EventKind::Retag(retag) => {
                let retag = self.recording.retags()[retag as usize];
                let (owner, category) = (retag.old_owner, retag.old_category);
                let mut charge = Charge { owner, category, ..self.last_charge(retag.block) };
                self.tally.retag(&mut charge, retag.owner, retag.category, now);
                self.saved_at[retag.block as usize] = charge.saved_at;
            }
            EventKind::Enter(number) => {
                let execution = self.recording.executions()[number as usize];
                self.tally.call(execution.owner);
                let time_ns = if self.is_timed { recorded_ns(self.recording, &execution) } else { 0 };
                self.tally.execution(&execution, time_ns);
                thread.calls += 1;
                thread.time_ns = thread.time_ns.saturating_add(time_ns);
                thread.high_water_bytes = thread.high_water_bytes.max(execution.high_water);
                thread.outliving_bytes = thread.outliving_bytes.saturating_add(execution.outliving);
            }
            _ => {}
        }
    }

    /// The block as it was charged last.
    fn last_charge(&self, number: u32) -> Charge {
        let block = self.recording.block(number);
        Charge {
            bytes: block.granted,
            owner: block.last_owner,
            category: block.last_category,
            saved_at: self.saved_at[number as usize],
        }
    }

    fn finish(mut self) -> Report {
        for (number, block) in (0..).zip(self.recording.blocks()) {
            if block.freed.is_none() && block.last_category == Category::Activation {
                self.tally.end_saved(&self.last_charge(number), self.recording.end_ns());
            }
        }
        let owners = self.recording.owners();
        let mut report = self.tally.summary(owners);
        self.tally.complete(&mut report, owners);
        report.streams = self.streams.finish(self.recording, self.tally.peaks());
        report.threads = self.threads;
        report
    }
}

/// The time from an op's begin to its end, or to the end of the recording.
fn recorded_ns(recording: &Recording, execution: &Execution) -> u64 {
    let end = recording.time_of(execution.left.unwrap_or(u32::MAX));
    end.saturating_sub(recording.time_of(execution.entered))
}

/// The rows by pool and stream, in the order of their first blocks.
#[derive(Default)]
struct Streams {
    index: BTreeMap<(u32, u32), usize>,
    rows: Vec<(u32, StreamRow, Level)>,
}

impl Streams {
    fn row(&mut self, block: &BlockLife) -> &mut (u32, StreamRow, Level) {
        let index = *self.index.entry((block.pool, block.stream)).or_insert_with(|| {
            let row = StreamRow { stream: block.stream, ..StreamRow::default() };
            self.rows.push((block.pool, row, Level::default()));
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }

    /// Counts an allocation. `peaks` is the number of the last peak before it.
    fn allocate(&mut self, block: &BlockLife, peaks: u64) {
        let (_, row, level) = self.row(block);
        row.allocations += 1;
        row.requested_bytes = row.requested_bytes.saturating_add(block.requested);
        row.total_bytes = row.total_bytes.saturating_add(block.granted);
        level.add(block.granted, peaks);
    }

    fn free(&mut self, block: &BlockLife, peaks: u64) {
        self.row(block).2.remove(block.granted, peaks);
    }

    fn finish(self, recording: &Recording, peaks: u64) -> Vec<StreamRow> {
        let row = |(pool, row, level): (u32, StreamRow, Level)| StreamRow {
            pool: recording.pools()[pool as usize].name.clone(),
            high_water_bytes: level.most(),
            live_bytes: level.now(),
            peak_bytes: level.at_peak(peaks),
            ..row
        };
        self.rows.into_iter().map(row).collect()
    }
}

/// The first failures, with what the pools reported.
fn failures(recording: &Recording) -> Vec<FailureRow> {
    let failed = recording.events().iter().filter_map(|event| match event.kind {
        EventKind::Failed(failure) => Some((event.at_ns, failure)),
        _ => None,
    });
    let row = |(at_ns, number): (u64, u32)| {
        let (failure, report) = (recording.failures()[number as usize], recording.report_of(number));
        FailureRow {
            at_ns,
            requested: failure.requested,
            owner: recording.owner_path(failure.owner),
            category: failure.category.name().to_owned(),
            pool: recording.pools()[failure.pool as usize].name.clone(),
            advice: report.map_or_else(String::new, OomReport::advice),
            answers: report.map_or_else(Vec::new, |report| report.what_if.answers()),
            report: report.cloned(),
        }
    };
    failed.take(MAX_FAILURES).map(row).collect()
}
