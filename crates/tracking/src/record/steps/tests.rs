use std::sync::Arc;

use bfc_core::{Allocation, Allocator, Bytes, Category, Request};

use super::*;
use crate::account::Tracker;
use crate::report::{Report, TextOptions};
use crate::scope::{module, phase};
use crate::test_pool::TestPool;

/// A recorded run of a network with one layer.
struct RecordedRun {
    tracker: Arc<Tracker>,
    pool: Arc<dyn Allocator>,
}

impl RecordedRun {
    fn new() -> Self {
        let run = Self { tracker: Tracker::new(), pool: TestPool::tracking() };
        run.tracker.start_log(Bytes::mib(16));
        run
    }

    /// Runs an op in the module `net.fc1`.
    fn op(&self, op: &'static str, bytes: u64, category: Category) -> Allocation {
        let _scope = module("net.fc1");
        let run = self.tracker.begin(op);
        Allocation::new(&run.track(&self.pool), &Request::new(bytes).with_category(category)).unwrap()
    }

    /// Runs the optimizer on two parameters.
    fn optimizer(&self, bytes: u64) -> [Allocation; 2] {
        let _phase = phase(Phase::Optimizer);
        ["sgd", "sgd"].map(|op| self.op(op, bytes, Category::OptimizerState))
    }

    /// Runs steps, each with a forward pass and an optimizer, and returns the growth.
    fn train(&self, steps: usize, mut forward: impl FnMut(usize)) -> Recording {
        // The optimizer allocates a part of its state before the first step.
        let mut state = Some(self.optimizer(8));
        for step in 0..steps {
            forward(step);
            {
                let _phase = phase(Phase::Backward);
                drop(self.op("relu", 16, Category::Gradient));
            }
            let updated = self.optimizer(8);
            // The state of the first step stays.
            state.get_or_insert(updated);
        }
        let recording = self.tracker.take_log();
        assert_eq!(recording.steps().len(), steps);
        recording
    }
}

fn summary(rows: &[GrowthRow]) -> Vec<(String, u64, u64, u64)> {
    rows.iter().map(|row| (row.path(), row.bytes_per_step, row.since_step, row.live_bytes)).collect()
}

#[test]
fn results_that_a_loop_keeps_are_growth() {
    let (run, mut losses) = (RecordedRun::new(), Vec::new());
    let parameter = run.op("init", 1000, Category::Parameter);
    let recording = run.train(10, |_| {
        drop(run.op("matmul", 500, Category::Output));
        losses.push(run.op("loss", 40, Category::Output));
        losses.push(run.op("linear", 100, Category::Activation));
    });
    let expected = [("net.fc1.linear".to_owned(), 100, 1, 1000), ("net.fc1.loss".to_owned(), 40, 1, 400)];
    assert_eq!(summary(&recording.growth()), expected);
    drop((parameter, losses));
}

#[test]
fn growth_begins_where_it_begins() {
    let (run, mut kept) = (RecordedRun::new(), Vec::new());
    let recording = run.train(40, |step| {
        // The same op holds memory from the start.
        if step == 0 {
            kept.push(run.op("matmul", 1 << 20, Category::Output));
        }
        if step >= 8 && step % 2 == 0 {
            kept.push(run.op("matmul", 64, Category::Output));
        }
    });
    assert_eq!(summary(&recording.growth()), [("net.fc1.matmul".to_owned(), 32, 9, (1 << 20) + 16 * 64)]);
}

#[test]
fn a_normal_run_does_not_grow() {
    let run = RecordedRun::new();
    let (mut cache, mut epoch, mut last) = (Vec::new(), Vec::new(), None);
    let recording = run.train(64, |step| {
        // A cache that fills, slower and slower, and then stays.
        if step < 4 || (step < 40 && step % 8 == 0) {
            cache.push(run.op("cache", 100, Category::Output));
        }
        // Losses that are summed at the end of an epoch.
        if step % 10 == 0 {
            epoch.clear();
        }
        epoch.push(run.op("loss", 4, Category::Output));
        // A result of varying size that lives until the next one.
        last = Some(run.op("matmul", 100 + 7 * (step as u64 % 5), Category::Output));
    });
    assert_eq!(recording.growth(), []);
    drop((cache, epoch, last));
}

#[test]
fn few_steps_are_no_evidence() {
    let (run, mut kept) = (RecordedRun::new(), Vec::new());
    let recording = run.train(4, |_| kept.push(run.op("matmul", 10, Category::Output)));
    assert_eq!(recording.growth(), []);
}

