//! The policies to choose from, and the pools that they make.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocator, AutoGrowthConfig, AutoGrowthOptions, Bfc, BfcAllocator, BfcConfig,
    BuddyConfig, BuddyOptions, Bytes, ConfiguredPolicy, GrowthRule, GuardAllocator, GuardConfig, HostMemory,
    PassthroughAllocator, Plan, PlanOptions, PlannedConfig, PlannedOptions, PolicyAllocator, PoolConfig,
    did_you_mean,
};
use highwater_tracking::{NoPlan, Step, Trace, plan_of};

use crate::pools::spec::{PoolSpec, PoolSpecError};

/// All policies here place blocks at multiples of this many bytes.
const GRANULE: u64 = 256;

/// The region size of a growing buddy pool, as upstream on a large machine.
const BUDDY_REGION: Bytes = Bytes::mib(500);

/// Creates an empty pool.
pub(crate) type MakePool = Box<dyn Fn(PoolSpec) -> Box<dyn Allocator>>;

/// Prepares a policy for a trace: with a plan to follow, or the granule of a plan to compute.
type Prepare = fn(&Trace, Option<&Arc<Plan>>, u64) -> Result<MakePool, NoPlan>;

/// A placement policy.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    /// The name on the command line and in tables.
    pub(crate) name: &'static str,
    about: &'static str,
    /// The options that it supports.
    supports: &'static [&'static [&'static str]],
    prepare: Prepare,
}

/// The options of every policy with regions.
const REGIONS: &[&str] = &["--growth", "--region-merging", "--garbage-collection"];

/// Further options of pools with best fit and coalescing. Paddle's policies define the region sizes and the splits.
const BEST_FIT: &[&str] = &["--growth-rule", "--first-region", "--split", "--cut", "--join"];

/// All policies. A new policy is an entry here.
pub(crate) const POLICIES: &[Policy] = &[
    Policy {
        name: "bfc",
        about: "best fit with coalescing, always splits",
        supports: &[REGIONS, BEST_FIT, &["--thread-cache"]],
        prepare: |_, _, _| Ok(Box::new(|spec| bfc(spec, BfcConfig::new(spec.limit())))),
    },
    Policy {
        name: "bfc-tensorflow",
        about: "best fit with coalescing, with TensorFlow's rules",
        supports: &[REGIONS, BEST_FIT, &["--thread-cache"]],
        prepare: |_, _, _| Ok(Box::new(|spec| bfc(spec, BfcConfig::tensorflow(spec.limit())))),
    },
    Policy {
        name: "buddy",
        about: "Paddle's buddy allocator, with a granule of 256 bytes",
        supports: &[REGIONS],
        prepare: |_, _, _| Ok(Box::new(buddy)),
    },
    Policy {
        name: "auto-growth",
        about: "Paddle's auto-growth best fit, each region as large as its first request",
        supports: &[REGIONS],
        prepare: |_, _, _| Ok(Box::new(auto_growth)),
    },
    Policy {
        name: "planned",
        about: "offsets planned ahead from the trace, or those of --plan",
        supports: &[REGIONS, BEST_FIT, &["--granule"]], // A thread cache would hide requests from the plan.
        prepare: |trace, plan, granule| {
            let options = PlanOptions::default().with_granule(granule);
            let plan = match plan {
                Some(plan) => Arc::clone(plan),
                None => Arc::new(plan_of(trace, &Step::Whole, &options, &mut |_| true)?),
            };
            Ok(Box::new(move |spec| planned(spec, &plan)))
        },
    },
    Policy {
        name: "guard",
        about: "bfc with canaries around every block, in real memory: at most 1 GiB, or --pool",
        supports: &[REGIONS, BEST_FIT, &["--thread-cache"]],
        prepare: |_, _, _| Ok(Box::new(guard)),
    },
    Policy {
        name: "passthrough",
        about: "no pool: each block from the system, in real memory as for guard",
        supports: &[],
        prepare: |_, _, _| Ok(Box::new(passthrough)),
    },
];

