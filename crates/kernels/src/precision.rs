//! The precision of matrix products and convolutions.

/// The precision in which a kernel multiplies. Sums and results always have at least 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// The precision of the operands' element type.
    #[default]
    Full,
    /// Operands of f32 are rounded to bf16 (to nearest, ties to even). Products are summed in f32, the type of the
    /// result. Backends keep the rounded copies in the kernel's workspace.
    BF16,
}

/// The bytes of the bf16 copies of a kernel's factors on a GPU, which lie one after the other.
pub(crate) fn bf16_copies(precision: Precision, elements: [usize; 2]) -> usize {
    match precision {
        Precision::Full => 0,
        Precision::BF16 => elements.into_iter().map(bf16_copy).fold(0, usize::saturating_add),
    }
}

/// The bytes of the bf16 copy of one factor, padded so that the next one is aligned.
pub(crate) const fn bf16_copy(elements: usize) -> usize {
    const ALIGNMENT: usize = 256;
    match elements.saturating_mul(size_of::<half::bf16>()).checked_next_multiple_of(ALIGNMENT) {
        Some(bytes) => bytes,
        None => usize::MAX,
    }
}
