//! Steps with a part of the pool for themselves: the same addresses each time, whatever lies beside, and the same results and accounts.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod ops_table;

use bfc_core::{AllocatorChoice, Bytes, Category, DeviceScope};
use highwater_tensor::nn::{Dropout, Linear, Module, Relu, Sequential};
use highwater_tensor::optim::{AdamW, Optimizer};
use highwater_tensor::{
    Device, DeviceProfile, Error, Result, Rng, Runtime, RuntimeBuilder, StepCounts, StepGraph, Tensor,
};
use ops_table::counting::Counting;
use ops_table::{computed_in, device_of};

const STEPS: usize = 12;
/// Two weights and two biases, each updated once a step.
const PARAMETERS: u64 = 4;

fn builder() -> RuntimeBuilder {
    Runtime::builder().threads(1).allocator(DeviceScope::All, AllocatorChoice::Planned)
}

fn device() -> Device {
    device_of(builder())
}

/// A network in training on one batch.
struct Training {
    device: Device,
    model: Sequential,
    optimizer: AdamW,
    batch: (Tensor, Tensor),
    /// What the program keeps beside the steps, of ever other sizes.
    others: Vec<Tensor>,
}

impl Training {
    fn new(device: &Device) -> Self {
        let rng = Rng::new(1);
        let model = Sequential::new()
            .with("first", Linear::new(device, 6, 16, &rng).unwrap())
            .with("relu", Relu)
            .with("dropout", Dropout::new(0.3, rng.fork(1)).unwrap())
            .with("second", Linear::new(device, 16, 4, &rng).unwrap());
        let optimizer = AdamW::new(model.parameters(), 0.02).unwrap();
        let mut training = Self {
            device: device.clone(),
            model,
            optimizer,
            batch: Self::batch(device, 8),
            others: Vec::new(),
        };
        // The optimiser takes its own memory in the first step.
        training.step(&training.batch.clone()).unwrap();
        training
    }

