//! Types and constants of `nccl.h`. `scripts/check-nccl` compares them with the header of a release.

use std::ffi::{c_char, c_int, c_uint, c_void};

// Each comment is the name in the header.
pub(super) const SUCCESS: c_int = 0; // ncclSuccess
pub(super) const IN_PROGRESS: c_int = 7; // ncclInProgress
pub(super) const SUM: c_int = 0; // ncclSum
pub(super) const UINT8: c_int = 1; // ncclUint8
pub(super) const INT32: c_int = 2; // ncclInt32
pub(super) const UINT32: c_int = 3; // ncclUint32
pub(super) const INT64: c_int = 4; // ncclInt64
pub(super) const FLOAT16: c_int = 6; // ncclFloat16
pub(super) const FLOAT32: c_int = 7; // ncclFloat32
pub(super) const FLOAT64: c_int = 8; // ncclFloat64
pub(super) const BFLOAT16: c_int = 9; // ncclBfloat16
pub(super) const MEMORY_TOTAL: c_int = 3; // ncclStatGpuMemTotal
const CONFIG_MAGIC: c_uint = 0xcafe_beef; // NCCL_API_MAGIC

/// The bytes of a unique id.
pub(super) const ID_BYTES: usize = 128; // NCCL_UNIQUE_ID_BYTES

/// A communicator.
pub(super) type Handle = *mut c_void;

/// `ncclUniqueId`, which NCCL takes by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawId {
    pub(super) internal: [u8; ID_BYTES],
}

/// `ncclConfig_t` of NCCL 2.14, the first version that has it. Later versions read its size and version, and use
/// defaults for newer fields.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    /// Calls return before they are complete.
    pub(super) const NON_BLOCKING: Self =
        Self { size: size_of::<Self>(), magic: CONFIG_MAGIC, version: 21_400, blocking: 0 };
}

pub(super) type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
pub(super) type GetUniqueId = unsafe extern "C" fn(*mut RawId) -> c_int;
pub(super) type GetLastError = unsafe extern "C" fn(Handle) -> *const c_char;
pub(super) type InitRank = unsafe extern "C" fn(*mut Handle, c_int, RawId, c_int, *mut Config) -> c_int;
/// `ncclCommFinalize`, `ncclCommDestroy` and `ncclCommAbort`.
pub(super) type End = unsafe extern "C" fn(Handle) -> c_int;
pub(super) type GetAsyncError = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
pub(super) type GetMemory = unsafe extern "C" fn(Handle, c_int, *mut u64) -> c_int;
/// `ncclGroupStart` and `ncclGroupEnd`.
pub(super) type Group = unsafe extern "C" fn() -> c_int;
/// `ncclAllReduce` and `ncclReduceScatter`: buffers, elements, type, operation, communicator, stream.
pub(super) type ReduceToAll =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
/// `ncclReduce`: also the root.
pub(super) type ReduceToRoot = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    c_int,
    Handle,
    *mut c_void,
) -> c_int;
/// `ncclAllGather`.
pub(super) type Gather =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, *mut c_void) -> c_int;
/// `ncclBroadcast`: the last number is the root.
pub(super) type Broadcast =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
/// `ncclSend`: the last number is the other rank.
pub(super) type Send = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
/// `ncclRecv`.
pub(super) type Receive =
    unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
