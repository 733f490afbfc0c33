//! User settings of devices and their pools, from environment variables.
//!
//! The [settings](crate::setting) define the variables, their values and their defaults; docs/settings.md lists them.
//!
//! Variables about pools may end in a kind of device or in one device, and then apply only there:
//! `HIGHWATER_ALLOCATOR_CPU=guard`, `HIGHWATER_POOL_LIMIT_CUDA_1=50%`. Spaces around values are ignored; an empty value
//! counts as unset. `on` and `off` may also be written `true` and `false`, `yes` and `no`, `1` and `0`.
//!
//! An invalid value is an error. Other crates have settings of their own, whose values they read with
//! [`Environment::value`]. [`Environment::unknown`] lists variables that start with `HIGHWATER_` and belong to no setting,
//! each with the closest known name; runtimes and the command `highwater` print a warning.
//!
//! An allocator for all devices applies where it is supported: with `HIGHWATER_ALLOCATOR=guard`, a device whose memory
//! the host cannot read, such as a dry one, uses `bfc`. An unsupported allocator for one device or kind, as in
//! `HIGHWATER_ALLOCATOR_DRY=guard`, is an error when the device is first used.
//!
//! Code overrides the environment, and the environment overrides a pool's defaults.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

use crate::base::closest::{MAX_SLIPS, slips};
use crate::base::printable::printable;
use crate::base::units::whole;
use crate::registry::setting::{
    DEVICE, InvalidValue, MAX_QUOTED, POOL, PoolOptions, PoolSettingRow, SETTINGS, Setting, SettingScope,
};
use crate::registry::{DeviceId, DeviceKind, DeviceScope, PoolSettings};

/// The prefix of all variables.
const PREFIX: &str = "HIGHWATER_";

/// An invalid environment variable.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The variable does not support the value.
    #[error("environment variable {name}: {value:?} is not valid: expected {expected}", name = printable(name), expected = printable(expected))]
    BadValue {
        /// The variable.
        name: String,
        /// Its value, or the start of it.
        value: String,
        /// The supported values.
        expected: String,
    },
    /// The value is not Unicode text.
    #[error("environment variable {name}: the value is not Unicode text: {value:?}", name = printable(name))]
    NotUnicode {
        /// The variable.
        name: String,
        /// Its value with replacement characters, or the start of it.
        value: String,
    },
}

debug_as_message!(EnvironmentError);

/// A variable that starts with `HIGHWATER_` and has no meaning. Displays as a warning.
///
/// ```
/// use bfc_core::Environment;
/// let environment = Environment::from_vars([("HIGHWATER_DEVCE", "cpu")])?;
/// let warning = environment.unknown(&[])[0].to_string();
/// assert_eq!(warning, "unknown variable HIGHWATER_DEVCE; did you mean HIGHWATER_DEVICE?");
/// # Ok::<(), bfc_core::EnvironmentError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownVariable {
    /// The name, or the start of it.
    pub name: String,
    /// The known variable with the most similar name, if one is similar.
    pub nearest: Option<String>,
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown variable {}", printable(&self.name))?;
        self.nearest.as_ref().map_or(Ok(()), |nearest| write!(f, "; did you mean {nearest}?"))
    }
}

