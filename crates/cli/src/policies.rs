//! The policies there are to choose from, and how a pool of each is made.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocator, AutoGrowthConfig, AutoGrowthOptions, BfcConfig, BuddyConfig, BuddyOptions,
    Bytes, ConfiguredPolicy, Plan, PlanOptions, PlannedConfig, PolicyAllocator, PoolConfig,
};
use clap::ValueEnum;
use highwater_tracking::{NoPlan, Step, Trace, plan_of};

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

    fn limit(self) -> Bytes {
        self.limit.unwrap_or(WITHOUT_LIMIT)
    }

    fn is_fixed(self) -> bool {
        self.growth == Growth::Fixed
    }

    /// The limit in whole granules, for policies whose one region has to be asked for in these.
    fn whole_granules(self) -> Bytes {
        Bytes(self.limit().get() / GRANULE * GRANULE)
    }

    fn pool<P: ConfiguredPolicy>(self, config: PoolConfig<P::Options>) -> Box<dyn Allocator>
    where
        PolicyAllocator<P>: Allocator,
    {
        let source = AddressOnlyMemory::new().with_coalescing(self.growth == Growth::Extend);
        let config = config.with_allow_growth(!self.is_fixed());
        Box::new(PolicyAllocator::<P>::new("replay", Arc::new(source), config))
    }
}

/// What the places of all policies here are multiples of, in bytes.
const GRANULE: u64 = 256;

/// What a growing buddy pool takes at a time, as upstream does on a large machine.
const BUDDY_REGION: Bytes = Bytes::mib(500);

/// Makes an empty pool over bare addresses.
pub(crate) type MakePool = Box<dyn Fn(PoolSpec) -> Box<dyn Allocator>>;

/// One way of placing blocks.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    /// Its name on the command line and in tables.
    pub(crate) name: &'static str,
    about: &'static str,
    prepare: fn(&Trace, Option<&Arc<Plan>>) -> Result<MakePool, NoPlan>,
}

/// All of them. A new policy is an entry here.
pub(crate) const POLICIES: &[Policy] = &[
    Policy {
        name: "bfc",
        about: "best fit with coalescing, splitting always",
        prepare: |_, _| Ok(Box::new(|spec| bfc(spec, BfcConfig::new(spec.limit())))),
    },
    Policy {
        name: "bfc-tensorflow",
        about: "best fit with coalescing as TensorFlow does it",
        prepare: |_, _| Ok(Box::new(|spec| bfc(spec, BfcConfig::tensorflow(spec.limit())))),
    },
    Policy {
        name: "buddy",
        about: "Paddle's buddy allocator, in steps of 256 bytes",
        prepare: |_, _| Ok(Box::new(buddy)),
    },
    Policy {
        name: "auto-growth",
        about: "Paddle's auto-growth best fit, each region as large as its first request",
        prepare: |_, _| Ok(Box::new(auto_growth)),
    },
    Policy {
        name: "planned",
        about: "places computed ahead from the trace itself, or those of --plan",
        prepare: |trace, plan| {
            let plan = match plan {
                Some(plan) => Arc::clone(plan),
                None => Arc::new(plan_of(trace, &Step::Whole, &PlanOptions::default(), &mut |_| true)?),
            };
            Ok(Box::new(move |spec| planned(spec, &plan)))
        },
    },
];

fn bfc(spec: PoolSpec, config: BfcConfig) -> Box<dyn Allocator> {
    spec.pool::<bfc_core::Bfc>(config)
}

fn buddy(spec: PoolSpec) -> Box<dyn Allocator> {
    let region = if spec.is_fixed() { spec.whole_granules() } else { BUDDY_REGION };
    // A pool without room for a chunk refuses everything, whatever its sizes.
    let options = BuddyOptions::new(Bytes(GRANULE), region).unwrap_or_default();
    spec.pool::<bfc_core::Buddy>(BuddyConfig::with_options(spec.limit(), options))
}

fn auto_growth(spec: PoolSpec) -> Box<dyn Allocator> {
    let options = AutoGrowthOptions::gpu();
    let options = if spec.is_fixed() { options.with_chunk_size(spec.whole_granules()) } else { options };
    spec.pool::<bfc_core::AutoGrowth>(AutoGrowthConfig::with_options(spec.limit(), options))
}

fn planned(spec: PoolSpec, plan: &Arc<Plan>) -> Box<dyn Allocator> {
    let config = PlannedConfig::planned(spec.limit(), Arc::clone(plan));
    // The plan's range is one piece, so a growing pool begins with it.
    spec.pool::<bfc_core::Planned<bfc_core::Bfc>>(config.with_first_region(Bytes(plan.capacity())))
}

impl Policy {
    /// Does once what the policy needs for a trace; a plan given is followed by the policy that follows plans.
    pub(crate) fn prepare(&self, trace: &Trace, plan: Option<&Arc<Plan>>) -> Result<MakePool, NoPlan> {
        (self.prepare)(trace, plan)
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
    use bfc_core::{AllocationAttributes, Request};
    use highwater_tracking::TraceLimits;

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
        let trace = Trace::parse("a 0 1048576 x\n".as_bytes(), &TraceLimits::default()).unwrap();
        for policy in POLICIES {
            let pool = policy.prepare(&trace, None).unwrap();
            for spec in
                [PoolSpec::new(None, None), PoolSpec::fixed(1 << 20), PoolSpec::fixed((1 << 20) + 255)]
            {
                assert!(pool(spec).allocate(&Request::new(1 << 20)).is_ok(), "{policy:?} {spec:?}");
            }
            let small = pool(PoolSpec::fixed(1 << 20));
            let too_much = Request::new((1 << 20) + 1).with_attributes(AllocationAttributes::no_retry());
            assert!(small.allocate(&too_much).is_err(), "{policy:?}");
            assert!(small.stats().peak_bytes_reserved <= 1 << 20, "{policy:?}");
            let tiny = Request::new(1).with_attributes(AllocationAttributes::no_retry());
            assert!(pool(PoolSpec::fixed(255)).allocate(&tiny).is_err(), "{policy:?}");
        }
    }
}
