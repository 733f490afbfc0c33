//! From an element type known at run time to the Rust type that kernels are compiled for.
//!
//! The only place that lists the types: another one is a line in these macros, and its arithmetic in `number.rs`.

use crate::backend::not_host;
use crate::error::{Error, Result};
use crate::shape::{DType, RawElement};
use crate::storage::{View, ViewMut};

/// Evaluates an expression with `$T` standing for the type behind `$dtype`, for what only moves elements; truth values are
/// bytes.
macro_rules! any {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::shape::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::shape::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::shape::DType::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::shape::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            $crate::shape::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::shape::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::shape::DType::U8 | $crate::shape::DType::Bool => {
                type $T = u8;
                $body
            }
        }
    };
}

/// As [`any`] for a `Result`, but an error for truth values, with which one cannot calculate, and for the halves, which come
/// here as f32 (see `widen`).
macro_rules! number {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::shape::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::shape::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::shape::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::shape::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::shape::DType::U8 => {
                type $T = u8;
                $body
            }
            dtype => Err($crate::backend::cpu::dispatch::unsupported($op, dtype)),
        }
    };
}

/// As [`number`], but truth values are bytes.
macro_rules! byte_or_number {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {{
        let dtype = match $dtype {
            $crate::shape::DType::Bool => $crate::shape::DType::U8,
            dtype => dtype,
        };
        $crate::backend::cpu::dispatch::number!($op, dtype, $T => $body)
    }};
}

/// As [`any`] for a `Result`, but an error for everything but floats.
macro_rules! float {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::shape::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::shape::DType::F64 => {
                type $T = f64;
                $body
            }
            dtype => Err($crate::backend::cpu::dispatch::unsupported($op, dtype)),
        }
    };
}

/// As [`any`] for a `Result`, but an error for everything but integers.
macro_rules! integer {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::shape::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::shape::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::shape::DType::U8 => {
                type $T = u8;
                $body
            }
            dtype => Err($crate::backend::cpu::dispatch::unsupported($op, dtype)),
        }
    };
}

pub(super) use {any, byte_or_number, float, integer, number};

/// The error for an element type that a kernel is not defined for.
pub(super) const fn unsupported(op: &'static str, dtype: DType) -> Error {
    Error::UnsupportedDType { op, dtype }
}

/// The error for a view that cannot be had as elements of type `T`.
#[cold]
fn not_to_be_had<T: RawElement>(op: &'static str, dtype: DType) -> Error {
    if T::is_raw_of(dtype) { not_host(op) } else { unsupported(op, dtype) }
}

/// The whole buffer behind a view, to be indexed through its layout.
#[inline]
pub(super) fn host<'a, T: RawElement>(op: &'static str, view: &View<'a>) -> Result<&'a [T]> {
    view.host().ok_or_else(|| not_to_be_had::<T>(op, view.dtype()))
}

/// The elements to be written.
#[inline]
pub(super) fn host_mut<'a, T: RawElement>(op: &'static str, view: ViewMut<'a>) -> Result<&'a mut [T]> {
    let dtype = view.dtype();
    view.into_host().ok_or_else(|| not_to_be_had::<T>(op, dtype))
}

/// The first `elements` numbers of a workspace, which is taken as bytes. There has to be one if that is not none.
pub(super) fn scratch<'a, T: RawElement>(
    op: &'static str,
    workspace: Option<ViewMut<'a>>,
    elements: usize,
) -> Result<&'a mut [T]> {
    if elements == 0 {
        return Ok(&mut []);
    }
    let bytes = workspace.and_then(ViewMut::into_host::<u8>);
    let bytes = bytes.and_then(|bytes| bytemuck::try_cast_slice_mut(bytes).ok());
    bytes.and_then(|numbers| numbers.get_mut(..elements)).ok_or_else(|| not_host(op))
}