/// Creates a pool over addresses without memory.
fn pool<P: ConfiguredPolicy>(spec: PoolSpec, config: PoolConfig<P::Options>) -> Box<dyn Allocator>
where
    PolicyAllocator<P>: Allocator,
{
    let source = AddressOnlyMemory::new().with_coalescing(spec.extends());
    Box::new(PolicyAllocator::<P>::new("replay", Arc::new(source), spec.configure(config)))
}

/// The limit in whole granules, for policies that request their one region in granules.
fn whole_granules(spec: PoolSpec) -> Bytes {
    Bytes(spec.limit().get() / GRANULE * GRANULE)
}

fn bfc(spec: PoolSpec, config: BfcConfig) -> Box<dyn Allocator> {
    let rules = spec.cutting(config.options);
    pool::<Bfc>(spec, config.with_policy(rules))
}

fn buddy(spec: PoolSpec) -> Box<dyn Allocator> {
    let region = if spec.is_fixed() { whole_granules(spec) } else { BUDDY_REGION };
    // A pool smaller than a chunk refuses every request, whatever its sizes.
    let options = BuddyOptions::new(Bytes(GRANULE), region).unwrap_or_default();
    pool::<bfc_core::Buddy>(spec, BuddyConfig::with_options(spec.limit(), options))
}

fn auto_growth(spec: PoolSpec) -> Box<dyn Allocator> {
    let options = AutoGrowthOptions::gpu();
    let options = if spec.is_fixed() { options.with_chunk_size(whole_granules(spec)) } else { options };
    pool::<bfc_core::AutoGrowth>(spec, AutoGrowthConfig::with_options(spec.limit(), options))
}

fn planned(spec: PoolSpec, plan: &Arc<Plan>) -> Box<dyn Allocator> {
    // The pool grows as bfc does. Doubling would make the second region twice as large as the range of the plan.
    let config =
        PlannedConfig::planned(spec.limit(), Arc::clone(plan)).with_growth(GrowthRule::MEASURED_BEST);
    let rules = spec.cutting(config.options.fallback);
    let config = config.with_policy(PlannedOptions::new(Arc::clone(plan), rules));
    // The plan needs one contiguous range, so a growing pool begins with it.
    pool::<bfc_core::Planned<Bfc>>(spec, config.with_first_region(Bytes(plan.capacity())))
}

/// The guard writes canaries and poison, so it needs real memory.
fn guard(spec: PoolSpec) -> Box<dyn Allocator> {
    let config = BfcConfig::new(spec.real_limit());
    let rules = spec.cutting(config.options);
    let config = spec.configure(config).with_policy(rules);
    let pool = BfcAllocator::new("replay", Arc::new(HostMemory::new()), config);
    match GuardAllocator::new(Arc::new(pool), GuardConfig::default()) {
        Ok(guard) => Box::new(guard),
        Err(_) => unreachable!("the host can read its own memory"),
    }
}

fn passthrough(spec: PoolSpec) -> Box<dyn Allocator> {
    Box::new(PassthroughAllocator::new("replay", Arc::new(HostMemory::new())).with_limit(spec.real_limit()))
}

impl Policy {
    /// Whether the policy supports an option.
    pub(crate) fn supports(&self, option: &str) -> bool {
        self.supports.concat().contains(&option)
    }

    /// Whether the pools use addresses without memory, and thus have any size.
    pub(crate) fn is_address_only(&self) -> bool {
        !matches!(self.name, "guard" | "passthrough")
    }

    /// Prepares the policy for a trace. The policy `planned` follows the given plan, or computes one with this granule.
    pub(crate) fn prepare(
        &self,
        trace: &Trace,
        plan: Option<&Arc<Plan>>,
        granule: u64,
    ) -> Result<MakePool, NoPlan> {
        (self.prepare)(trace, plan, granule)
    }
}

