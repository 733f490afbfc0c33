//! The peaks of all ranks of a world, each rehearsed on a dry device.

use std::ops::Range;
use std::thread;

use highwater::distributed::{Shard, World};
use highwater::{DeviceProfile, Error, Result, dry_run, prelude::*};

use super::model::{Gpt, Size};

/// The training that each rank runs.
#[derive(Clone, Debug)]
pub(crate) struct Training {
    pub(crate) size: Size,
    /// The sequences per rank and step, and their length.
    pub(crate) batch: usize,
    pub(crate) context: usize,
    pub(crate) bf16: bool,
    pub(crate) device: DeviceProfile,
}

/// The result of the rehearsals of one world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peaks {
    /// The peak of each rehearsed rank, in bytes, from rank 0.
    pub(crate) ranks: Vec<u64>,
    /// The parameters of the model: tensors and elements.
    pub(crate) parameters: usize,
    pub(crate) elements: usize,
    /// The bytes of the buckets in the order in which they are summed.
    pub(crate) buckets: Vec<usize>,
}

impl Peaks {
    /// Returns the rank with the highest peak, and that peak.
    pub(crate) fn worst(&self) -> (usize, u64) {
        let ranks = self.ranks.iter().copied().enumerate();
        // The first of equal ranks.
        ranks.rev().max_by_key(|(_, peak)| *peak).unwrap_or_default()
    }

    /// Returns the lowest peak.
    pub(crate) fn smallest(&self) -> u64 {
        self.ranks.iter().copied().min().unwrap_or_default()
    }

    /// Returns the bytes of all parameters.
    pub(crate) fn bytes(&self) -> f64 {
        (self.elements * size_of::<f32>()) as f64
    }
}

/// One rehearsed rank.
pub(crate) struct Rank {
    pub(crate) peak: u64,
    /// The parameters that the rank updates.
    own: usize,
    parameters: usize,
    elements: usize,
    buckets: Vec<usize>,
}

impl Training {
    /// Rehearses the ranks of a world of `ranks` ranks.
    ///
    /// All ranks that update all parameters are equal, as are those that update none. So this rehearses ranks from rank
    /// 0 on until each parameter has a rank that updates it, and one of the others.
    pub(crate) fn peaks(&self, ranks: usize, shard: Shard) -> Result<Peaks> {
        let wave = thread::available_parallelism().map_or(1, Into::into);
        let (mut peaks, mut updated) = (Peaks::default(), 0);
        for start in (0..ranks).step_by(wave) {
            let all_are_updated = start > 0 && updated >= peaks.parameters;
            let end = if start == 0 && shard == Shard::None { 1 } else { ranks.min(start + wave) };
            for rank in self.rehearse_all(start..end, ranks, shard)? {
                peaks.ranks.push(rank.peak);
                updated += rank.own;
                (peaks.parameters, peaks.elements) = (rank.parameters, rank.elements);
                peaks.buckets = rank.buckets;
            }
            if all_are_updated || shard == Shard::None {
                break;
            }
        }
        Ok(peaks)
    }

    /// Rehearses these ranks of `size`, each on its own thread.
    pub(crate) fn rehearse_all(&self, ranks: Range<usize>, size: usize, shard: Shard) -> Result<Vec<Rank>> {
        thread::scope(|scope| {
            let threads: Vec<_> =
                ranks.map(|rank| scope.spawn(move || self.rehearse(rank, size, shard))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
        })
    }

    fn rehearse(&self, rank: usize, size: usize, shard: Shard) -> Result<Rank> {
        let world = World::rehearsal(rank, size)
            .map_err(|error| Error::Custom { op: "rehearsal", message: error.to_string() })?;
        let run = dry_run(&self.device, |device| {
            let gpt = Gpt::new(device, self.size, self.context)?;
            let _mixed = if self.bf16 { Some(mixed(DType::BF16)?) } else { None };
            let mut optimizer = world.sharded(shard, gpt.parameters(), |own| AdamW::new(own, 3e-4))?;
            // The second step has the optimizer's state from its beginning.
            for _ in 0..2 {
                optimizer.step(gpt.gradients(device, self.batch, self.context)?)?;
            }
            Ok(Rank {
                peak: 0,
                own: optimizer.inner().parameters().len(),
                parameters: optimizer.parameters().len(),
                elements: gpt.parameter_count(),
                buckets: optimizer.bucket_sizes(),
            })
        })?;
        Ok(Rank { peak: run.peak.in_use, ..run.result })
    }
}

fn panicked() -> Error {
    Error::Custom { op: "rehearsal", message: "the thread of a rehearsal panicked".into() }
}
