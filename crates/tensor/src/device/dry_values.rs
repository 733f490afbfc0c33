//! What is read of tensors that have no values.

use std::fmt;
use std::sync::Arc;

use crate::backend::cpu::element_bytes;
use crate::shape::{DType, Scalar, Shape};

/// A tensor of a dry device is being read.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct DryRead<'a> {
    /// By what: `to_vec`, which [`Tensor::item`](crate::Tensor::item) calls too.
    pub op: &'static str,
    /// The tensor's shape.
    pub shape: &'a Shape,
    /// Its element type.
    pub dtype: DType,
}

/// What the caller answers to one who reads.
type Answer = dyn Fn(&DryRead<'_>) -> Option<Scalar> + Send + Sync;

/// The values that a caller has scripted for a dry device; by default none.
#[derive(Clone, Default)]
pub(crate) struct DryValues(Option<Arc<Answer>>);

impl DryValues {
    pub(crate) fn new(answer: impl Fn(&DryRead<'_>) -> Option<Scalar> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(answer)))
    }

    /// The bytes of each element of what is read; `None` if nothing was scripted for it.
    pub(crate) fn element(&self, read: &DryRead<'_>) -> Option<Vec<u8>> {
        let value = self.0.as_ref()?(read)?;
        Some(element_bytes(value, read.dtype))
    }
}

impl fmt::Debug for DryValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "scripted" } else { "none" })
    }
}
