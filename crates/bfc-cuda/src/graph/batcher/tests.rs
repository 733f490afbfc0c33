use std::sync::Mutex;

use super::*;
use crate::compute::{Factor, Product};
use crate::kernels::{ElementType, Family, Job, Kernel};

/// What a device was told.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most are of that")]
enum Told {
    Gave(Work),
    Prepared(usize),
    Replaced(usize),
    /// All that the graph has.
    Started(Vec<Work>),
}

/// A device that writes down what it is told, and fails where it is said to.
#[derive(Default)]
struct Paper {
    told: Mutex<Vec<Told>>,
    no_graphs: bool,
    /// The count of a job that cannot be done.
    impossible: Option<u64>,
    /// How many graphs find no memory, and how often there is some to give back.
    lacks: Mutex<(u32, u32)>,
    /// Whether some was given back since the kernel `full`, which needs it, was given.
    roomy: Mutex<bool>,
}

impl Paper {
    fn write(&self, told: Told) {
        self.told.lock().unwrap().push(told);
    }

    fn check(&self, work: &[Work]) -> Result<(), ComputeError> {
        let is_impossible =
            |work: &Work| matches!(work, Work::Kernel { job, .. } if Some(job.count) == self.impossible);
        if work.iter().any(is_impossible) {
            return Err(ComputeError::Device { call: "give", reason: "impossible".to_owned() });
        }
        Ok(())
    }
}

// SAFETY: nothing is touched.
unsafe impl Issue for Paper {
    type Graph = Vec<Work>;

    unsafe fn give(&self, work: &Work) -> Result<bool, ComputeError> {
        self.check(std::slice::from_ref(work))?;
        let is_full = matches!(work, Work::Kernel { kernel, .. } if kernel.name == "full");
        if is_full && !std::mem::take(&mut *self.roomy.lock().unwrap()) {
            return Err(ComputeError::OutOfMemory { call: "give" });
        }
        self.write(Told::Gave(*work));
        // Of products, those of one row are not known.
        Ok(!matches!(work, Work::Product { product: Product { rows: 1, .. }, .. }))
    }

    unsafe fn prepare(&self, work: &[Work]) -> Result<Self::Graph, ComputeError> {
        if self.no_graphs {
            return Err(ComputeError::Device { call: "prepare", reason: "no graphs".to_owned() });
        }
        let (graphs, _) = &mut *self.lacks.lock().unwrap();
        if *graphs > 0 {
            *graphs -= 1;
            return Err(ComputeError::OutOfMemory { call: "prepare" });
        }
        self.write(Told::Prepared(work.len()));
        Ok(work.to_vec())
    }

    fn make_room(&self) -> bool {
        let (_, idle) = &mut *self.lacks.lock().unwrap();
        let some = *idle > 0;
        *idle -= u32::from(some);
        *self.roomy.lock().unwrap() = some;
        some
    }

    unsafe fn replace(&self, graph: &mut Self::Graph, place: usize, by: &Work) -> Result<(), ComputeError> {
        assert!(graph[place].fits(by));
        graph[place] = *by;
        self.write(Told::Replaced(place));
        Ok(())
    }

    unsafe fn start(&self, graph: &Self::Graph) -> Result<(), ComputeError> {
        self.check(graph)?;
        self.write(Told::Started(graph.clone()));
        Ok(())
    }
}

fn kernel(name: &'static str, count: u64) -> Work {
    let kernel = Kernel::new(Family::Elementwise, name, ElementType::F32);
    Work::Kernel { kernel, blocks: 1, job: Job { count, ..Job::default() } }
}

