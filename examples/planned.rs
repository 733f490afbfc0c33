//! Plans the memory of a training step from a recording of the one before, and runs the steps that follow on the plan.
//!
//! cargo run --release --example planned

use std::sync::Arc;

use highwater::alloc::{
    AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes, Plan, PlanOptions, PlannedAllocator,
    PlannedConfig,
};
use highwater::prelude::*;
use highwater::tracking::{PlanLimits, Step, Trace, parse_plan, plan_of, replay, write_plan};

/// More events than the steps below have.
const LOG_EVENTS: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A few steps are recorded. On the dry device they make the same requests as on any other, and compute nothing.
    let first = record(4)?;
    let plan = plan_of(&first, &Step::Repeating, &PlanOptions::default(), &mut |_| true)?;
    println!(
        "a step has {} blocks, {} of them planned into {}, live at most {}",
        plan.blocks().len(),
        plan.planned_blocks(),
        Bytes(plan.capacity()),
        Bytes(plan.lower_bound()),
    );

    // A plan is a text file, checked when it is read.
    let mut file = Vec::new();
    write_plan(&plan, &mut file)?;
    let plan: Arc<Plan> = Arc::new(parse_plan(file.as_slice(), &PlanLimits::default())?);

    // A longer run, on a pool that follows the plan, and on one that does not.
    let run = record(100)?;
    let smallest = |works: &dyn Fn(Bytes) -> bool| smallest_pool(&run, works);
    let planned = |limit| planned_pool(limit, &plan);
    let with_plan = smallest(&|limit| replay(&run, &planned(limit)).is_ok());
    let best_fit = |limit| {
        let config = BfcConfig::new(limit).with_allow_growth(false);
        BfcAllocator::new("best fit", Arc::new(AddressOnlyMemory::new()), config)
    };
    let without = smallest(&|limit| replay(&run, &best_fit(limit)).is_ok());
    println!("100 steps hold at most {}", Bytes(run.peak_live_bytes()));
    println!("the smallest pool for them: {with_plan} by the plan, {without} by best fit alone");

    let pool = planned(with_plan);
    let summary = replay(&run, &pool)?;
    let counts = pool.counts();
    println!(
        "of {} allocations {} went by the plan in {} steps; {} were left to best fit, {} came unexpected, {} were refused",
        summary.allocations, counts.planned, counts.steps, counts.left, counts.unexpected, counts.refused,
    );
    assert_eq!(pool.stats().bytes_in_use, 0);
    Ok(())
}

fn planned_pool(limit: Bytes, plan: &Arc<Plan>) -> PlannedAllocator {
    let config = PlannedConfig::planned(limit, Arc::clone(plan)).with_allow_growth(false);
    PlannedAllocator::new("planned", Arc::new(AddressOnlyMemory::new()), config)
}

/// The smallest pool that a run fits into, by bisection in granules.
fn smallest_pool(run: &Trace, works: &dyn Fn(Bytes) -> bool) -> Bytes {
    const GRANULE: u64 = 256;
    let (mut low, mut high) = (run.peak_live_bytes() / GRANULE, run.peak_live_bytes() / GRANULE * 2);
    while low < high {
        let middle = low + (high - low) / 2;
        if works(Bytes(middle * GRANULE)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Bytes(high * GRANULE)
}

/// Trains a network for some steps, and returns all that was allocated and freed.
fn record(steps: u32) -> Result<Trace, Box<dyn std::error::Error>> {
    let runtime = Runtime::builder().build()?;
    let device = runtime.dry()?;
    device.tracker().start_log(LOG_EVENTS);
    let rng = Rng::new(0);
    let network = Sequential::new()
        .with("fc1", Linear::new(&device, 64, 256, &rng)?)
        .with("relu1", Relu)
        .with("dropout1", Dropout::new(0.2, rng.fork(1))?)
        .with("fc2", Linear::new(&device, 256, 256, &rng)?)
        .with("relu2", Relu)
        .with("fc3", Linear::new(&device, 256, 10, &rng)?);
    let mut optimizer = AdamW::new(network.parameters(), 0.005)?;
    for _ in 0..steps {
        let x = Tensor::uniform(&device, [64, 64], 0.0, 1.0, &rng)?;
        let y = Tensor::uniform(&device, [64, 10], 0.0, 1.0, &rng)?;
        let loss = network.forward(&x)?.mse_loss(&y)?;
        optimizer.step(loss.backward()?)?;
    }
    Ok(Trace::from_log(&device.tracker().take_log())?)
}
