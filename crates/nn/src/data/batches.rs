//! Batches of a data set.

use std::thread::Scope;

use highwater_tensor::{Error, Place, Result, Tensor};
use highwater_tracking::module;

use super::answers::Answers;
use super::augment::Augment;
use super::dataset::Dataset;
use super::prefetch::Prefetched;
use super::shuffle::permutation;

/// The rows of each batch and their augmentation, independent of a device.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    data: &'a Dataset,
    batch_size: usize,
    /// The rows from `next` on are still to come.
    order: Vec<usize>,
    next: usize,
    /// The augmentation, the seed and the number of the pass.
    augment: Option<(Augment, u64, u64)>,
}

/// A batch in host memory, which the next batch reuses.
#[derive(Debug, Default)]
pub(super) struct HostBatch {
    features: Vec<f32>,
    answers: Answers,
    rows: usize,
}

impl Rows<'_> {
    /// Copies the next batch into `batch` without advancing. Returns whether there is one.
    fn peek(&self, batch: &mut HostBatch) -> bool {
        let rows = &self.order[self.next..self.end()];
        batch.rows = rows.len();
        self.data.gather(rows, &mut batch.features, &mut batch.answers);
        if let Some((augment, seed, epoch)) = &self.augment {
            for (&row, features) in rows.iter().zip(batch.features.chunks_exact_mut(self.data.width())) {
                augment.change(features, *seed, *epoch, row);
            }
        }
        batch.rows > 0
    }

    /// Copies the next batch into `batch` and advances. Returns whether there was one.
    pub(super) fn take(&mut self, batch: &mut HostBatch) -> bool {
        let is_there = self.peek(batch);
        self.next = self.end();
        is_there
    }

    /// Returns the number of remaining batches.
    pub(super) fn left(&self) -> usize {
        (self.order.len() - self.next).div_ceil(self.batch_size)
    }

    fn end(&self) -> usize {
        self.next.saturating_add(self.batch_size).min(self.order.len())
    }
}

impl HostBatch {
    /// Creates the tensors of the batch, in the scope `data`.
    pub(super) fn to_tensors(&self, place: &impl Place, width: usize) -> Result<(Tensor, Tensor)> {
        let _scope = module("data");
        let x = Tensor::from_slice(place, &self.features, [self.rows, width])?;
        Ok((x, self.answers.to_tensor(place)?))
    }
}

/// One pass over a data set: an iterator over pairs of features `[n, width]` (`f32`) and labels `[n]` (`i64`) or
/// targets `[n, target_width]` (`f32`). Without labels, the second tensor is empty. Created by [`Dataset::batches`].
///
/// Each call of `next` creates the tensors, with the category input in the scope `data`.
#[derive(Debug)]
pub struct Batches<'a, P> {
    rows: Rows<'a>,
    place: &'a P,
    /// Host memory for one batch.
    room: HostBatch,
}

impl<'a, P: Place> Batches<'a, P> {
    pub(super) fn new(data: &'a Dataset, batch_size: usize, place: &'a P) -> Result<Self> {
        if batch_size == 0 {
            return Err(Error::BadArgument {
                op: "batches",
                argument: "batch_size",
                expected: "at least 1",
                got: "0".to_owned(),
            });
        }
        let rows = Rows { data, batch_size, order: (0..data.rows()).collect(), next: 0, augment: None };
        Ok(Self { rows, place, room: HostBatch::default() })
    }

    /// Shuffles the rows. The order depends only on the seed and the number of the pass.
    #[must_use]
    pub fn shuffled(mut self, seed: u64, epoch: u64) -> Self {
        let mut order = permutation(self.rows.data.rows(), seed, epoch);
        // Keeps the number of rows: `drop_last` may have removed some.
        order.truncate(self.rows.order.len());
        (self.rows.order, self.rows.next) = (order, 0);
        self
    }

    /// Drops the last batch if it is smaller than the others, so that all steps have the same shapes.
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        let order = &mut self.rows.order;
        order.truncate(order.len() - order.len() % self.rows.batch_size);
        self
    }

    /// Augments the images with random crops and flips. They depend only on the seed, the number of the pass and the
    /// row.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the rows are not images of the stated size.
    pub fn augmented(mut self, augment: Augment, seed: u64, epoch: u64) -> Result<Self> {
        augment.check(self.rows.data.width())?;
        self.rows.augment = Some((augment, seed, epoch));
        Ok(self)
    }

    /// Prefetches up to `ahead` batches in a separate thread. The batches and their order do not change.
    ///
    /// The calling thread creates the tensors, so the memory accounts do not change either. Prefetched batches wait in
    /// ordinary host memory.
    ///
    /// The thread ends after the last batch, or when the iterator is dropped.
    ///
    /// ```
    /// use highwater::data::Dataset;
    /// use highwater::Device;
    /// let data = Dataset::new((0..1000).map(|i| i as f32).collect(), vec![], 10)?;
    /// let device = Device::cpu()?;
    /// let rows = std::thread::scope(|scope| {
    ///     let batches = data.batches(32, &device)?.shuffled(7, 0).prefetched(scope, 2);
    ///     batches.map(|batch| Ok(batch?.0.dims()[0])).sum::<highwater::Result<usize>>()
    /// })?;
    /// assert_eq!(rows, 100);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    #[must_use]
    pub fn prefetched<'scope>(self, scope: &'scope Scope<'scope, '_>, ahead: usize) -> Prefetched<'scope, P>
    where
        'a: 'scope,
    {
        let width = self.rows.data.width();
        Prefetched::new(scope, self.rows, width, self.place, ahead)
    }
}

impl<P: Place> Iterator for Batches<'_, P> {
    type Item = Result<(Tensor, Tensor)>;

    /// If a batch fails for lack of memory, the next call retries it.
    fn next(&mut self) -> Option<Self::Item> {
        if !self.rows.peek(&mut self.room) {
            return None;
        }
        let made = self.room.to_tensors(self.place, self.rows.data.width());
        if made.is_ok() {
            self.rows.next = self.rows.end();
        }
        Some(made)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.rows.left(), Some(self.rows.left()))
    }
}

impl<P: Place> ExactSizeIterator for Batches<'_, P> {}
