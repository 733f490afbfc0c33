use std::sync::Mutex;

use super::*;
use crate::compute::{Factor, Product};
use crate::kernels::{CHECK, ElementType, Job, KernelId};

/// A call that the device received.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most calls are submissions")]
enum Call {
    Submitted(Command),
    Built(usize),
    Updated(usize),
    /// With the commands of the graph.
    Launched(Vec<Command>),
}

/// A device that records its calls and fails on request.
#[derive(Default)]
struct MockDevice {
    calls: Mutex<Vec<Call>>,
    no_graphs: bool,
    /// Kernels with this count fail.
    impossible: Option<u64>,
    /// How many graphs find no memory, and how often memory can be released.
    shortage: Mutex<(u32, u32)>,
    /// Whether memory was released since the last kernel `full`, which needs it.
    has_released: Mutex<bool>,
}

impl MockDevice {
    fn record(&self, calls: Call) {
        self.calls.lock().unwrap().push(calls);
    }

    fn check(&self, command: &[Command]) -> Result<(), ComputeError> {
        let is_impossible = |command: &Command| matches!(command, Command::Kernel { job, .. } if Some(job.count) == self.impossible);
        if command.iter().any(is_impossible) {
            return Err(ComputeError::Device { call: "submit", reason: "impossible".to_owned() });
        }
        Ok(())
    }
}

// SAFETY: the device touches no memory.
unsafe impl Executor for MockDevice {
    type Graph = Vec<Command>;

    unsafe fn submit(&self, command: &Command) -> Result<bool, ComputeError> {
        self.check(std::slice::from_ref(command))?;
        let is_full = matches!(command, Command::Kernel { kernel, .. } if kernel.name == "full");
        if is_full && !std::mem::take(&mut *self.has_released.lock().unwrap()) {
            return Err(ComputeError::OutOfMemory { call: "submit" });
        }
        self.record(Call::Submitted(command.clone()));
        // Products of one row are not supported.
        Ok(!matches!(command, Command::Product { product: Product { rows: 1, .. }, .. }))
    }

    unsafe fn build_graph(&self, command: &[Command]) -> Result<Self::Graph, ComputeError> {
        if self.no_graphs {
            return Err(ComputeError::Device { call: "build_graph", reason: "no graphs".to_owned() });
        }
        let (graphs, _) = &mut *self.shortage.lock().unwrap();
        if *graphs > 0 {
            *graphs -= 1;
            return Err(ComputeError::OutOfMemory { call: "build_graph" });
        }
        self.record(Call::Built(command.len()));
        Ok(command.to_vec())
    }

    fn release_memory(&self) -> bool {
        let (_, idle) = &mut *self.shortage.lock().unwrap();
        let some = *idle > 0;
        *idle -= u32::from(some);
        *self.has_released.lock().unwrap() = some;
        some
    }

    unsafe fn update_kernel(
        &self,
        graph: &mut Self::Graph,
        place: usize,
        by: &Command,
    ) -> Result<(), ComputeError> {
        assert!(graph[place].can_become(by));
        graph[place].clone_from(by);
        self.record(Call::Updated(place));
        Ok(())
    }

    unsafe fn launch_graph(&self, graph: &Self::Graph) -> Result<(), ComputeError> {
        self.check(graph)?;
        self.record(Call::Launched(graph.clone()));
        Ok(())
    }
}

fn kernel(name: &'static str, count: u64) -> Command {
    let kernel = KernelId::new(&CHECK, name, ElementType::F32);
    Command::Kernel { kernel, blocks: 1, job: Job { count, ..Job::default() }, table: None }
}

fn product(rows: i32, address: u64) -> Command {
    let factor = Factor::new(address, [rows as usize, 2], [2, 1], 0).unwrap();
    let product = Product {
        element: ElementType::F32,
        out_element: ElementType::F32,
        rows,
        columns: 2,
        depth: 2,
        batch: 1,
        lhs: factor,
        rhs: factor,
        out: 0,
        accumulate: false,
        workspace: (0, 0),
    };
    Command::Product { product, supported: true }
}

fn five_kernels() -> Vec<Command> {
    ["a", "b", "c", "d", "e"].iter().map(|name| kernel(name, 1)).collect()
}

fn submit(batcher: &GraphBatcher<MockDevice>, command: &[Command]) -> Vec<bool> {
    // SAFETY: the device follows no addresses.
    command.iter().map(|command| unsafe { batcher.submit(command.clone()) }.unwrap()).collect()
}

