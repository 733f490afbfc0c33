//! Pool options by name, for configuration texts of other programs.

use super::{InvalidValue, LIMIT, MAX_QUOTED, POOL, PoolOptions};
use crate::base::closest::did_you_mean;
use crate::base::printable::printable;

/// An option of a pool that cannot be set from text.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// No option has this name.
    #[error("there is no pool option {name:?}{}; the options are {}", did_you_mean(name, PoolOptions::names()), PoolOptions::names().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// The name, or the start of it.
        name: String,
    },
    /// The text is not `NAME=VALUE`.
    #[error("pool option: {text:?} is not NAME=VALUE, as in limit=1GiB")]
    NotAPair {
        /// The text, or the start of it.
        text: String,
    },
    /// The option does not support the value.
    #[error("pool option {name}: {value:?} is not valid: expected {expected}", expected = printable(expected))]
    BadValue {
        /// The option.
        name: &'static str,
        /// Its value, or the start of it.
        value: String,
        /// The supported values.
        expected: String,
    },
}

debug_as_message!(OptionError);

impl PoolOptions {
    /// Returns the names of the options that [`set`](Self::set) knows.
    ///
    /// ```
    /// use bfc_core::PoolOptions;
    /// assert_eq!(PoolOptions::names().next(), Some("allocator"));
    /// ```
    pub fn names() -> impl Iterator<Item = &'static str> {
        POOL.iter().map(|row| row.setting.name)
    }

    /// Sets one option from text. Names and values are those of the [settings](crate::setting). `pool_limit` stands
    /// for `limit`.
    ///
    /// ```
    /// use bfc_core::{Bytes, PoolOptions};
    /// let mut options = PoolOptions::default();
    /// options.set("limit", "2GiB")?;
    /// options.set("growth", "doubling:256MiB")?;
    /// assert_eq!(options.limit, Some(Bytes::gib(2).into()));
    /// assert_eq!(options.allow_growth, Some(true));
    /// # Ok::<(), bfc_core::OptionError>(())
    /// ```
    ///
    /// # Errors
    /// See [`OptionError`]. The options are unchanged.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let name = if name == "pool_limit" { LIMIT.name } else { name };
        let Some(row) = POOL.iter().find(|row| row.setting.name == name) else {
            return Err(OptionError::Unknown { name: name.chars().take(MAX_QUOTED).collect() });
        };
        let invalid = || {
            let InvalidValue { value, expected } = row.setting.invalid(value);
            OptionError::BadValue { name: row.setting.name, value, expected }
        };
        *self = (row.set)(*self, value.trim()).ok_or_else(invalid)?;
        Ok(())
    }

    /// Returns the value of an option as text, by the name of its [setting](crate::setting); `None` if it is unset.
    ///
    /// ```
    /// use bfc_core::{Bytes, PoolOptions};
    /// let options = PoolOptions::default().with_first_region(Bytes::mib(8));
    /// assert_eq!(options.text("first_region").as_deref(), Some("8.00 MiB"));
    /// assert_eq!(options.text("limit"), None);
    /// ```
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        POOL.iter().find(|row| row.setting.name == name).and_then(|row| (row.text)(self))
    }

    /// Sets an option from `NAME=VALUE`, as [`set`](Self::set).
    ///
    /// # Errors
    /// See [`OptionError`].
    pub fn set_pair(&mut self, pair: &str) -> Result<(), OptionError> {
        let start = || pair.chars().take(MAX_QUOTED).collect();
        let (name, value) = pair.split_once('=').ok_or_else(|| OptionError::NotAPair { text: start() })?;
        self.set(name.trim(), value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::AllocatorChoice;

    #[test]
    fn each_variable_is_an_option_in_lower_case() {
        let mut options = PoolOptions::default();
        for (name, value) in [
            ("allocator", "guard"),
            ("limit", "1GiB"),
            ("growth", "doubling"),
            ("first_region", "64MiB"),
            ("region_merging", "on"),
            ("garbage_collection", "off"),
            ("split", "always"),
            ("cut", "low"),
            ("join", "at-once"),
            ("retry_ms", "0"),
            ("thread_cache", "off"),
        ] {
            options.set(name, value).unwrap();
            let error = options.set(name, "nonsense").unwrap_err();
            assert!(error.to_string().contains("nonsense"), "{error}");
        }
        let unset = PoolOptions { allocator_where_possible: true, ..PoolOptions::default() };
        assert_eq!(options.or(unset), options);
        assert_eq!(options.allocator, Some(AllocatorChoice::Guard));
    }

    #[test]
    fn a_misspelled_value_is_refused_with_the_closest_one() {
        for (name, value, hint) in [
            ("allocator", "gaurd", " (did you mean guard?)"),
            ("growth", "doublin:1GiB", " (did you mean doubling?)"),
            ("growth", "fixed", ""),
            ("split", "twise", " (did you mean twice?)"),
            ("cut", "large_high", " (did you mean large-high?)"),
            ("join", "at_once", " (did you mean at-once?)"),
            ("region_merging", "off!", " (did you mean off?)"),
            ("thread_cache", "64KB", ""),
            ("limit", "much", ""),
        ] {
            let error = PoolOptions::default().set(name, value).unwrap_err().to_string();
            let start = format!("pool option {name}: {value:?} is not valid: expected ");
            assert!(error.starts_with(&start), "{error}");
            assert_eq!(
                error.split_once(" (did").map_or("", |(before, _)| &error[before.len()..]),
                hint,
                "{error}"
            );
        }
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_names_of_all() {
        let mut options = PoolOptions::default();
        let known = "the options are allocator, alloc_conf, limit, growth, first_region, region_merging, \
                     garbage_collection, split, cut, join, retry_ms, thread_cache";
        for (name, hint) in
            [("limt", " (did you mean limit?)"), ("LIMIT", " (did you mean limit?)"), ("color", "")]
        {
            let error = options.set(name, "1").unwrap_err();
            assert_eq!(error.to_string(), format!("there is no pool option {name:?}{hint}; {known}"));
        }
        assert_eq!(options, PoolOptions::default());
    }
}
