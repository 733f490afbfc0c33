//! Reports in serde formats, with owners as paths, and categories and verdicts as names.
//!
//! Reading a report interns its owners. The table of owners is bounded, so a hostile file cannot grow it without limit.

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Verdict;
use crate::base::ledger::Category;
use crate::base::owner::OwnerId;

impl Serialize for OwnerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.path())
    }
}

impl<'de> Deserialize<'de> for OwnerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let path = String::deserialize(deserializer)?;
        Ok(path.split('.').filter(|name| !name.is_empty()).fold(Self::ROOT, Self::intern))
    }
}

impl Serialize for Category {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Category {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_name(deserializer, &Self::ALL, Self::name, "the name of a category")
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Verdict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = [Self::OverLimit, Self::Exhausted, Self::Fragmented, Self::Pinned, Self::OverBudget];
        by_name(deserializer, &all, Self::name, "the name of a verdict")
    }
}

/// Deserializes a value from its name.
fn by_name<'de, T: Copy, D: Deserializer<'de>>(
    deserializer: D,
    all: &[T],
    name: impl Fn(T) -> &'static str,
    expected: &'static str,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let found = all.iter().copied().find(|&value| name(value) == text);
    found.ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &expected))
}

/// Serializes a duration in milliseconds.
pub(super) mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}
