use super::*;
use crate::report::{OpRow, PeakRow, SavedRow, ScopeRow, TextOptions};
use crate::scope::{Phase, module, phase};
use crate::test_pool::TestPool;
use bfc_core::{Allocation, Bytes, Category, Request, Tag};

/// Runs `op` in `scope`: it takes scratch, and its result outlives it.
fn run(
    tracker: &Arc<Tracker>,
    pool: &Arc<dyn Allocator>,
    scope: &str,
    op: &'static str,
    sizes: [u64; 2],
) -> Allocation {
    let _scope = module(scope);
    let run = tracker.begin(op);
    let allocator = run.track(pool);
    let _scratch = Allocation::new(&allocator, &Request::new(sizes[0])).unwrap();
    Allocation::new(&allocator, &Request::new(sizes[1]).with_category(Category::Activation)).unwrap()
}

/// Two layers forward, one of them backward, and a parameter that belongs to no op.
fn sample(net: &str) -> (Arc<Tracker>, Arc<dyn Allocator>, Vec<Allocation>) {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let _net = module(net);
    let mut live = vec![Allocation::new(&pool, &Request::new(7).with_category(Category::Parameter)).unwrap()];
    live.push(run(&tracker, &pool, "fc1", "matmul", [100, 30]));
    live.push(run(&tracker, &pool, "fc1", "relu", [1, 30]));
    live.push(run(&tracker, &pool, "fc2.inner", "matmul", [200, 20]));
    let _phase = phase(Phase::Backward);
    drop(run(&tracker, &pool, "fc1", "matmul", [50, 10]));
    (tracker, pool, live)
}

#[test]
fn ops_are_summed_over_modules_and_sorted_by_phase_and_mark() {
    let (tracker, pool, _live) = sample("report-ops");
    let report = Report::new(&tracker, std::slice::from_ref(&pool));
    let figures = |row: &OpRow| {
        let bytes = [row.total_bytes, row.high_water_bytes, row.live_bytes, row.outliving_bytes];
        (row.op.clone(), row.phase, row.calls, bytes, [row.temporary_bytes, row.output_bytes])
    };
    assert_eq!(
        report.ops.iter().map(figures).collect::<Vec<_>>(),
        [
            ("matmul".to_owned(), Phase::Forward, 2, [350, 220, 50, 50], [300, 50]),
            ("relu".to_owned(), Phase::Forward, 1, [31, 31, 30, 30], [1, 30]),
            ("matmul".to_owned(), Phase::Backward, 1, [60, 60, 0, 10], [50, 10]),
        ]
    );
    assert_eq!(report.places.len(), 4);
    assert_eq!(report.places[0].scope.as_deref(), Some("report-ops.fc2.inner"));
}

#[test]
fn a_deep_scope_has_the_rows_of_its_path_and_the_figures_of_deeper_ones() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let mut live = Vec::new();
    let scopes: Vec<_> = (0..1000)
        .map(|_| {
            live.push(run(&tracker, &pool, "", "relu", [10, 1]));
            module("report-deep")
        })
        .collect();
    let report = Report::new(&tracker, std::slice::from_ref(&pool));
    assert_eq!((report.scopes.len(), report.places.len()), (256, 256));
    for (depth, row) in report.scopes.iter().enumerate() {
        assert_eq!(row.scope.split('.').filter(|name| !name.is_empty()).count(), depth);
        // The ops of this module and of all below it.
        let ops = 1000 - depth as u64;
        assert_eq!((row.calls, row.live_bytes, row.total_bytes), (ops, ops, 11 * ops), "{depth}");
    }
    let deepest = report.places.iter().find(|row| row.calls > 1).unwrap();
    assert_eq!((deepest.calls, deepest.live_bytes), (745, 745));
    scopes.into_iter().rev().for_each(drop);
}

#[test]
fn a_scope_counts_everything_below_it_and_stands_before_it() {
    let (tracker, pool, _live) = sample("report-scopes");
    let report = Report::new(&tracker, std::slice::from_ref(&pool));
    let row = |row: &ScopeRow| {
        let bytes = [row.total_bytes, row.high_water_bytes, row.live_bytes, row.peak_bytes];
        (row.scope.clone(), row.calls, bytes)
    };
    assert_eq!(
        report.scopes.iter().map(row).collect::<Vec<_>>(),
        [
            (String::new(), 4, [441, 287, 87, 287]),
            ("report-scopes".to_owned(), 4, [441, 280, 80, 280]),
            ("report-scopes.fc1".to_owned(), 3, [221, 130, 60, 60]),
            ("report-scopes.fc2".to_owned(), 1, [220, 220, 20, 220]),
            ("report-scopes.fc2.inner".to_owned(), 1, [220, 220, 20, 220]),
        ]
    );
}

