//! Settings as data: one row has the names, the values, the default and the help of one setting.
//!
//! The rows of pools and devices stand in [`SETTINGS`]. A crate above this one has its rows in a list of its own, also
//! called `SETTINGS`. These surfaces follow from the rows:
//!
//! - environment variables, with suffixes for devices ([`Environment`](crate::Environment))
//! - options by name ([`PoolOptions::set`](crate::PoolOptions::set)): `--pool-option NAME=VALUE`, and the lines of C and
//!   Python
//! - fields and methods of [`PoolOptions`](crate::PoolOptions)
//! - help texts, the C header, docs/settings.md and `highwater settings`
//!
//! An invalid value has one error, [`InvalidValue`], which lists the valid values and the closest one.

mod option;
mod rows;

use std::fmt;

use crate::base::amount::Amount;
use crate::base::closest::did_you_mean;
use crate::base::printable::printable;
use crate::base::units::{Bytes, switch, whole};
use crate::registry::DeviceId;

pub use option::OptionError;
pub use rows::*;

/// The most characters of a value or name in an error.
pub(super) const MAX_QUOTED: usize = 64;

/// One setting.
///
/// ```
/// use bfc_core::setting::{Setting, SettingKind, SettingScope};
/// const WORKERS: Setting = Setting {
///     name: "workers",
///     variable: Some("HIGHWATER_WORKERS"),
///     option: None,
///     scope: SettingScope::Run,
///     kind: SettingKind::Number { least: 1, most: 64, unit: "" },
///     default: "4",
///     help: "Threads that load data",
///     example: "8",
/// };
/// assert_eq!(WORKERS.number("8")?, 8);
/// let error = WORKERS.number("0").unwrap_err();
/// assert_eq!(error.to_string(), "\"0\" is not valid: expected a whole number from 1 to 64");
/// # Ok::<(), bfc_core::setting::InvalidValue>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name in configuration texts and tables.
    pub name: &'static str,
    /// The environment variable.
    pub variable: Option<&'static str>,
    /// The option of programs that train.
    pub option: Option<&'static str>,
    /// The part of a program that the setting applies to.
    pub scope: SettingScope,
    /// The valid values, with their unit and limits.
    pub kind: SettingKind,
    /// The value if the setting is unset, as text.
    pub default: &'static str,
    /// The effect of the setting, without a period at the end.
    pub help: &'static str,
    /// A valid value that is not the default.
    pub example: &'static str,
}

/// The part of a program that a setting applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingScope {
    /// The pool of a device. The variable may end in a kind of device or in one device.
    Pool,
    /// The choice of a device.
    Device,
    /// A runtime, and thus a run.
    Run,
    /// The whole process.
    Process,
    /// Tests and benchmarks.
    Test,
}

impl SettingScope {
    /// Returns the name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Device => "device",
            Self::Run => "run",
            Self::Process => "process",
            Self::Test => "test",
        }
    }
}

/// The valid values of a setting.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SettingKind {
    /// On or off, also `true` and `false`, `yes` and `no`, `1` and `0`.
    Switch,
    /// Bytes with an optional unit.
    Size,
    /// Bytes, a share of a total, or the total less a reserve: an [`Amount`].
    Amount,
    /// A whole number between these bounds.
    Number {
        /// The least value.
        least: u64,
        /// The greatest value.
        most: u64,
        /// The unit; empty for a plain number.
        unit: &'static str,
    },
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// `auto` or a device.
    Device,
    /// The path of a file or folder.
    Path,
    /// Settings of an allocator, as text in its own syntax.
    Settings {
        /// The valid values, as text.
        expected: &'static str,
        /// Checks the text. The error tells what is wrong with it.
        check: fn(&str) -> Result<(), String>,
    },
    /// A word that may have a value after a colon.
    Rule {
        /// The valid values, as text.
        expected: &'static str,
        /// The words with which they begin.
        names: &'static [&'static str],
        /// Whether the text is valid.
        check: fn(&str) -> bool,
    },
}

/// A value that a setting does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not valid: expected {expected}", expected = printable(expected))]
#[non_exhaustive]
pub struct InvalidValue {
    /// The value, or the start of it.
    pub value: String,
    /// The supported values, and the one that is most similar to the value.
    pub expected: String,
}

impl Setting {
    /// Returns the supported values as text.
    #[must_use]
    pub fn expected(&self) -> String {
        match self.kind {
            SettingKind::Switch => "on or off".to_owned(),
            SettingKind::Size => format!("bytes, as in {}", self.example),
            SettingKind::Amount => {
                "bytes, as in 4GiB, a percentage above 0, as in 75%, or all-1GiB".to_owned()
            }
            SettingKind::Number { least, most: u64::MAX, unit: "" } => {
                format!("a whole number of at least {least}")
            }
            SettingKind::Number { least, most, unit: "" } => {
                format!("a whole number from {least} to {most}")
            }
            SettingKind::Number { least, most, unit } => {
                format!("{unit}, a whole number from {least} to {most}")
            }
            SettingKind::OneOf(names) => format!("one of {}", names.join(", ")),
            SettingKind::Device => "auto, or a device, as in cpu or cuda:1".to_owned(),
            SettingKind::Path => format!("a path, as in {}", self.example),
            SettingKind::Rule { expected, .. } | SettingKind::Settings { expected, .. } => {
                expected.to_owned()
            }
        }
    }

