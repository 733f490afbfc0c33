//! Loads cuBLAS at first use, and tries again ever more rarely while it fails to start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::compute::{ComputeError, Target, call_device};
use crate::driver::CudaDriver;
use crate::libraries::Cublas;

/// The most requests between two attempts to start the library.
const LONGEST_PAUSE: u32 = 1 << 12;

/// The library, or the reason why there is none.
#[derive(Debug)]
pub(super) struct CublasLoader {
    target: Target,
    tf32: AtomicBool,
    found: OnceLock<Cublas>,
    missing: Mutex<Option<Missing>>,
}

/// A failed search.
#[derive(Debug)]
struct Missing {
    why: ComputeError,
    /// How many requests to skip before the next attempt. Doubles with every failure.
    pause: u32,
    left: u32,
}

impl CublasLoader {
    pub(super) fn new(target: Target) -> Self {
        let (tf32, found, missing) = (AtomicBool::new(false), OnceLock::new(), Mutex::default());
        Self { target, tf32, found, missing }
    }

    /// Applies when the library is loaded.
    pub(super) fn set_tf32(&self, tf32: bool) {
        self.tf32.store(tf32, Ordering::Relaxed);
    }

    /// Returns the library, which submits to this stream. The error says whether this call searched for it.
    pub(super) fn find(&self, driver: &CudaDriver, stream: u64) -> Result<&Cublas, bool> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        if let Some(missing) = &mut *missing
            && (missing.left > 0 || !missing.why.may_pass())
        {
            missing.left = missing.left.saturating_sub(1);
            return Err(false);
        }
        let found = call_device(driver, "cublasCreate", || Ok(Cublas::find(stream, &self.target)));
        match found.and_then(|found| found) {
            Ok(found) => {
                *missing = None;
                let found = found.with_tf32(self.tf32.load(Ordering::Relaxed));
                Ok(self.found.get_or_init(|| found))
            }
            Err(why) => {
                let pause = missing.take().map_or(1, |before| before.pause.saturating_mul(2));
                let pause = pause.min(LONGEST_PAUSE);
                *missing = Some(Missing { why, pause, left: pause });
                Err(true)
            }
        }
    }

    /// Tries again now, if another attempt can help.
    pub(super) fn retry_now(&self, driver: &CudaDriver, stream: u64) -> Result<&Cublas, bool> {
        if let Some(missing) = &mut *self.missing.lock().unwrap_or_else(PoisonError::into_inner) {
            missing.left = 0;
        }
        self.find(driver, stream)
    }

    /// Whether the library exists but did not start.
    pub(super) fn can_retry(&self) -> bool {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.as_ref().is_some_and(|missing| missing.why.may_pass())
    }

    /// The reason why there is no library.
    pub(super) fn load_error(&self) -> ComputeError {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let none = || ComputeError::NoProducts { tried: Vec::new() };
        missing.as_ref().map_or_else(none, |missing| missing.why.clone())
    }

    /// Destroys the library's handle.
    pub(super) fn close(&mut self, driver: &CudaDriver) {
        let found = self.found.take();
        let _ = call_device(driver, "cublasDestroy", || {
            drop(found);
            Ok(())
        });
    }
}