#[test]
fn an_op_has_its_part_of_the_peak_and_what_was_live_before_it() {
    let (tracker, pool, _live) = sample("report-at-peak");
    let report = Report::new(&tracker, &[pool]);
    let matmul = &report.ops[0];
    assert_eq!((matmul.self_peak_bytes, matmul.live_before_bytes), (130 + 220, 67));
    assert_eq!(matmul.peak_bytes, 30 + 220);
    assert!((matmul.peak_share - 250.0 / 287.0).abs() < 1e-9);
    assert_eq!(report.ops[2].peak_bytes, 0);
    let at_peak: u64 = report.ops.iter().map(|row| row.peak_bytes).sum();
    assert_eq!(at_peak + 7, report.peak.unwrap().bytes);
    assert_eq!(report.categories.iter().map(|row| row.peak_bytes).sum::<u64>(), 287);
    let activations = &report.categories[Category::Activation.index()];
    assert_eq!((activations.peak_bytes, activations.high_water_bytes), (80, 90));
    let phases: Vec<_> = report.phases.iter().map(|row| (row.phase, row.calls, row.peak_bytes)).collect();
    assert_eq!(phases, [(Phase::Forward, 3, 280), (Phase::Backward, 1, 0)]);
}

#[test]
fn saved_tensors_are_charged_to_their_op() {
    let (tracker, pool, mut live) = sample("report-kept");
    let report = |tracker: &Tracker| Report::new(tracker, std::slice::from_ref(&pool));
    let saved = report(&tracker).saved;
    assert_eq!((saved.blocks, saved.bytes, saved.live_bytes, saved.high_water_bytes), (4, 90, 80, 90));
    assert_eq!(report(&tracker).ops[0].saved_bytes, 50);
    // Changes of category after the end of the op count too.
    let result = live.pop().unwrap();
    let tag = Tag { owner: OwnerId::ROOT, category: Category::Output };
    result.allocator().retag(&result.block(), tag).unwrap();
    assert_eq!(report(&tracker).saved.live_bytes, 60);
    result.allocator().retag(&result.block(), Tag { category: Category::Activation, ..tag }).unwrap();
    assert_eq!((report(&tracker).saved.live_bytes, report(&tracker).saved.blocks), (80, 5));
    drop(result);
    assert_eq!(report(&tracker).saved.live_bytes, 60);
    drop(live);
    assert_eq!(report(&tracker).saved.live_bytes, 0);
    tracker.reset();
    assert_eq!(report(&tracker).saved, SavedRow::default());
}

#[test]
fn threads_have_rows_of_the_ops_that_they_began() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    drop(run(&tracker, &pool, "report-threads", "here", [1, 2]));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(run(&tracker, &pool, "report-threads", "there", [10, 20])));
    });
    drop(run(&tracker, &pool, "report-threads", "here", [1, 2]));
    let report = Report::new(&tracker, &[pool]);
    let mut threads: Vec<_> = report.threads.iter().map(|row| (row.calls, row.total_bytes)).collect();
    threads.sort_unstable();
    assert_eq!(threads, [(1, 30), (2, 6)]);
    assert!(report.to_string().contains("\nthread  calls "), "{report}");
    tracker.reset();
    assert!(Report::new(&tracker, &[]).threads.is_empty());
}

#[test]
fn requested_and_granted_bytes_are_distinct() {
    let config = bfc_core::BfcConfig::new(bfc_core::Bytes::mib(1));
    let source = Arc::new(bfc_core::AddressOnlyMemory::new());
    let pool: Arc<dyn Allocator> = Arc::new(bfc_core::BfcAllocator::new("bfc", source, config));
    let tracker = Tracker::new();
    drop(run(&tracker, &pool, "report-requested", "op", [1000, 512]));
    let report = Report::new(&tracker, &[pool]);
    assert_eq!((report.ops[0].requested_bytes, report.ops[0].total_bytes), (1512, 1536));
    assert_eq!((report.scopes[0].requested_bytes, report.threads[0].requested_bytes), (1512, 1512));
    assert_eq!(report.phases[0].requested_bytes, 1512);
}

