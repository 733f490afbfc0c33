//! The library for products of matrices: looked for when first needed, and again now and then while it does not start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::compute::{ComputeError, Target};
use crate::driver::CudaDriver;
use crate::libraries::Cublas;

/// The most requests for the library that pass between two attempts to start it.
const LONGEST_PAUSE: u32 = 1 << 12;

/// The library, or why there is none.
#[derive(Debug)]
pub(super) struct Products {
    target: Target,
    tf32: AtomicBool,
    found: OnceLock<Cublas>,
    missing: Mutex<Option<Missing>>,
}

/// A library that was looked for in vain.
#[derive(Debug)]
struct Missing {
    why: ComputeError,
    /// How many requests go without before the next attempt, which the last one does half as soon.
    pause: u32,
    left: u32,
}

impl Products {
    pub(super) fn new(target: Target) -> Self {
        let (tf32, found, missing) = (AtomicBool::new(false), OnceLock::new(), Mutex::default());
        Self { target, tf32, found, missing }
    }

    /// Counts for a library that is found later.
    pub(super) fn set_tf32(&self, tf32: bool) {
        self.tf32.store(tf32, Ordering::Relaxed);
    }

    /// The library, whose work goes to this stream of the device's. If there is none: whether that was found just now.
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
        let found = driver.call("cublasCreate", 0, || Ok(Cublas::find(stream, &self.target)));
        let found = found.map_err(|error| ComputeError::of_driver("cublasCreate", &error));
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

    /// The same at once, whenever it was looked for last, if that can be of use.
    pub(super) fn find_now(&self, driver: &CudaDriver, stream: u64) -> Result<&Cublas, bool> {
        if let Some(missing) = &mut *self.missing.lock().unwrap_or_else(PoisonError::into_inner) {
            missing.left = 0;
        }
        self.find(driver, stream)
    }

    /// Whether it is there and did not start, so that another attempt makes sense.
    pub(super) fn may_start(&self) -> bool {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.as_ref().is_some_and(|missing| missing.why.may_pass())
    }

    /// Why there is none.
    pub(super) fn why_not(&self) -> ComputeError {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let none = || ComputeError::NoProducts { tried: Vec::new() };
        missing.as_ref().map_or_else(none, |missing| missing.why.clone())
    }

    /// Lets go of the library.
    pub(super) fn close(&mut self, driver: &CudaDriver) {
        let found = self.found.take();
        let _ = driver.call("cublasDestroy", 0, || {
            drop(found);
            Ok(())
        });
    }
}
