//! Cross-entropy where the classes are not the last axis: as PyTorch, `[n, classes, d1, ...]` with a target for each of the
//! positions `[n, d1, ...]`, or `[classes]` with one target.
//!
//! The kernels read rows of classes, so these become rows first, with a copy of the logits unless they already lie so. Who has
//! the classes last, as a language model `[n, length, classes]`, reshapes to `[n · length, classes]` instead, which copies nothing.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Logits as rows, and the target of each.
pub(super) struct Rows {
    pub(super) logits: Tensor,
    pub(super) targets: Tensor,
}

impl Rows {
    /// `None` if they are rows as they are. The element types are for the op to check.
    pub(super) fn of(op: &'static str, logits: &Tensor, targets: &Tensor) -> Result<Option<Self>> {
        let (given, targeted) = (logits.dims(), targets.dims());
        let classes = match (given, targeted) {
            ([_, _], _) => return Ok(None),
            ([classes], []) => *classes,
            ([n, classes, positions @ ..], [first, rest @ ..]) if first == n && rest == positions => *classes,
            _ => return Err(Error::ShapeMismatch { op, lhs: *logits.shape(), rhs: *targets.shape() }),
        };
        let rows = targets.elements();
        let last: Vec<isize> = match given.len() as isize {
            1 => vec![0],
            rank => std::iter::once(0).chain(2..rank).chain([1]).collect(),
        };
        let logits = logits.permute(&last)?.reshape([rows, classes])?;
        Ok(Some(Self { logits, targets: targets.reshape([rows])? }))
    }
}
