//! Batches of a data set: the loader.

use std::sync::Arc;

use highwater_tensor::{Error, Place, Result, Tensor};

use super::augment::Augment;
use super::dataset::Dataset;
use super::loading::{OrderedPass, Pass};
use super::sample::Sample;
use super::shard::DataShard;
use super::workers::Workers;

/// Default number of finished batches per worker.
const PREFETCH: usize = 2;

/// One pass over a data set: an iterator over pairs of inputs `[n, …]` and labels `[n]` (`i64`) or targets `[n, …]`.
/// Without labels, the second tensor is empty. Created by [`Dataset::batches`] and
/// [`ArrayDataset::batches`](super::ArrayDataset::batches).
///
/// The methods that configure a pass may be called in any order. The batches and their order do not depend on the
/// number of [workers](Self::workers). Each call of `next` creates the tensors in the calling thread, with the category
/// input in the scope `data`. Workers only use ordinary host memory.
///
/// ```
/// use highwater::data::ArrayDataset;
/// use highwater::Device;
/// let data = ArrayDataset::new((0..1000).map(|i| i as f32).collect(), vec![], 10)?;
/// let device = Device::cpu()?;
/// for epoch in 0..2 {
///     for batch in data.batches(32, &device)?.shuffled(7, epoch).drop_last().workers(2) {
///         assert_eq!(batch?.0.dims(), [32, 10]);
///     }
/// }
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Debug)]
pub struct Batches<'a, P> {
    pass: Pass,
    /// The number of the first batch.
    start: usize,
    workers: usize,
    prefetch: usize,
    place: &'a P,
    source: Option<Source>,
    /// The next batch to take from the source.
    next: usize,
    /// A batch whose tensors could not be created yet.
    waiting: Option<Sample>,
}

/// A started pass.
#[derive(Debug)]
enum Source {
    Caller(OrderedPass),
    Workers(Workers),
}

impl<'a, P: Place> Batches<'a, P> {
    pub(super) fn new(data: Arc<dyn Dataset>, batch_size: usize, place: &'a P) -> Result<Self> {
        if batch_size == 0 {
            return Err(Error::BadArgument {
                op: "batches",
                argument: "batch_size",
                expected: "at least 1",
                got: "0".to_owned(),
            });
        }
        let (drop_last, shard) = (false, DataShard::default());
        let (shuffle, augment, collate, by_length, largest_only) = (None, None, None, None, false);
        let pass =
            Pass { data, batch_size, drop_last, shuffle, augment, collate, by_length, largest_only, shard };
        let (start, next, source, waiting) = (0, 0, None, None);
        Ok(Self { pass, start, workers: 0, prefetch: PREFETCH, place, source, next, waiting })
    }

    /// Changes the configuration. A pass that has started begins again.
    fn configured(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        Self { source: None, next: self.start, waiting: None, ..self }
    }

    /// Shuffles the samples. The order depends only on the seed and the number of the pass.
    #[must_use]
    pub fn shuffled(self, seed: u64, epoch: u64) -> Self {
        self.configured(|batches| batches.pass.shuffle = Some((seed, epoch)))
    }

    /// Groups samples of similar [length](Dataset::sample_length), so that batches need little padding. `step` is the number
    /// of samples that all ranks process in a step, rounded up to whole batches: `plan.batch()` for a plan of `fit`, else
    /// the batch size. The batches of a step have one length, that of its longest sample.
    ///
    /// With [`shuffled`](Self::shuffled), the pass is in random order, sorted within windows of up to 50 steps; the steps then
    /// come in random order. Without it, the order is by falling length. In both, the *second* step has the longest sample:
    /// the optimizer has its state from then on, so the peak of a run is that of its second step.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use highwater::data::{MaskedTokens, PairOptions, Pairs};
    /// use highwater::prelude::*;
    /// let sample = |length: usize| MaskedTokens::default().with_context(&[1]).with_answer(&vec![2; length - 1]);
    /// let pairs = Arc::new(Pairs::new((0..100).map(|at| sample(2 + at * 37 % 100)), &PairOptions::default())?);
    /// let device = Device::cpu()?;
    /// let batches = pairs.batches(10, &device)?.shuffled(7, 0).by_length(10)?;
    /// assert_eq!(batches.largest(), Some([10, 101]));
    /// let shapes = batches.map(|batch| Ok(batch?.0.dims().to_vec())).collect::<highwater::Result<Vec<_>>>()?;
    /// assert_eq!(shapes[1], [10, 101]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a step without samples, and for a data set whose samples have no lengths.
    pub fn by_length(self, step: usize) -> Result<Self> {
        let data = &self.pass.data;
        let bad = |argument, expected, got: &str| {
            Err(Error::BadArgument { op: "by_length", argument, expected, got: got.to_owned() })
        };
        if step == 0 {
            return bad("step", "at least 1", "0");
        }
        if !data.is_empty() && data.sample_length(0).is_none() {
            return bad("data", "a data set with `Dataset::sample_length`", "samples without a length");
        }
        Ok(self.configured(|batches| batches.pass.by_length = Some(step)))
    }

