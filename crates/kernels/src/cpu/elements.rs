//! The elements of kernels that read numbers, and 16-bit floats as f32.

use half::{bf16, f16};

use super::convert::Half;
use super::gemm::f16_to_f32;
use super::number::Number;
use super::simd;
use crate::shape::RawElement;

/// An element type that kernels read as type `T`.
pub(crate) trait Elements<T: Copy>: RawElement {
    /// The element as type `T`.
    fn get(self) -> T;

    /// The elements themselves if they have type `T`.
    fn same(data: &[Self]) -> Option<&[T]>;

    /// Copies the first elements.
    fn load(data: &[Self], out: &mut [T]);

    /// Copies rows of `len` elements that are `step` apart to rows that are `out_step` apart.
    fn load_rows(data: &[Self], step: usize, sizes: [usize; 2], out: &mut [T], out_step: usize);

    /// Copies elements with a stride, starting with the first.
    fn load_steps(data: &[Self], stride: usize, out: &mut [T]) {
        match stride {
            // Broadcast elements.
            0 => {
                let value = data[0].get();
                out.iter_mut().for_each(|out| *out = value);
            }
            1 => Self::load(data, out),
            _ => simd::zip_step(out, data, stride, |to, value: Self| *to = value.get()),
        }
    }
}

impl<T: Number> Elements<T> for T {
    fn get(self) -> T {
        self
    }

    fn same(data: &[T]) -> Option<&[T]> {
        Some(data)
    }

    fn load(data: &[T], out: &mut [T]) {
        out.copy_from_slice(&data[..out.len()]);
    }

    fn load_rows(data: &[T], step: usize, [rows, len]: [usize; 2], out: &mut [T], out_step: usize) {
        for row in 0..rows {
            out[row * out_step..][..len].copy_from_slice(&data[row * step..][..len]);
        }
    }
}

macro_rules! halves {
    ($($type:ty: $widen:expr),*) => {$(
        impl Elements<f32> for $type {
            #[inline(always)]
            fn get(self) -> f32 {
                $widen(self)
            }

            fn same(_: &[Self]) -> Option<&[f32]> {
                None
            }

            fn load(data: &[Self], out: &mut [f32]) {
                Half::upcast(&data[..out.len()], out);
            }

            fn load_rows(data: &[Self], step: usize, sizes: [usize; 2], out: &mut [f32], out_step: usize) {
                Half::upcast_rows(data, step, sizes, out, out_step);
            }
        }
    )*};
}

halves!(bf16: |value: bf16| f32::from_bits(u32::from(value.to_bits()) << 16), f16: f16_to_f32);
