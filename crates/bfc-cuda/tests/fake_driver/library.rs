//! A fake compiler and a fake cuBLAS of version `FAKE_LIBRARY_MAJOR`, to test the choice among libraries.
//!
//! The compiler of CUDA 12 supports sm_70 and sm_90, that of CUDA 13 sm_80 and sm_90. The fake driver accepts its
//! output. The fake cuBLAS starts and supports no product.

#![allow(non_snake_case, clippy::missing_safety_doc)]

mod functions;

use std::ffi::{c_char, c_int, c_void};

use functions::functions;

const CODE: &[u8] = b"code without a device";

const fn is_13() -> bool {
    match option_env!("FAKE_LIBRARY_MAJOR") {
        Some(major) => major.as_bytes()[1] == b'3',
        None => panic!("the version of the library is not said"),
    }
}

const MAJOR: c_int = if is_13() { 13 } else { 12 };
const ARCHITECTURES: [c_int; 2] = if is_13() { [80, 90] } else { [70, 90] };

functions! {
    nvrtcVersion(major: *mut c_int, minor: *mut c_int) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { (*major, *minor) = (MAJOR, 0) };
        0
    }
    nvrtcGetNumSupportedArchs(count: *mut c_int) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { *count = 2 };
        0
    }
    nvrtcGetSupportedArchs(architectures: *mut c_int) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { architectures.cast::<[c_int; 2]>().write(ARCHITECTURES) };
        0
    }
    nvrtcCreateProgram(program: *mut usize, _source: *const c_char, _name: *const c_char, _headers: c_int,
                       _texts: *const c_void, _names: *const c_void) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { *program = 1 };
        0
    }
    nvrtcDestroyProgram(_program: *mut usize) { 0 }
    nvrtcCompileProgram(_program: usize, _count: c_int, _options: *const c_void) { 0 }
    nvrtcGetProgramLogSize(_program: usize, size: *mut usize) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { *size = 1 };
        0
    }
    nvrtcGetProgramLog(_program: usize, text: *mut u8) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { *text = 0 };
        0
    }
    nvrtcGetPTXSize(_program: usize, size: *mut usize) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { *size = CODE.len() };
        0
    }
    nvrtcGetPTX(_program: usize, text: *mut u8) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { text.copy_from_nonoverlapping(CODE.as_ptr(), CODE.len()) };
        0
    }
    nvrtcGetCUBINSize(_program: usize, size: *mut usize) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { *size = CODE.len() };
        0
    }
    nvrtcGetCUBIN(_program: usize, text: *mut u8) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { text.copy_from_nonoverlapping(CODE.as_ptr(), CODE.len()) };
        0
    }
    cublasGetProperty(which: c_int, value: *mut c_int) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { *value = if which == 0 { MAJOR } else { 0 } };
        0
    }
    cublasCreate_v2(handle: *mut usize) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { *handle = 5 };
        0
    }
    cublasDestroy_v2(_handle: usize) { 0 }
    cublasSetStream_v2(_handle: usize, _stream: usize) { 0 }
    cublasSetMathMode(_handle: usize, _mode: c_int) { 0 }
    cublasGetVersion_v2(_handle: usize, version: *mut c_int) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { *version = MAJOR * 10_000 };
        0
    }
    cublasSetWorkspace_v2(_handle: usize, _workspace: usize, _bytes: usize) { 0 }
    cublasGemmStridedBatchedEx() { 15 }
}
