//! The environment variables of the process, and the warning about unknown ones.

use std::sync::Once;

use bfc_core::setting::SettingKind;
use bfc_core::{Environment, EnvironmentError};

use crate::settings::settings;

/// Reads the process's environment, and checks the values of all settings. The first call prints a warning for each unknown
/// variable.
pub(super) fn read_environment() -> Result<Environment, EnvironmentError> {
    static WARNED: Once = Once::new();
    let environment = Environment::read()?;
    let settings = settings();
    // The readers of paths check them: a path need not be Unicode text.
    for setting in settings.iter().filter(|setting| !matches!(setting.kind, SettingKind::Path)) {
        environment.value(setting)?;
    }
    WARNED.call_once(|| {
        for unknown in environment.unknown(&settings) {
            eprintln!("warning: {unknown}");
        }
    });
    Ok(environment)
}
