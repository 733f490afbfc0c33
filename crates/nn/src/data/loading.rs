//! The contents of each batch of a pass, independent of devices and threads.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use highwater_tensor::Result;
use highwater_tensor::error::DataError;

use super::augment::Augment;
use super::by_length::{ByLength, by_length};
use super::dataset::Dataset;
use super::sample::Sample;
use super::shard::DataShard;
use super::shuffle::permutation;

/// Makes a batch from samples.
pub(super) type Collate = dyn Fn(Vec<Sample>) -> Result<Sample> + Send + Sync;

/// One pass over a data set.
#[derive(Clone)]
pub(super) struct Pass {
    pub(super) data: Arc<dyn Dataset>,
    pub(super) batch_size: usize,
    pub(super) drop_last: bool,
    /// The seed and the number of the pass.
    pub(super) shuffle: Option<(u64, u64)>,
    /// The augmentation, the seed and the number of the pass.
    pub(super) augment: Option<(Augment, u64, u64)>,
    pub(super) collate: Option<Arc<Collate>>,
    /// The samples of a step, which have similar lengths.
    pub(super) by_length: Option<usize>,
    /// Whether every batch is the largest one.
    pub(super) largest_only: bool,
    pub(super) shard: DataShard,
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass")
            .field("samples", &self.data.len())
            .field("batch_size", &self.batch_size)
            .field("drop_last", &self.drop_last)
            .field("shuffle", &self.shuffle)
            .field("augment", &self.augment)
            .field("by_length", &self.by_length)
            .field("largest_only", &self.largest_only)
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

impl Pass {
    /// Returns the number of batches of this part.
    pub(super) fn batches(&self) -> usize {
        let samples = self.data.len();
        let batches =
            if self.drop_last { samples / self.batch_size } else { samples.div_ceil(self.batch_size) };
        self.shard.batches(batches)
    }

    /// Returns the samples of a step whose batches have similar lengths: a multiple of the batch size.
    fn step(&self, samples: usize) -> usize {
        samples.div_ceil(self.batch_size).max(1).saturating_mul(self.batch_size)
    }

    /// Returns the rows and the length of the largest batch of this part; `None` without batches or lengths.
    pub(super) fn largest(&self) -> Option<[usize; 2]> {
        let len = self.data.len();
        let longest = (0..len).filter_map(|sample| self.data.sample_length(sample)).max()?;
        (self.batches() > 0).then(|| [self.batch_size.min(len), longest])
    }

    /// Fixes the order of the samples.
    pub(super) fn ordered(&self) -> Result<OrderedPass> {
        let len = self.data.len();
        let no_order = DataError::NoOrder { samples: len };
        let (order, lengths) = if let Some(step) = self.by_length {
            let lengths: Vec<usize> =
                (0..len).map(|sample| self.data.sample_length(sample).unwrap_or(0)).collect();
            let mut found = by_length(&lengths, self.step(step), self.shuffle).ok_or(no_order)?;
            (Some(std::mem::take(&mut found.order)), Some(found))
        } else if let Some((seed, epoch)) = self.shuffle {
            (Some(permutation(len, seed, epoch).ok_or(no_order)?), None)
        } else {
            (None, None)
        };
        Ok(OrderedPass { pass: self.clone(), len, order, lengths })
    }
}

/// A pass whose order is known.
#[derive(Debug)]
pub(super) struct OrderedPass {
    pass: Pass,
    len: usize,
    /// The shuffled order.
    order: Option<Vec<usize>>,
    /// The lengths of the steps, if they differ.
    lengths: Option<ByLength>,
}

impl OrderedPass {
    /// Reads a batch of this part. A panic of the data set or of the collation becomes an error.
    pub(super) fn load(&self, batch: usize) -> Result<Sample> {
        let batch = self.pass.shard.batch(batch);
        let loaded = catch_unwind(AssertUnwindSafe(|| self.load_unguarded(batch)));
        loaded.unwrap_or_else(|panic| Err(DataError::Panicked { batch, message: message(&*panic) }.into()))
    }

    fn load_unguarded(&self, batch: usize) -> Result<Sample> {
        let size = self.pass.batch_size;
        let step = self.lengths.as_ref().map(|lengths| {
            let step = if self.pass.largest_only { lengths.longest } else { batch * size / lengths.step };
            (step, lengths.lengths.get(step).copied().unwrap_or(0))
        });
        let batch = match (&self.lengths, step) {
            (Some(lengths), Some((step, _))) if self.pass.largest_only => step * lengths.step / size,
            _ => batch,
        };
        let indices = self.indices(batch);
        let Some(collate) = &self.pass.collate else {
            let mut loaded = match step {
                Some((_, length)) => self.pass.data.get_padded(&indices, length)?,
                None => self.pass.data.get_batch(&indices)?,
            };
            self.augment(&mut loaded, &indices)?;
            return Ok(loaded);
        };
        let sample = |&index: &usize| {
            let mut sample = self.pass.data.get(index)?;
            self.augment(&mut sample, &[index])?;
            Ok(sample)
        };
        collate(indices.iter().map(sample).collect::<Result<Vec<_>>>()?)
    }

    /// Returns the samples of a batch.
    fn indices(&self, batch: usize) -> Vec<usize> {
        let start = batch.saturating_mul(self.pass.batch_size).min(self.len);
        let end = start.saturating_add(self.pass.batch_size).min(self.len);
        match &self.order {
            Some(order) => order[start..end].to_vec(),
            None => (start..end).collect(),
        }
    }

    /// Augments one sample or all samples of a batch.
    fn augment(&self, samples: &mut Sample, indices: &[usize]) -> Result<()> {
        match self.pass.augment {
            Some((augment, seed, epoch)) => augment.change_all(&mut samples.input, seed, epoch, indices),
            None => Ok(()),
        }
    }
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref().map(String::as_str));
    text.unwrap_or("unknown panic").to_owned()
}
