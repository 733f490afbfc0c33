//! Predicts the largest batch for training a network on each known GPU, without having the GPU.
//!
//! cargo run --release --example largest_batch

use highwater::prelude::*;
use highwater::tracking::table::{Table, bytes};
use highwater::{Result, largest_fit};

/// More than fits into any GPU.
const MOST: u64 = 1 << 30;

fn main() -> Result<()> {
    let mut table = Table::new(&["GPU", "memory", "largest batch", "in use", "reserved", "of"]);
    for profile in DeviceProfile::gpus().filter_map(DeviceProfile::gpu) {
        let name = profile.name().to_owned();
        let memory = profile.memory().map_or(0, |memory| memory.get());
        let found = largest_fit(profile, 1..=MOST, train)?;
        let (batch, peak) =
            (found.largest.unwrap_or(0), found.run.map_or_else(Default::default, |run| run.peak));
        let figures = [memory, peak.in_use, peak.reserved, peak.limit.unwrap_or(memory)].map(bytes);
        let [memory, in_use, reserved, limit] = figures;
        table.line(&name, [memory, batch.to_string(), in_use, reserved, limit]);
    }
    print!("{table}");
    Ok(())
}

/// Two steps with this batch size: the second one includes the optimizer's state.
fn train(device: &Device, batch: u64) -> Result<()> {
    let rng = Rng::new(0);
    let network = Sequential::new()
        .with("fc1", Linear::new(device, 4096, 16384, &rng)?)
        .with("gelu", Gelu)
        .with("fc2", Linear::new(device, 16384, 4096, &rng)?);
    let mut optimizer = AdamW::new(network.parameters(), 1e-4)?;
    for _ in 0..2 {
        let x = Tensor::normal(device, [batch as usize, 4096], 0.0, 1.0, &rng)?;
        let loss = network.forward(&x)?.mse_loss(&x)?;
        optimizer.step(loss.backward()?)?;
    }
    Ok(())
}
