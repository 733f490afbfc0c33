//! Predicts the memory of a training step of GPTs of three sizes on GPUs that this machine does not have.
//!
//! cargo run --release --example predict_gpt

mod model;

use std::time::Instant;

use highwater::tracking::table::{Table, bytes};
use highwater::{Error, Result, dry_run, prelude::*};

use model::{Gpt, SIZES};

const CONTEXT: usize = 1024;
const BATCH: usize = 2;

fn main() -> Result<()> {
    let mut table = Table::new(&["GPT", "on", "peak", "of", "predicted in"]);
    for size in SIZES {
        for gpu in ["rtx-4090", "h100-80g", "h200"] {
            let profile: DeviceProfile = gpu.parse()?;
            let limit = profile.memory().map_or_else(String::new, |memory| bytes(memory.get()));
            let start = Instant::now();
            let run = dry_run(profile, |device| {
                let gpt = Gpt::new(device, size, CONTEXT)?;
                let mut optimizer = AdamW::new(gpt.parameters(), 3e-4)?;
                // The second step has the optimizer's state from its beginning.
                (0..2).try_for_each(|_| optimizer.step(gpt.gradients(device, BATCH, CONTEXT)?))
            });
            let time = format!("{:.0} ms", start.elapsed().as_secs_f64() * 1e3);
            let peak = match run {
                Ok(run) => bytes(run.peak.in_use),
                Err(Error::Allocation { op, .. }) => format!("out of memory in {op}"),
                Err(error) => return Err(error),
            };
            table.line(size.name, [gpu.to_owned(), peak, limit, time]);
        }
    }
    print!("{table}");
    Ok(())
}
