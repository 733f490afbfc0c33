//! The policies to choose from, and the pools that they make.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bfc_core::{
    AddressOnlyMemory, Allocator, AllocatorChoice, AutoGrowth, AutoGrowthConfig, AutoGrowthOptions, Bfc,
    Buddy, BuddyConfig, BuddyOptions, Bytes, ConfiguredPolicy, GrowthRule, HostMemory, Packed, PackedConfig,
    PackedOptions, Packing, PackingOptions, PolicyAllocator, PoolConfig, PytorchAllocator, PytorchConfig,
    SubAllocator, did_you_mean,
};
use highwater_traces::{NoPacking, Step, Trace, packing_of};

use crate::pools::spec::{PoolSpec, PoolSpecError};

/// All policies here place blocks at multiples of this many bytes.
const GRANULE: u64 = 256;

/// The region size of a growing buddy pool, as upstream on a large machine.
const BUDDY_REGION: Bytes = Bytes::mib(500);

/// Creates an empty pool.
pub(crate) type MakePool = Box<dyn Fn(PoolSpec) -> Arc<dyn Allocator>>;

/// A placement policy: an allocator of bfc-core, for traces.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    /// The name on the command line and in tables.
    pub(crate) name: &'static str,
    choice: AllocatorChoice,
}

/// All policies: the allocators that bfc-core lists.
pub(crate) fn all() -> impl Iterator<Item = Policy> {
    AllocatorChoice::ALL.into_iter().map(Policy::from)
}

/// The options of every policy with regions.
const REGIONS: &[&str] = &["--growth", "--region-merging", "--garbage-collection"];

/// Further options of policies without their own rule for the sizes of regions.
const GROWTH: &[&str] = &["--growth-rule", "--first-region"];

/// Further options of pools with best fit and coalescing.
const BEST_FIT: &[&str] = &["--split", "--cut", "--join"];

/// Creates a pool over addresses without memory.
fn pool<P: ConfiguredPolicy>(spec: PoolSpec, config: PoolConfig<P::Options>) -> Arc<dyn Allocator> {
    Arc::new(PolicyAllocator::<P>::new("replay", addresses(spec), spec.configure(config)))
}

fn addresses(spec: PoolSpec) -> Arc<dyn SubAllocator> {
    Arc::new(AddressOnlyMemory::new().with_coalescing(spec.extends()))
}

/// The limit in whole granules, for policies that request their one region in granules.
fn whole_granules(spec: PoolSpec) -> Bytes {
    Bytes(spec.limit().get() / GRANULE * GRANULE)
}

/// Creates the pool as bfc-core lists it.
fn listed(
    choice: AllocatorChoice,
    spec: PoolSpec,
    limit: Bytes,
    source: Arc<dyn SubAllocator>,
) -> Arc<dyn Allocator> {
    let config = choice.config(limit);
    let rules = spec.cutting(config.options);
    let config = spec.configure(config).with_policy(rules);
    match choice.allocator("replay", source, config, None) {
        Ok(pool) => pool,
        Err(error) => unreachable!("the memory can be read, and nothing counts frees: {error}"),
    }
}

fn buddy(spec: PoolSpec) -> Arc<dyn Allocator> {
    let region = if spec.is_fixed() { whole_granules(spec) } else { BUDDY_REGION };
    // A pool smaller than a chunk refuses every request, whatever its sizes.
    let options = BuddyOptions::new(Bytes(GRANULE), region).unwrap_or_default();
    pool::<Buddy>(spec, BuddyConfig::with_options(spec.limit(), options))
}

fn auto_growth(spec: PoolSpec) -> Arc<dyn Allocator> {
    let options = AutoGrowthOptions::gpu();
    let options = if spec.is_fixed() { options.with_chunk_size(whole_granules(spec)) } else { options };
    pool::<AutoGrowth>(spec, AutoGrowthConfig::with_options(spec.limit(), options))
}

fn pytorch(spec: PoolSpec) -> Arc<dyn Allocator> {
    // The size of the pool is that of the device. The policy requests segments in any case.
    let config = spec.configure(PytorchConfig::pytorch(spec.limit(), spec.alloc_conf()));
    Arc::new(PytorchAllocator::new("replay", addresses(spec), config.with_allow_growth(true)))
}

fn packed(spec: PoolSpec, packing: &Arc<Packing>) -> Arc<dyn Allocator> {
    // The pool grows as bfc does. Doubling would make the second region twice as large as the range of the packing.
    let config =
        PackedConfig::packed(spec.limit(), Arc::clone(packing)).with_growth(GrowthRule::MEASURED_BEST);
    let rules = spec.cutting(config.options.fallback);
    let config = config.with_policy(PackedOptions::new(Arc::clone(packing), rules));
    // The packing needs one contiguous range, so a growing pool begins with it.
    pool::<Packed<Bfc>>(spec, config.with_first_region(Bytes(packing.capacity())))
}

impl From<AllocatorChoice> for Policy {
    fn from(choice: AllocatorChoice) -> Self {
        Self { name: choice.name(), choice }
    }
}