#[test]
fn the_peak_names_the_op_that_reached_it() {
    let (tracker, pool, _live) = sample("report-peak");
    let peak = Report::new(&tracker, std::slice::from_ref(&pool)).peak.unwrap();
    assert_eq!(
        peak,
        PeakRow {
            pool: "test".to_owned(),
            bytes: 287,
            scope: "report-peak.fc2.inner".to_owned(),
            op: Some("matmul".to_owned()),
            phase: Some(Phase::Forward),
            ..PeakRow::default()
        }
    );
    assert_eq!(Report::new(&Tracker::new(), &[TestPool::tracking()]).peak, None);
}

#[test]
fn live_bytes_add_up_to_the_bytes_in_use() {
    let (tracker, pool, mut live) = sample("report-sums");
    let other = TestPool::tracking();
    live.push(run(&tracker, &other, "fc1", "matmul", [8, 5]));
    let elsewhere =
        Tag { owner: OwnerId::intern(OwnerId::ROOT, "report-elsewhere"), category: Category::Input };
    live.push(Allocation::new(&other, &Request::new(3).with_tag(elsewhere)).unwrap());
    let pools = [pool, other];
    loop {
        let report = Report::new(&tracker, &pools);
        let in_use: u64 = report.pools.iter().map(|pool| pool.in_use).sum();
        assert_eq!(report.live_bytes(), in_use);
        assert_eq!(
            report.places.iter().map(|place| place.live_bytes).sum::<u64>(),
            in_use - report.unowned_bytes
        );
        assert_eq!(report.categories.iter().map(|row| row.live_bytes).sum::<u64>(), in_use);
        assert_eq!(report.scopes[0].live_bytes, in_use);
        if live.pop().is_none() {
            assert_eq!(in_use, 0);
            break;
        }
    }
}

#[test]
fn memory_charged_to_a_module_outside_of_ops_shows_in_its_scope() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let owner = OwnerId::intern(OwnerId::intern(OwnerId::ROOT, "report-module"), "weights");
    let tag = Tag { owner, category: Category::Parameter };
    let _weights = Allocation::new(&pool, &Request::new(40).with_tag(tag)).unwrap();
    let report = Report::new(&tracker, &[pool]);
    let scopes: Vec<_> = report.scopes.iter().map(|row| (row.scope.as_str(), row.live_bytes)).collect();
    assert_eq!(scopes, [("", 40), ("report-module", 40), ("report-module.weights", 40)]);
    assert_eq!(report.unowned_bytes, 40);
}

#[test]
fn a_reset_tracker_shows_only_what_is_live() {
    let (tracker, pool, _live) = sample("report-reset");
    tracker.reset();
    let report = Report::new(&tracker, &[pool]);
    let rows: Vec<_> = report.ops.iter().map(|row| (row.op.as_str(), row.calls, row.live_bytes)).collect();
    assert_eq!(rows, [("matmul", 0, 50), ("relu", 0, 30)]);
}

#[test]
fn json_has_the_figures_of_each_op_by_name() {
    let (tracker, pool, _live) = sample("report-json");
    let mut text = Vec::new();
    serde_json::to_writer_pretty(&mut text, &Report::new(&tracker, &[pool])).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let matmul = &json["ops"][0];
    assert_eq!(matmul["op"], "matmul");
    assert_eq!(matmul["phase"], "forward");
    assert_eq!(matmul["calls"], 2);
    assert_eq!(matmul["total_bytes"], 350);
    assert_eq!(matmul["high_water_bytes"], 220);
    assert_eq!(matmul["live_bytes"], 50);
    assert_eq!(json["places"][0]["scope"], "report-json.fc2.inner");
    assert_eq!(json["places"][0]["op"], "matmul");
    assert_eq!(json["peak"]["op"], "matmul");
    assert_eq!(json["pools"][0]["in_use"], 87);
}

