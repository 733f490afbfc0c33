//! Trains a recommender within a limit of memory, and recommends items.
//!
//! cargo run --release [-- [LIMIT [FILE]]], such as `-- 300KiB model.safetensors`

use std::error::Error;
use std::{env, io};

use highwater::fit::{Plan, Space, fit};
use highwater::prelude::*;
use highwater::train::Saves;
use highwater::{DeviceSpeed, dry_run, summary_with_step};
use own_project::data::{ITEMS, NOISE, Ratings, USERS};
use own_project::model::Recommender;
use own_project::{BATCH, EPOCHS, TEST_ERROR, train};

fn main() -> Result<(), Box<dyn Error>> {
    let limit = env::args().nth(1).map(|limit| limit.parse::<Bytes>()).transpose()?;
    let saves = env::args().nth(2).map_or_else(Saves::default, Saves::resumable);
    let ratings = Ratings::generate(0)?;
    println!("{} ratings of {ITEMS} items by {USERS} users", ratings[0].len());

    // The memory of each layer, before anything is computed.
    let machine = DeviceProfile::this_machine().with_threads(1);
    let layers = summary_with_step(
        machine.clone(),
        |device| {
            Ok((Recommender::new(device, &Rng::new(1))?, Tensor::zeros_of(device, [BATCH, 2], DType::I64)?))
        },
        |model, pairs| {
            let loss = model.loss(pairs, &Tensor::zeros(pairs.device(), [BATCH])?)?;
            AdamW::new(model.parameters(), 0.02)?.step(loss.backward()?)
        },
    )?;
    println!("\n{layers}");

    // The program itself on a dry device: the same requests for memory, without values.
    let try_out = |device: &Device, plan: &Plan| train(&ratings, device, plan, 2, Saves::default()).map(drop);
    let plain = dry_run(machine.clone(), |device| try_out(device, &Plan::new(BATCH)))?;
    let limit = limit.unwrap_or(Bytes(plain.peak.in_use * 3 / 5));
    println!("The whole batch at once needs {}. The limit is {limit}.", Bytes(plain.peak.in_use));
    if let Err(error) =
        dry_run(machine.clone().with_limit(limit), |device| try_out(device, &Plan::new(BATCH)))
    {
        let report = error.out_of_memory().ok_or_else(|| io::Error::other(error.to_string()))?;
        println!("\n{}", report.details());
    }

    // The fastest way to train within the limit.
    let limited = machine.with_speed(DeviceSpeed::of_this_machine(1)?).with_limit(limit);
    let found = fit(limited, &Space::new(BATCH), try_out)?;
    println!("{found}");

    // Training, in a pool that is not larger than the limit.
    let device = Runtime::builder().threads(1).pool(limit).build()?.cpu()?;
    let (model, outcome) = train(&ratings, &device, &found.chosen().plan, EPOCHS, saves)?;
    let (peak, predicted) = (device.max_memory_allocated()?.get(), found.chosen().peak_bytes);
    println!("{outcome}; peak {peak} bytes, predicted {predicted}");

    let error = outcome.figures.get(TEST_ERROR).ok_or("no test error")?.sqrt();
    let mean = ratings[1].deviation();
    println!("error of predictions {error:.3}; the noise alone {NOISE:.3}; of the mean rating {mean:.3}");
    let pairs: Vec<i64> = (0..ITEMS as i64).flat_map(|item| [0, item]).collect();
    let stars = no_grad(|| model.forward(&Tensor::from_slice(&device, &pairs, [ITEMS, 2])?))?;
    let (stars, items) = stars.top_k(3, 0, SortOrder::Descending)?;
    println!("for user 0: items {:?}, {:.1?} stars", items.to_vec::<i64>()?, stars.to_vec::<f32>()?);

    if peak != predicted {
        return Err("the peak is not the predicted one".into());
    }
    if error > 1.2 * NOISE {
        return Err("the model has learned too little".into());
    }
    Ok(())
}
