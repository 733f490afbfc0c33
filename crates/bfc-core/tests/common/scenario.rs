//! The pools of the interpreter: every policy, growth rule and source behavior.

use std::sync::Arc;

use bfc_core::{
    AutoGrowthConfig, AutoGrowthOptions, Bfc, BfcConfig, BuddyConfig, BuddyOptions, Bytes, GrowthRule,
    Lifetime, PackedConfig, Packing, PackingOptions, PoolConfig, PytorchConfig, ThreadCache, TimingCounter,
};

use super::interpreter::{Choice, Interpreter, Tally};
use super::op::{Op, Reader, USUAL_BYTES, ops_from_bytes};
use super::source::{Fails, Nature};

/// The limit of each pool.
pub const LIMIT: Bytes = Bytes::kib(128);

/// A policy and its options.
#[derive(Clone, Debug)]
pub enum Chosen {
    Bfc { config: BfcConfig, always_splits: bool, timing: bool },
    Buddy(BuddyConfig),
    AutoGrowth(AutoGrowthConfig),
    FirstFit(PoolConfig<()>),
    Pytorch(PytorchConfig),
    Packed(PackedConfig),
}

/// Evaluates an expression for the policy of a [`Chosen`], as a type, and its configuration.
macro_rules! with_policy {
    ($chosen:expr, |$policy:ident, $config:ident| $body:expr) => {{
        use $crate::common::scenario::Chosen;
        macro_rules! run {
            ($type:ty, $given:expr) => {{
                type $policy = $type;
                let $config = $given;
                $body
            }};
        }
        match $chosen {
            Chosen::Bfc { config, .. } => run!(bfc_core::Bfc, config),
            Chosen::Buddy(config) => run!(bfc_core::Buddy, config),
            Chosen::AutoGrowth(config) => run!(bfc_core::AutoGrowth, config),
            Chosen::FirstFit(config) => run!(bfc_core::FirstFit, config),
            Chosen::Pytorch(config) => run!(bfc_core::Pytorch, config),
            Chosen::Packed(config) => run!(bfc_core::Packed<bfc_core::Bfc>, config),
        }
    }};
}
pub(crate) use with_policy;

/// A pool over a source.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub chosen: Chosen,
    pub nature: Nature,
}

impl Scenario {
    /// Runs the steps on a new pool.
    pub fn run(&self, ops: &[Op]) -> Tally {
        let nature = self.nature;
        let choice = match &self.chosen {
            Chosen::Bfc { config, always_splits, timing } => {
                let counter = timing.then(|| Arc::new(TimingCounter::default()));
                return Interpreter::<Bfc>::new(config.clone(), nature, *always_splits, counter).run(ops);
            }
            Chosen::Buddy(_) | Chosen::Pytorch(_) => Choice::Any,
            Chosen::Packed(_) => Choice::Packed,
            _ => Choice::AnyFit,
        };
        with_policy!(self.chosen.clone(), |P, config| Interpreter::<P>::over(config, nature, choice, None)
            .run(ops))
    }
}

/// Runs the bytes: the first two choose the pool and the source, the others are steps.
pub fn run_bytes(bytes: &[u8]) -> Tally {
    let mut reader = Reader(bytes);
    let (policies, natures) = (policies(), natures());
    let mut choose = |count: usize| reader.byte().map_or(0, |byte| usize::from(byte) % count);
    let (name, chosen) = policies[choose(policies.len())].clone();
    let nature = natures[choose(natures.len())];
    Scenario { name, chosen, nature }.run(&ops_from_bytes(reader.0))
}

/// Every policy, over every source behavior.
pub fn scenarios() -> Vec<Scenario> {
    let all = |(name, chosen): (&'static str, Chosen)| {
        natures().into_iter().map(move |nature| Scenario { name, chosen: chosen.clone(), nature })
    };
    policies().into_iter().flat_map(all).collect()
}

