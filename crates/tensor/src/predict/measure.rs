//! The speed of this machine's CPU, measured with real kernels and cached on disk.

use crate::backend::DeviceSpeed;
use crate::error::Result;

impl DeviceSpeed {
    /// Returns the speed of this machine's CPU with `threads` compute threads.
    ///
    /// # Errors
    /// If the threads or the memory are unavailable.
    pub fn of_this_machine(threads: usize) -> Result<Self> {
        let _ = threads;
        todo!()
    }

    /// Returns whether [`of_this_machine`](Self::of_this_machine) returns a cached measurement at once.
    #[must_use]
    pub fn is_cached(threads: usize) -> bool {
        let _ = threads;
        false
    }
}