#[test]
fn the_text_has_aligned_tables_with_totals() {
    let (tracker, pool, _live) = sample("report-text");
    let mut report = Report::new(&tracker, &[pool]);
    report.ops.iter_mut().chain(&mut report.places).for_each(|row| row.time_ns = 2_000);
    report.phases.iter_mut().for_each(|row| row.time_ns = 3_000_000);
    report.scopes.iter_mut().for_each(|row| row.time_ns = 0);
    let expected = "\
peak: 287 B in use in test, reached by report-text.fc2.inner.matmul

op                calls    time  total  high water  live  outliving  at peak   share
------------------------------------------------------------------------------------
matmul                2  2.0 µs  350 B       220 B  50 B       50 B    250 B  87.1 %
relu                  1  2.0 µs   31 B        31 B  30 B       30 B     30 B  10.5 %
matmul:backward       1  2.0 µs   60 B        60 B     -       10 B        -       -
------------------------------------------------------------------------------------
(outside of ops)      -       -      -           -   7 B          -        -       -
total                 4  6.0 µs  441 B       220 B  87 B       90 B    280 B  97.6 %

phase     calls    time  total  high water  live  at peak   share
-----------------------------------------------------------------
forward       3  3.0 ms  381 B       220 B  80 B    280 B  97.6 %
backward      1  3.0 ms   60 B        60 B     -        -       -

module         calls  total  high water  live  at peak    share
---------------------------------------------------------------
(top)              4  441 B       287 B  87 B    287 B  100.0 %
  report-text      4  441 B       280 B  80 B    280 B   97.6 %
    fc1            3  221 B       130 B  60 B     60 B   20.9 %
    fc2            1  220 B       220 B  20 B    220 B   76.7 %
      inner        1  220 B       220 B  20 B    220 B   76.7 %

category    high water  live  at peak   share
---------------------------------------------
";
    let text = report.to_string();
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("\nactivation        90 B  80 B     80 B  27.9 %\n"), "{text}");
    assert!(text.contains("\nfor backward: 4 blocks, at most 90 B at a time; a byte is kept for "), "{text}");

    let wide = report.text(TextOptions { wide: true, by_place: true, top: 1 }).to_string();
    let line = wide.lines().nth(4).unwrap();
    let cells: Vec<&str> = line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect();
    let figures = [
        "1", "2.0 µs", "220 B", "220 B", "220 B", "220 B", "20 B", "20 B", "67 B", "20 B", "20 B", "200 B",
        "20 B",
    ];
    assert_eq!(cells[1..14], figures, "{wide}");
    assert!(wide.lines().next().is_some_and(|head| head.starts_with("peak: ")));
    assert!(wide.contains("\n(3 more)\n"), "{wide}");
}

#[test]
fn the_tables_fit_in_100_columns() {
    let (tracker, pool) = (Tracker::new(), TestPool::tracking());
    let op = "an_op_with_a_name_that_is_longer_than_any_op_should_have";
    let _scope = module("encoder.blocks.11.attention.query");
    for category in [Category::Parameter, Category::Output, Category::Workspace] {
        for op in [op, "matmul"] {
            let run = tracker.begin(op);
            let request = Request::new(1023 << 20).with_category(category);
            drop(Allocation::new(&run.track(&pool), &request).unwrap());
        }
    }
    let mut report = Report::new(&tracker, &[pool]);
    report.ops.iter_mut().chain(&mut report.places).for_each(|row| row.time_ns = 999_900_000);
    let name = "a pool with a name of thirty characters".to_owned();
    report.pools = vec![PoolRow { name, ..report.pools[0].clone() }; 9];
    let text = report.text(TextOptions { by_place: true, ..TextOptions::default() }).to_string();
    for line in text.lines().filter(|line| !line.starts_with("peak: ")) {
        assert!(line.chars().count() <= 100, "{line}");
    }
    assert!(text.contains("\nencoder.blocks.11.attention.query.matmul "), "{text}");
    assert!(text.contains("\nencoder.b.11.…nger_than_any_op_should_have "), "{text}");
    let wide = format!("{report:#}");
    assert!(
        wide.contains(op) && wide.contains("self peak") && wide.matches("fragmentation").count() == 1,
        "{wide}"
    );
}

