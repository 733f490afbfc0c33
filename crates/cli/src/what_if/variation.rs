//! The variations to try: policies, rules and pools.

use bfc_core::{AllocatorChoice, Bytes, PytorchOptions, PytorchOptionsError, SplitChoice};
use highwater_traces::setting_variations;
use highwater_tracking::Recording;

use super::WhatIfArguments;
use super::selection::{Grouping, PoolSelection};
use crate::pools::policies::{self, Policy};
use crate::pools::spec::{Growth, PoolArguments, PoolSpec, PoolSpecError};

/// One variation of the recorded run.
#[derive(Clone, Debug)]
pub(super) struct Variation {
    /// The difference from the recorded run.
    pub(super) what: String,
    pub(super) policy: Policy,
    pub(super) spec: PoolSpec,
    /// The size of the pool, if given.
    pub(super) limit: Option<Bytes>,
    pub(super) grouping: Grouping,
    /// The settings, if this varies those of PyTorch's allocator.
    pub(super) alloc_conf: Option<PytorchOptions>,
    /// Whether to find the smallest pool, which takes many replays.
    pub(super) finds_smallest_pool: bool,
}

impl Variation {
    /// The variations that the arguments request, or a default selection. The first is always the run as recorded.
    pub(super) fn requested(
        arguments: &WhatIfArguments,
        recording: &Recording,
        selection: &PoolSelection,
    ) -> Result<Vec<Self>, PoolSpecError> {
        let recorded = recorded_policy(recording);
        let settings = recorded_settings(recording).unwrap_or_default();
        let as_recorded = PoolArguments {
            alloc_conf: settings.filter(|_| recorded.supports("--alloc-conf")),
            ..PoolArguments::default()
        };
        let mut variations = vec![Self::new("as recorded".to_owned(), recorded, &as_recorded)?];
        let given = PoolArguments {
            split: arguments.split.first().copied(),
            cut: arguments.cut.first().copied(),
            join: arguments.join.first().copied(),
            growth: arguments.growth.first().copied(),
            alloc_conf: arguments.alloc_conf.first().copied(),
            ..PoolArguments::default()
        }
        .given();
        if given.is_empty() && arguments.policy.is_empty() && arguments.pool.is_empty() {
            variations.extend(usual(recorded)?);
            variations.extend(usual_settings(recorded, as_recorded.alloc_conf)?);
            if selection.can_be_merged(recording) {
                let merged = Self::new("pools merged".to_owned(), recorded, &as_recorded)?;
                variations.push(Self { grouping: Grouping::Merged, alloc_conf: None, ..merged });
            }
        } else {
            let policies = if !arguments.policy.is_empty() {
                arguments.policy.clone()
            } else if arguments.alloc_conf.is_empty() {
                vec![recorded]
            } else {
                vec![AllocatorChoice::Pytorch.into()]
            };
            policies::check(&policies, &given)?;
            for policy in policies {
                variations.extend(combinations(arguments, policy)?);
            }
        }
        Ok(variations)
    }

    fn new(what: String, policy: Policy, changes: &PoolArguments) -> Result<Self, PoolSpecError> {
        let (spec, limit) = (PoolSpec::new(changes)?, changes.pool);
        let alloc_conf = policy.supports("--alloc-conf").then(|| spec.alloc_conf());
        let grouping = Grouping::Pools;
        Ok(Self { what, policy, spec, limit, grouping, alloc_conf, finds_smallest_pool: limit.is_none() })
    }
}

/// Every other policy without real memory, and one other rule at a time for the recorded policy.
fn usual(recorded: Policy) -> Result<Vec<Variation>, PoolSpecError> {
    let others = policies::all().filter(|policy| policy.name != recorded.name && policy.is_address_only());
    let mut variations: Vec<Variation> = others
        .map(|policy| Variation::new(policy.name.to_owned(), policy, &PoolArguments::default()))
        .collect::<Result<_, _>>()?;
    let other_split =
        if recorded.name == "bfc-tensorflow" { SplitChoice::Always } else { SplitChoice::TENSORFLOW };
    for changes in [
        PoolArguments { split: Some(other_split), ..PoolArguments::default() },
        PoolArguments { growth: Some(Growth::Extend), ..PoolArguments::default() },
    ] {
        if changes.given().iter().all(|option| recorded.supports(option)) {
            variations.push(Variation::new(changes.words().join(", "), recorded, &changes)?);
        }
    }
    Ok(variations)
}

