//! Recordings into files.

use std::ffi::c_char;

use super::bfc_pool;
use crate::exit::end_recordings_at_exit;
use crate::guard::guard;
use crate::status::bfc_status;
use crate::{table, text};

/// Starts a recording of every allocation, free and op into a new file, which replaces an existing one. The command
/// `highwater report FILE` reads it, also while it grows; its usual extension is `.hwm`.
///
/// One recording covers all pools with memory: `pool` is one of them or 0. Each dry pool has its own. A recording does not
/// contain blocks that were allocated before it.
///
/// Fails with BFC_ERROR_RECORDING if one runs, and with BFC_ERROR_IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_recording_start(pool: bfc_pool, path: *const c_char) -> bfc_status {
    guard(|| {
        // SAFETY: the caller passes a text that ends with NUL.
        let path = unsafe { text::read(path, text::MAX_TEXT, "path") }?;
        table::run(pool)?.start_recording(path)?;
        end_recordings_at_exit();
        Ok(())
    })
}

/// Ends the recording with a summary of the open pools. Call it before closing them. A recording that still runs when the
/// program exits normally ends then, but no function returns errors of its file.
///
/// Fails with BFC_ERROR_RECORDING if none runs, and with BFC_ERROR_IO if the file could not be written completely.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_recording_stop(pool: bfc_pool) -> bfc_status {
    guard(|| {
        let run = table::run(pool)?;
        run.stop_recording(&table::pools_of(&run))
    })
}

/// Marks a moment in the recording with a text, such as "step". Without a recording, it has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_mark(pool: bfc_pool, text: *const c_char) -> bfc_status {
    guard(|| {
        // SAFETY: the caller passes a text that ends with NUL.
        let text = unsafe { text::read(text, text::MAX_NAME, "text") }?;
        table::run(pool)?.tracker().mark(text);
        Ok(())
    })
}
