//! Upstream's three kinds of allocations of an op: temporary, output and persistent.

use bfc_core::Category;

/// The purpose of an allocation in upstream's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Temporary,
    Output,
    Persistent,
}

impl Class {
    pub(crate) const COUNT: usize = 3;

    pub(crate) const fn of(category: Category) -> Self {
        use Category::{Activation, Gradient, Input, Mapped, OptimizerState, Output, Parameter};
        match category {
            Output | Activation | Gradient | Input => Self::Output,
            Parameter | OptimizerState | Mapped => Self::Persistent,
            _ => Self::Temporary,
        }
    }
}