fn product(rows: i32, address: u64) -> Work {
    let factor = Factor::new(address, [rows as usize, 2], [2, 1], 0).unwrap();
    let product = Product {
        element: ElementType::F32,
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
    Work::Product { product, known: true }
}

fn abc() -> Vec<Work> {
    ["a", "b", "c", "d", "e"].iter().map(|name| kernel(name, 1)).collect()
}

fn give(held: &Held<Paper>, work: &[Work]) -> Vec<bool> {
    // SAFETY: paper does not follow addresses.
    work.iter().map(|&work| unsafe { held.give(work) }.unwrap()).collect()
}

/// One run, with the host coming in between the stretches; what the device was told.
fn run(held: &Held<Paper>, id: StepId, stretches: &[&[Work]]) -> Vec<Told> {
    assert!(held.begin(id));
    for stretch in stretches {
        give(held, stretch);
        held.settle().unwrap();
    }
    held.end().unwrap();
    std::mem::take(&mut held.device.told.lock().unwrap())
}

fn singly(work: &[Work]) -> Vec<Told> {
    work.iter().map(|&work| Told::Gave(work)).collect()
}

#[test]
fn without_a_step_work_is_given_as_it_comes() {
    let held = Held::new(Paper::default());
    give(&held, &abc());
    assert_eq!(*held.device.told.lock().unwrap(), singly(&abc()));
}

#[test]
fn the_second_run_of_the_same_work_is_a_graph_and_the_third_starts_it_again() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    assert_eq!(run(&held, id, &[&abc()]), singly(&abc()));
    assert_eq!(run(&held, id, &[&abc()]), [Told::Prepared(5), Told::Started(abc())]);
    assert_eq!(run(&held, id, &[&abc()]), [Told::Started(abc())]);
    let counts = held.counts(id);
    assert_eq!((counts.runs, counts.singly, counts.in_graphs), (3, 5, 10));
    assert_eq!((counts.graphs, counts.prepared, counts.replaced, counts.refused), (2, 1, 0, None));
}

#[test]
fn a_kernel_with_another_job_is_replaced_and_nothing_else() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    let with = |count| {
        let mut work = abc();
        work[3] = kernel("d", count);
        work
    };
    run(&held, id, &[&with(1)]);
    // The graph is made of what is held back then.
    assert_eq!(run(&held, id, &[&with(2)]), [Told::Prepared(5), Told::Started(with(2))]);
    assert_eq!(run(&held, id, &[&with(3)]), [Told::Replaced(3), Told::Started(with(3))]);
    assert_eq!(run(&held, id, &[&with(3)]), [Told::Started(with(3))]);
    assert_eq!(held.counts(id).replaced, 1);
}

#[test]
fn nothing_is_given_before_the_host_comes_in() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    run(&held, id, &[&abc()]);
    assert!(held.begin(id));
    give(&held, &abc()[..4]);
    assert_eq!(*held.device.told.lock().unwrap(), []);
    held.settle_unheard();
    assert_eq!(*held.device.told.lock().unwrap(), singly(&abc()[..4]));
    held.end().unwrap();
}

#[test]
fn what_departs_from_the_record_is_given_one_by_one_in_order_and_remembered() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    let other: Vec<Work> = abc().into_iter().take(3).chain([kernel("x", 1), kernel("y", 1)]).collect();
    run(&held, id, &[&abc()]);
    run(&held, id, &[&abc()]);
    assert_eq!(run(&held, id, &[&other]), singly(&other));
    // From now on both are known.
    assert_eq!(run(&held, id, &[&other]), [Told::Prepared(5), Told::Started(other.clone())]);
    assert_eq!(run(&held, id, &[&abc()]), [Told::Started(abc())]);
    assert_eq!(run(&held, id, &[&other]), [Told::Started(other)]);
}

#[test]
fn a_run_that_ends_early_or_goes_on_is_another_variant() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    let longer: Vec<Work> = abc().into_iter().chain([kernel("x", 1)]).collect();
    run(&held, id, &[&abc()]);
    assert_eq!(run(&held, id, &[&abc()[..4]]), singly(&abc()[..4]));
    assert_eq!(run(&held, id, &[&longer]), singly(&longer));
    for work in [&abc()[..4], &abc(), &longer] {
        let told = run(&held, id, &[work]);
        assert_eq!(told, [Told::Prepared(work.len()), Told::Started(work.to_vec())]);
    }
}

#[test]
fn the_variant_not_used_for_the_longest_time_makes_room() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    let of = |n: u64| (0..4).map(|_| product(2, n * 256)).collect::<Vec<_>>();
    for n in 0..5 {
        run(&held, id, &[&of(n)]);
    }
    assert_eq!(run(&held, id, &[&of(1)]).len(), 2);
    assert_eq!(run(&held, id, &[&of(0)]), singly(&of(0)));
    assert_eq!(run(&held, id, &[&of(2)]), singly(&of(2)));
    assert_eq!(run(&held, id, &[&of(1)]), [Told::Started(of(1))]);
}

