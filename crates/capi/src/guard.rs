//! The boundary that errors and panics do not cross.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Error;
use crate::fork;
use crate::last_error;
use crate::status::bfc_status;

/// Runs a function of the library, except in a child of `fork`. Returns its status, and makes an error the thread's last
/// error. A panic is an internal error. Unwinding leaves the state consistent: locks ignore poisoning, as those of `bfc-core` do.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), Error>) -> bfc_status {
    let outcome = catch_unwind(AssertUnwindSafe(|| match fork::check().and_then(|()| call()) {
        Ok(()) => bfc_status::BFC_OK,
        Err(error) => last_error::set(&error),
    }));
    outcome.unwrap_or_else(|panic| fault(&*panic))
}

/// Runs a function that returns a value instead of a status; `otherwise` after a panic. The function takes no lock, so that
/// it also works in a child of `fork`.
pub(crate) fn guard_value<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        fault(&*panic);
        otherwise
    })
}

/// Makes a panic the last error.
fn fault(panic: &(dyn Any + Send)) -> bfc_status {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let error = Error::Internal(text.unwrap_or("a panic without a text").to_owned());
    catch_unwind(AssertUnwindSafe(|| last_error::set(&error))).unwrap_or(bfc_status::BFC_ERROR_INTERNAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn message() -> String {
        // SAFETY: the text ends with NUL and lives until the thread's next failure.
        unsafe { CStr::from_ptr(last_error::message()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_an_internal_error_with_its_text() {
        let number = 7;
        assert_eq!(guard(|| panic!("lost {number}")), bfc_status::BFC_ERROR_INTERNAL);
        assert_eq!(message(), "internal error: lost 7");
        assert_eq!(guard(|| std::panic::panic_any(number)), bfc_status::BFC_ERROR_INTERNAL);
        assert_eq!(message(), "internal error: a panic without a text");
        assert_eq!(guard_value(3, || panic!("lost")), 3);
        assert_eq!(message(), "internal error: lost");
        assert_eq!(guard(|| Ok(())), bfc_status::BFC_OK);
        assert_eq!(
            last_error::status(),
            bfc_status::BFC_ERROR_INTERNAL,
            "successful calls keep the last error"
        );
    }

    #[test]
    fn a_panic_below_a_pool_leaves_the_pool_usable() {
        let spec = crate::config::PoolSpec::default();
        let pool = crate::pool::PoolEntry::from_spec(&spec, "guard-test").unwrap();
        let outcome = guard(|| {
            let _open = pool.enter()?;
            let _scope = highwater_tracking::module("guard-test");
            panic!("within a call");
        });
        assert_eq!(outcome, bfc_status::BFC_ERROR_INTERNAL);
        assert_eq!(highwater_tracking::here().module.path(), "");
        pool.close().unwrap();
    }
}
