//! The policies there are to choose from, and how a pool of each is made.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bfc_core::{AddressOnlyMemory, Allocator, BfcAllocator, BfcConfig, Bytes};
use clap::ValueEnum;

/// How a pool comes to its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Growth {
    /// One region of the whole pool
    Fixed,
    /// Separate regions, as they are needed
    Regions,
    /// Regions that continue each other and are used as one
    Extend,
}

/// The most that a pool without a limit takes: more than any machine has, and small enough to be added to.
const WITHOUT_LIMIT: Bytes = Bytes(1 << 56);

/// The pool to replay through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolSpec {
    limit: Option<Bytes>,
    growth: Growth,
}

impl PoolSpec {
    /// A pool of `limit` bytes at most, or without a limit, which then has to grow.
    pub(crate) fn new(limit: Option<Bytes>, growth: Option<Growth>) -> Self {
        let usual = if limit.is_some() { Growth::Fixed } else { Growth::Regions };
        Self { limit, growth: growth.unwrap_or(usual) }
    }

    /// A pool of exactly `bytes` bytes.
    pub(crate) const fn fixed(bytes: u64) -> Self {
        Self { limit: Some(Bytes(bytes)), growth: Growth::Fixed }
    }

    fn bfc(self, config: fn(Bytes) -> BfcConfig) -> Box<dyn Allocator> {
        let limit = self.limit.unwrap_or(WITHOUT_LIMIT);
        let config = config(limit).with_allow_growth(self.growth != Growth::Fixed);
        let source = AddressOnlyMemory::new().with_coalescing(self.growth == Growth::Extend);
        Box::new(BfcAllocator::new("replay", Arc::new(source), config))
    }
}

/// One way of placing blocks.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    /// Its name on the command line and in tables.
    pub(crate) name: &'static str,
    about: &'static str,
    make: fn(PoolSpec) -> Box<dyn Allocator>,
}

/// All of them. A new policy is a line here.
pub(crate) const POLICIES: &[Policy] = &[
    Policy {
        name: "bfc",
        about: "best fit with coalescing, splitting always",
        make: |spec| spec.bfc(BfcConfig::new),
    },
    Policy {
        name: "bfc-tensorflow",
        about: "best fit with coalescing as TensorFlow does it",
        make: |spec| spec.bfc(BfcConfig::tensorflow),
    },
];

impl Policy {
    /// An empty pool over bare addresses.
    pub(crate) fn pool(&self, spec: PoolSpec) -> Box<dyn Allocator> {
        (self.make)(spec)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// There is no policy of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {name:?}; there are {}", names())]
pub(crate) struct UnknownPolicy {
    name: String,
}

fn names() -> String {
    POLICIES.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ")
}

/// What each policy is, for the help.
pub(crate) fn help() -> String {
    let width = POLICIES.iter().map(|policy| policy.name.len()).max().unwrap_or(0);
    let lines = POLICIES.iter().map(|policy| format!("  {:<width$}  {}", policy.name, policy.about));
    format!("Policies:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = POLICIES.iter().find(|policy| policy.name == name).copied();
        found.ok_or_else(|| UnknownPolicy { name: name.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bfc_core::Request;

    #[test]
    fn an_unknown_policy_is_refused_with_the_names_of_all() {
        let error = "best-fit".parse::<Policy>().unwrap_err();
        assert_eq!(error, UnknownPolicy { name: "best-fit".to_owned() });
        for policy in POLICIES {
            assert!(error.to_string().contains(policy.name), "{error}");
            assert_eq!(policy.name.parse::<Policy>().unwrap().name, policy.name);
            assert!(help().contains(policy.about));
        }
    }

    #[test]
    fn a_pool_of_every_policy_serves_what_fits_and_has_no_more_than_it_was_given() {
        for policy in POLICIES {
            for spec in [PoolSpec::new(None, None), PoolSpec::fixed(1 << 30)] {
                let pool = policy.pool(spec);
                assert!(pool.allocate(&Request::new(1 << 20)).is_ok(), "{policy:?} {spec:?}");
            }
            let small = policy.pool(PoolSpec::fixed(1 << 20));
            assert!(small.allocate(&Request::new((1 << 20) + 1)).is_err(), "{policy:?}");
            assert!(small.stats().peak_bytes_reserved <= 1 << 20, "{policy:?}");
        }
    }
}
