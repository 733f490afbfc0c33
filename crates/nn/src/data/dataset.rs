//! Data sets with indexed access, which user types implement.

use std::sync::Arc;

use highwater_tensor::{Place, Result, Shape};

use super::batches::Batches;
use super::sample::Sample;

/// A data set whose samples have the numbers 0 to `len() - 1`. Loaders call [`get`](Self::get) from several threads.
///
/// ```
/// use std::sync::Arc;
/// use highwater::prelude::*;
/// use highwater::data::Sample;
///
/// /// Numbers and their squares.
/// struct Squares;
///
/// impl Dataset for Squares {
///     fn len(&self) -> usize {
///         1000
///     }
///
///     fn get(&self, index: usize) -> highwater::Result<Sample> {
///         let x = index as f32;
///         Sample::new(&[x], [1])?.with_target(&[x * x], [1])
///     }
/// }
///
/// let (device, data) = (Device::cpu()?, Arc::new(Squares));
/// for batch in data.batches(64, &device)?.shuffled(7, 0).workers(2) {
///     let (x, y) = batch?; // both [64, 1]; the last batch is [40, 1]
///     assert_eq!(x.dims(), y.dims());
/// }
/// # Ok::<(), highwater::Error>(())
/// ```
pub trait Dataset: Send + Sync {
    /// Returns the number of samples.
    fn len(&self) -> usize;

    /// Reads a sample. It depends only on the index.
    ///
    /// # Errors
    /// Any [`Error`](highwater_tensor::Error); [`Error::Custom`](highwater_tensor::Error::Custom) carries a message of
    /// the data set. The batch with this sample fails with the error.
    fn get(&self, index: usize) -> Result<Sample>;

    /// Returns whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the shape of the input of every sample, if all samples have one shape.
    fn sample_shape(&self) -> Option<Shape> {
        None
    }

    /// Returns the length of a sample, such as its number of tokens, if samples have different ones.
    /// [`Batches::by_length`] needs it.
    fn sample_length(&self, _index: usize) -> Option<usize> {
        None
    }

    /// Reads a batch. The default implementation [stacks](Sample::stack) the samples.
    ///
    /// # Errors
    /// Those of [`get`](Self::get) and [`Sample::stack`].
    fn get_batch(&self, indices: &[usize]) -> Result<Sample> {
        let samples = indices.iter().map(|&index| self.get(index)).collect::<Result<Vec<_>>>()?;
        Sample::stack(&samples)
    }

    /// Reads a batch whose samples are padded to this [length](Self::sample_length), which no sample exceeds.
    /// The default implementation calls [`get_batch`](Self::get_batch), which pads to the longest sample of the batch.
    ///
    /// # Errors
    /// As [`get_batch`](Self::get_batch).
    fn get_padded(&self, indices: &[usize], _length: usize) -> Result<Sample> {
        self.get_batch(indices)
    }

    /// Returns an iterator over batches of `batch_size` samples, in order unless [shuffled](Batches::shuffled). The
    /// last batch may be smaller.
    ///
    /// # Errors
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) for a batch size of 0.
    fn batches<'a, P: Place>(self: &Arc<Self>, batch_size: usize, place: &'a P) -> Result<Batches<'a, P>>
    where
        Self: Sized + 'static,
    {
        Batches::new(Arc::<Self>::clone(self), batch_size, place)
    }
}
