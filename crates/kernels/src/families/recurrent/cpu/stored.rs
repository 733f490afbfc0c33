//! Elements of tensors, and the type in which steps compute with them: 16-bit floats are converted row by row.

use half::{bf16, f16};

use crate::cpu::convert::Half;
use crate::shape::RawElement;

/// An element of a tensor, whose steps compute in `T`.
pub(super) trait Stored<T>: RawElement {
    /// Whether the elements differ from `T`, so that rows need space for converted copies.
    const CONVERTS: bool;

    /// Converts the elements of a row.
    fn load(from: &[Self], to: &mut [T]);

    /// The elements of a row, or copies in `space`.
    fn read<'a>(row: &'a [Self], space: &'a mut [T]) -> &'a [T];

    /// Calls `f` with the elements of a row, or with copies in `space`, which are then rounded to the row.
    fn update(row: &mut [Self], space: &mut [T], f: impl FnOnce(&mut [T]));
}

macro_rules! stored {
    (floats: $($float:ty)+; halves: $($half:ty)+) => {
        $(impl Stored<$float> for $float {
            const CONVERTS: bool = false;

            fn load(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }

            fn read<'a>(row: &'a [Self], _: &'a mut [Self]) -> &'a [Self] {
                row
            }

            #[inline(always)]
            fn update(row: &mut [Self], _: &mut [Self], f: impl FnOnce(&mut [Self])) {
                f(row);
            }
        })+
        $(impl Stored<f32> for $half {
            const CONVERTS: bool = true;

            fn load(from: &[Self], to: &mut [f32]) {
                Half::upcast(from, to);
            }

            fn read<'a>(row: &'a [Self], space: &'a mut [f32]) -> &'a [f32] {
                let space = &mut space[..row.len()];
                Half::upcast(row, space);
                space
            }

            #[inline(always)]
            fn update(row: &mut [Self], space: &mut [f32], f: impl FnOnce(&mut [f32])) {
                let space = &mut space[..row.len()];
                Half::upcast(row, space);
                f(space);
                Half::narrow(space, row);
            }
        })+
    };
}

stored!(floats: f32 f64; halves: bf16 f16);