    /// Returns the words with which supported values begin.
    const fn words(&self) -> &'static [&'static str] {
        match self.kind {
            SettingKind::Switch => &["on", "off"],
            SettingKind::OneOf(names) | SettingKind::Rule { names, .. } => names,
            SettingKind::Device => &["auto", "cpu", "dry", "cuda"],
            _ => &[],
        }
    }

    /// Returns the error of this value: the supported values, and the closest one.
    #[must_use]
    pub fn invalid(&self, value: &str) -> InvalidValue {
        let word = value.trim().split(':').next().unwrap_or_default();
        let hint = match self.kind {
            SettingKind::Settings { check, .. } => {
                check(value).err().map_or_else(String::new, |wrong| format!(" ({wrong})"))
            }
            _ => did_you_mean(word, self.words().iter().copied()),
        };
        let expected = self.expected() + &hint;
        InvalidValue { value: value.chars().take(MAX_QUOTED).collect(), expected }
    }

    /// Checks a value.
    ///
    /// # Errors
    /// [`InvalidValue`].
    pub fn check(&self, value: &str) -> Result<(), InvalidValue> {
        let text = value.trim();
        let valid = match self.kind {
            SettingKind::Switch => switch(text).is_some(),
            SettingKind::Size => text.parse::<Bytes>().is_ok(),
            SettingKind::Amount => text.parse::<Amount>().is_ok(),
            SettingKind::Number { least, most, .. } => {
                whole(text).is_some_and(|number| (least..=most).contains(&number))
            }
            // The names of allocators include earlier ones.
            SettingKind::OneOf(names) => names.contains(&text) || self.can_set_pool(text),
            SettingKind::Device => text == "auto" || text.parse::<DeviceId>().is_ok(),
            SettingKind::Path => !text.is_empty(),
            SettingKind::Rule { check, .. } => check(text),
            SettingKind::Settings { check, .. } => check(text).is_ok(),
        };
        if valid { Ok(()) } else { Err(self.invalid(value)) }
    }

    fn can_set_pool(&self, text: &str) -> bool {
        let row = POOL.iter().find(|row| row.setting.variable == self.variable);
        row.is_some_and(|row| (row.set)(PoolOptions::default(), text).is_some())
    }

    /// Parses a number, as [`SettingKind::Number`].
    ///
    /// # Errors
    /// [`InvalidValue`], also if the setting has no numbers.
    pub fn number(&self, value: &str) -> Result<u64, InvalidValue> {
        self.check(value)?;
        whole(value.trim()).ok_or_else(|| self.invalid(value))
    }

    /// Parses a switch, as [`SettingKind::Switch`].
    ///
    /// # Errors
    /// [`InvalidValue`].
    pub fn switch(&self, value: &str) -> Result<bool, InvalidValue> {
        switch(value.trim()).ok_or_else(|| self.invalid(value))
    }

    /// Parses a device, as [`SettingKind::Device`]; `None` for `auto`.
    ///
    /// # Errors
    /// [`InvalidValue`].
    pub fn device(&self, value: &str) -> Result<Option<DeviceId>, InvalidValue> {
        let text = value.trim();
        if text == "auto" { Ok(None) } else { text.parse().map(Some).map_err(|_| self.invalid(value)) }
    }

    /// Returns what the setting does and its values, for help texts.
    ///
    /// ```
    /// use bfc_core::setting::JOIN;
    /// assert_eq!(JOIN.help_text(), "When freed blocks merge with their neighbors: at-once or deferred");
    /// ```
    #[must_use]
    pub fn help_text(&self) -> String {
        format!("{}: {}", self.help, self.expected())
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_valid_and_every_name_is_defined_once() {
        for (index, setting) in SETTINGS.iter().enumerate() {
            assert_eq!(setting.check(setting.example), Ok(()), "{setting}");
            assert!(
                setting.check("\u{1}").is_err() || matches!(setting.kind, SettingKind::Path),
                "{setting}"
            );
            for other in &SETTINGS[index + 1..] {
                assert!(setting.name != other.name && setting.variable != other.variable, "{setting}");
            }
        }
    }

    #[test]
    fn an_invalid_value_is_refused_with_the_valid_ones_and_the_closest() {
        for (setting, value, expected) in [
            (DEVICE, "cpuu", "auto, or a device, as in cpu or cuda:1 (did you mean cpu?)"),
            (REGION_MERGING, "offf", "on or off (did you mean off?)"),
            (RETRY_MS, "-1", "milliseconds, a whole number from 0 to 3600000"),
            (SOAK_STEPS, "x", "a whole number of at least 1"),
        ] {
            assert_eq!(setting.check(value).unwrap_err().expected, expected);
        }
        assert_eq!(RETRY_MS.number(" 250 "), Ok(250));
        assert_eq!(ALLOCATOR.check("planned"), Ok(()), "the earlier name of packed");
        assert!(CUT.number("7").is_err() && RETRY_MS.number("3600001").is_err());
        assert_eq!(CUT.check(&"x".repeat(1000)).unwrap_err().value.len(), MAX_QUOTED);
    }
}