/// The settings of the environment: a device, options for the pools of devices, and the values of other settings.
///
/// ```
/// use bfc_core::{AllocatorChoice, Bytes, DeviceId, Environment};
/// let environment = Environment::from_vars([("HIGHWATER_POOL_LIMIT", "1GiB"), ("HIGHWATER_ALLOCATOR_CPU", "guard")])?;
/// let options = environment.settings().options(DeviceId::CPU);
/// assert_eq!(options.limit, Some(Bytes::gib(1).into()));
/// assert_eq!(options.allocator, Some(AllocatorChoice::Guard));
///
/// assert!(Environment::from_vars([("HIGHWATER_POOL_LIMIT", "much")]).is_err());
/// # Ok::<(), bfc_core::EnvironmentError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    settings: PoolSettings,
    device: Option<DeviceId>,
    /// The set variables with the prefix, by name.
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// Reads the variables of this process.
    ///
    /// # Errors
    /// As [`from_vars`](Self::from_vars).
    pub fn read() -> Result<Self, EnvironmentError> {
        Self::from_vars(std::env::vars_os())
    }

    /// Reads these variables; ignores those of other programs.
    ///
    /// # Errors
    /// See [`EnvironmentError`]. Among several errors, the first variable by name wins.
    pub fn from_vars<N: Into<OsString>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, EnvironmentError> {
        let ours = |name: &OsString| name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
        let is_blank = |value: &OsString| value.to_str().is_some_and(|text| text.trim().is_empty());
        let variables: BTreeMap<OsString, OsString> = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .filter(|(name, value)| ours(name) && !is_blank(value))
            .collect();
        let mut chosen = Self::default();
        for (name, value) in &variables {
            if let Some((row, scope)) = pool_row(name) {
                let options = (row.set)(PoolOptions::default(), unicode(name, value)?);
                let options = options.ok_or_else(|| bad_value(name, row.setting.invalid(&quoted(value))))?;
                chosen.settings.choose(scope, options);
            } else if DEVICE.variable.is_some_and(|variable| name == variable) {
                let device = DEVICE.device(unicode(name, value)?);
                chosen.device = device.map_err(|invalid| bad_value(name, invalid))?;
            }
        }
        Ok(Self { variables, ..chosen })
    }

    /// Returns the device to compute on by default; `None` if the choice is automatic.
    #[must_use]
    pub const fn device(&self) -> Option<DeviceId> {
        self.device
    }

    /// Returns the options by device.
    #[must_use]
    pub const fn settings(&self) -> &PoolSettings {
        &self.settings
    }

    /// Returns the value of a setting as text, without spaces around it; `None` if its variable is unset. The value is
    /// valid.
    ///
    /// ```
    /// use bfc_core::Environment;
    /// use bfc_core::setting::SOAK_STEPS;
    /// let environment = Environment::from_vars([("HIGHWATER_SOAK_STEPS", " 5 ")])?;
    /// assert_eq!(environment.value(&SOAK_STEPS)?, Some("5"));
    /// # Ok::<(), bfc_core::EnvironmentError>(())
    /// ```
    ///
    /// # Errors
    /// See [`EnvironmentError`].
    pub fn value(&self, setting: &Setting) -> Result<Option<&str>, EnvironmentError> {
        self.parsed(setting, |text| setting.check(text).map(|()| text))
    }

    /// Returns the value of a setting with numbers.
    ///
    /// # Errors
    /// See [`EnvironmentError`].
    pub fn number(&self, setting: &Setting) -> Result<Option<u64>, EnvironmentError> {
        self.parsed(setting, |text| setting.number(text))
    }

    /// Returns the value of a switch.
    ///
    /// # Errors
    /// See [`EnvironmentError`].
    pub fn switch(&self, setting: &Setting) -> Result<Option<bool>, EnvironmentError> {
        self.parsed(setting, |text| setting.switch(text))
    }

    fn parsed<'a, T>(
        &'a self,
        setting: &Setting,
        parse: impl FnOnce(&'a str) -> Result<T, InvalidValue>,
    ) -> Result<Option<T>, EnvironmentError> {
        let named = setting.variable.and_then(|name| self.variables.get_key_value(OsStr::new(name)));
        let Some((name, value)) = named else { return Ok(None) };
        parse(unicode(name, value)?).map(Some).map_err(|invalid| bad_value(name, invalid))
    }

    /// Returns the variables that set a setting of pools, and their devices, by name. Any other setting has one variable at
    /// most.
    ///
    /// ```
    /// use bfc_core::setting::LIMIT;
    /// use bfc_core::{DeviceId, DeviceScope, Environment};
    /// let environment = Environment::from_vars([("HIGHWATER_POOL_LIMIT_CPU_0", "1GiB")])?;
    /// let variables: Vec<_> = environment.variables_of(&LIMIT).collect();
    /// assert_eq!(variables, [("HIGHWATER_POOL_LIMIT_CPU_0", DeviceScope::One(DeviceId::CPU))]);
    /// # Ok::<(), bfc_core::EnvironmentError>(())
    /// ```
    pub fn variables_of<'a>(&'a self, setting: &Setting) -> impl Iterator<Item = (&'a str, DeviceScope)> {
        let (variable, is_of_pool) = (setting.variable, setting.scope == SettingScope::Pool);
        self.variables.keys().filter_map(move |name| {
            let name = name.to_str()?;
            let scope = scope(name.strip_prefix(variable?)?)?;
            (is_of_pool || scope == DeviceScope::All).then_some((name, scope))
        })
    }

    /// Returns the set variables with the prefix `HIGHWATER_` that belong neither to a setting of this crate nor to one of
    /// `others`, by name.
    #[must_use]
    pub fn unknown(&self, others: &[Setting]) -> Vec<UnknownVariable> {
        let known = || SETTINGS.iter().chain(others).filter_map(|setting| setting.variable);
        let is_known = |name: &OsStr| pool_row(name).is_some() || known().any(|known| name == known);
        let unknown = self.variables.keys().filter(|name| !is_known(name));
        let nearest = |name: &OsString| nearest(&name.to_string_lossy(), known()).map(str::to_owned);
        unknown.map(|name| UnknownVariable { name: quoted(name), nearest: nearest(name) }).collect()
    }
}