    /// Whether every batch of a pass [by length](Self::by_length) is the largest one. Trials of a plan have few steps, and
    /// then need as much memory as the whole run: `largest_only(plan.is_trial())`. Other passes are not changed.
    #[must_use]
    pub fn largest_only(self, largest_only: bool) -> Self {
        self.configured(|batches| batches.pass.largest_only = largest_only)
    }

    /// Returns the number of samples of the largest batch and the length of its samples, if samples have
    /// [lengths](Dataset::sample_length). `None` without batches. It reads the lengths of all samples.
    #[must_use]
    pub fn largest(&self) -> Option<[usize; 2]> {
        self.pass.largest()
    }

    /// Drops the last batch if it is smaller than the others, so that all steps have the same shapes.
    #[must_use]
    pub fn drop_last(self) -> Self {
        self.configured(|batches| batches.pass.drop_last = true)
    }

    /// Starts at this batch of the pass, from 0, without reading the earlier ones. A resumed run sees the same batches
    /// as an uninterrupted one.
    ///
    /// ```
    /// use highwater::data::ArrayDataset;
    /// use highwater::Device;
    /// let data = ArrayDataset::new((0..100).map(|i| i as f32).collect(), vec![], 1)?;
    /// let device = Device::cpu()?;
    /// let pass = || data.batches(10, &device).map(|batches| batches.shuffled(7, 3));
    /// let resumed = pass()?.start_at(4).next().unwrap()?.0;
    /// let whole = pass()?.nth(4).unwrap()?.0;
    /// assert_eq!(resumed.to_vec::<f32>()?, whole.to_vec::<f32>()?);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn start_at(self, batch: usize) -> Self {
        self.configured(|batches| batches.start = batch)
    }

    /// Reads only the part of one of several processes. All processes have the same number of batches: the last ones are
    /// dropped if their number is not a multiple of the processes. [`start_at`](Self::start_at) counts the batches of this
    /// part. The processes must use the same batch size, seed and number of the pass.
    ///
    /// ```
    /// use highwater::data::{ArrayDataset, DataShard};
    /// use highwater::Device;
    /// let data = ArrayDataset::new((0..10).map(|i| i as f32).collect(), vec![], 1)?;
    /// let device = Device::cpu()?;
    /// let firsts = |rank| -> highwater::Result<Vec<f32>> {
    ///     let batches = data.batches(2, &device)?.sharded(DataShard::new(rank, 2)?);
    ///     batches.map(|batch| batch?.0.slice(0, ..1)?.to_vec::<f32>().map(|values| values[0])).collect()
    /// };
    /// assert_eq!((firsts(0)?, firsts(1)?), (vec![0.0, 4.0], vec![2.0, 6.0])); // rows 8 and 9 are dropped
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn sharded(self, shard: impl Into<DataShard>) -> Self {
        let shard = shard.into();
        self.configured(|batches| batches.pass.shard = shard)
    }

    /// Augments the images with random crops and flips. They depend only on the seed, the number of the pass and the
    /// sample.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the samples are not images of the stated size. A data set without a
    /// [`sample_shape`](Dataset::sample_shape) is checked batch by batch.
    pub fn augmented(self, augment: Augment, seed: u64, epoch: u64) -> Result<Self> {
        if let Some(shape) = self.pass.data.sample_shape() {
            augment.check(shape.checked_elements().unwrap_or(usize::MAX))?;
        }
        Ok(self.configured(|batches| batches.pass.augment = Some((augment, seed, epoch))))
    }

    /// Makes each batch from its samples with `collate`, in place of [`Sample::stack`]. The arrays of the result become
    /// the tensors of the batch.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use highwater::data::Sample;
    /// use highwater::prelude::*;
    /// use highwater::io::Array;
    ///
    /// /// Sequences of different lengths.
    /// struct Sequences;
    ///
    /// impl Dataset for Sequences {
    ///     fn len(&self) -> usize {
    ///         6
    ///     }
    ///
    ///     fn get(&self, index: usize) -> highwater::Result<Sample> {
    ///         Sample::new(&vec![1i64; index + 1], [index + 1])
    ///     }
    /// }
    ///
    /// /// Pads all sequences with 0 to the longest one.
    /// fn padded(samples: Vec<Sample>) -> highwater::Result<Sample> {
    ///     let longest = samples.iter().map(|sample| sample.input.shape().elements()).max().unwrap_or(0);
    ///     let mut padded = Vec::new();
    ///     for sample in &samples {
    ///         let mut values = sample.input.to_vec::<i64>()?;
    ///         values.resize(longest, 0);
    ///         padded.extend(values);
    ///     }
    ///     Sample::new(&padded, [samples.len(), longest])
    /// }
    ///
    /// let (device, data) = (Device::cpu()?, Arc::new(Sequences));
    /// let (x, _) = data.batches(3, &device)?.collated(padded).workers(2).next().unwrap()?;
    /// assert_eq!((x.dims(), x.to_vec::<i64>()?), (&[3, 3][..], vec![1, 0, 0, 1, 1, 0, 1, 1, 1]));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn collated(self, collate: impl Fn(Vec<Sample>) -> Result<Sample> + Send + Sync + 'static) -> Self {
        self.configured(|batches| batches.pass.collate = Some(Arc::new(collate)))
    }

    /// Reads the batches in this many threads, ahead of the caller; 0 (the default) reads in the calling thread.
    /// The threads start with the first batch. They end after the last batch, or when the iterator is dropped.
    #[must_use]
    pub fn workers(self, workers: usize) -> Self {
        self.configured(|batches| batches.workers = workers)
    }

    /// Sets how many finished batches each worker holds at most: 2 by default, at least 1. The host memory of a pass is
    /// at most that of `workers × prefetch` batches, plus one for the caller.
    #[must_use]
    pub fn prefetch(self, batches: usize) -> Self {
        self.configured(|this| this.prefetch = batches)
    }

    /// Reads the next batch.
    fn read(&mut self) -> Result<Sample> {
        let source = match &mut self.source {
            Some(source) => source,
            empty => {
                let pass = self.pass.ordered()?;
                empty.insert(if self.workers == 0 {
                    Source::Caller(pass)
                } else {
                    let range = (self.next, self.pass.batches());
                    Source::Workers(Workers::start(&Arc::new(pass), range, self.workers, self.prefetch)?)
                })
            }
        };
        let batch = self.next;
        self.next += 1;
        match source {
            Source::Caller(pass) => pass.load(batch),
            Source::Workers(workers) => workers.take(batch),
        }
    }

    /// Returns the number of remaining batches.
    fn left(&self) -> usize {
        self.pass.batches().saturating_sub(self.next) + usize::from(self.waiting.is_some())
    }
}

impl<P: Place> Iterator for Batches<'_, P> {
    type Item = Result<(Tensor, Tensor)>;

    /// If the tensors of a batch cannot be created for lack of memory, the next call retries the batch. A batch that
    /// cannot be read is skipped after its error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.left() == 0 {
            self.source = None;
            return None;
        }
        let batch = match self.waiting.take().map_or_else(|| self.read(), Ok) {
            Ok(batch) => batch,
            Err(error) => return Some(Err(error)),
        };
        let made = batch.to_tensors(self.place);
        if made.is_err() {
            self.waiting = Some(batch);
        }
        Some(made)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left(), Some(self.left()))
    }
}

impl<P: Place> ExactSizeIterator for Batches<'_, P> {}
