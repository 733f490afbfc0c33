//! The environment variables of the process, and the warning about unknown ones.

use std::sync::Once;

use bfc_core::{Environment, EnvironmentError};

/// Reads the process's environment. The first call prints a warning for each unknown variable.
pub(super) fn read_environment() -> Result<Environment, EnvironmentError> {
    static WARNED: Once = Once::new();
    let environment = Environment::read()?;
    WARNED.call_once(|| {
        for unknown in environment.unknown() {
            eprintln!("warning: {unknown}");
        }
    });
    Ok(environment)
}
