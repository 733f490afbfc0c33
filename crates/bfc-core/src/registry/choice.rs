//! The allocators to choose from: one list with names, descriptions and constructors.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::build::{self, Made, Parts};
use crate::base::closest::did_you_mean;
use crate::base::memory::MemoryKind;
use crate::base::units::Bytes;
use crate::packing::Packing;
use crate::policy::{FirstFit, GRANULE, PytorchOptions};
use crate::pool::BfcConfig;
use crate::source::sub_allocator::SubAllocator;

/// A row of the list: names, features and constructor of an allocator.
pub(super) struct Row {
    name: &'static str,
    about: &'static str,
    /// Whether the allocator reads and writes the memory.
    reads_memory: bool,
    /// Whether the allocator supports a timing counter: freed memory is not reused before its count has passed.
    pub(super) keeps_counts: bool,
    /// The smallest region.
    pub(super) smallest_region: u64,
    /// Creates the configuration with this limit, whose rules apply unless options override them. `None` keeps the rules
    /// of the pool.
    rules: Option<fn(Bytes) -> BfcConfig>,
    make: fn(Parts<'_>) -> Made,
}

impl Row {
    /// A placement policy without further features.
    const fn new(name: &'static str, about: &'static str, make: fn(Parts<'_>) -> Made) -> Self {
        let (reads_memory, keeps_counts, smallest_region) = (false, false, GRANULE);
        Self { name, about, reads_memory, keeps_counts, smallest_region, rules: None, make }
    }

    /// Sets that the allocator supports a timing counter.
    const fn counting(self) -> Self {
        Self { keeps_counts: true, ..self }
    }
}

macro_rules! choices {
    ($($(#[$meta:meta])* $choice:ident: $row:expr;)*) => {
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
            $($(#[$meta])* $choice,)*
        }

        const ROWS: &[Row] = &[$($row),*];

        impl AllocatorChoice {
            /// All choices, in display order.
            pub const ALL: [Self; ROWS.len()] = [$(Self::$choice),*];
        }
    };
}

// The list. Names on command lines, in variables, configurations, help texts and errors follow from it.
choices! {
    /// Best fit with coalescing, as the pool was registered.
    #[default]
    Bfc: Row::new("bfc", "best fit with coalescing, always splits", build::bfc).counting();

    /// Best fit with coalescing that splits chunks and keeps idle regions as TensorFlow, unless options override that.
    BfcTensorflow: Row {
        rules: Some(BfcConfig::tensorflow),
        ..Row::new("bfc-tensorflow", "best fit with coalescing, with TensorFlow's rules", build::bfc).counting()
    };

    /// Blocks cut from chunks of one size, as in Paddle's `BuddyAllocator`.
    Buddy: Row::new("buddy", "Paddle's buddy allocator", build::buddy);

    /// Best fit in regions of the requests' sizes, as in Paddle's auto-growth strategy.
    AutoGrowth: Row::new(
        "auto-growth",
        "Paddle's auto-growth best fit, each region as large as its first request",
        build::auto_growth,
    );

    /// PyTorch's caching allocator, with the settings of [`PoolOptions::alloc_conf`](crate::PoolOptions::alloc_conf).
    Pytorch: Row {
        smallest_region: 2 << 20,
        // The policy alone decides which idle regions leave before the pool grows.
        rules: Some(|limit| BfcConfig::new(limit).with_region_merging(false)),
        ..Row::new("pytorch", "PyTorch's caching allocator, with the settings of alloc_conf", build::pytorch)
    };

    /// First fit by address, a baseline for comparisons.
    FirstFit: Row::new("first-fit", "the lowest address that fits, a baseline", |parts| parts.pool::<FirstFit>(()));

    /// The offsets of a packing. Best fit with coalescing serves requests outside of the packing, and all requests without one.
    Packed: Row::new("packed", "offsets computed ahead of time", build::packed).counting();

    /// Best fit with coalescing with canaries around every block. Only for memory that the host can read.
    Guard: Row {
        reads_memory: true,
        ..Row::new("guard", "bfc with canaries around every block, in real memory", build::guard).counting()
    };

    /// No pool: every request goes to the source.
    Passthrough: Row {
        smallest_region: 1,
        ..Row::new("passthrough", "no pool: each block from the system, in real memory", build::passthrough)
    };
}

impl AllocatorChoice {
    pub(super) const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Returns the name on command lines and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns a description of one line, for help texts.
    #[must_use]
    pub const fn about(self) -> &'static str {
        self.row().about
    }

    /// Whether it supports this kind of memory: a guard has to read and write it.
    #[must_use]
    pub const fn serves(self, kind: MemoryKind) -> bool {
        !self.row().reads_memory || kind.is_host_accessible()
    }

    /// Returns all names, separated by commas, for messages.
    #[must_use]
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Returns the default configuration with this limit, for [`allocator`](Self::allocator).
    #[must_use]
    pub fn config(self, limit: Bytes) -> BfcConfig {
        self.rules(limit).unwrap_or_else(|| BfcConfig::new(limit))
    }

    /// Returns the configuration whose rules this choice sets; `None` if it keeps those of the pool.
    pub(super) fn rules(self, limit: Bytes) -> Option<BfcConfig> {
        self.row().rules.map(|config| config(limit))
    }

    /// Creates this allocator over a source, without a registry. [`Packed`](Self::Packed) follows `packing`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use bfc_core::{AddressOnlyMemory, AllocatorChoice, Bytes, Request};
    /// let (choice, source) = (AllocatorChoice::FirstFit, Arc::new(AddressOnlyMemory::new()));
    /// let pool = choice.allocator("pool", source, choice.config(Bytes::mib(1)), None)?;
    /// assert_eq!(pool.allocate(&Request::new(1000))?.bytes, 1024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::Guard`](crate::PoolError::Guard) and [`PoolError::NoCounts`](crate::PoolError::NoCounts).
    pub fn allocator(
        self,
        name: impl Into<String>,
        source: Arc<dyn SubAllocator>,
        config: BfcConfig,
        packing: Option<&Arc<Packing>>,
    ) -> Made {
        let (first_region, alloc_conf) = (None, PytorchOptions::default());
        self.make(Parts { name: name.into(), source, config, packing, first_region, alloc_conf })
    }

    pub(super) fn make(self, parts: Parts<'_>) -> Made {
        if parts.config.timing_counter.is_some() && !self.row().keeps_counts {
            return Err(parts.no_counts(self));
        }
        (self.row().make)(parts)
    }
}

impl fmt::Display for AllocatorChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no allocator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an allocator{}: expected one of {}", did_you_mean(text, AllocatorChoice::ALL.map(AllocatorChoice::name)), AllocatorChoice::names())]
#[non_exhaustive]
pub struct ParseChoiceError {
    /// The text, or its start.
    pub text: String,
}

impl FromStr for AllocatorChoice {
    type Err = ParseChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // An earlier name, in existing settings.
        let name = if text == "planned" { Self::Packed.name() } else { text };
        let named = |choice: &Self| choice.name() == name;
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
        assert_eq!("planned".parse(), Ok(AllocatorChoice::Packed), "the earlier name");
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
