//! The physical memory of the machine, on systems with a call for it.

use crate::base::Bytes;

#[cfg(target_os = "macos")]
pub(super) fn memory() -> Option<Bytes> {
    let (mut bytes, mut size) = (0_u64, size_of::<u64>());
    // SAFETY: the name ends in a zero byte, and the value and its size are alive and writable for as long as the call takes.
    let status = unsafe {
        libc::sysctlbyname(
            c"hw.memsize".as_ptr(),
            (&raw mut bytes).cast(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    (status == 0 && bytes > 0).then_some(Bytes(bytes))
}

#[cfg(windows)]
pub(super) fn memory() -> Option<Bytes> {
    use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

    let mut status =
        MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..MEMORYSTATUSEX::default() };
    // SAFETY: the struct is alive and writable, and says how large it is.
    let answered = unsafe { GlobalMemoryStatusEx(&raw mut status) } != 0;
    (answered && status.ullTotalPhys > 0).then_some(Bytes(status.ullTotalPhys))
}
