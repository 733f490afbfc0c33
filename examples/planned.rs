//! Plans the memory of a training step from a recording of a few, and trains on the plan.
//!
//! cargo run --release --features traces --example planned

use std::sync::Arc;
use std::time::Duration;

use highwater::alloc::{Bytes, DeviceId, DeviceKind, Plan, PlanOptions, PoolOptions};
use highwater::prelude::*;
use highwater::traces::{Step, Trace, plan_of};
use highwater::tracking::{PlanLimits, parse_plan, write_plan};

/// More memory than the recorded events need.
const LOG_MEMORY: Bytes = Bytes::mib(16);

/// A program makes the same requests on the dry device as on any other, without computing.
const DRY: DeviceId = DeviceId::new(DeviceKind::Dry, 0);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Runtime::builder().build()?.dry()?;
    device.tracker().start_log(LOG_MEMORY);
    train(&device, 4)?;
    let recorded = Trace::from_recording(&device.tracker().take_log())?;
    let plan = plan_of(&recorded, &Step::Repeating, &PlanOptions::default(), &mut |_| true)?;
    println!(
        "a step has {} blocks, {} of them planned into {}, live at most {}",
        plan.blocks().len(),
        plan.planned_blocks(),
        Bytes(plan.capacity()),
        Bytes(plan.lower_bound()),
    );

    // A plan is a text file that is validated when read.
    let mut file = Vec::new();
    write_plan(&plan, &mut file)?;
    let plan: Arc<Plan> = Arc::new(parse_plan(file.as_slice(), &PlanLimits::default())?);

    let least = recorded.peak_live_bytes();
    println!("peak of training: {}", Bytes(least));
    let with_plan = smallest_pool(least, |limit| fits(limit, Some(&plan)))?;
    let without = smallest_pool(least, |limit| fits(limit, None))?;
    println!("smallest pool: {with_plan} with the plan, {without} with best fit");

    let device = pool(with_plan, Some(&plan))?;
    train(&device, 100)?;
    let allocator = device.default_allocator()?;
    let counts = allocator.plan_counts().unwrap_or_default();
    println!(
        "{} allocations: {} planned in {} steps, {} by best fit, {} unexpected, {} refused",
        allocator.stats().num_allocs,
        counts.planned,
        counts.steps,
        counts.left,
        counts.unexpected,
        counts.refused,
    );
    assert_eq!(allocator.stats().bytes_in_use, 0);
    Ok(())
}

/// A device with a fixed pool of `limit` bytes that follows the plan, if given.
fn pool(limit: Bytes, plan: Option<&Arc<Plan>>) -> highwater::Result<Device> {
    let options =
        PoolOptions::default().with_limit(limit).with_allow_growth(false).with_retry_timeout(Duration::ZERO);
    let mut builder = Runtime::builder().pool_options(DRY, options);
    if let Some(plan) = plan {
        builder = builder.plan(DRY, Arc::clone(plan));
    }
    builder.build()?.dry()
}

/// Whether a longer run fits into a pool.
fn fits(limit: Bytes, plan: Option<&Arc<Plan>>) -> highwater::Result<bool> {
    match train(&pool(limit, plan)?, 100) {
        Err(error) if error.out_of_memory().is_some() => Ok(false),
        result => result.map(|()| true),
    }
}

/// The smallest sufficient pool of at least `least` bytes, by bisection in granules.
fn smallest_pool(least: u64, fits: impl Fn(Bytes) -> highwater::Result<bool>) -> highwater::Result<Bytes> {
    const GRANULE: u64 = 256;
    let (mut low, mut high) = (least / GRANULE, least / GRANULE * 2);
    while low < high {
        let middle = low + (high - low) / 2;
        if fits(Bytes(middle * GRANULE))? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(Bytes(high * GRANULE))
}

/// Trains a network for some steps.
fn train(device: &Device, steps: u32) -> highwater::Result<()> {
    let rng = Rng::new(0);
    let network = Sequential::new()
        .with("fc1", Linear::new(device, 64, 256, &rng)?)
        .with("relu1", Relu)
        .with("dropout1", Dropout::new(0.2, &rng.fork(1))?)
        .with("fc2", Linear::new(device, 256, 256, &rng)?)
        .with("relu2", Relu)
        .with("fc3", Linear::new(device, 256, 10, &rng)?);
    let mut optimizer = AdamW::new(network.parameters(), 0.005)?;
    for _ in 0..steps {
        let x = Tensor::uniform(device, [64, 64], 0.0, 1.0, &rng)?;
        let y = Tensor::uniform(device, [64, 10], 0.0, 1.0, &rng)?;
        let loss = network.forward(&x)?.mse_loss(&y)?;
        optimizer.step(loss.backward()?)?;
    }
    Ok(())
}
