//! Trains the digits network for some steps and checks every byte.

#[path = "../../examples/train_digits/model.rs"]
mod model;

use std::path::Path;
use std::sync::{Arc, Mutex};

use highwater::alloc::{BfcConfig, Bytes, Category, Stats, failed_drops};
use highwater::data::ArrayDataset;
use highwater::nn::Sequential;
use highwater::prelude::*;
use highwater::tracking::Recording;
use highwater::{Result, memory_report};

const BATCH: usize = 64;

fn digits() -> ArrayDataset {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/digits.csv.gz");
    read_csv(path, &CsvOptions::default()).unwrap().scaled(1.0 / 16.0)
}

fn runtime(threads: usize) -> Runtime {
    // One region up front, so that addresses can be compared by their distance from the first.
    let config = BfcConfig::new(Bytes::mib(16)).with_allow_growth(false);
    Runtime::builder().threads(threads).pool_config(config).build().unwrap()
}

/// Trains for one pass over `train`; `after_step` sees each loss.
fn train(
    device: &Device,
    train: &ArrayDataset,
    epochs: u64,
    mut after_step: impl FnMut(&Sequential, Tensor) -> Result<()>,
) -> Result<Sequential> {
    let network = model::network(model::Network::Mlp, device, &Rng::new(1))?;
    let mut optimizer = AdamW::new(network.parameters(), 0.005)?;
    for epoch in 0..epochs {
        optimizer.set_learning_rate(0.005 * (1.0 - epoch as f64 / epochs as f64))?;
        for batch in train.batches(BATCH, device)?.shuffled(1, epoch) {
            let (x, y) = batch?;
            let loss = model::loss(&network, &x, &y)?;
            optimizer.step(loss.backward()?)?;
            after_step(&network, loss.detach())?;
        }
    }
    Ok(network)
}

fn stats(device: &Device) -> Stats {
    device.default_allocator().unwrap().stats()
}

#[test]
fn the_network_reads_at_least_97_percent_of_digits_it_never_saw() {
    let device = runtime(2).cpu().unwrap();
    let (images, unseen) = digits().split(0.2, 1).unwrap();
    let network = train(&device, &images, 40, |_, _| Ok(())).unwrap();
    let figures = model::accuracy(&network, model::Numbers::F32, &unseen, BATCH, &device).unwrap();
    assert!(figures.get("test_accuracy").unwrap() >= 0.97, "{figures:?}");
}

