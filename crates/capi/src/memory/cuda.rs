//! Pools of a CUDA device. Their blocks belong to the default stream, on which most programs compute: PyTorch, CuPy, and
//! programs in C that create no stream. A freed block of that stream is reusable at once.

use std::sync::Arc;

use bfc_core::{
    Amount, BfcConfig, Bytes, Driver, JoinRule, PinnedMemory, Pool, PoolOptions, Stream, StreamHandle,
    default_reserve,
};
use bfc_cuda::CudaDriver;

use crate::error::Error;

/// CUDA's default stream, whose handle is null.
const DEFAULT_STREAM: StreamHandle = StreamHandle(0);

/// The most pinned memory of a pool without a limit, as in TensorFlow.
const PINNED_LIMIT: Bytes = Bytes::gib(128);

/// A pool of all free memory of the device, except a reserve for the driver and libraries.
pub(super) fn device(name: &str, ordinal: u32) -> Result<Pool, Error> {
    let driver = CudaDriver::new(ordinal)?;
    let free = Bytes(driver.memory_info()?.free);
    let reserve = default_reserve(free, driver.compute_capability()?.major);
    // SAFETY: the default stream exists in every context, and nothing destroys it.
    let compute = unsafe { Stream::from_raw(driver, DEFAULT_STREAM, Arc::new(())) };
    let config = BfcConfig::new(Bytes(u64::MAX)).with_join_rule(JoinRule::AtOnce);
    let limit = PoolOptions::default().with_limit(Amount::AllBut(reserve));
    Ok(Pool::streamed(name, compute, ordinal as usize, config, None).with_defaults(limit))
}

/// A pool of page-locked host memory.
pub(super) fn pinned(name: &str, ordinal: u32) -> Result<Pool, Error> {
    let source = Arc::new(PinnedMemory::new(CudaDriver::new(ordinal)?));
    Ok(Pool::new(name, source, ordinal as usize, BfcConfig::new(PINNED_LIMIT)))
}
