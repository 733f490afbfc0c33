//! Conversions of arguments for driver calls.

use std::ffi::{c_int, c_uchar};
use std::ptr;

use bfc_core::SourceError;
use cudarc::driver::sys::{
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

/// Converts a size.
pub(super) fn size(bytes: u64) -> Result<usize, SourceError> {
    usize::try_from(bytes).map_err(|_| SourceError::Exhausted { bytes })
}

/// The number of a driver handle.
pub(super) fn address<T>(pointer: *mut T) -> u64 {
    pointer.expose_provenance() as u64
}

/// The location "memory of this device".
pub(super) const fn location(ordinal: u32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal as c_int }
}

/// Properties of plain device memory that is not shared with other processes.
pub(super) const fn properties(ordinal: u32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(ordinal),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0 as c_uchar; 4],
        },
    }
}