#[test]
fn live_memory_has_its_age_in_steps() {
    let config = bfc_core::BfcConfig::new(bfc_core::Bytes::mib(1));
    let source = Arc::new(bfc_core::AddressOnlyMemory::new());
    let pool: Arc<dyn Allocator> = Arc::new(bfc_core::BfcAllocator::new("bfc", source, config));
    let tracker = Tracker::new();
    let mut kept = vec![run(&tracker, &pool, "report-age", "init", [1, 2000])];
    let ages = |tracker: &Tracker| {
        let report = Report::new(tracker, std::slice::from_ref(&pool));
        let row = |row: &LiveRow| (row.path(), row.blocks, row.bytes, row.age_steps);
        (report.completed_steps, report.live.iter().map(row).collect::<Vec<_>>())
    };
    assert_eq!(ages(&tracker), (0, vec![("report-age.init".to_owned(), 1, 2048, None)]));
    for step in 0..6 {
        let result = run(&tracker, &pool, "report-age", "loss", [1, 256]);
        kept.extend((step % 2 == 0).then_some(result));
        let backward = phase(Phase::Backward);
        drop(run(&tracker, &pool, "report-age", "loss", [1, 1]));
        drop(backward);
        let _phase = phase(Phase::Optimizer);
        drop(run(&tracker, &pool, "report-age", "sgd", [1, 1]));
    }
    let of_loss = |ages| ("report-age.loss".to_owned(), 3, 768, Some(ages));
    let of_init = |age| ("report-age.init".to_owned(), 1, 2048, Some((age, age)));
    assert_eq!(ages(&tracker), (6, vec![of_init(6), of_loss((2, 6))]));
    drop(run(&tracker, &pool, "report-age", "relu", [1, 1]));
    assert_eq!(ages(&tracker), (6, vec![of_init(6), of_loss((2, 6))]));
    let text = Report::new(&tracker, &[Arc::clone(&pool)]).to_string();
    assert!(text.contains("2 to 6 steps"), "{text}");
}

#[test]
fn pools_that_together_leave_64_bits_are_reported_all_the_same() {
    let (tracker, pools) = (Tracker::new(), [TestPool::tracking(), TestPool::tracking()]);
    let _live = pools.each_ref().map(|pool| run(&tracker, pool, "report-huge", "op", [1, 1 << 63]));
    let report = Report::new(&tracker, &pools);
    assert_eq!((report.live_bytes(), report.ops[0].live_bytes), (u64::MAX, u64::MAX));
    assert_eq!(report.scopes[0].high_water_bytes, u64::MAX);
    assert!(report.to_string().contains("16.0 EiB"));
}

#[test]
fn calls_that_together_leave_64_bits_are_reported_all_the_same() {
    let row = |op: &str| OpRow { op: op.to_owned(), calls: u64::MAX, ..OpRow::default() };
    // As from a file.
    let report = Report { ops: vec![row("a"), row("b")], ..Report::default() };
    assert!(report.to_string().contains(&u64::MAX.to_string()), "{report}");
}

#[test]
fn a_report_reads_all_figures_of_a_pool_at_once() {
    let (tracker, pool) = (Tracker::new(), TestPool::busy());
    for _ in 0..3 {
        let report = Report::new(&tracker, &[Arc::clone(&pool), Arc::clone(&pool)]);
        assert_eq!(report.live_bytes(), report.pools.iter().map(|row| row.in_use).sum::<u64>());
        let categories = report.categories.iter().map(|row| row.live_bytes).sum::<u64>();
        assert_eq!(categories, report.live_bytes());
    }
}

#[test]
fn a_tracker_reports_memory_outside_the_pools() {
    let (tracker, pool, _live) = sample("report-outside");
    let inside = Report::new(&tracker, std::slice::from_ref(&pool));
    assert!(inside.outside.is_empty() && !inside.to_string().contains("outside the pools"));
    tracker.set_outside("NCCL", Bytes::mib(3));
    tracker.set_outside("other", Bytes(5));
    tracker.set_outside("NCCL", Bytes::mib(2));
    let report = Report::new(&tracker, &[pool]);
    let rows: Vec<_> = report.outside.iter().map(|row| (row.name.as_str(), row.bytes)).collect();
    assert_eq!(rows, [("NCCL", 2 << 20), ("other", 5)]);
    assert_eq!((&report.peak, report.live_bytes()), (&inside.peak, inside.live_bytes()));
    let table = "outside the pools     bytes\n---------------------------\nNCCL               2.00 MiB\nother                   5 B\n";
    assert!(report.to_string().contains(table), "{report}");
}
