//! The last error of each thread.

use std::cell::{OnceCell, RefCell};
use std::ffi::{CStr, CString};
use std::rc::Rc;

use bfc_core::{OomReport, printable_json};

use crate::error::Error;
use crate::fork;
use crate::status::bfc_status;

/// A failure, with its texts. The texts of a report are only made when a caller asks for them.
#[derive(Debug)]
struct LastError {
    status: bfc_status,
    message: CString,
    report: Option<Box<OomReport>>,
    details: OnceCell<CString>,
    json: OnceCell<CString>,
}

thread_local! {
    /// Of the thread, as `errno` is: C callers ask for the details after a call.
    static LAST: RefCell<Option<Rc<LastError>>> = const { RefCell::new(None) };
}

/// Makes `error` the last error of the thread, and returns its status. Has no effect on a thread that is ending.
pub(crate) fn set(error: &Error) -> bfc_status {
    let last = LastError {
        status: error.status(),
        message: c_text(&error.to_string()),
        report: error.report().cloned().map(Box::new),
        details: OnceCell::new(),
        json: OnceCell::new(),
    };
    let replaced = LAST.try_with(|cell| cell.replace(Some(Rc::new(last))));
    drop(replaced);
    error.status()
}

/// Returns the status of the last error of the thread.
pub(crate) fn status() -> bfc_status {
    last().map_or(bfc_status::BFC_OK, |last| last.status)
}

/// Returns the message. It lives until the thread's next failure. Empty without an error.
pub(crate) fn message() -> *const std::ffi::c_char {
    last().map_or(EMPTY.as_ptr(), |last| last.message.as_ptr())
}

/// Returns the complete report of an out-of-memory error, else the message. It lives until the thread's next failure.
pub(crate) fn details() -> *const std::ffi::c_char {
    last().map_or(EMPTY.as_ptr(), |last| match last.readable_report() {
        Some(report) => last.details.get_or_init(|| c_text(&report.details())).as_ptr(),
        None => last.message.as_ptr(),
    })
}

/// Returns the error as JSON. It lives until the thread's next failure.
pub(crate) fn json() -> *const std::ffi::c_char {
    last().map_or(c"{}".as_ptr(), |last| last.json.get_or_init(|| c_text(&last.to_json())).as_ptr())
}

const EMPTY: &CStr = c"";

/// The thread's own handle keeps the texts alive after this one is dropped.
fn last() -> Option<Rc<LastError>> {
    LAST.try_with(|cell| cell.borrow().clone()).ok().flatten()
}

impl LastError {
    /// Returns the report, except in a child of `fork`: names of owners are behind a lock.
    fn readable_report(&self) -> Option<&OomReport> {
        self.report.as_deref().filter(|_| !fork::is_child())
    }

    fn to_json(&self) -> String {
        let mut error = serde_json::json!({
            "status": self.status.name(),
            "code": self.status as u32,
            "message": self.message.to_string_lossy(),
        });
        if let Some(report) = self.readable_report() {
            // A report has no maps with other keys than text, so that it always serializes.
            error["report"] = serde_json::to_value(report).unwrap_or_default();
        }
        printable_json(error).to_string()
    }
}

/// Returns the text for C. Replaces NUL, which a text may quote from JSON, by `\0`.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).unwrap_or_default()
}
