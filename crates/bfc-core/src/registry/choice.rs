//! Named choices of a device's allocator.

use std::fmt;
use std::str::FromStr;

use crate::base::closest::did_you_mean;
use crate::base::memory::MemoryKind;

/// The allocator of a device's memory.
///
/// ```
/// use bfc_core::AllocatorChoice;
/// assert_eq!("guard".parse(), Ok(AllocatorChoice::Guard));
/// let error = "slab".parse::<AllocatorChoice>().unwrap_err();
/// assert!(error.to_string().contains("expected one of bfc, "));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AllocatorChoice {
    /// Best fit with coalescing, as the pool was registered.
    #[default]
    Bfc,
    /// Best fit with coalescing that splits chunks and keeps idle regions as TensorFlow, unless options override that.
    BfcTensorflow,
    /// Blocks cut from chunks of one size, as in Paddle's `BuddyAllocator`.
    Buddy,
    /// Best fit in regions of the requests' sizes, as in Paddle's auto-growth strategy.
    AutoGrowth,
    /// Planned offsets. Best fit with coalescing serves requests outside of the plan, and all requests without one.
    Planned,
    /// Best fit with coalescing with canaries around every block. Only for memory that the host can read.
    Guard,
    /// No pool: every request goes to the source.
    Passthrough,
}

impl AllocatorChoice {
    /// All choices, in display order.
    pub const ALL: [Self; 7] = [
        Self::Bfc,
        Self::BfcTensorflow,
        Self::Buddy,
        Self::AutoGrowth,
        Self::Planned,
        Self::Guard,
        Self::Passthrough,
    ];

    /// Returns the name on command lines and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bfc => "bfc",
            Self::BfcTensorflow => "bfc-tensorflow",
            Self::Buddy => "buddy",
            Self::AutoGrowth => "auto-growth",
            Self::Planned => "planned",
            Self::Guard => "guard",
            Self::Passthrough => "passthrough",
        }
    }

    /// Whether it supports this kind of memory: a guard has to read and write it.
    #[must_use]
    pub const fn serves(self, kind: MemoryKind) -> bool {
        !matches!(self, Self::Guard) || kind.is_host_accessible()
    }

    /// Returns all names, separated by commas, for messages.
    #[must_use]
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for AllocatorChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no allocator.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an allocator{}: expected one of {}", did_you_mean(text, AllocatorChoice::ALL.map(AllocatorChoice::name)), AllocatorChoice::names())]
#[non_exhaustive]
pub struct ParseChoiceError {
    /// The text, or its start.
    pub text: String,
}

debug_as_message!(ParseChoiceError);

impl FromStr for AllocatorChoice {
    type Err = ParseChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = |choice: &Self| choice.name() == text;
        let error = || ParseChoiceError { text: text.chars().take(64).collect() };
        Self::ALL.into_iter().find(named).ok_or_else(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_as_it_is_written() {
        for choice in AllocatorChoice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
    }

    #[test]
    fn an_unknown_name_is_told_with_all_that_are_known() {
        for bad in ["", "BFC", "bfc ", "buddy,bfc", "slab"] {
            let error = bad.parse::<AllocatorChoice>().unwrap_err();
            assert_eq!(error.text, bad);
            for choice in AllocatorChoice::ALL {
                assert!(error.to_string().contains(choice.name()), "{error}");
            }
        }
        let error = "pass-through".parse::<AllocatorChoice>().unwrap_err().to_string();
        assert!(
            error.starts_with("\"pass-through\" is not an allocator (did you mean passthrough?): "),
            "{error}"
        );
        assert_eq!("x".repeat(1000).parse::<AllocatorChoice>().unwrap_err().text.len(), 64);
    }
}
