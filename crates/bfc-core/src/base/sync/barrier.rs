//! A memory barrier in two unequal halves: one that costs nothing, for a thread that comes by often, and one that costs
//! a system call, for those who seldom have to know what it does.
//!
//! Two threads that each write one word and then read the other's may both miss what the other wrote, unless both put a
//! full barrier between the two, which costs as much as a lock. Linux can put a barrier into every running thread of the
//! process instead (`membarrier`): then a compiler fence is enough on the other side. Elsewhere there is none of this.

#[cfg(all(target_os = "linux", not(shuttle), not(miri)))]
mod system {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};
    use std::time::Duration;

    use libc::{MEMBARRIER_CMD_PRIVATE_EXPEDITED, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED};

    /// Whether the kernel did it.
    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes numbers alone, the last two without a meaning for these commands, and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Whether [`heavy`] works here. The first call tells the kernel that this process will use it.
    pub(in crate::base::sync) fn is_available() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
    }

    /// The cheap half.
    #[inline]
    pub(in crate::base::sync) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The dear half: in the order of everybody's steps, each [`light`] of this process is before it or after it. Only
    /// to be called where it [is available](is_available).
    pub(in crate::base::sync) fn heavy() {
        // Once registered it fails only for want of kernel memory, or if a sandbox was closed in between. What was
        // written longer ago than this is seen by everybody on every processor there is.
        if !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Under the checker every step is seen by everybody at once.
#[cfg(shuttle)]
mod system {
    pub(in crate::base::sync) const fn is_available() -> bool {
        true
    }

    pub(in crate::base::sync) const fn light() {}

    pub(in crate::base::sync) const fn heavy() {}
}

#[cfg(not(any(shuttle, all(target_os = "linux", not(miri)))))]
mod system {
    pub(in crate::base::sync) const fn is_available() -> bool {
        false
    }

    pub(in crate::base::sync) const fn light() {}

    pub(in crate::base::sync) const fn heavy() {}
}

pub(super) use system::{heavy, is_available, light};
