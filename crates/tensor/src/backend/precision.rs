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
