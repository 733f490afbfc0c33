//! Splitting along an axis. Each part is a view, as of `slice`; the ops allocate and save nothing.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// # Split
impl Tensor {
    /// Splits into parts of `size` along an axis; the last part may be smaller. An empty axis gives one empty part.
    /// Returns views.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let parts = Tensor::arange(&Device::cpu()?, 0, 5)?.split(0, 2)?;
    /// assert_eq!(parts[1].to_vec::<i64>()?, [2, 3]);
    /// assert_eq!(parts[2].to_vec::<i64>()?, [4]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::BadArgument`] for a size of 0.
    #[doc(alias("array_split"))]
    pub fn split(&self, axis: isize, size: usize) -> Result<Vec<Self>> {
        let op = "split";
        let len = self.dims()[self.shape().axis(op, axis)?];
        if size == 0 {
            let got = format!("0 for shape {}", self.shape());
            return Err(Error::BadArgument { op, argument: "size", expected: "at least 1", got });
        }
        let starts = (0..len.max(1)).step_by(size);
        starts.map(|start| self.narrow(axis, start, size.min(len - start))).collect()
    }

    /// Splits into parts of the given sizes along an axis. The sizes must add up to the size of the axis. Returns
    /// views.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::BadArgument`] if the sizes do not add up to the size of the axis.
    pub fn split_sizes(&self, axis: isize, sizes: impl AsRef<[usize]>) -> Result<Vec<Self>> {
        let (op, sizes) = ("split_sizes", sizes.as_ref());
        let len = self.dims()[self.shape().axis(op, axis)?];
        if sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) != Some(len) {
            let got = format!("{sizes:?} for axis {axis} of shape {}", self.shape());
            return Err(Error::BadArgument {
                op,
                argument: "sizes",
                expected: "sizes that add up to the size of the axis",
                got,
            });
        }
        let mut start = 0;
        let part = |&size: &usize| {
            let part = self.narrow(axis, start, size);
            start += size;
            part
        };
        sizes.iter().map(part).collect()
    }

    /// Splits into at most `count` parts along an axis, as PyTorch's `chunk`. All parts but the last have equal sizes.
    /// Returns views.
    ///
    /// # Errors
    /// [`Error::AxisOutOfRange`]; [`Error::BadArgument`] for a count of 0.
    pub fn chunk(&self, axis: isize, count: usize) -> Result<Vec<Self>> {
        let op = "chunk";
        let len = self.dims()[self.shape().axis(op, axis)?];
        if count == 0 {
            let got = format!("0 for shape {}", self.shape());
            return Err(Error::BadArgument { op, argument: "count", expected: "at least 1", got });
        }
        self.split(axis, len.div_ceil(count).max(1))
    }
}
