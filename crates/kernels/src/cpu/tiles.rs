//! Contiguous float operands that a loop reads and writes tile by tile.
//!
//! Tiles of f32 and f64 are slices of the operand. Tiles of 16-bit floats are converted to f32 on the stack, and results are
//! rounded once, so that memory traffic is that of 16-bit elements.

use std::ops::Range;

use half::{bf16, f16};

use super::convert::Half;
use super::dispatch::{any, contiguous, host_mut};
use super::number::Float;
use crate::error::Result;
use crate::shape::DType;
use crate::storage::{View, ViewMut};

/// A type in which loops compute.
pub(crate) trait Computed: Float {
    /// Converts 16-bit floats.
    fn upcast<H: Half>(from: &[H], to: &mut [Self]);

    /// Rounds to 16-bit floats.
    fn round<H: Half>(from: &[Self], to: &mut [H]);
}

impl Computed for f32 {
    fn upcast<H: Half>(from: &[H], to: &mut [Self]) {
        H::upcast(from, to);
    }

    fn round<H: Half>(from: &[Self], to: &mut [H]) {
        H::narrow(from, to);
    }
}

// Kernels compute 16-bit floats in f32, so nothing calls these.
impl Computed for f64 {
    fn upcast<H: Half>(from: &[H], to: &mut [Self]) {
        let mut single = [0.0];
        for (from, to) in from.iter().zip(to) {
            H::upcast(std::slice::from_ref(from), &mut single);
            *to = Self::from(single[0]);
        }
    }

    fn round<H: Half>(from: &[Self], to: &mut [H]) {
        for (from, to) in from.iter().zip(to) {
            H::narrow(&[*from as f32], std::slice::from_mut(to));
        }
    }
}

/// The elements of a contiguous operand, for a kernel that computes in `T`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tiles<'a, T> {
    Computed(&'a [T]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

impl<'a, T: Computed> Tiles<'a, T> {
    pub(crate) fn new(op: &'static str, view: &View<'a>) -> Result<Self> {
        match view.dtype() {
            DType::F16 => contiguous(op, view).map(Self::F16),
            DType::BF16 => contiguous(op, view).map(Self::BF16),
            _ => contiguous(op, view).map(Self::Computed),
        }
    }

    /// As [`new`](Self::new); no elements for an operand that is absent.
    pub(crate) fn optional(op: &'static str, view: Option<&View<'a>>) -> Result<Self> {
        view.map_or(Ok(Self::Computed(&[])), |view| Self::new(op, view))
    }

    /// The elements, if they need no conversion.
    pub(crate) const fn computed(&self) -> Option<&'a [T]> {
        match self {
            Self::Computed(values) => Some(values),
            _ => None,
        }
    }

    /// The elements in a range, converted in `space` if necessary.
    pub(crate) fn load<'s>(&self, range: Range<usize>, space: &'s mut [T]) -> &'s [T]
    where
        'a: 's,
    {
        let len = range.len();
        match self {
            Self::Computed(values) => return &values[range],
            Self::F16(values) => T::upcast(&values[range], &mut space[..len]),
            Self::BF16(values) => T::upcast(&values[range], &mut space[..len]),
        }
        &space[..len]
    }

    /// Copies the elements in a range.
    pub(crate) fn copy(&self, range: Range<usize>, out: &mut [T]) {
        match self {
            Self::Computed(values) => out.copy_from_slice(&values[range]),
            Self::F16(values) => T::upcast(&values[range], out),
            Self::BF16(values) => T::upcast(&values[range], out),
        }
    }
}

/// The bytes of an output, for [`write`].
pub(crate) fn bytes_mut<'a>(op: &'static str, out: &'a mut ViewMut<'_>) -> Result<&'a mut [u8]> {
    Ok(any!(out.dtype(), T => bytemuck::cast_slice_mut::<T, u8>(host_mut::<T>(op, out)?)))
}

/// Calls `f` with a tile of an output of type `dtype`, given as bytes, and rounds what `f` writes. Tiles of 16-bit floats are
/// in `space` meanwhile; their contents before are undefined.
pub(crate) fn write<T: Computed>(dtype: DType, out: &mut [u8], space: &mut [T], f: impl FnOnce(&mut [T])) {
    match dtype {
        DType::F16 => write_half::<T, f16>(out, space, f),
        DType::BF16 => write_half::<T, bf16>(out, space, f),
        _ => f(bytemuck::cast_slice_mut(out)),
    }
}

fn write_half<T: Computed, H: Half>(out: &mut [u8], space: &mut [T], f: impl FnOnce(&mut [T])) {
    let out: &mut [H] = bytemuck::cast_slice_mut(out);
    let space = &mut space[..out.len()];
    f(space);
    T::round(space, out);
}
