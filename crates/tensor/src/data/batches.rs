//! A pass over a data set, batch by batch.

use highwater_tracking::module;

use super::dataset::Dataset;
use super::shuffle::permutation;
use crate::device::Place;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// One pass over a data set: an iterator over pairs of features `[n, width]` (`f32`) and labels `[n]` (`i64`; of no
/// elements where the data has no labels). Made by [`Dataset::batches`].
///
/// The tensors are made as they are asked for, as inputs in the scope `data`.
#[derive(Debug)]
pub struct Batches<'a, P> {
    data: &'a Dataset,
    place: &'a P,
    batch_size: usize,
    /// The rows still to come are those from `next` on.
    order: Vec<usize>,
    next: usize,
    /// Room for one batch on its way to the device, kept from batch to batch.
    features: Vec<f32>,
    labels: Vec<i64>,
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
        let order = (0..data.rows()).collect();
        Ok(Self { data, place, batch_size, order, next: 0, features: Vec::new(), labels: Vec::new() })
    }

    /// The rows in an order that the seed and the number of the pass decide, and nothing else.
    #[must_use]
    pub fn shuffled(self, seed: u64, epoch: u64) -> Self {
        let mut order = permutation(self.data.rows(), seed, epoch);
        // As many rows as before: the last batch may have been dropped.
        order.truncate(self.order.len());
        Self { order, next: 0, ..self }
    }

    /// Without the last batch, if it is smaller than the others: so all steps have the same shapes.
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        self.order.truncate(self.order.len() - self.order.len() % self.batch_size);
        self
    }

    fn load(&mut self) -> Result<(Tensor, Tensor)> {
        let end = self.next.saturating_add(self.batch_size).min(self.order.len());
        let rows = &self.order[self.next..end];
        self.features.clear();
        self.labels.clear();
        self.data.gather(rows, &mut self.features, &mut self.labels);
        let _scope = module("data");
        let x = Tensor::from_slice(self.place, &self.features, [rows.len(), self.data.width()])?;
        let y = Tensor::from_slice(self.place, &self.labels, [self.labels.len()])?;
        self.next = end;
        Ok((x, y))
    }
}

impl<P: Place> Iterator for Batches<'_, P> {
    type Item = Result<(Tensor, Tensor)>;

    /// A batch that could not be made, for lack of memory, is tried again by the next call.
    fn next(&mut self) -> Option<Self::Item> {
        (self.next < self.order.len()).then(|| self.load())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.order.len() - self.next).div_ceil(self.batch_size);
        (left, Some(left))
    }
}

impl<P: Place> ExactSizeIterator for Batches<'_, P> {}