    fn batch(device: &Device, rows: usize) -> (Tensor, Tensor) {
        let x: Vec<f32> = (0..rows * 6).map(|n| ((n * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let y: Vec<i64> = (0..rows as i64).map(|row| row * 7 % 4).collect();
        let x = Tensor::from_slice(device, &x, [rows, 6]).unwrap();
        (x, Tensor::from_slice(device, &y, rows).unwrap())
    }

    fn step(&mut self, (x, y): &(Tensor, Tensor)) -> Result<Tensor> {
        let loss = self.model.forward(x)?.cross_entropy(y)?;
        self.optimizer.step(loss.backward()?)?;
        Ok(loss.detach())
    }

    /// Takes and gives back memory of the pool, so that other chunks are free next time.
    fn disturb(&mut self, number: usize) {
        self.others.push(Tensor::ones(&self.device, [100 + 333 * number]).unwrap());
        if number % 3 == 2 {
            self.others.remove(0);
        }
    }

    fn parameters(&self) -> Vec<f32> {
        let values =
            |parameter: &highwater_tensor::nn::Parameter| parameter.tensor().to_vec::<f32>().unwrap();
        self.model.parameters().iter().flat_map(|(_, parameter)| values(parameter)).collect()
    }
}

/// What a run of a program came to.
#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<f32>,
    parameters: Vec<f32>,
    /// After each step: live bytes by category, as asked for.
    accounts: Vec<Vec<(Category, u64)>>,
    requests: (u64, u64),
}

/// Runs steps with their losses read in the step, or kept by the program.
fn train(
    device: &Device,
    graph: &StepGraph,
    keeps: bool,
    rows: impl Fn(usize) -> usize,
) -> (Outcome, Training) {
    let mut training = Training::new(device);
    let (mut losses, mut kept, mut accounts) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..STEPS {
        let batch = match rows(number) {
            8 => training.batch.clone(),
            rows => Training::batch(device, rows),
        };
        let loss = graph.run(|| training.step(&batch).map(|loss| keeps.then_some(loss))).unwrap();
        kept.extend(loss);
        training.disturb(number);
        let ledger = device.default_allocator().unwrap().ledger();
        accounts.push(Category::ALL.map(|category| (category, ledger.category(category))).to_vec());
    }
    losses.extend(kept.iter().map(|loss| loss.item_or::<f32>(0.0).unwrap()));
    let parameters = if device.is_dry() { Vec::new() } else { training.parameters() };
    let stats = device.memory_stats().unwrap();
    let requests = (stats.num_allocs, stats.bytes_requested);
    (Outcome { losses, parameters, accounts, requests }, training)
}

fn with(device: &Device, keeps: bool, rows: impl Fn(usize) -> usize) -> (Outcome, StepCounts) {
    let graph = StepGraph::new(device).with_private_memory();
    let (outcome, _training) = train(device, &graph, keeps, rows);
    (outcome, graph.counts())
}

fn without(keeps: bool, rows: impl Fn(usize) -> usize) -> (Outcome, StepCounts) {
    let device = device();
    let graph = StepGraph::new(&device);
    let (outcome, _training) = train(&device, &graph, keeps, rows);
    (outcome, graph.counts())
}

#[test]
fn replays_change_no_address_whatever_becomes_of_the_rest_of_the_pool() {
    let (outcome, counts) = with(&device(), false, |_| 8);
    assert!(counts.private_bytes > 0 && counts.no_private_memory.is_none(), "{counts:?}");
    // Two runs are learnt; the third is the first at its own addresses, and the fourth one that is given as it was.
    let replays = STEPS as u64 - 3;
    assert!(counts.graphs - counts.prepared >= replays, "{counts:?}");
    // The random key of the dropout and the updates, which correct for the number of the step, and nothing else.
    let changed = (PARAMETERS + 1) * replays;
    let kernels = counts.in_graphs / counts.graphs;
    assert!((changed..=changed + kernels).contains(&counts.replaced), "{counts:?}");
    let (plain, moved) = without(false, |_| 8);
    assert_eq!(outcome, plain);
    // Kernels are changed, and products of the library's, which cannot be, are given one by one.
    let otherwise = (moved.replaced + moved.singly).saturating_sub(counts.singly);
    assert!(otherwise > 2 * changed, "without, blocks move: {moved:?}");
}

/// A graph cannot change the addresses of the library's products: without a part of its own, a step whose blocks move is given one by one.
#[test]
fn products_of_the_library_stay_in_graphs_whatever_becomes_of_the_rest_of_the_pool() {
    let device = || computed_in(builder(), Counting::new(false));
    let run = |graph: StepGraph, device: &Device| (train(device, &graph, false, |_| 8).0, graph.counts());
    let (own, shared) = (device(), device());
    let (outcome, counts) = run(StepGraph::new(&own).with_private_memory(), &own);
    let (plain, moved) = run(StepGraph::new(&shared), &shared);
    assert_eq!(outcome, plain);
    let work = (counts.singly + counts.in_graphs) / STEPS as u64;
    assert!(counts.in_graphs >= (STEPS as u64 - 4) * work, "{counts:?}");
    assert!(moved.in_graphs < counts.in_graphs, "{moved:?}");
}

#[test]
fn what_is_kept_lies_beside_and_all_else_stays_where_it_was() {
    let (outcome, counts) = with(&device(), true, |_| 8);
    assert!(counts.private_bytes > 0, "{counts:?}");
    assert_eq!((&outcome, outcome.losses.len()), (&without(true, |_| 8).0, STEPS));
    assert!(outcome.losses.last() < outcome.losses.first());
    // Beside the numbers, the losses: written by one kernel, read by few.
    let replays = STEPS as u64 - 3;
    assert!(counts.replaced < (PARAMETERS + 5) * replays + counts.in_graphs / counts.graphs, "{counts:?}");
}

#[test]
fn steps_of_another_size_depart_and_come_back() {
    let rows = |number| if number % 4 == 3 { 5 } else { 8 };
    let (outcome, counts) = with(&device(), true, rows);
    assert!(counts.private_bytes > 0, "{counts:?}");
    assert_eq!(outcome, without(true, rows).0);
}

#[test]
fn the_part_goes_back_when_the_graph_is_dropped() {
    let device = device();
    let graph = StepGraph::new(&device).with_private_memory();
    let (_, training) = train(&device, &graph, false, |_| 8);
    let part = graph.counts().private_bytes;
    assert!(part > 0);
    let largest = || device.memory_stats().unwrap().largest_free_block_bytes;
    let counted = device.default_allocator().unwrap().plan_counts().unwrap();
    assert!(counted.planned > 0);
    drop(training);
    let (live, before) = (device.memory_allocated().unwrap(), largest());
    drop(graph);
    assert_eq!(device.memory_allocated().unwrap(), live);
    assert!(largest() >= before.max(part));
    // Another step may have one.
    let other = StepGraph::new(&device).with_private_memory();
    drop(train(&device, &other, false, |_| 8));
    assert_eq!(other.counts().private_bytes, part);
}

#[test]
fn a_pool_without_such_parts_or_without_room_serves_the_step_and_says_why() {
    let unplanned = device_of(Runtime::builder().threads(1));
    let (outcome, counts) = with(&unplanned, true, |_| 8);
    assert_eq!(outcome, without(true, |_| 8).0);
    assert!(counts.no_private_memory.unwrap().contains("keeps no part for a step"));

    if std::env::var_os("KERNELS_ON").is_some() {
        // A real device's memory comes in larger pieces.
        return;
    }
    // 8 KiB at a time for the step itself, of which two results that are kept leave 4.
    let full = device_of(builder().pool(Bytes::kib(2 * 64 + 4)));
    let graph = StepGraph::new(&full).with_private_memory();
    let run = || {
        let kept = graph.run(|| {
            let x = Tensor::ones(&full, [1024])?;
            drop(x.add_scalar(1.0)?.sum_all()?);
            drop(x);
            Tensor::full(&full, [16 << 10], 2.0)
        });
        kept.unwrap()
    };
    let (first, second) = (run(), run());
    let why = graph.counts().no_private_memory.expect("there is no room");
    assert!(why.contains("memory") && graph.counts().private_bytes == 0, "{why}");
    drop((first, second));
    assert_eq!(run().sum_all().unwrap().item::<f32>().unwrap(), 32768.0);
}

#[test]
fn one_step_has_the_part_and_another_is_told() {
    let device = device();
    let (first, second) =
        (StepGraph::new(&device).with_private_memory(), StepGraph::new(&device).with_private_memory());
    let step = || Tensor::ones(&device, [100]).and_then(|x| x.add_scalar(1.0)?.sum_all()).map(drop);
    for _ in 0..4 {
        first.run(step).unwrap();
        second.run(step).unwrap();
    }
    assert!(first.counts().private_bytes > 0);
    assert!(second.counts().no_private_memory.unwrap().contains("another step"));
    drop(first);
    for _ in 0..4 {
        second.run(step).unwrap();
    }
    assert!(second.counts().private_bytes > 0 && second.counts().no_private_memory.is_none());
}

#[test]
fn a_step_that_fails_is_not_learnt_and_leaves_the_part() {
    let device = device();
    let graph = StepGraph::new(&device).with_private_memory();
    let x = Tensor::ones(&device, [4, 4]).unwrap();
    let whole = || graph.run(|| x.mul(&x)?.add(&x)?.sum_all()).unwrap().item::<f32>().unwrap();
    let fails = || {
        let failed = graph.run(|| x.mul(&x)?.matmul(&Tensor::ones(&device, [3, 3])?).map(drop));
        assert!(matches!(failed, Err(Error::ShapeMismatch { .. })));
    };
    for turn in 0..6 {
        fails();
        assert_eq!(whole(), 32.0);
        assert_eq!(graph.counts().private_bytes > 0, turn > 0);
    }
}

#[test]
fn a_dry_run_and_the_processor_have_such_steps_too() {
    let profile = DeviceProfile::cuda(Bytes::gib(8), (8, 0));
    let dry = builder().dry_profile(profile).build().unwrap().dry().unwrap();
    let (foretold, dry_counts) = with(&dry, false, |_| 8);
    let (real, counts) = with(&device(), false, |_| 8);
    assert_eq!((foretold.accounts, foretold.requests), (real.accounts, real.requests));
    assert_eq!(dry_counts.private_bytes, counts.private_bytes);
    let (_, counts) = with(&builder().build().unwrap().cpu().unwrap(), false, |_| 8);
    assert!(counts.private_bytes > 0);
}
