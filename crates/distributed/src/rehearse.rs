//! Dry runs of all ranks of a world, one after the other on one machine.

use std::ops::RangeInclusive;

use highwater_tensor::{Device, DryRun, DryRunOptions, Error, LargestFit, Result, largest_fit};

use crate::world::World;

/// Runs a program on a dry device as each of `size` ranks. The peaks are those of the ranks, to the byte.
///
/// ```
/// use highwater::prelude::*;
/// use highwater::distributed::{Shard, dry_run_ranks};
///
/// let ranks = dry_run_ranks("rtx-4090".parse::<highwater::DeviceProfile>()?, 4, |world, device| {
///     let model = Linear::new(device, 4096, 4096, &Rng::new(0))?;
///     let mut optimizer = world.sharded(Shard::Optimizer, model.parameters(), |own| AdamW::new(own, 1e-3))?;
///     let loss = model.forward(&Tensor::zeros(device, [8, 4096])?)?.square()?.mean_all()?;
///     optimizer.step(loss.backward()?)
/// })?;
/// // Rank 0 owns the weight, and rank 1 the bias.
/// assert!(ranks[0].peak.in_use > ranks[1].peak.in_use);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The error of the first rank whose program fails.
pub fn dry_run_ranks<T>(
    options: impl Into<DryRunOptions>,
    size: usize,
    mut program: impl FnMut(&World, &Device) -> Result<T>,
) -> Result<Vec<DryRun<T>>> {
    let options = options.into();
    let run = |rank| {
        let world = rehearsal(rank, size)?;
        options.run(|device| program(&world, device))
    };
    (0..size).map(run).collect()
}

/// Finds the largest number, such as a batch size, with which the program fits on every one of `size` ranks. Returns the
/// result of the rank that allows the least. See [`largest_fit`].
///
/// # Errors
///
/// See [`largest_fit`].
pub fn largest_fit_of_ranks(
    options: impl Into<DryRunOptions>,
    size: usize,
    range: RangeInclusive<u64>,
    mut program: impl FnMut(&World, &Device, u64) -> Result<()>,
) -> Result<LargestFit> {
    let options = options.into();
    let mut fit_on = |rank, range| {
        let world = rehearsal(rank, size)?;
        largest_fit(options.clone(), range, |device, number| program(&world, device, number))
    };
    let mut least = fit_on(0, range.clone())?;
    for rank in 1..size {
        // A number that does not fit on one rank need not be tried on the others.
        let Some(largest) = least.largest else { break };
        let found = fit_on(rank, *range.start()..=largest)?;
        if found.largest < least.largest {
            least = found;
        }
    }
    Ok(least)
}

fn rehearsal(rank: usize, size: usize) -> Result<World> {
    World::rehearsal(rank, size)
        .map_err(|error| Error::Custom { op: "dry_run_ranks", message: error.to_string() })
}

#[cfg(test)]
mod tests {
    use highwater_nn::modules::{Linear, Module};
    use highwater_nn::optim::{AdamW, Optimizer};
    use highwater_tensor::{DeviceProfile, Rng, Tensor};

    use super::*;
    use crate::shard::Shard;

    #[test]
    fn the_rank_with_the_most_memory_limits_the_batch() {
        let profile: DeviceProfile = "rtx-4090,limit=300MiB".parse().unwrap();
        let step = |world: &World, device: &Device, batch: u64| {
            let model = Linear::new(device, 4096, 4096, &Rng::new(0))?;
            let mut optimizer =
                world.sharded(Shard::Optimizer, model.parameters(), |own| AdamW::new(own, 1e-3))?;
            let x = Tensor::zeros(device, [batch as usize, 4096])?;
            optimizer.step(model.forward(&x)?.square()?.mean_all()?.backward()?)
        };
        let of = |rank| {
            let world = World::rehearsal(rank, 2).unwrap();
            let found = largest_fit(profile.clone(), 1..=10_000, |device, batch| step(&world, device, batch));
            found.unwrap().largest.unwrap()
        };
        let all = largest_fit_of_ranks(profile.clone(), 2, 1..=10_000, step).unwrap();
        assert!(of(0) < of(1));
        assert_eq!(all.largest, Some(of(0)));
    }
}