/// One run with a flush after each segment; returns the calls that the device received.
fn run(batcher: &GraphBatcher<MockDevice>, id: StepId, segments: &[&[Command]]) -> Vec<Call> {
    assert!(batcher.begin(id));
    for segment in segments {
        submit(batcher, segment);
        batcher.flush().unwrap();
    }
    batcher.end().unwrap();
    std::mem::take(&mut batcher.device.calls.lock().unwrap())
}

fn singly(command: &[Command]) -> Vec<Call> {
    command.iter().cloned().map(Call::Submitted).collect()
}

#[test]
fn without_a_step_commands_are_submitted_directly() {
    let batcher = GraphBatcher::new(MockDevice::default());
    submit(&batcher, &five_kernels());
    assert_eq!(*batcher.device.calls.lock().unwrap(), singly(&five_kernels()));
}

#[test]
fn the_second_run_builds_a_graph_and_the_third_launches_it() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    assert_eq!(run(&batcher, id, &[&five_kernels()]), singly(&five_kernels()));
    assert_eq!(run(&batcher, id, &[&five_kernels()]), [Call::Built(5), Call::Launched(five_kernels())]);
    assert_eq!(run(&batcher, id, &[&five_kernels()]), [Call::Launched(five_kernels())]);
    let counts = batcher.counts(id);
    assert_eq!((counts.runs, counts.singly, counts.in_graphs), (3, 5, 10));
    assert_eq!((counts.graphs, counts.prepared, counts.replaced, counts.refused), (2, 1, 0, None));
}

#[test]
fn only_kernels_with_new_arguments_are_updated() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    let with = |count| {
        let mut command = five_kernels();
        command[3] = kernel("d", count);
        command
    };
    run(&batcher, id, &[&with(1)]);
    // The graph is built from the held commands.
    assert_eq!(run(&batcher, id, &[&with(2)]), [Call::Built(5), Call::Launched(with(2))]);
    assert_eq!(run(&batcher, id, &[&with(3)]), [Call::Updated(3), Call::Launched(with(3))]);
    assert_eq!(run(&batcher, id, &[&with(3)]), [Call::Launched(with(3))]);
    assert_eq!(batcher.counts(id).replaced, 1);
}

#[test]
fn nothing_is_submitted_before_a_flush() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    run(&batcher, id, &[&five_kernels()]);
    assert!(batcher.begin(id));
    submit(&batcher, &five_kernels()[..4]);
    assert_eq!(*batcher.device.calls.lock().unwrap(), []);
    batcher.flush_keeping_error();
    assert_eq!(*batcher.device.calls.lock().unwrap(), singly(&five_kernels()[..4]));
    batcher.end().unwrap();
}

#[test]
fn a_diverging_run_is_submitted_in_order_and_recorded() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    let other: Vec<Command> =
        five_kernels().into_iter().take(3).chain([kernel("x", 1), kernel("y", 1)]).collect();
    run(&batcher, id, &[&five_kernels()]);
    run(&batcher, id, &[&five_kernels()]);
    assert_eq!(run(&batcher, id, &[&other]), singly(&other));
    // Now both variants are recorded.
    assert_eq!(run(&batcher, id, &[&other]), [Call::Built(5), Call::Launched(other.clone())]);
    assert_eq!(run(&batcher, id, &[&five_kernels()]), [Call::Launched(five_kernels())]);
    assert_eq!(run(&batcher, id, &[&other]), [Call::Launched(other)]);
}

#[test]
fn a_shorter_or_longer_run_is_another_variant() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    let longer: Vec<Command> = five_kernels().into_iter().chain([kernel("x", 1)]).collect();
    run(&batcher, id, &[&five_kernels()]);
    assert_eq!(run(&batcher, id, &[&five_kernels()[..4]]), singly(&five_kernels()[..4]));
    assert_eq!(run(&batcher, id, &[&longer]), singly(&longer));
    for command in [&five_kernels()[..4], &five_kernels(), &longer] {
        let calls = run(&batcher, id, &[command]);
        assert_eq!(calls, [Call::Built(command.len()), Call::Launched(command.to_vec())]);
    }
}

#[test]
fn the_least_recently_used_variant_is_replaced() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    let of = |n: u64| (0..4).map(|_| product(2, n * 256)).collect::<Vec<_>>();
    for n in 0..5 {
        run(&batcher, id, &[&of(n)]);
    }
    assert_eq!(run(&batcher, id, &[&of(1)]).len(), 2);
    assert_eq!(run(&batcher, id, &[&of(0)]), singly(&of(0)));
    assert_eq!(run(&batcher, id, &[&of(2)]), singly(&of(2)));
    assert_eq!(run(&batcher, id, &[&of(1)]), [Call::Launched(of(1))]);
}

