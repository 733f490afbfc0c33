//! Pools of a CUDA device.

use std::sync::Arc;

use bfc_core::{
    Amount, BfcConfig, Bytes, Driver, JoinRule, PinnedMemory, Pool, PoolOptions, Stream, default_reserve,
};
use bfc_cuda::CudaDriver;

use crate::error::Error;

/// The most pinned memory of a pool without a limit, as in TensorFlow.
const PINNED_LIMIT: Bytes = Bytes::gib(128);

/// A pool of all free memory of the device, except a reserve for the driver and libraries.
pub(super) fn device(name: &str, ordinal: u32) -> Result<Pool, Error> {
    let driver = CudaDriver::new(ordinal)?;
    let free = Bytes(driver.memory_info()?.free);
    let reserve = default_reserve(free, driver.compute_capability()?.major);
    let compute = Stream::new(driver)?;
    let config = BfcConfig::new(Bytes(u64::MAX)).with_join_rule(JoinRule::AtOnce);
    let limit = PoolOptions::default().with_limit(Amount::AllBut(reserve));
    Ok(Pool::streamed(name, compute, ordinal as usize, config, None).with_defaults(limit))
}

/// A pool of page-locked host memory.
pub(super) fn pinned(name: &str, ordinal: u32) -> Result<Pool, Error> {
    let source = Arc::new(PinnedMemory::new(CudaDriver::new(ordinal)?));
    Ok(Pool::new(name, source, ordinal as usize, BfcConfig::new(PINNED_LIMIT)))
}
