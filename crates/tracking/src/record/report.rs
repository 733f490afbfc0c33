//! Builds the report of a complete recording.

use bfc_core::{Category, OomReport};

use super::parts;
use super::recording::{EventKind, Recording};
use super::recount::{At, Charge, Marks, NO_CALL, Recount};
use crate::report::{FailureRow, MarkRow, RecordedRun, Report};

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
                    live_bytes: count.recount.live(),
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

/// Passes the events of a recording to its tallies.
struct Count<'a> {
    recording: &'a Recording,
    /// Whether the ops of the run computed something.
    is_timed: bool,
    recount: Recount,
    /// By block: the call that allocated it, and when it was saved.
    calls: Vec<u32>,
    saved_at: Vec<u64>,
}

impl<'a> Count<'a> {
    fn new(recording: &'a Recording) -> Self {
        let blocks = recording.blocks().len();
        Self {
            recording,
            is_timed: !recording.is_dry(),
            recount: Recount::default(),
            calls: vec![NO_CALL; blocks],
            saved_at: vec![u64::MAX; blocks],
        }
    }

    fn take(&mut self, event: &super::Event) {
        let (recording, owners) = (self.recording, self.recording.owners());
        let at = At { now: event.at_ns, thread: event.thread as usize, pool: 0, stream: 0 };
        match event.kind {
            EventKind::Alloc(number) => {
                let block = recording.block(number);
                let at = At { pool: block.pool as usize, stream: block.stream, ..at };
                let (tag, bytes) = ((block.owner, block.category), [block.requested, block.granted]);
                let charge = self.recount.allocate(owners, at, tag, bytes);
                self.keep(number, &charge);
            }
            EventKind::Free(number) => self.recount.free(&self.last_charge(number), at),
            EventKind::Retag(retag) => {
                let retag = recording.retags()[retag as usize];
                let (owner, category) = (retag.old_owner, retag.old_category);
                let mut charge = Charge { owner, category, ..self.last_charge(retag.block) };
                self.recount.retag(owners, &mut charge, (retag.owner, retag.category), at.now);
                self.keep(retag.block, &charge);
            }
            EventKind::Enter(number) => {
                let execution = recording.executions()[number as usize];
                self.recount.enter(execution.owner, At { pool: execution.pool as usize, ..at });
            }
            EventKind::Leave(number) => {
                let execution = recording.executions()[number as usize];
                let marks = Marks {
                    high_water: execution.high_water,
                    outliving: execution.outliving,
                    live_peak: execution.live_peak,
                    is_timed: self.is_timed,
                };
                self.recount.leave(at, &marks);
            }
            EventKind::Failed(_) | EventKind::Region(_) | EventKind::Mark(_) => {}
        }
    }

    fn keep(&mut self, number: u32, charge: &Charge) {
        self.calls[number as usize] = charge.call;
        self.saved_at[number as usize] = charge.saved_at;
    }

    /// The block as it was charged last.
    fn last_charge(&self, number: u32) -> Charge {
        let block = self.recording.block(number);
        Charge {
            bytes: block.granted,
            owner: block.last_owner,
            category: block.last_category,
            pool: block.pool as usize,
            stream: block.stream,
            thread: self.recording.events()[block.born as usize].thread as usize,
            call: self.calls[number as usize],
            saved_at: self.saved_at[number as usize],
        }
    }

    fn finish(mut self) -> Report {
        let (recording, end) = (self.recording, self.recording.end_ns());
        for (number, block) in (0..).zip(recording.blocks()) {
            if block.freed.is_none() && block.last_category == Category::Activation {
                self.recount.end_saved(&self.last_charge(number), end);
            }
        }
        self.recount.advance(end);
        let pools: Vec<&str> = recording.pools().iter().map(|pool| pool.name.as_str()).collect();
        self.recount.report(recording.owners(), &pools, recording.threads())
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
