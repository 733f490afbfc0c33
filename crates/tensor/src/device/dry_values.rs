//! Values for reads of tensors on a dry device, which has no data.

use std::fmt;
use std::sync::Arc;

use highwater_kernels::backend::cpu::element_bytes;

use crate::shape::{DType, Scalar, Shape};

/// A read of a tensor on a dry device.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct DryRead<'a> {
    /// The method that reads: `to_vec` or `item`.
    pub op: &'static str,
    /// The tensor's shape.
    pub shape: &'a Shape,
    /// Its element type.
    pub dtype: DType,
}

/// Returns the value of all elements for a read.
type ReadValue = dyn Fn(&DryRead<'_>) -> Option<Scalar> + Send + Sync;

/// The values that the program defines for reads on a dry device; none by default.
#[derive(Clone, Default)]
pub(crate) struct DryValues(Option<Arc<ReadValue>>);

impl DryValues {
    pub(crate) fn new(answer: impl Fn(&DryRead<'_>) -> Option<Scalar> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(answer)))
    }

    /// Returns the bytes of each element; `None` if no value is defined.
    pub(crate) fn element(&self, read: &DryRead<'_>) -> Option<Vec<u8>> {
        let value = self.0.as_ref()?(read)?;
        Some(element_bytes(value, read.dtype))
    }
}

impl fmt::Debug for DryValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "defined" } else { "none" })
    }
}
