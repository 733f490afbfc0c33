//! A pass over a data set, batch by batch.

use std::thread::Scope;

use highwater_tensor::{Error, Place, Result, Tensor};
use highwater_tracking::module;

use super::answers::Answers;
use super::augment::Augment;
use super::dataset::Dataset;
use super::prefetch::Prefetched;
use super::shuffle::permutation;

/// Which rows make which batch, and how they are changed on the way: all that needs no device.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    data: &'a Dataset,
    batch_size: usize,
    /// The rows still to come are those from `next` on.
    order: Vec<usize>,
    next: usize,
    /// With a seed and the number of the pass.
    augment: Option<(Augment, u64, u64)>,
}

/// A batch on the host. Kept from batch to batch, so that its room is used again.
#[derive(Debug, Default)]
pub(super) struct HostBatch {
    features: Vec<f32>,
    answers: Answers,
    rows: usize,
}

impl Rows<'_> {
    /// Puts the next batch into `batch`, without passing it by; whether there is one.
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

    /// Puts the next batch into `batch` and passes it by; whether there was one.
    pub(super) fn take(&mut self, batch: &mut HostBatch) -> bool {
        let is_there = self.peek(batch);
        self.next = self.end();
        is_there
    }

    /// How many batches are left.
    pub(super) fn left(&self) -> usize {
        (self.order.len() - self.next).div_ceil(self.batch_size)
    }

    fn end(&self) -> usize {
        self.next.saturating_add(self.batch_size).min(self.order.len())
    }
}

impl HostBatch {
    /// The batch as tensors, inputs in the scope `data`.
    pub(super) fn to_tensors(&self, place: &impl Place, width: usize) -> Result<(Tensor, Tensor)> {
        let _scope = module("data");
        let x = Tensor::from_slice(place, &self.features, [self.rows, width])?;
        Ok((x, self.answers.to_tensor(place)?))
    }
}

/// One pass over a data set: an iterator over pairs of features `[n, width]` (`f32`) and either labels `[n]` (`i64`; of no
/// elements where the data has none) or targets `[n, target_width]` (`f32`). Made by [`Dataset::batches`].
///
/// The tensors are made as they are asked for, as inputs in the scope `data`.
#[derive(Debug)]
pub struct Batches<'a, P> {
    rows: Rows<'a>,
    place: &'a P,
    /// Room for one batch on its way to the device.
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

    /// The rows in an order that the seed and the number of the pass decide, and nothing else.
    #[must_use]
    pub fn shuffled(mut self, seed: u64, epoch: u64) -> Self {
        let mut order = permutation(self.rows.data.rows(), seed, epoch);
        // As many rows as before: the last batch may have been dropped.
        order.truncate(self.rows.order.len());
        (self.rows.order, self.rows.next) = (order, 0);
        self
    }

    /// Without the last batch, if it is smaller than the others: so all steps have the same shapes.
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        let order = &mut self.rows.order;
        order.truncate(order.len() - order.len() % self.rows.batch_size);
        self
    }

    /// With every image cropped and flipped at random, as the seed, the number of the pass and the row decide, and nothing
    /// else.
    ///
    /// # Errors
    /// [`Error::BadArgument`] if the rows are not images of the stated size.
    pub fn augmented(mut self, augment: Augment, seed: u64, epoch: u64) -> Result<Self> {
        augment.check(self.rows.data.width())?;
        self.rows.augment = Some((augment, seed, epoch));
        Ok(self)
    }

    /// The same batches in the same order, put together by a thread of their own, up to `ahead` of them before they are
    /// asked for. Tensors are made by the thread that asks, so that the memory accounts are the same too; what waits lies in
    /// ordinary host memory.
    ///
    /// The thread ends with the last batch, or when the iterator is dropped.
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

    /// A batch that could not be made, for lack of memory, is tried again by the next call.
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
