//! Packs the memory of a training step from a recording of a few, and trains on the packing.
//!
//! cargo run --release --features traces --example packed

use std::sync::Arc;
use std::time::Duration;

use highwater::alloc::{Bytes, DeviceId, DeviceKind, Packing, PackingOptions, PoolOptions};
use highwater::prelude::*;
use highwater::traces::{Step, Trace, packing_of};
use highwater::tracking::{PackingLimits, parse_packing, write_packing};

/// More memory than the recorded events need.
const LOG_MEMORY: Bytes = Bytes::mib(16);

/// A program makes the same requests on the dry device as on any other, without computing.
const DRY: DeviceId = DeviceId::new(DeviceKind::Dry, 0);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Runtime::builder().build()?.dry()?;
    device.tracker().start_log(LOG_MEMORY);
    train(&device, 4)?;
    let recorded = Trace::from_recording(&device.tracker().take_log())?;
    let packing = packing_of(&recorded, &Step::Repeating, &PackingOptions::default(), &mut |_| true)?;
    println!(
        "a step has {} blocks, {} of them packed into {}, live at most {}",
        packing.blocks().len(),
        packing.packed_blocks(),
        Bytes(packing.capacity()),
        Bytes(packing.lower_bound()),
    );

    // A packing is a text file that is validated when read.
    let mut file = Vec::new();
    write_packing(&packing, &mut file)?;
    let packing: Arc<Packing> = Arc::new(parse_packing(file.as_slice(), &PackingLimits::default())?);

    let least = recorded.peak_live_bytes();
    println!("peak of training: {}", Bytes(least));
    let with_packing = smallest_pool(least, |limit| fits(limit, Some(&packing)))?;
    let without = smallest_pool(least, |limit| fits(limit, None))?;
    println!("smallest pool: {with_packing} with the packing, {without} with best fit");

    let device = pool(with_packing, Some(&packing))?;
    train(&device, 100)?;
    let allocator = device.default_allocator()?;
    let counts = allocator.packing_counts().unwrap_or_default();
    println!(
        "{} allocations: {} packed in {} steps, {} by best fit, {} unexpected, {} refused",
        allocator.stats().num_allocs,
        counts.packed,
        counts.steps,
        counts.left,
        counts.unexpected,
        counts.refused,
    );
    assert_eq!(allocator.stats().bytes_in_use, 0);
    Ok(())
}

/// A device with a fixed pool of `limit` bytes that follows the packing, if given.
fn pool(limit: Bytes, packing: Option<&Arc<Packing>>) -> highwater::Result<Device> {
    let options =
        PoolOptions::default().with_limit(limit).with_allow_growth(false).with_retry_timeout(Duration::ZERO);
    let mut builder = Runtime::builder().pool_options(DRY, options);
    if let Some(packing) = packing {
        builder = builder.packing(DRY, Arc::clone(packing));
    }
    builder.build()?.dry()
}

/// Whether a longer run fits into a pool.
fn fits(limit: Bytes, packing: Option<&Arc<Packing>>) -> highwater::Result<bool> {
    match train(&pool(limit, packing)?, 100) {
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