#[test]
fn products_are_the_same_only_if_all_of_them_is_and_unknown_ones_stay_unknown() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    let mut work = abc();
    work.insert(2, product(1, 256));
    let (without, unknown) = (abc(), Told::Gave(work[2]));
    let mut first = singly(&without);
    first.insert(2, unknown);
    assert_eq!(run(&held, id, &[&work]), first);
    assert!(held.begin(id));
    assert_eq!(give(&held, &work), [true, true, false, true, true, true]);
    held.end().unwrap();
    let told = std::mem::take(&mut *held.device.told.lock().unwrap());
    let Told::Started(graph) = &told[1] else { panic!("{told:?}") };
    assert!(!graph[2].is_known());
    assert_eq!(held.counts(id).in_graphs, 5);

    let id = StepId(2);
    let with = |address| [abc(), vec![product(2, address)]].concat();
    run(&held, id, &[&with(256)]);
    assert_eq!(run(&held, id, &[&with(512)]), singly(&with(512)));
    assert_eq!(run(&held, id, &[&with(512)]), [Told::Prepared(6), Told::Started(with(512))]);
}

#[test]
fn stretches_between_the_points_where_the_host_comes_in_are_graphs_of_their_own() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    let (all, one) = (abc(), [kernel("x", 1)]);
    let stretches: [&[Work]; 4] = [&all, &[], &one, &all];
    run(&held, id, &stretches);
    let told = run(&held, id, &stretches);
    // One kernel is not worth a graph.
    let expected = [
        vec![Told::Prepared(5), Told::Started(abc())],
        singly(&one),
        vec![Told::Prepared(5), Told::Started(abc())],
    ];
    assert_eq!(told, expected.concat());
}

#[test]
fn a_device_that_makes_no_graphs_is_given_the_work_all_the_same_and_asked_once() {
    let (held, id) = (Held::new(Paper { no_graphs: true, ..Paper::default() }), StepId(1));
    for _ in 0..4 {
        assert_eq!(run(&held, id, &[&abc()]), singly(&abc()));
    }
    assert_eq!(held.counts(id).refused.as_deref(), Some("prepare: no graphs"));
}

#[test]
fn a_failure_of_what_was_held_back_comes_where_the_host_comes_in_and_is_no_record() {
    let (held, id) = (Held::new(Paper { impossible: Some(7), ..Paper::default() }), StepId(1));
    let mut bad = abc();
    bad[1] = kernel("b", 7);
    run(&held, id, &[&abc()]);
    for unheard in [false, true] {
        assert!(held.begin(id));
        give(&held, &bad);
        if unheard {
            held.settle_unheard();
        }
        assert!(held.end().is_err());
    }
    held.device.told.lock().unwrap().clear();
    assert_eq!(run(&held, id, &[&abc()]), [Told::Replaced(1), Told::Started(abc())]);
    // One by one.
    assert!(held.begin(id));
    give(&held, &bad[..2]);
    assert!(held.settle().is_err());
    assert!(held.end().is_err());
}

#[test]
fn once_held_back_work_is_lost_the_run_takes_nothing_more_and_tells_all_until_it_ends() {
    let (held, id) = (Held::new(Paper { impossible: Some(7), ..Paper::default() }), StepId(1));
    let mut bad = abc();
    bad[1] = kernel("b", 7);
    // Given one by one, since it departs from the record; and as a graph.
    for (runs, departs) in [(1, true), (2, false)] {
        for _ in 0..runs {
            run(&held, id, &[&abc()]);
        }
        assert!(held.begin(id));
        give(&held, &bad);
        let lost = if departs {
            // SAFETY: paper does not follow addresses.
            unsafe { held.give(kernel("x", 1)) }.map(drop)
        } else {
            held.settle()
        };
        assert!(lost.is_err());
        let told = std::mem::take(&mut *held.device.told.lock().unwrap());
        let before = singly(&bad[..1]);
        assert_eq!(told, if departs { before } else { vec![Told::Replaced(1)] });
        // SAFETY: as above.
        assert_eq!(unsafe { held.give(kernel("y", 1)) }, lost.clone().map(|()| true));
        held.settle_unheard();
        assert_eq!([held.settle(), held.settle_for_copy()], [lost.clone(), lost.clone()]);
        std::thread::scope(|scope| {
            let copied = scope.spawn(|| held.settle_for_copy()).join().unwrap();
            assert_eq!(copied, lost);
        });
        assert_eq!(held.end(), lost);
        assert_eq!(*held.device.told.lock().unwrap(), []);
        // What comes after the run is not part of it.
        give(&held, &abc());
        held.device.told.lock().unwrap().clear();
    }
}