#[test]
fn live_bytes_by_op_add_up_to_bytes_in_use_at_every_step() {
    let device = runtime(1).cpu().unwrap();
    let mut steps = 0;
    train(&device, &digits(), 1, |_, _loss| {
        let (report, ledger, stats) =
            (memory_report(&device)?, device.default_allocator()?.ledger(), stats(&device));
        let by_op: u64 = report.ops.iter().map(|row| row.live_bytes).sum();
        assert_eq!(by_op + report.unowned_bytes, stats.bytes_in_use);
        assert_eq!(report.unowned_bytes, 0, "every byte is some op's");
        assert_eq!(ledger.owners().map(|(_, bytes)| bytes.own).sum::<u64>(), stats.bytes_in_use);
        assert_eq!(
            Category::ALL.map(|category| ledger.category(category)).iter().sum::<u64>(),
            stats.bytes_in_use
        );
        steps += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(steps, 1797_usize.div_ceil(BATCH));
}

#[test]
fn between_steps_only_parameters_and_optimizer_state_live() {
    let device = runtime(1).cpu().unwrap();
    let network = model::network(model::Network::Mlp, &device, &Rng::new(1)).unwrap();
    let optimizer = AdamW::new(network.parameters(), 0.005).unwrap();
    let report = memory_report(&device).unwrap();
    let live = |scope: &str| report.scopes.iter().find(|row| row.scope == scope).unwrap().live_bytes;
    // Weights and biases are rounded up to 256 bytes each; Adam keeps two numbers for each of them.
    assert_eq!(live("fc1"), 3 * (64 * 256 + 256) * 4);
    assert_eq!(live("fc2"), 3 * (256 * 256 + 256) * 4);
    assert_eq!(live("fc3"), 3 * (256 * 10 * 4 + 256));
    assert_eq!(live(""), live("fc1") + live("fc2") + live("fc3"));
    let ledger = device.default_allocator().unwrap().ledger();
    assert_eq!(ledger.category(Category::OptimizerState), 2 * ledger.category(Category::Parameter));
    drop((network, optimizer));
}

#[test]
fn memory_is_flat_from_the_first_step_on() {
    let device = runtime(1).cpu().unwrap();
    let mut seen = Vec::new();
    // Whole batches only: a smaller last batch would take less.
    let whole = digits();
    let rows = whole.rows() / BATCH * BATCH;
    let width = whole.width();
    let whole =
        ArrayDataset::new(whole.features()[..rows * width].to_vec(), whole.labels()[..rows].to_vec(), width)
            .unwrap();
    train(&device, &whole, 2, |_, loss| {
        drop(loss);
        let stats = stats(&device);
        seen.push((stats.bytes_in_use, stats.live_allocs, stats.peak_bytes_in_use, stats.bytes_reserved));
        Ok(())
    })
    .unwrap();
    assert_eq!(seen.len(), 2 * rows / BATCH);
    assert!(seen.iter().all(|step| *step == seen[0]), "{seen:?}");
}

#[test]
fn after_the_run_everything_is_freed() {
    let runtime = runtime(2);
    let device = runtime.cpu().unwrap();
    let (images, unseen) = digits().split(0.2, 1).unwrap();
    let network = train(&device, &images, 1, |_, _| Ok(())).unwrap();
    model::accuracy(&network, model::Numbers::F32, &unseen, BATCH, &device).unwrap();
    assert!(stats(&device).bytes_in_use > 0);
    drop(network);
    let stats = stats(&device);
    assert_eq!((stats.bytes_in_use, stats.live_allocs, stats.bytes_requested), (0, 0, 0));
    assert_eq!(device.default_allocator().unwrap().ledger().total(), 0);
    assert_eq!(failed_drops(), 0);
}

/// A run from the first request to the last free.
fn record(runtime: &Runtime, device: &Device) -> Recording {
    runtime.tracker().start_log(Bytes::mib(64));
    let (images, unseen) = digits().split(0.2, 1).unwrap();
    let network = train(device, &images, 2, |_, loss| loss.item_or(0.0f32).map(drop)).unwrap();
    model::accuracy(&network, model::Numbers::F32, &unseen, BATCH, device).unwrap();
    drop(network);
    let recording = runtime.tracker().take_log();
    assert!(!recording.overflowed() && recording.skipped_events() == 0);
    recording
}

#[test]
fn a_dry_run_makes_exactly_the_requests_of_the_real_run() {
    let (real, dry) = (runtime(2), runtime(2));
    let computed = record(&real, &real.cpu().unwrap());
    let predicted = record(&dry, &dry.dry().unwrap());
    assert_eq!(computed.events().len(), predicted.events().len());
    for (index, (computed, predicted)) in computed.events().iter().zip(predicted.events()).enumerate() {
        assert_eq!(computed.kind, predicted.kind, "event {index}");
    }
    assert_eq!(computed.retags(), predicted.retags());
    // Addresses are distances from the first one.
    let (first, base) = (computed.block(0).address, predicted.block(0).address);
    for (computed, predicted) in computed.blocks().iter().zip(predicted.blocks()) {
        assert_eq!(computed.address.wrapping_sub(first), predicted.address.wrapping_sub(base));
        let mut expected = *predicted;
        expected.address = computed.address;
        assert_eq!(*computed, expected);
    }
    assert_eq!(computed.owners(), predicted.owners());
    let blocks = computed.blocks();
    assert!(blocks.len() > 1000 && blocks.iter().all(|block| block.freed.is_some()), "{}", blocks.len());
    assert_eq!(computed.peak().unwrap().bytes, stats(&real.cpu().unwrap()).peak_bytes_in_use);
    assert_eq!(stats(&real.cpu().unwrap()).peak_bytes_in_use, stats(&dry.dry().unwrap()).peak_bytes_in_use);
}

#[test]
fn recorded_category_sums_equal_the_pools_at_every_op() {
    let runtime = runtime(1);
    let device = runtime.cpu().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (tracker, pool) = (Arc::clone(runtime.tracker()), Arc::clone(device.default_allocator().unwrap()));
    let ledgers = Arc::clone(&seen);
    runtime.on_placement(move |_| {
        let ledger = pool.ledger();
        let categories = Category::ALL.map(|category| ledger.category(category));
        ledgers.lock().unwrap().push((tracker.recorded_events(), categories));
    });
    let recording = record(&runtime, &device);
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 800, "{}", seen.len());
    let mut moments = recording.timeline().peekable();
    let mut categories = [0; Category::COUNT];
    for (events, expected) in seen.iter() {
        while let Some(moment) = moments.next_if(|moment| u64::from(moment.event) < *events) {
            categories = moment.categories;
        }
        assert_eq!(categories, *expected, "after {events} events");
    }
}

/// The bits of every loss and of every trained parameter.
fn bits(threads: usize) -> Vec<u32> {
    let device = runtime(threads).cpu().unwrap();
    let mut bits = Vec::new();
    let network = train(&device, &digits(), 2, |_, loss| {
        bits.push(loss.item::<f32>()?.to_bits());
        Ok(())
    })
    .unwrap();
    for (_, parameter) in network.parameters() {
        bits.extend(parameter.tensor().to_vec::<f32>().unwrap().into_iter().map(f32::to_bits));
    }
    bits
}

#[test]
fn one_seed_gives_one_run_to_the_bit_for_any_number_of_threads() {
    let one = bits(1);
    assert!(one.len() > network_size());
    for threads in [1, 2, 3] {
        assert!(one == bits(threads), "{threads} threads");
    }
}

fn network_size() -> usize {
    model::network(model::Network::Mlp, &runtime(1).dry().unwrap(), &Rng::new(0)).unwrap().parameter_count()
}