#[test]
fn products_match_exactly_and_keep_their_support() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    let mut command = five_kernels();
    command.insert(2, product(1, 256));
    let (without, unknown) = (five_kernels(), Call::Submitted(command[2].clone()));
    let mut first = singly(&without);
    first.insert(2, unknown);
    assert_eq!(run(&batcher, id, &[&command]), first);
    assert!(batcher.begin(id));
    assert_eq!(submit(&batcher, &command), [true, true, false, true, true, true]);
    batcher.end().unwrap();
    let calls = std::mem::take(&mut *batcher.device.calls.lock().unwrap());
    let Call::Launched(graph) = &calls[1] else { panic!("{calls:?}") };
    assert!(!graph[2].is_supported());
    assert_eq!(batcher.counts(id).in_graphs, 5);

    let id = StepId(2);
    let with = |address| [five_kernels(), vec![product(2, address)]].concat();
    run(&batcher, id, &[&with(256)]);
    assert_eq!(run(&batcher, id, &[&with(512)]), singly(&with(512)));
    assert_eq!(run(&batcher, id, &[&with(512)]), [Call::Built(6), Call::Launched(with(512))]);
}

#[test]
fn each_segment_is_a_graph_of_its_own() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    let (all, one) = (five_kernels(), [kernel("x", 1)]);
    let segments: [&[Command]; 4] = [&all, &[], &one, &all];
    run(&batcher, id, &segments);
    let calls = run(&batcher, id, &segments);
    // One kernel is too short for a graph.
    let expected = [
        vec![Call::Built(5), Call::Launched(five_kernels())],
        singly(&one),
        vec![Call::Built(5), Call::Launched(five_kernels())],
    ];
    assert_eq!(calls, expected.concat());
}

#[test]
fn a_device_without_graphs_is_asked_once() {
    let (batcher, id) =
        (GraphBatcher::new(MockDevice { no_graphs: true, ..MockDevice::default() }), StepId(1));
    for _ in 0..4 {
        assert_eq!(run(&batcher, id, &[&five_kernels()]), singly(&five_kernels()));
    }
    assert_eq!(batcher.counts(id).refused.as_deref(), Some("build_graph: no graphs"));
}

#[test]
fn a_failure_of_held_commands_shows_at_the_flush() {
    let (batcher, id) =
        (GraphBatcher::new(MockDevice { impossible: Some(7), ..MockDevice::default() }), StepId(1));
    let mut bad = five_kernels();
    bad[1] = kernel("b", 7);
    run(&batcher, id, &[&five_kernels()]);
    for keeping_error in [false, true] {
        assert!(batcher.begin(id));
        submit(&batcher, &bad);
        if keeping_error {
            batcher.flush_keeping_error();
        }
        assert!(batcher.end().is_err());
    }
    batcher.device.calls.lock().unwrap().clear();
    assert_eq!(run(&batcher, id, &[&five_kernels()]), [Call::Updated(1), Call::Launched(five_kernels())]);
    // One by one.
    assert!(batcher.begin(id));
    submit(&batcher, &bad[..2]);
    assert!(batcher.flush().is_err());
    assert!(batcher.end().is_err());
}

#[test]
fn after_a_failure_the_run_refuses_commands_until_it_ends() {
    let (batcher, id) =
        (GraphBatcher::new(MockDevice { impossible: Some(7), ..MockDevice::default() }), StepId(1));
    let mut bad = five_kernels();
    bad[1] = kernel("b", 7);
    // Once submitted one by one because it diverges, once as a graph.
    for (runs, diverges) in [(1, true), (2, false)] {
        for _ in 0..runs {
            run(&batcher, id, &[&five_kernels()]);
        }
        assert!(batcher.begin(id));
        submit(&batcher, &bad);
        let lost = if diverges {
            // SAFETY: the device follows no addresses.
            unsafe { batcher.submit(kernel("x", 1)) }.map(drop)
        } else {
            batcher.flush()
        };
        assert!(lost.is_err());
        let calls = std::mem::take(&mut *batcher.device.calls.lock().unwrap());
        let before = singly(&bad[..1]);
        assert_eq!(calls, if diverges { before } else { vec![Call::Updated(1)] });
        // SAFETY: as above.
        assert_eq!(unsafe { batcher.submit(kernel("y", 1)) }, lost.clone().map(|()| true));
        batcher.flush_keeping_error();
        assert_eq!([batcher.flush(), batcher.flush_before_copy()], [lost.clone(), lost.clone()]);
        std::thread::scope(|scope| {
            let copied = scope.spawn(|| batcher.flush_before_copy()).join().unwrap();
            assert_eq!(copied, lost);
        });
        assert_eq!(batcher.end(), lost);
        assert_eq!(*batcher.device.calls.lock().unwrap(), []);
        // The next run is not affected.
        submit(&batcher, &five_kernels());
        batcher.device.calls.lock().unwrap().clear();
    }
}