/// The usual settings of PyTorch's allocator. Omits the recorded ones, and the defaults if the allocator is tried anyway.
fn usual_settings(
    recorded: Policy,
    settings: Option<PytorchOptions>,
) -> Result<Vec<Variation>, PoolSpecError> {
    let policy = Policy::from(AllocatorChoice::Pytorch);
    // Either the recorded policy or one of the others has the defaults.
    let known = if recorded.name == policy.name { settings.unwrap_or_default() } else { Default::default() };
    let tried = setting_variations(Some(&known.to_string()), false);
    let others = tried.into_iter().filter_map(|text| text.parse().ok());
    let variation = |settings: PytorchOptions| {
        let changes = PoolArguments { alloc_conf: Some(settings), ..PoolArguments::default() };
        let variation = Variation::new(name(policy, &changes), policy, &changes)?;
        Ok(Variation { finds_smallest_pool: false, ..variation })
    };
    others.filter(|settings| *settings != known).map(variation).collect()
}

/// The name of a combination.
fn name(policy: Policy, changes: &PoolArguments) -> String {
    let words: Vec<String> = std::iter::once(policy.name.to_owned()).chain(changes.words()).collect();
    words.join(", ")
}

/// Every combination of the given options that the policy supports.
fn combinations(arguments: &WhatIfArguments, policy: Policy) -> Result<Vec<Variation>, PoolSpecError> {
    let mut all = vec![PoolArguments::default()];
    with_each(&mut all, policy, &arguments.split, |changes, split| changes.split = Some(split));
    with_each(&mut all, policy, &arguments.cut, |changes, cut| changes.cut = Some(cut));
    with_each(&mut all, policy, &arguments.join, |changes, join| changes.join = Some(join));
    with_each(&mut all, policy, &arguments.growth, |changes, growth| changes.growth = Some(growth));
    with_each(&mut all, policy, &arguments.alloc_conf, |changes, settings| {
        changes.alloc_conf = Some(settings)
    });
    with_each(&mut all, policy, &arguments.pool, |changes, pool| changes.pool = Some(pool));
    let variation = |changes: &PoolArguments| Variation::new(name(policy, changes), policy, changes);
    all.iter().map(variation).collect()
}

/// Replaces each element with its combinations with each choice. Changes nothing if there is no choice or the policy
/// does not support the option.
fn with_each<T: Copy>(
    all: &mut Vec<PoolArguments>,
    policy: Policy,
    choices: &[T],
    set: impl Fn(&mut PoolArguments, T),
) {
    let with = |changes: &PoolArguments, choice: T| {
        let mut changes = changes.clone();
        set(&mut changes, choice);
        changes
    };
    let combined: Vec<PoolArguments> =
        all.iter().flat_map(|changes| choices.iter().map(|&choice| with(changes, choice))).collect();
    let is_supported = |changes: &PoolArguments| changes.given().iter().all(|option| policy.supports(option));
    if combined.first().is_some_and(is_supported) {
        *all = combined;
    }
}

/// The policy of the recorded run.
fn recorded_policy(recording: &Recording) -> Policy {
    let named = |name: &str| name.parse::<Policy>().ok().filter(Policy::is_address_only);
    let stated = recording.facts().get("allocator").and_then(named);
    stated.unwrap_or_else(|| AllocatorChoice::default().into())
}

/// The recorded settings of PyTorch's allocator, if the run states them.
pub(super) fn recorded_settings(
    recording: &Recording,
) -> Result<Option<PytorchOptions>, PytorchOptionsError> {
    recording.facts().get("alloc_conf").map(str::parse).transpose()
}
