//! Gradients of parameters that an optimizer does not hold.

use std::fmt;

use crate::shape::{DType, Shape};

/// How many gradients the text of an error describes.
const DESCRIBED: usize = 4;

/// The gradients of a step whose parameters the optimizer does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownGradients {
    /// One entry per gradient, in the order in which the parameters were made.
    pub unknown: Vec<UnknownGradient>,
    /// How many gradients the step received in total.
    pub total: usize,
}

/// A gradient whose parameter the optimizer does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownGradient {
    /// Its shape, which is the parameter's.
    pub shape: Shape,
    /// Its element type.
    pub dtype: DType,
    /// The module whose forward used the parameter, as memory accounts name it. Empty outside of modules, and where the
    /// memory of the gradient has no tag.
    pub module: String,
}

impl fmt::Display for UnknownGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)?;
        if self.module.is_empty() { Ok(()) } else { write!(f, " in {}", self.module) }
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
