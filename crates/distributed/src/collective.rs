//! Collective operations: what every transport implements, and the memory that callers provide.

use std::fmt;
use std::ops::Range;

use half::{bf16, f16};
use highwater_tensor::DType;

use crate::error::CollectiveError;
use crate::operation::CollectiveOperation;

/// Operations that all ranks of a world run together, in the same order, with data of the same length.
///
/// Each method blocks until this rank's part is done. Methods allocate no memory in proportion to the data: the caller
/// provides a workspace of [`SumOrder::workspace_bytes`].
pub trait Collective: fmt::Debug + Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Whether the other ranks do not exist, so that operations move no data.
    fn is_rehearsal(&self) -> bool {
        false
    }

    /// Replaces the data of each rank with the sum over all ranks.
    ///
    /// # Errors
    ///
    /// The data are bytes, the workspace is too small, or another rank fails.
    fn all_reduce(
        &self,
        data: SliceMut<'_>,
        reduce: SumOrder,
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError>;

    /// Replaces this rank's part of the data with the sum over all ranks, in the order of [`SumOrder::Ordered`]. The rest
    /// of the data stays. `parts` has one range of elements per rank, the same on all ranks; see [`spans`]. The workspace
    /// holds the other ranks' values of this rank's part.
    ///
    /// # Errors
    ///
    /// The data are bytes, the parts are invalid, the workspace is too small, or another rank fails.
    fn reduce_scatter(
        &self,
        data: SliceMut<'_>,
        parts: &[Range<usize>],
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError>;

    /// Copies the part of each rank to all ranks, in place. `parts` has one range of elements per rank; see [`spans`].
    ///
    /// # Errors
    ///
    /// The parts are invalid, or another rank fails.
    fn all_gather(&self, data: SliceMut<'_>, parts: &[Range<usize>]) -> Result<(), CollectiveError>;

    /// Copies the data of rank `root` to all ranks.
    ///
    /// # Errors
    ///
    /// There is no rank `root`, or another rank fails.
    fn broadcast(&self, data: SliceMut<'_>, root: usize) -> Result<(), CollectiveError>;

    /// Waits until all ranks call this method.
    ///
    /// # Errors
    ///
    /// Another rank fails.
    fn barrier(&self) -> Result<(), CollectiveError>;

    /// Ends the processes of all ranks with an exit code. No destructor runs.
    fn abort(&self, code: i32) -> !;
}

/// The order of the additions of an all-reduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SumOrder {
    /// Adds the ranks' values in rank order: `((x₀ + x₁) + x₂) + …`. All ranks get the same bits. The sum of 16-bit floats accumulates in f32 and
    /// is rounded once. Each rank receives all values of its [`span`], sums them, and sends the sum to all ranks.
    #[default]
    Ordered,
    /// Leaves the order to the communication library, for f32 and f64. 16-bit floats use [`Ordered`](Self::Ordered).
    Library,
}

impl SumOrder {
    /// Returns the name of the order: `ordered` or `library`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Library => "library",
        }
    }

    /// Returns the workspace of an all-reduce in bytes: all other ranks' values of a [`span`], or for
    /// [`Library`](Self::Library) a copy of the data. A single rank needs none.
    ///
    /// ```
    /// use highwater_distributed::SumOrder;
    /// use highwater_tensor::DType;
    /// assert_eq!(SumOrder::Ordered.workspace_bytes(1000, DType::F32, 4), 3 * 250 * 4);
    /// assert_eq!(SumOrder::Library.workspace_bytes(1000, DType::F32, 4), 1000 * 4);
    /// assert_eq!(SumOrder::Ordered.workspace_bytes(1000, DType::F32, 1), 0);
    /// ```
    #[must_use]
    pub const fn workspace_bytes(self, elements: usize, dtype: DType, size: usize) -> usize {
        if size <= 1 {
            return 0;
        }
        let kept = match self {
            Self::Library if !dtype.is_half() => elements,
            _ => elements.div_ceil(size).saturating_mul(size - 1),
        };
        kept.saturating_mul(dtype.size())
    }
}

/// Returns the part of `elements` that belongs to a rank. All parts have the same length, but the last ones may be
/// shorter or empty.
///
/// ```
/// use highwater_distributed::span;
/// assert_eq!(span(10, 4, 0), 0..3);
/// assert_eq!(span(10, 4, 3), 9..10);
/// ```
#[must_use]
pub const fn span(elements: usize, size: usize, rank: usize) -> Range<usize> {
    let length = elements.div_ceil(size);
    let start = length.saturating_mul(rank);
    let end = start.saturating_add(length);
    (if start < elements { start } else { elements })..(if end < elements { end } else { elements })
}