#[test]
fn zeros_of_either_sign_are_not_the_same_constant() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    let with = |constant: f64| {
        let mut work = abc();
        let Work::Kernel { job, .. } = &mut work[2] else { panic!("it is a kernel") };
        job.constants[0] = constant;
        work
    };
    run(&held, id, &[&with(0.0)]);
    run(&held, id, &[&with(0.0)]);
    let told = run(&held, id, &[&with(-0.0)]);
    let [Told::Replaced(2), Told::Started(graph)] = &told[..] else { panic!("{told:?}") };
    let Work::Kernel { job, .. } = &graph[2] else { panic!("it is a kernel") };
    assert!(job.constants[0].is_sign_negative());
    // What is no number is the same as itself.
    run(&held, id, &[&with(f64::NAN)]);
    assert_eq!(run(&held, id, &[&with(f64::NAN)]).len(), 1);
}

#[test]
fn memory_is_given_back_for_work_and_for_a_graph_that_lack_it_and_each_is_tried_once_more() {
    let full = |graphs, idle| Paper { lacks: Mutex::new((graphs, idle)), ..Paper::default() };
    // Two kernels find no memory: one after something was given back, one for good.
    let held = Held::new(full(0, 1));
    assert_eq!(give(&held, &[kernel("full", 1)]), [true]);
    // SAFETY: paper does not follow addresses.
    let refused = unsafe { held.give(kernel("full", 1)) };
    assert!(refused.unwrap_err().is_out_of_memory());

    // A graph: the work is given one by one, and the next run prepares it with the memory that was given back.
    let (held, id) = (Held::new(full(1, 1)), StepId(1));
    run(&held, id, &[&abc()]);
    assert_eq!(run(&held, id, &[&abc()]), singly(&abc()));
    assert_eq!(run(&held, id, &[&abc()]), [Told::Prepared(5), Told::Started(abc())]);
    // If that does not help, it is given up.
    let held = Held::new(full(2, 1));
    run(&held, id, &[&abc()]);
    for _ in 0..4 {
        assert_eq!(run(&held, id, &[&abc()]), singly(&abc()));
    }
}

#[test]
fn steps_are_remembered_apart_and_one_runs_at_a_time() {
    let held = Held::new(Paper::default());
    let (first, second) = (StepId(1), StepId(2));
    run(&held, first, &[&abc()]);
    assert_eq!(run(&held, second, &[&abc()]), singly(&abc()));
    assert!(held.begin(first));
    assert!(!held.begin(second));
    held.end().unwrap();
    assert_eq!((held.counts(first).runs, held.counts(second).runs), (2, 1));
    held.forget(first);
    assert_eq!(held.counts(first), StepCounts::default());
    assert_eq!(run(&held, first, &[&abc()]), singly(&abc()));
}

#[test]
fn an_endless_stretch_is_not_remembered() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    let endless: Vec<Work> = (0..=MOST_WORK as u64).map(|n| kernel("a", n)).collect();
    let mut expected = singly(&[endless.clone(), abc()].concat());
    assert_eq!(run(&held, id, &[&endless, &abc()]), expected);
    expected.truncate(endless.len());
    expected.extend([Told::Prepared(5), Told::Started(abc())]);
    assert_eq!(run(&held, id, &[&endless, &abc()]), expected);
}

