//! Errors of hooks, whose types this crate does not know.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bfc_core::printable_lines;

/// The error of a [hook](crate::GradientHook). Its message is that of the hook.
#[derive(Clone)]
pub struct HookError(Arc<dyn Error + Send + Sync>);

impl HookError {
    /// Wraps the error of a hook.
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    /// Returns the error if it has this type.
    #[must_use]
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

/// Compares the messages.
impl PartialEq for HookError {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", printable_lines(&self.0))
    }
}

impl fmt::Debug for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for HookError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