#[test]
fn marks_are_steps_where_no_optimizer_runs() {
    let (run, mut kept) = (RecordedRun::new(), Vec::new());
    run.tracker.mark("warm-up");
    let recording = {
        for step in 0..10 {
            run.tracker.mark(if step == 3 { "saved" } else { "batch 1" });
            kept.push(run.op("matmul", 10, Category::Output));
        }
        run.tracker.take_log()
    };
    // No mark is like the first one.
    assert!(recording.steps().is_empty());
    run.tracker.start_log(Bytes::mib(1));
    for step in 0..10 {
        run.tracker.mark(&format!("batch {step}"));
        run.tracker.mark("other");
        kept.push(run.op("matmul", 10, Category::Output));
    }
    let recording = run.tracker.take_log();
    assert_eq!(recording.steps().len(), 9);
    assert_eq!(summary(&recording.growth()), [("net.fc1.matmul".to_owned(), 10, 1, 90)]);
}

#[test]
fn marks_have_their_time_steps_and_live_bytes() {
    let (run, mut kept) = (RecordedRun::new(), Vec::new());
    run.tracker.mark("data loaded");
    kept.push(run.op("init", 1000, Category::Parameter));
    let recording = run.train(3, |step| {
        if step == 2 {
            run.tracker.mark("third\u{1b}step");
        }
    });
    drop(kept);
    let report = Report::from_recording(&recording);
    let marks: Vec<_> =
        report.marks.iter().map(|row| (row.text.as_str(), row.completed_steps, row.live_bytes)).collect();
    assert_eq!(marks, [("data loaded", 0, 0), ("third\u{1b}step", 2, 1016)]);
    let at_ns: Vec<u64> = report.marks.iter().map(|row| row.at_ns).collect();
    assert!(at_ns[0] <= at_ns[1] && at_ns[1] <= recording.end_ns());
    assert_eq!(report.run.as_ref().unwrap().marks, 2);

    let text = report.to_string();
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
    assert_eq!(line("mark ").split_whitespace().collect::<Vec<_>>(), ["mark", "time", "steps", "live"]);
    assert!(line(r"third\u{1b}step").ends_with("      2  1016 B"), "{text}");
    let first = report.text(TextOptions { top: 1, ..TextOptions::default() }).to_string();
    let after = first.split_once("data loaded").unwrap().1;
    assert!(after.contains("\n(1 more)") && !after.contains("third"), "{first}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["marks"][1]["completed_steps"], 2);
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
}

#[test]
fn a_report_lists_the_first_marks_and_counts_all() {
    let run = RecordedRun::new();
    (0..1200).for_each(|number| run.tracker.mark(&number.to_string()));
    let report = Report::from_recording(&run.tracker.take_log());
    assert_eq!((report.marks.len(), report.run.as_ref().unwrap().marks), (1000, 1200));
    assert!(report.to_string().contains("\n(1180 more)\n"));
}

#[test]
fn live_memory_has_its_age() {
    let (run, mut kept) = (RecordedRun::new(), Vec::new());
    let parameter = run.op("init", 1000, Category::Parameter);
    let recording = run.train(5, |step| {
        if step % 2 == 1 {
            kept.push(run.op("matmul", 10, Category::Output));
        }
    });
    let live = recording.live_at_end();
    let row = |row: &LiveRow| (row.path(), row.category.clone(), row.blocks, row.bytes, row.age_steps);
    assert_eq!(
        live.iter().map(row).collect::<Vec<_>>(),
        [
            ("net.fc1.init".to_owned(), "parameter".to_owned(), 1, 1000, Some((5, 5))),
            ("net.fc1.matmul".to_owned(), "output".to_owned(), 2, 20, Some((2, 4))),
            ("net.fc1.sgd:optimizer".to_owned(), "optimizer_state".to_owned(), 2, 16, Some((5, 5))),
        ]
    );
    let (youngest, oldest) = live[1].age_ns.unwrap();
    assert!(youngest < oldest && oldest < live[0].age_ns.unwrap().0);

    let report = Report::from_recording(&recording);
    assert_eq!((report.completed_steps, &report.live), (5, &live));
    let text = report.to_string();
    let line = |text: &str| text.lines().find(|line| line.contains("2 to 4 steps")).unwrap().to_owned();
    assert_eq!(
        line(&text).split_whitespace().take(6).collect::<Vec<_>>().join(" "),
        "net.fc1.matmul output 2 20 B 2"
    );
    let wide = report.text(TextOptions { wide: true, ..TextOptions::default() }).to_string();
    assert!(wide.contains("age in time") && !text.contains("age in time"), "{wide}");
    drop((parameter, kept));
}