#[test]
fn positive_and_negative_zero_are_different_constants() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    let with = |constant: f64| {
        let mut command = five_kernels();
        let Command::Kernel { job, .. } = &mut command[2] else { panic!("it is a kernel") };
        job.constants[0] = constant;
        command
    };
    run(&batcher, id, &[&with(0.0)]);
    run(&batcher, id, &[&with(0.0)]);
    let calls = run(&batcher, id, &[&with(-0.0)]);
    let [Call::Updated(2), Call::Launched(graph)] = &calls[..] else { panic!("{calls:?}") };
    let Command::Kernel { job, .. } = &graph[2] else { panic!("it is a kernel") };
    assert!(job.constants[0].is_sign_negative());
    // A NaN is identical to itself.
    run(&batcher, id, &[&with(f64::NAN)]);
    assert_eq!(run(&batcher, id, &[&with(f64::NAN)]).len(), 1);
}

#[test]
fn out_of_memory_releases_memory_and_tries_once_more() {
    let full = |graphs, idle| MockDevice { shortage: Mutex::new((graphs, idle)), ..MockDevice::default() };
    // Two kernels find no memory: the first succeeds after memory was released, the second does not.
    let batcher = GraphBatcher::new(full(0, 1));
    assert_eq!(submit(&batcher, &[kernel("full", 1)]), [true]);
    // SAFETY: the device follows no addresses.
    let refused = unsafe { batcher.submit(kernel("full", 1)) };
    assert!(refused.unwrap_err().is_out_of_memory());

    // A graph: the commands are submitted one by one, and the next run builds the graph with the released memory.
    let (batcher, id) = (GraphBatcher::new(full(1, 1)), StepId(1));
    run(&batcher, id, &[&five_kernels()]);
    assert_eq!(run(&batcher, id, &[&five_kernels()]), singly(&five_kernels()));
    assert_eq!(run(&batcher, id, &[&five_kernels()]), [Call::Built(5), Call::Launched(five_kernels())]);
    // After a second failure the batcher gives up.
    let batcher = GraphBatcher::new(full(2, 1));
    run(&batcher, id, &[&five_kernels()]);
    for _ in 0..4 {
        assert_eq!(run(&batcher, id, &[&five_kernels()]), singly(&five_kernels()));
    }
}

#[test]
fn steps_have_separate_records_and_one_runs_at_a_time() {
    let batcher = GraphBatcher::new(MockDevice::default());
    let (first, second) = (StepId(1), StepId(2));
    run(&batcher, first, &[&five_kernels()]);
    assert_eq!(run(&batcher, second, &[&five_kernels()]), singly(&five_kernels()));
    assert!(batcher.begin(first));
    assert!(!batcher.begin(second));
    batcher.end().unwrap();
    assert_eq!((batcher.counts(first).runs, batcher.counts(second).runs), (2, 1));
    batcher.forget(first);
    assert_eq!(batcher.counts(first), GraphCounts::default());
    assert_eq!(run(&batcher, first, &[&five_kernels()]), singly(&five_kernels()));
}

#[test]
fn a_segment_that_is_too_long_is_not_recorded() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    let endless: Vec<Command> = (0..=MAX_COMMANDS as u64).map(|n| kernel("a", n)).collect();
    let mut expected = singly(&[endless.clone(), five_kernels()].concat());
    assert_eq!(run(&batcher, id, &[&endless, &five_kernels()]), expected);
    expected.truncate(endless.len());
    expected.extend([Call::Built(5), Call::Launched(five_kernels())]);
    assert_eq!(run(&batcher, id, &[&endless, &five_kernels()]), expected);
}

