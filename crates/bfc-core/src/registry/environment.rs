//! User settings of devices and their pools, from environment variables.
//!
//! | variable | value | like |
//! |---|---|---|
//! | `HIGHWATER_ALLOCATOR` | a name: see [`AllocatorChoice`] | `guard` |
//! | `HIGHWATER_POOL_LIMIT` | the limit of the pool: bytes with an optional unit, a share of the device's memory, or all free memory except a reserve. The pool is then one region, unless the next two variables ask for growth | `4GiB`, `75%`, `all-1GiB` |
//! | `HIGHWATER_GROWTH` | whether the pool takes its limit at once (`off`) or grows on demand (`on`), and the growth rule: `doubling` or `doubling:CAP` (as TensorFlow), `as-requested`, `fixed:SIZE`, `proportional:PARTS` (`32` for a thirty-second of the pool) | `doubling:1GiB` |
//! | `HIGHWATER_FIRST_REGION` | the size of a growing pool's first region: bytes with an optional unit | `64MiB` |
//! | `HIGHWATER_REGION_MERGING` | whether a growing pool returns idle regions before it takes a new one: `on`, `off` | `off` |
//! | `HIGHWATER_GARBAGE_COLLECTION` | whether idle regions are returned to make room for larger ones: `on`, `off` | `on` |
//! | `HIGHWATER_SPLIT` | when chunks are cut: `always`, `twice` (as TensorFlow), `twice:AMOUNT` with the most waste in a block, in bytes or as a share of the limit | `twice:5%` |
//! | `HIGHWATER_CUT` | the end of a chunk from which blocks are cut: `low` (as TensorFlow), `large-high` | `low` |
//! | `HIGHWATER_JOIN` | when freed blocks merge with adjacent free memory: `at-once` (as TensorFlow), or `deferred`, where small ones wait until none of them fits a request | `at-once` |
//! | `HIGHWATER_RETRY_MS` | how many milliseconds a request waits for frees: 0 to 3600000 | `0` |
//! | `HIGHWATER_THREAD_CACHE` | thread caches for small blocks: `on`, `off`, or `LARGEST[:KEPT]`, the largest cached block and the capacity of each of the 16 caches. Only in pools of best fit with coalescing | `64KiB:4MiB` |
//! | `HIGHWATER_DEVICE` | the default device of programs: `auto` (a GPU that passes a check, else the CPU), or a device | `cpu`, `cuda:1` |
//! | `HIGHWATER_NVRTC`, `HIGHWATER_CUBLAS`, `HIGHWATER_NCCL` | the file of the compiler, of the matrix library and of the library for several GPUs, instead of a search | `/opt/cuda/lib64/libnvrtc.so.12` |
//!
//! Variables about pools may end in a kind of device or in one device, and then apply only there:
//! `HIGHWATER_ALLOCATOR_CPU=guard`, `HIGHWATER_POOL_LIMIT_CUDA_1=50%`. Spaces around values are ignored; an empty value
//! counts as unset. `on` and `off` may also be written `true` and `false`, `yes` and `no`, `1` and `0`.
//!
//! An invalid value is an error. [`Environment::unknown`] lists unknown variables that start with `HIGHWATER_`, each
//! with the closest known name; runtimes and the command `highwater` print a warning. Other code reads
//! `HIGHWATER_TRACES` (the benches) and the variables of the tests. The crate `bfc-cuda` loads these files when it
//! needs them, and names the variable if that fails.
//!
//! An allocator for all devices applies where it is supported: with `HIGHWATER_ALLOCATOR=guard`, a device whose memory
//! the host cannot read, such as a dry one, uses `bfc`. An unsupported allocator for one device or kind, as in
//! `HIGHWATER_ALLOCATOR_DRY=guard`, is an error when the device is first used.
//!
//! Code overrides the environment, and the environment overrides a pool's defaults.

mod option;
mod variable;

use std::ffi::{OsStr, OsString};
use std::fmt;

use crate::base::printable::printable;
use crate::registry::choice::AllocatorChoice;
use crate::registry::{DeviceId, PoolOptions, PoolSettings};

pub use option::OptionError;
use variable::{Variable, nearest};

/// The prefix of all variables.
const PREFIX: &str = "HIGHWATER_";

/// Variables with that prefix that other code reads.
const OTHERS: &[&str] = &[
    "HIGHWATER_CPU_INSTRUCTIONS",
    "HIGHWATER_TRACES",
    "HIGHWATER_NVRTC",
    "HIGHWATER_CUBLAS",
    "HIGHWATER_NCCL",
    "HIGHWATER_UPDATE_GOLDEN",
    "HIGHWATER_SOAK_STEPS",
    "HIGHWATER_SOAK_SEED",
];

/// The only variable that is not about pools.
const DEVICE: &str = "HIGHWATER_DEVICE";

/// The most characters of a value or name in an error.
const MAX_QUOTED: usize = 64;

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
/// let warning = environment.unknown()[0].to_string();
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

impl UnknownVariable {
    fn of(name: &OsStr) -> Self {
        Self { name: quoted(name), nearest: nearest(&name.to_string_lossy()) }
    }
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown variable {}", printable(&self.name))?;
        self.nearest.as_ref().map_or(Ok(()), |nearest| write!(f, "; did you mean {nearest}?"))
    }
}

/// The settings of the environment: a device, and options for the pools of devices. The module docs list them.
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
    unknown: Vec<UnknownVariable>,
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
        let mut variables: Vec<(OsString, OsString)> = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .filter(|(name, _)| ours(name) && !OTHERS.iter().any(|other| name == other))
            .collect();
        variables.sort_unstable();
        let mut chosen = Self::default();
        for (name, value) in variables {
            let variable = Variable::named(&name);
            if variable.is_none() && name != DEVICE {
                if !value.is_empty() {
                    chosen.unknown.push(UnknownVariable::of(&name));
                }
                continue;
            }
            let name = quoted(&name);
            let Some(text) = value.to_str() else {
                return Err(EnvironmentError::NotUnicode { name, value: quoted(&value) });
            };
            let text = text.trim();
            if text.is_empty() {
                continue;
            }
            let bad_value = |expected| EnvironmentError::BadValue { name, value: quoted(&value), expected };
            match variable {
                Some((variable, scope)) => {
                    chosen.settings.choose(scope, variable.parse(text).map_err(bad_value)?);
                }
                None => chosen.device = device(text).map_err(bad_value)?,
            }
        }
        Ok(chosen)
    }

    /// Returns the device to compute on by default; `None` if the choice is automatic.
    #[must_use]
    pub const fn device(&self) -> Option<DeviceId> {
        self.device
    }

    /// Returns the set variables with the prefix `HIGHWATER_` that have no meaning, by name.
    #[must_use]
    pub fn unknown(&self) -> &[UnknownVariable] {
        &self.unknown
    }

    /// Returns the options by device.
    #[must_use]
    pub const fn settings(&self) -> &PoolSettings {
        &self.settings
    }
}

/// Parses `auto` or a device; fails with the expected values.
fn device(text: &str) -> Result<Option<DeviceId>, String> {
    let expected = "auto, or a device, as in cpu or cuda:1";
    if text == "auto" { Ok(None) } else { text.parse().map(Some).map_err(|_| expected.to_owned()) }
}

/// Returns the start of a text of any length and kind.
fn quoted(text: &OsStr) -> String {
    text.to_string_lossy().chars().take(MAX_QUOTED).collect()
}

#[cfg(test)]
mod tests;
