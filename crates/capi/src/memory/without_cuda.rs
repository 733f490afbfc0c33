//! Errors in place of pools of a CUDA device, in builds without CUDA.

use bfc_core::Pool;

use crate::error::Error;

pub(super) const fn device(_: &str, _: u32) -> Result<Pool, Error> {
    Err(Error::NoCuda)
}

pub(super) const fn pinned(_: &str, _: u32) -> Result<Pool, Error> {
    Err(Error::NoCuda)
}