#[test]
fn a_copy_by_another_thread_does_not_split_the_segment() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    run(&batcher, id, &[&five_kernels()]);
    assert!(batcher.begin(id));
    submit(&batcher, &five_kernels()[..4]);
    std::thread::scope(|scope| {
        let copied = scope.spawn(|| {
            batcher.flush_before_copy().unwrap();
            batcher.device.calls.lock().unwrap().clone()
        });
        // The other thread may also have stopped waiting before this thread looked.
        while batcher.state().waiting == 0 && !copied.is_finished() {
            std::thread::yield_now();
        }
        submit(&batcher, &five_kernels()[4..]);
        batcher.end().unwrap();
        // If this thread was slow, the other one did not wait and flushed by itself.
        let calls = copied.join().unwrap();
        assert!(
            calls == [Call::Built(5), Call::Launched(five_kernels())]
                || calls[..4] == singly(&five_kernels())[..4],
            "{calls:?}"
        );
    });
    // Without held commands there is no wait, and this thread's own copy splits the segment.
    batcher.device.calls.lock().unwrap().clear();
    assert!(batcher.begin(id));
    std::thread::scope(|scope| {
        scope.spawn(|| batcher.flush_before_copy().unwrap());
    });
    submit(&batcher, &five_kernels()[..4]);
    batcher.flush_before_copy().unwrap();
    assert_eq!(batcher.device.calls.lock().unwrap().len(), 4);
    batcher.end().unwrap();
}

#[test]
fn a_copy_does_not_wait_forever_for_the_run() {
    let (batcher, id) = (GraphBatcher::new(MockDevice::default()), StepId(1));
    run(&batcher, id, &[&five_kernels()]);
    assert!(batcher.begin(id));
    submit(&batcher, &five_kernels()[..4]);
    std::thread::scope(|scope| {
        scope.spawn(|| batcher.flush_before_copy().unwrap()).join().unwrap();
    });
    assert_eq!(*batcher.device.calls.lock().unwrap(), singly(&five_kernels()[..4]));
    batcher.end().unwrap();
}

/// Command in short: a kernel's name and its job's count, or a product's rows and address.
fn short(command: &Command) -> (&'static str, u64) {
    match command {
        Command::Kernel { kernel, job, .. } => (kernel.name, job.count),
        Command::Product { product, .. } => ("product", product.lhs.address),
    }
}

/// Whether [`MockDevice`] supports it.
fn is_done(command: &Command) -> bool {
    !matches!(command, Command::Product { product: Product { rows: 1, .. }, .. })
}

/// The commands that the device executed, in order.
fn done(calls: &[Call]) -> Vec<(&'static str, u64)> {
    let command = |calls: &Call| match calls {
        Call::Submitted(command) => vec![command.clone()],
        Call::Launched(graph) => graph.clone(),
        Call::Built(_) | Call::Updated(_) => Vec::new(),
    };
    calls.iter().flat_map(command).filter(is_done).map(|command| short(&command)).collect()
}

#[test]
fn random_runs_execute_in_submission_order() {
    let mut state = 1_u64;
    let mut random = move |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let batcher = GraphBatcher::new(MockDevice { impossible: Some(99), ..MockDevice::default() });
    let names = ["a", "b", "c"];
    let (mut graphs, mut failures) = (0, 0);
    // Each run executes one of these programs, sometimes with changes.
    let programs: Vec<Vec<Command>> = (0..5)
        .map(|_| {
            let length = random(12);
            (0..length)
                .map(|_| match random(4) {
                    0 => product(1 + random(2) as i32, 256 * random(3)),
                    name => kernel(names[name as usize - 1], random(5)),
                })
                .collect()
        })
        .collect();
    for _ in 0..50_000 {
        let step = StepId(random(3));
        let runs = random(8) > 0 && batcher.begin(step);
        let mut expected = Vec::new();
        for mut command in programs[random(5) as usize].iter().cloned() {
            match random(60) {
                0 => continue,
                1 => batcher.flush().unwrap(),
                2 => batcher.flush_keeping_error(),
                3 => batcher.flush_before_copy().unwrap(),
                4 => command = kernel(names[random(3) as usize], random(5)),
                // New arguments for the same kernel.
                5..20 => {
                    if let Command::Kernel { job, .. } = &mut command {
                        job.count = random(5);
                    }
                }
                _ => {}
            }
            let done = is_done(&command).then(|| short(&command));
            // SAFETY: the device follows no addresses.
            assert_eq!(unsafe { batcher.submit(command) }.unwrap(), done.is_some());
            expected.extend(done);
        }
        let breaks = random(50) == 0;
        if breaks {
            // SAFETY: as above.
            let refused = unsafe { batcher.submit(kernel("a", 99)) };
            failures += u32::from(refused.is_err());
        }
        let ended = if runs { batcher.end() } else { Ok(()) };
        let calls = std::mem::take(&mut *batcher.device.calls.lock().unwrap());
        graphs += calls.iter().filter(|calls| matches!(calls, Call::Launched(_))).count();
        if ended.is_err() {
            failures += 1;
            continue;
        }
        assert_eq!(done(&calls), expected);
    }
    assert!(graphs > 5_000 && failures > 100, "{graphs} graphs, {failures} failures");
}
