//! Dispatch from an element type known at run time to the Rust type of a kernel.

use crate::error::{KernelError, Result, not_host};
use crate::shape::{DType, RawElement};
use crate::storage::{View, ViewMut};

/// Evaluates an expression with `$T` standing for the Rust type behind `$dtype`, for each of the listed types.
macro_rules! by_type {
    ($dtype:expr, $T:ident => $body:expr, [$($($variant:ident)|+: $type:ty),+] $(, $other:ident => $otherwise:expr)?) => {
        match $dtype {
            $($($crate::shape::DType::$variant)|+ => {
                type $T = $type;
                $body
            })+
            $($other => $otherwise,)?
        }
    };
}

/// Dispatches over all types, for kernels that only copy elements. Booleans are bytes.
macro_rules! any {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::cpu::dispatch::by_type!($dtype, $T => $body,
            [F32: f32, F64: f64, F16: half::f16, BF16: half::bf16, I64: i64, I32: i32, U32: u32, U8 | Bool: u8])
    };
}

/// Dispatches over numbers. Booleans and 16-bit floats, which the runtime upcasts before, are an error. The expression is a
/// `Result`.
macro_rules! number {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::cpu::dispatch::by_type!($dtype, $T => $body,
            [F32: f32, F64: f64, I64: i64, I32: i32, U32: u32, U8: u8],
            dtype => Err($crate::cpu::dispatch::unsupported($op, dtype)))
    };
}

/// Like [`number`], also for booleans, as bytes.
macro_rules! byte_or_number {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::cpu::dispatch::by_type!($dtype, $T => $body,
            [F32: f32, F64: f64, I64: i64, I32: i32, U32: u32, U8 | Bool: u8],
            dtype => Err($crate::cpu::dispatch::unsupported($op, dtype)))
    };
}

/// Like [`number`], for floats only.
macro_rules! float {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::cpu::dispatch::by_type!($dtype, $T => $body,
            [F32: f32, F64: f64],
            dtype => Err($crate::cpu::dispatch::unsupported($op, dtype)))
    };
}

/// Like [`number`], for integers only.
macro_rules! integer {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::cpu::dispatch::by_type!($dtype, $T => $body,
            [I64: i64, I32: i32, U32: u32, U8: u8],
            dtype => Err($crate::cpu::dispatch::unsupported($op, dtype)))
    };
}

/// Like [`integer`], also for booleans, as bytes.
macro_rules! byte_or_integer {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::cpu::dispatch::by_type!($dtype, $T => $body,
            [I64: i64, I32: i32, U32: u32, U8 | Bool: u8],
            dtype => Err($crate::cpu::dispatch::unsupported($op, dtype)))
    };
}

/// Like [`number`], for accumulator types only. Sums of narrower integers would wrap.
macro_rules! sums {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        $crate::cpu::dispatch::by_type!($dtype, $T => $body,
            [F32: f32, F64: f64, I64: i64],
            dtype => Err($crate::cpu::dispatch::unsupported($op, dtype)))
    };
}

pub(crate) use {any, by_type, byte_or_integer, byte_or_number, float, integer, number, sums};

/// The error for an element type that a kernel does not support.
pub(crate) const fn unsupported(op: &'static str, dtype: DType) -> KernelError {
    KernelError::UnsupportedDType { op, dtype }
}

/// The error for a view whose elements the host cannot access as type `T`.
#[cold]
fn inaccessible<T: RawElement>(op: &'static str, dtype: DType) -> KernelError {
    if T::is_raw_of(dtype) { not_host(op) } else { unsupported(op, dtype) }
}

/// The whole buffer of a view. Callers index it through the view's layout.
#[inline]
pub(crate) fn host<'a, T: RawElement>(op: &'static str, view: &View<'a>) -> Result<&'a [T]> {
    view.host().ok_or_else(|| inaccessible::<T>(op, view.dtype()))
}

/// The elements of a contiguous view.
pub(crate) fn contiguous<'a, T: RawElement>(op: &'static str, view: &View<'a>) -> Result<&'a [T]> {
    view.host_contiguous().ok_or_else(|| not_host(op))
}

/// The elements of an output.
#[inline]
pub(crate) fn host_mut<'a, T: RawElement>(
    op: &'static str,
    view: &'a mut ViewMut<'_>,
) -> Result<&'a mut [T]> {
    let dtype = view.dtype();
    view.host().ok_or_else(|| inaccessible::<T>(op, dtype))
}

/// The first `elements` elements of a workspace, which holds bytes. `None` is valid for no elements only.
pub(crate) fn scratch<'a, T: bytemuck::Pod>(
    op: &'static str,
    workspace: &'a mut Option<ViewMut<'_>>,
    elements: usize,
) -> Result<&'a mut [T]> {
    if elements == 0 {
        return Ok(&mut []);
    }
    let bytes = workspace.as_mut().and_then(ViewMut::host::<u8>);
    let bytes = bytes.and_then(|bytes| bytemuck::try_cast_slice_mut(bytes).ok());
    bytes.and_then(|numbers| numbers.get_mut(..elements)).ok_or_else(|| not_host(op))
}