impl Policy {
    /// The description for the help.
    fn about(self) -> String {
        let note = match self.choice {
            AllocatorChoice::Buddy => ", with a granule of 256 bytes",
            AllocatorChoice::Packed => ", from the trace or by --packing",
            AllocatorChoice::Guard | AllocatorChoice::Passthrough => ": at most 1 GiB, or --pool",
            _ => "",
        };
        format!("{}{note}", self.choice.about())
    }

    /// Whether the policy supports an option.
    pub(crate) fn supports(&self, option: &str) -> bool {
        let options: &[&[&str]] = match self.choice {
            AllocatorChoice::Bfc | AllocatorChoice::BfcTensorflow | AllocatorChoice::Guard => {
                &[REGIONS, GROWTH, BEST_FIT, &["--thread-cache"]]
            }
            // A thread cache would hide requests from the packing.
            AllocatorChoice::Packed => &[REGIONS, GROWTH, BEST_FIT, &["--granule"]],
            // Paddle's policies define the region sizes and the splits.
            AllocatorChoice::Buddy | AllocatorChoice::AutoGrowth => &[REGIONS],
            // PyTorch's settings define everything.
            AllocatorChoice::Pytorch => &[&["--alloc-conf"]],
            AllocatorChoice::Passthrough => &[],
            _ => &[REGIONS, GROWTH],
        };
        options.concat().contains(&option)
    }

    /// Whether the pools use addresses without memory, and thus have any size.
    pub(crate) fn is_address_only(&self) -> bool {
        !matches!(self.choice, AllocatorChoice::Guard | AllocatorChoice::Passthrough)
    }

    /// Prepares the policy for a trace. The policy `packed` follows the given packing, or computes one with this granule.
    pub(crate) fn prepare(
        &self,
        trace: &Trace,
        packing: Option<&Arc<Packing>>,
        granule: u64,
    ) -> Result<MakePool, NoPacking> {
        let choice = self.choice;
        Ok(match choice {
            AllocatorChoice::Packed => {
                let options = PackingOptions::default().with_granule(granule);
                let packing = match packing {
                    Some(packing) => Arc::clone(packing),
                    None => Arc::new(packing_of(trace, &Step::Whole, &options, &mut |_| true)?),
                };
                Box::new(move |spec| packed(spec, &packing))
            }
            AllocatorChoice::Buddy => Box::new(buddy),
            AllocatorChoice::AutoGrowth => Box::new(auto_growth),
            AllocatorChoice::Pytorch => Box::new(pytorch),
            // The guard writes canaries and poison, so it needs real memory.
            AllocatorChoice::Guard | AllocatorChoice::Passthrough => {
                Box::new(move |spec| listed(choice, spec, spec.real_limit(), Arc::new(HostMemory::new())))
            }
            _ => Box::new(move |spec| listed(choice, spec, spec.limit(), addresses(spec))),
        })
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
    all().map(|policy| policy.name)
}

/// The list of policies for the help.
pub(crate) fn help() -> String {
    let width = names().map(str::len).max().unwrap_or(0);
    let lines = all().map(|policy| format!("  {:<width$}  {}", policy.name, policy.about()));
    format!("Policies:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = name.parse::<AllocatorChoice>();
        found.map(Self::from).map_err(|_| UnknownPolicy { name: name.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::spec::PoolArguments;
    use bfc_core::{AllocationAttributes, Request};
    use highwater_traces::TraceLimits;

    #[test]
    fn an_unknown_policy_is_refused_with_the_names_of_all() {
        let error = "best-fit".parse::<Policy>().unwrap_err();
        assert_eq!(error, UnknownPolicy { name: "best-fit".to_owned() });
        for policy in all() {
            assert!(error.to_string().contains(policy.name), "{error}");
            assert_eq!(policy.name.parse::<Policy>().unwrap().name, policy.name);
            assert!(help().contains(policy.choice.about()));
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
        for policy in all() {
            let pool = policy.prepare(&trace, None, GRANULE).unwrap();
            // The smallest overhead of a pool: canaries, the first address, or a segment.
            let (aside, least) = match policy.name {
                "guard" => (256, 256),
                "passthrough" => (0, 1),
                // A region for small blocks.
                "pytorch" => (1 << 20, 2 << 20),
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
        let [bfc, buddy, packed, passthrough] =
            ["bfc", "buddy", "packed", "passthrough"].map(|name| name.parse::<Policy>().unwrap());
        let all = [REGIONS, GROWTH, BEST_FIT, &["--thread-cache"]].concat();
        let pytorch = "pytorch".parse::<Policy>().unwrap();
        assert_eq!(check(&[pytorch], &["--alloc-conf"]), Ok(()));
        assert_eq!(check(&[passthrough, buddy, bfc], &all), Ok(()));
        assert_eq!(check(&[passthrough, buddy], REGIONS), Ok(()));
        for (policies, option) in [
            (&[passthrough, buddy][..], "--split"),
            (&[packed], "--thread-cache"),
            (&[passthrough], "--growth"),
            (&[pytorch], "--growth"),
            (&[bfc, buddy], "--alloc-conf"),
        ] {
            let names = policies.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
            let error = PoolSpecError::Unsupported { option, policies: names };
            assert_eq!(check(policies, &[option]), Err(error));
        }
    }
}