#[test]
fn a_copy_of_another_thread_comes_after_what_was_held_back_and_does_not_divide_the_run() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    run(&held, id, &[&abc()]);
    assert!(held.begin(id));
    give(&held, &abc()[..4]);
    std::thread::scope(|scope| {
        let copied = scope.spawn(|| {
            held.settle_for_copy().unwrap();
            held.device.told.lock().unwrap().clone()
        });
        while held.state().waiting == 0 {
            std::thread::yield_now();
        }
        give(&held, &abc()[4..]);
        held.end().unwrap();
        // If this thread was slow, the other one did not wait for it; then all was given nevertheless.
        let told = copied.join().unwrap();
        assert!(
            told == [Told::Prepared(5), Told::Started(abc())] || told[..4] == singly(&abc())[..4],
            "{told:?}"
        );
    });
    // Where nothing is held back nobody waits, and this thread's own copy divides.
    held.device.told.lock().unwrap().clear();
    assert!(held.begin(id));
    std::thread::scope(|scope| {
        scope.spawn(|| held.settle_for_copy().unwrap());
    });
    give(&held, &abc()[..4]);
    held.settle_for_copy().unwrap();
    assert_eq!(held.device.told.lock().unwrap().len(), 4);
    held.end().unwrap();
}

#[test]
fn a_copy_that_the_run_waits_for_is_not_kept_waiting_for_the_run() {
    let (held, id) = (Held::new(Paper::default()), StepId(1));
    run(&held, id, &[&abc()]);
    assert!(held.begin(id));
    give(&held, &abc()[..4]);
    std::thread::scope(|scope| {
        scope.spawn(|| held.settle_for_copy().unwrap()).join().unwrap();
    });
    assert_eq!(*held.device.told.lock().unwrap(), singly(&abc()[..4]));
    held.end().unwrap();
}

/// Work in short: a kernel's name and its job's count, or a product's rows and address.
fn short(work: &Work) -> (&'static str, u64) {
    match work {
        Work::Kernel { kernel, job, .. } => (kernel.name, job.count),
        Work::Product { product, .. } => ("product", product.lhs.address),
    }
}

/// Whether the library of [`Paper`] computes it.
fn is_done(work: &Work) -> bool {
    !matches!(work, Work::Product { product: Product { rows: 1, .. }, .. })
}

/// What the device did, in order: graphs are all that they had when they were started.
fn done(told: &[Told]) -> Vec<(&'static str, u64)> {
    let work = |told: &Told| match told {
        Told::Gave(work) => vec![*work],
        Told::Started(graph) => graph.clone(),
        Told::Prepared(_) | Told::Replaced(_) => Vec::new(),
    };
    told.iter().flat_map(work).filter(is_done).map(|work| short(&work)).collect()
}

#[test]
fn whatever_runs_do_the_device_does_it_in_the_order_in_which_it_was_given() {
    let mut state = 1_u64;
    let mut random = move |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let held = Held::new(Paper { impossible: Some(99), ..Paper::default() });
    let names = ["a", "b", "c"];
    let (mut graphs, mut failures) = (0, 0);
    // A few programs, of which each run does one, with changes now and then.
    let programs: Vec<Vec<Work>> = (0..5)
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
        let runs = random(8) > 0 && held.begin(step);
        let mut expected = Vec::new();
        for mut work in programs[random(5) as usize].iter().copied() {
            match random(60) {
                0 => continue,
                1 => held.settle().unwrap(),
                2 => held.settle_unheard(),
                3 => held.settle_for_copy().unwrap(),
                4 => work = kernel(names[random(3) as usize], random(5)),
                // A new job for the same kernel.
                5..20 => {
                    if let Work::Kernel { job, .. } = &mut work {
                        job.count = random(5);
                    }
                }
                _ => {}
            }
            // SAFETY: paper does not follow addresses.
            assert_eq!(unsafe { held.give(work) }.unwrap(), is_done(&work));
            expected.extend(is_done(&work).then(|| short(&work)));
        }
        let breaks = random(50) == 0;
        if breaks {
            // SAFETY: as above.
            let refused = unsafe { held.give(kernel("a", 99)) };
            failures += u32::from(refused.is_err());
        }
        let ended = if runs { held.end() } else { Ok(()) };
        let told = std::mem::take(&mut *held.device.told.lock().unwrap());
        graphs += told.iter().filter(|told| matches!(told, Told::Started(_))).count();
        if ended.is_err() {
            failures += 1;
            continue;
        }
        assert_eq!(done(&told), expected);
    }
    assert!(graphs > 5_000 && failures > 100, "{graphs} graphs, {failures} failures");
}
