//! The options of the packed policy.

use std::sync::Arc;

use crate::packing::Packing;
use crate::policy::bfc::BfcOptions;

/// The options of [`Packed`](super::Packed).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PackedOptions<O = BfcOptions> {
    /// The packing.
    pub packing: Arc<Packing>,
    /// The options of the fallback.
    pub fallback: O,
}

impl<O> PackedOptions<O> {
    /// Follows `packing`, with these options of the fallback.
    #[must_use]
    pub const fn new(packing: Arc<Packing>, fallback: O) -> Self {
        Self { packing, fallback }
    }
}