/// Splits the name of a variable into a setting of pools and its devices.
fn pool_row(name: &OsStr) -> Option<(&'static PoolSettingRow, DeviceScope)> {
    let name = name.to_str()?;
    POOL.iter().find_map(|row| Some((row, scope(name.strip_prefix(row.setting.variable?)?)?)))
}

/// Parses the devices in the rest of a name: nothing, `_CUDA`, `_CUDA_1`.
fn scope(rest: &str) -> Option<DeviceScope> {
    if rest.is_empty() {
        return Some(DeviceScope::All);
    }
    let device = rest.strip_prefix('_')?;
    let (kind, ordinal) =
        device.split_once('_').map_or((device, None), |(kind, ordinal)| (kind, Some(ordinal)));
    let named = |known: &DeviceKind| known.name().to_ascii_uppercase() == kind;
    let kind = DeviceKind::ALL.into_iter().find(named)?;
    match ordinal {
        None => Some(DeviceScope::Kind(kind)),
        Some(ordinal) => Some(DeviceScope::One(DeviceId::new(kind, whole(ordinal)?.try_into().ok()?))),
    }
}

/// Returns the known variable with the name most similar to `name`, if any. Separates a suffix for devices first, so that a
/// misspelling is found in front of any suffix.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let rest = name.strip_prefix(PREFIX)?;
    let similar = |variable: &'a str| {
        let known = variable.strip_prefix(PREFIX)?;
        // The letters that could be the variable's name: its length, plus or minus the misspellings.
        let length = known.len();
        let starts =
            (length.saturating_sub(MAX_SLIPS)..=length + MAX_SLIPS).filter_map(|end| rest.get(..end));
        let least = starts.chain([rest]).filter_map(|start| slips(start, known)).min();
        least.map(|slips| (slips, variable))
    };
    known.filter_map(similar).min_by_key(|(slips, _)| *slips).map(|(_, variable)| variable)
}

/// Returns a value as text without spaces around it.
fn unicode<'a>(name: &OsStr, value: &'a OsStr) -> Result<&'a str, EnvironmentError> {
    let not_unicode = || EnvironmentError::NotUnicode { name: quoted(name), value: quoted(value) };
    value.to_str().map(str::trim).ok_or_else(not_unicode)
}

fn bad_value(name: &OsStr, invalid: InvalidValue) -> EnvironmentError {
    let InvalidValue { value, expected } = invalid;
    EnvironmentError::BadValue { name: quoted(name), value, expected }
}

/// Returns the start of a text of any length and kind.
fn quoted(text: &OsStr) -> String {
    text.to_string_lossy().chars().take(MAX_QUOTED).collect()
}

#[cfg(test)]
mod tests;
