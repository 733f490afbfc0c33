//! Gradients of parameters that an optimizer does not hold.

use std::fmt;

use crate::shape::{DType, Shape};
use bfc_core::printable;

/// The most gradients that an error message describes.
const DESCRIBED: usize = 4;

/// The gradients of a step whose parameters the optimizer does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownGradients {
    /// One entry per gradient, ordered by the creation of the parameters.
    pub unknown: Vec<UnknownGradient>,
    /// The number of all gradients of the step.
    pub total: usize,
}

/// A gradient whose parameter the optimizer does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownGradient {
    /// The shape of the parameter and its gradient.
    pub shape: Shape,
    /// Its element type.
    pub dtype: DType,
    /// The module whose forward pass used the parameter, as the memory report names it. Empty outside of
    /// modules, and if the gradient's memory has no tag.
    pub module: String,
}

impl fmt::Display for UnknownGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)?;
        if self.module.is_empty() { Ok(()) } else { write!(f, " in {}", printable(&self.module)) }
    }
}

impl fmt::Display for UnknownGradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.unknown.len();
        let belong = if count == 1 { "belongs to a parameter" } else { "belong to parameters" };
        write!(f, "{count} of {} gradients {belong} that the optimizer does not hold: ", self.total)?;
        for (number, gradient) in self.unknown.iter().take(DESCRIBED).enumerate() {
            write!(f, "{}{gradient}", if number == 0 { "" } else { "; " })?;
        }
        if count > DESCRIBED {
            write!(f, "; and {} more", count - DESCRIBED)?;
        }
        Ok(())
    }
}