/// Refuses options that none of the policies supports. Policies ignore options that only others support.
pub(crate) fn check(policies: &[Policy], options: &[&'static str]) -> Result<(), PoolSpecError> {
    let unsupported = |option: &&&str| !policies.iter().any(|policy| policy.supports(option));
    options.iter().find(unsupported).map_or(Ok(()), |&option| {
        let policies = policies.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
        Err(PoolSpecError::Unsupported { option, policies })
    })
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// There is no policy with this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {name:?}{}; the policies are {}", did_you_mean(name, names()), names().collect::<Vec<_>>().join(", "))]
pub(crate) struct UnknownPolicy {
    name: String,
}

fn names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|policy| policy.name)
}

/// The list of policies for the help.
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
    use crate::pools::spec::PoolArguments;
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
        let error = "bcf".parse::<Policy>().unwrap_err().to_string();
        assert!(
            error.starts_with("unknown policy \"bcf\" (did you mean bfc?); the policies are bfc, "),
            "{error}"
        );
    }

    fn anything() -> PoolSpec {
        PoolSpec::new(&PoolArguments::default()).unwrap()
    }

    #[test]
    fn every_policy_serves_what_fits_within_its_limit() {
        let trace = Trace::parse("a 0 1048576 x\n".as_bytes(), &TraceLimits::default()).unwrap();
        for policy in POLICIES {
            let pool = policy.prepare(&trace, None, GRANULE).unwrap();
            // The smallest overhead of a pool: canaries, or the first address.
            let (aside, least) = match policy.name {
                "guard" => (256, 256),
                "passthrough" => (0, 1),
                _ => (0, 256),
            };
            let fixed = |bytes| pool(anything().fixed(bytes));
            for pool in [pool(anything()), fixed((1 << 20) + aside), fixed((1 << 20) + aside + 255)] {
                let block = pool.allocate(&Request::new(1 << 20)).unwrap();
                // SAFETY: the block was handed out by this pool, and its memory was never used.
                unsafe { pool.deallocate(block) }.unwrap();
            }
            let small = fixed(1 << 20);
            let too_much = Request::new((1 << 20) + 1).with_attributes(AllocationAttributes::no_retry());
            assert!(small.allocate(&too_much).is_err(), "{policy:?}");
            assert!(small.stats().peak_bytes_reserved <= 1 << 20, "{policy:?}");
            let tiny = Request::new(1).with_attributes(AllocationAttributes::no_retry());
            assert!(fixed(least - 1).allocate(&tiny).is_err(), "{policy:?}");
        }
    }

    #[test]
    fn pools_of_real_memory_refuse_huge_requests() {
        for name in ["guard", "passthrough"] {
            let trace = Trace::parse("a 0 1 x\n".as_bytes(), &TraceLimits::default()).unwrap();
            let pool = name.parse::<Policy>().unwrap().prepare(&trace, None, GRANULE).unwrap();
            let huge = Request::new(1 << 45).with_attributes(AllocationAttributes::no_retry());
            for spec in [anything(), anything().fixed(1 << 50)] {
                assert!(pool(spec).allocate(&huge).unwrap_err().out_of_memory().is_some(), "{name}");
            }
        }
    }

    #[test]
    fn options_that_no_policy_supports_are_refused() {
        let [bfc, buddy, planned, passthrough] =
            ["bfc", "buddy", "planned", "passthrough"].map(|name| name.parse::<Policy>().unwrap());
        let all = [REGIONS, BEST_FIT, &["--thread-cache"]].concat();
        assert_eq!(check(&[passthrough, buddy, bfc], &all), Ok(()));
        assert_eq!(check(&[passthrough, buddy], REGIONS), Ok(()));
        for (policies, option) in [
            (&[passthrough, buddy][..], "--split"),
            (&[planned], "--thread-cache"),
            (&[passthrough], "--growth"),
        ] {
            let names = policies.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
            let error = PoolSpecError::Unsupported { option, policies: names };
            assert_eq!(check(policies, &[option]), Err(error));
        }
    }
}
