//! Slices as arguments of kernels.
//!
//! The launch waits for earlier uses of the slice on other streams, and records its own, as for a `CudaSlice`.

use cudarc::driver::{CudaSlice, LaunchArgs, PushKernelArg};

use super::slice::PoolSlice;

// SAFETY: pushes the address of the slice's memory, which lives as long as the borrow.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b PoolSlice<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b PoolSlice<T>) -> &mut Self {
        PushKernelArg::<&'b CudaSlice<T>>::arg(self, arg.lent())
    }
}

// SAFETY: as above; the borrow is exclusive.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut PoolSlice<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut PoolSlice<T>) -> &mut Self {
        PushKernelArg::<&'b mut CudaSlice<T>>::arg(self, arg.lent_mut())
    }
}
