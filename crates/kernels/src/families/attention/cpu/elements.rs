//! The element types of attention. 16-bit floats are read tile by tile; scores, weights and sums are f32.

use half::{bf16, f16};

use crate::cpu::convert::Half;
use crate::cpu::gemm::{Output, PackInto, Pair, f16_to_f32};
use crate::families::matmul::cpu::{Gemm, Matrix, multiply, multiply_as};
use crate::shape::RawElement;

/// An element type of queries, keys and values.
pub(super) trait Attended: RawElement {
    /// The type of scores and sums.
    type Sum: Gemm + RawElement;

    /// Whether the type differs from that of the sums.
    const IS_HALF: bool;

    /// The element as a sum.
    fn widen(self) -> Self::Sum;

    /// The product of elements.
    fn multiply(
        lhs: Matrix<'_, Self>,
        rhs: Matrix<'_, Self>,
        out: &mut [Self::Sum],
        output: Output,
        panels: &mut [Self::Sum],
    );

    /// The product of weights with elements. The weights may be rounded to elements.
    fn multiply_weights(
        weights: Matrix<'_, Self::Sum>,
        rhs: Matrix<'_, Self>,
        out: &mut [Self::Sum],
        output: Output,
        panels: &mut [Self::Sum],
    );

    /// Like [`multiply_weights`](Self::multiply_weights), without rounding the weights.
    fn multiply_exactly(
        weights: Matrix<'_, Self::Sum>,
        rhs: Matrix<'_, Self>,
        out: &mut [Self::Sum],
        output: Output,
        panels: &mut [Self::Sum],
    );

    /// Calls `work` with memory for the sums of `out`, which are stored afterwards: `out` itself, or the start of `scratch`.
    fn with_sums(out: &mut [Self], scratch: &mut [Self::Sum], work: impl FnOnce(&mut [Self::Sum]));
}

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Attended for $type {
            type Sum = Self;

            const IS_HALF: bool = false;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            fn multiply(
                lhs: Matrix<'_, Self>,
                rhs: Matrix<'_, Self>,
                out: &mut [Self],
                output: Output,
                panels: &mut [Self],
            ) {
                multiply(lhs, rhs, out, output, panels);
            }

            fn multiply_weights(
                weights: Matrix<'_, Self>,
                rhs: Matrix<'_, Self>,
                out: &mut [Self],
                output: Output,
                panels: &mut [Self],
            ) {
                multiply(weights, rhs, out, output, panels);
            }

            fn multiply_exactly(
                weights: Matrix<'_, Self>,
                rhs: Matrix<'_, Self>,
                out: &mut [Self],
                output: Output,
                panels: &mut [Self],
            ) {
                multiply(weights, rhs, out, output, panels);
            }

            fn with_sums(out: &mut [Self], _: &mut [Self], work: impl FnOnce(&mut [Self])) {
                work(out);
            }
        }
    )*};
}

floats!(f32, f64);

/// Implements [`Attended`] for a 16-bit float, by the conversion of an element and the products.
macro_rules! halves {
    ($($type:ty: $widen:expr, $multiply:ident),*) => {$(
        impl Attended for $type {
            type Sum = f32;

            const IS_HALF: bool = true;

            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self)
            }

            fn multiply(
                lhs: Matrix<'_, Self>,
                rhs: Matrix<'_, Self>,
                out: &mut [f32],
                output: Output,
                panels: &mut [f32],
            ) {
                $multiply(lhs, rhs, out, output, panels);
            }

            fn multiply_weights(
                weights: Matrix<'_, f32>,
                rhs: Matrix<'_, Self>,
                out: &mut [f32],
                output: Output,
                panels: &mut [f32],
            ) {
                $multiply(weights, rhs, out, output, panels);
            }

            fn multiply_exactly(
                weights: Matrix<'_, f32>,
                rhs: Matrix<'_, Self>,
                out: &mut [f32],
                output: Output,
                panels: &mut [f32],
            ) {
                multiply_singles(weights, rhs, out, output, panels);
            }

            fn with_sums(out: &mut [Self], scratch: &mut [f32], work: impl FnOnce(&mut [f32])) {
                let sums = &mut scratch[..out.len()];
                work(sums);
                Half::narrow(sums, out);
            }
        }
    )*};
}

halves! {
    bf16: |value: bf16| f32::from_bits(u32::from(value.to_bits()) << 16), multiply_pairs,
    f16: f16_to_f32, multiply_singles
}

/// Multiplies pairs of bf16 if the processor does. Weights are then rounded to bf16.
fn multiply_pairs<A: PackInto<Pair> + PackInto<f32>>(
    lhs: Matrix<'_, A>,
    rhs: Matrix<'_, bf16>,
    out: &mut [f32],
    output: Output,
    panels: &mut [f32],
) {
    if Pair::is_supported() {
        multiply_as::<Pair, _, _>(lhs, rhs, out, output, bytemuck::cast_slice_mut(panels));
    } else {
        multiply_singles(lhs, rhs, out, output, panels);
    }
}

/// Multiplies elements as f32.
fn multiply_singles<A: PackInto<f32>, B: PackInto<f32>>(
    lhs: Matrix<'_, A>,
    rhs: Matrix<'_, B>,
    out: &mut [f32],
    output: Output,
    panels: &mut [f32],
) {
    multiply_as::<f32, _, _>(lhs, rhs, out, output, panels);
}
