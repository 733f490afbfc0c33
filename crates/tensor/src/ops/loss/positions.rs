//! Cross-entropy with the classes on the second axis, as in PyTorch: `[n, classes, d1, ...]` with one target per
//! position `[n, d1, ...]`, or `[classes]` with one target.
//!
//! The kernels read rows of classes, so the logits are permuted to rows, which copies them unless they already have
//! that layout. A language model with logits `[n, length, classes]` should reshape to `[n · length, classes]` instead,
//! which copies nothing.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Logits as rows, with one target per row.
pub(super) struct Rows {
    pub(super) logits: Tensor,
    pub(super) targets: Tensor,
}

impl Rows {
    /// Returns `None` if the logits already are rows. The op checks the element types.
    pub(super) fn of(op: &'static str, logits: &Tensor, targets: &Tensor) -> Result<Option<Self>> {
        let (given, targeted) = (logits.dims(), targets.dims());
        let classes = match (given, targeted) {
            ([_, _], _) => return Ok(None),
            ([classes], []) => *classes,
            ([n, classes, positions @ ..], [first, rest @ ..]) if first == n && rest == positions => *classes,
            _ => {
                return Err(Error::ShapeMismatch {
                    op,
                    lhs: *logits.shape(),
                    rhs: *targets.shape(),
                    rule: super::TARGETS,
                });
            }
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