/// The policies, with distinct names. Each name begins with that of the allocator, so that a test finds missing ones.
pub fn policies() -> Vec<(&'static str, Chosen)> {
    let ours = BfcConfig::new(LIMIT).with_first_region(Bytes::kib(16));
    let upstream = BfcConfig::tensorflow(LIMIT);
    let granule = Bytes::kib(4);
    let bfc = |config: BfcConfig, timing| Chosen::Bfc { config, always_splits: true, timing };
    let upstreams = |config: BfcConfig, timing| Chosen::Bfc { config, always_splits: false, timing };
    let rule = |rule| ours.clone().with_growth(rule);
    let share = GrowthRule::Proportional { parts: 4, granule };
    let fixed_pool = BfcConfig::new(LIMIT).with_allow_growth(false);
    let small_steps = upstream.clone().with_first_region(Bytes(4096)).with_fragmentation_fraction(0.05);
    // These caches are full after a few frees, so blocks move in and out.
    let small_caches =
        ThreadCache::new().with_largest_block(Bytes::kib(8)).with_bytes(Bytes::kib(16)).with_blocks(6);
    let first_fit = PoolConfig::with_options(LIMIT, ()).with_first_region(Bytes::kib(16));
    vec![
        ("bfc", bfc(BfcConfig::new(LIMIT), false)),
        ("bfc, one region", bfc(fixed_pool.clone(), false)),
        ("bfc, one region, timing", bfc(fixed_pool.clone(), true)),
        ("bfc, doubling", bfc(rule(GrowthRule::DOUBLING), false)),
        ("bfc, doubling, timing", bfc(rule(GrowthRule::DOUBLING), true)),
        ("bfc, doubling capped", bfc(rule(GrowthRule::Doubling { cap: Bytes::kib(32) }), false)),
        ("bfc, as requested", bfc(rule(GrowthRule::AsRequested { granule }), false)),
        ("bfc, as requested, timing", bfc(rule(GrowthRule::AsRequested { granule }), true)),
        ("bfc, regions of 24 KiB", bfc(rule(GrowthRule::Fixed(Bytes::kib(24))), false)),
        ("bfc, a quarter", bfc(rule(share), false)),
        ("bfc, a quarter, timing", bfc(rule(share), true)),
        ("bfc, a quarter, regions kept apart", bfc(rule(share).with_region_merging(false), false)),
        ("bfc, nothing given back", bfc(rule(share).with_garbage_collection(false), false)),
        ("bfc, cached", bfc(rule(share).with_thread_cache(ThreadCache::new()), false)),
        ("bfc, one region, small caches", bfc(fixed_pool.with_thread_cache(small_caches), false)),
        ("bfc-tensorflow", upstreams(upstream.clone(), false)),
        ("bfc-tensorflow, timing", upstreams(upstream.clone(), true)),
        ("bfc-tensorflow, one region", upstreams(upstream.with_allow_growth(false), false)),
        ("bfc-tensorflow, small steps", upstreams(small_steps.clone(), false)),
        ("bfc-tensorflow, small steps, timing", upstreams(small_steps, true)),
        ("buddy", Chosen::Buddy(BuddyConfig::with_options(LIMIT, buddy(Bytes::kib(32))))),
        ("buddy, many huge", Chosen::Buddy(BuddyConfig::with_options(LIMIT, buddy(Bytes::kib(4))))),
        ("buddy, nearly all huge", Chosen::Buddy(BuddyConfig::with_options(LIMIT, buddy(Bytes(512))))),
        ("auto-growth", auto_growth(AutoGrowthOptions::gpu().with_chunk_size(Bytes::kib(16)))),
        (
            "auto-growth, idle regions freed",
            auto_growth(AutoGrowthOptions::gpu().with_free_idle_chunks(true)),
        ),
        ("auto-growth, as requested", auto_growth(AutoGrowthOptions::gpu().with_free_before_growth(true))),
        ("first-fit", Chosen::FirstFit(first_fit.clone())),
        ("first-fit, one region", Chosen::FirstFit(first_fit.with_allow_growth(false))),
        ("pytorch", pytorch("")),
        ("pytorch, expandable segments", pytorch("expandable_segments:True")),
        (
            "pytorch, other sizes",
            pytorch("roundup_power2_divisions:4,large_segment_size_mb:32,max_split_size_mb:32"),
        ),
        ("pytorch, garbage collection", pytorch("garbage_collection_threshold:0.2")),
        ("packed", Chosen::Packed(packed())),
        ("packed, one region", Chosen::Packed(packed().with_allow_growth(false))),
    ]
}

fn buddy(max_chunk: Bytes) -> BuddyOptions {
    BuddyOptions::new(Bytes(256), max_chunk).unwrap()
}

fn auto_growth(options: AutoGrowthOptions) -> Chosen {
    Chosen::AutoGrowth(AutoGrowthConfig::with_options(LIMIT, options))
}

/// A pool of several regions, as the requests are small.
fn pytorch(settings: &str) -> Chosen {
    Chosen::Pytorch(PytorchConfig::pytorch(Bytes::mib(6), settings.parse().unwrap()))
}

/// A packing of the recurring sizes, so that random steps follow it now and then.
fn packed() -> PackedConfig {
    let lifetime = |nth: u32| {
        let bytes = USUAL_BYTES[nth as usize * 7 / 3 % USUAL_BYTES.len()];
        Lifetime { bytes, start: 2 * nth, end: 2 * nth + 1 + nth * 5 % 17 }
    };
    let lifetimes: Vec<Lifetime> = (0..24).map(lifetime).collect();
    let packing = Packing::solve(&lifetimes, &PackingOptions::default()).unwrap();
    PackedConfig::packed(LIMIT, Arc::new(packing)).with_first_region(Bytes::kib(16))
}

/// Sources, well-behaved and faulty.
pub fn natures() -> Vec<Nature> {
    let plain = Nature::default();
    vec![
        plain,
        Nature { coalescing: true, ..plain },
        Nature { gap: 4096, ..plain },
        Nature { coalescing: true, downward: true, ..plain },
        Nature { fixed_alignment: Some(256), ..plain },
        Nature { capacity: Some(100_000), ..plain },
        Nature { extra: 1024, coalescing: true, ..plain },
        Nature { extra: 1000, ..plain },
        Nature { offset: 256, ..plain },
        Nature { fails: Fails::Every(3), broken: true, ..plain },
        Nature { fails: Fails::Random { seed: 3, one_in: 2 }, ..plain },
        Nature { missing: 256, ..plain },
        Nature { offset: 64, ..plain },
        Nature { fails: Fails::Every(3), coalescing: true, ..plain },
    ]
}