/// Returns the [`span`] of each rank.
#[must_use]
pub fn spans(elements: usize, size: usize) -> Vec<Range<usize>> {
    (0..size).map(|rank| span(elements, size, rank)).collect()
}

/// Values in host memory that ranks exchange.
#[derive(Debug)]
#[non_exhaustive]
pub enum SliceMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// 64-bit floats.
    F64(&'a mut [f64]),
    /// 16-bit IEEE 754 floats.
    F16(&'a mut [f16]),
    /// 16-bit brain floats.
    BF16(&'a mut [bf16]),
    /// Bytes of any meaning. They have no sum.
    Bytes(&'a mut [u8]),
}

macro_rules! from_slices {
    ($($variant:ident: $element:ty),+) => {$(
        impl<'a> From<&'a mut [$element]> for SliceMut<'a> {
            fn from(values: &'a mut [$element]) -> Self {
                Self::$variant(values)
            }
        }
    )+};
}

from_slices!(F32: f32, F64: f64, F16: f16, BF16: bf16, Bytes: u8);

impl SliceMut<'_> {
    /// Returns the element type; [`DType::U8`] for bytes.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::F16(_) => DType::F16,
            Self::BF16(_) => DType::BF16,
            Self::Bytes(_) => DType::U8,
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::BF16(values) => values.len(),
            Self::Bytes(values) => values.len(),
        }
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the values as bytes.
    #[cfg(any(test, feature = "cuda", feature = "mpi"))]
    pub(crate) fn into_bytes<'b>(self) -> &'b mut [u8]
    where
        Self: 'b,
    {
        match self {
            Self::F32(values) => bytemuck::cast_slice_mut(values),
            Self::F64(values) => bytemuck::cast_slice_mut(values),
            Self::F16(values) => bytemuck::cast_slice_mut(values),
            Self::BF16(values) => bytemuck::cast_slice_mut(values),
            Self::Bytes(values) => values,
        }
    }
}

/// Checks the arguments of a reduction.
pub(crate) fn check_reduction(
    operation: CollectiveOperation,
    data: &SliceMut<'_>,
    reduce: SumOrder,
    size: usize,
    workspace: &[u8],
) -> Result<(), CollectiveError> {
    let dtype = data.dtype();
    check_workspace(operation, dtype, reduce.workspace_bytes(data.len(), dtype, size), workspace)
}

/// Checks the arguments of a reduction by parts.
pub(crate) fn check_scatter(
    data: &SliceMut<'_>,
    parts: &[Range<usize>],
    rank: usize,
    size: usize,
    workspace: &[u8],
) -> Result<(), CollectiveError> {
    let operation = CollectiveOperation::ReduceScatter;
    check_parts(operation, data.len(), parts, size)?;
    let dtype = data.dtype();
    check_workspace(operation, dtype, parts[rank].len() * (size - 1) * dtype.size(), workspace)
}

/// Checks that there is one part per rank, in ascending order and within the data.
pub(crate) fn check_parts(
    operation: CollectiveOperation,
    elements: usize,
    parts: &[Range<usize>],
    size: usize,
) -> Result<(), CollectiveError> {
    let mut end = 0;
    let fits = parts.iter().all(|part| {
        let fits = part.is_empty() || end <= part.start && part.end <= elements;
        end = if part.is_empty() { end } else { part.end };
        fits
    });
    if fits && parts.len() == size {
        return Ok(());
    }
    Err(CollectiveError::Parts { operation, parts: parts.to_vec(), elements, size })
}

fn check_workspace(
    operation: CollectiveOperation,
    dtype: DType,
    needed: usize,
    workspace: &[u8],
) -> Result<(), CollectiveError> {
    if !dtype.is_float() {
        return Err(CollectiveError::Bytes { operation });
    }
    let (address, align) = (workspace.as_ptr().addr(), dtype.size());
    if workspace.len() < needed || needed > 0 && !address.is_multiple_of(align) {
        let given = workspace.len();
        return Err(CollectiveError::Workspace { operation, needed, align, given, address });
    }
    Ok(())
}

/// Checks the root of a broadcast.
pub(crate) const fn check_root(root: usize, size: usize) -> Result<(), CollectiveError> {
    if root < size { Ok(()) } else { Err(CollectiveError::Root { root, size }) }
}
