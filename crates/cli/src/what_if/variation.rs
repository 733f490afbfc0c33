//! The variations to try: policies, rules and pools.

use bfc_core::{AllocatorChoice, Bytes, SplitChoice};
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
}

impl Variation {
    /// The variations that the arguments request, or a default selection. The first is always the run as recorded.
    pub(super) fn requested(
        arguments: &WhatIfArguments,
        recording: &Recording,
        selection: &PoolSelection,
    ) -> Result<Vec<Self>, PoolSpecError> {
        let recorded = recorded_policy(recording);
        let mut variations = vec![Self::new("as recorded".to_owned(), recorded, &PoolArguments::default())?];
        let given = PoolArguments {
            split: arguments.split.first().copied(),
            cut: arguments.cut.first().copied(),
            join: arguments.join.first().copied(),
            growth: arguments.growth.first().copied(),
            ..PoolArguments::default()
        }
        .given();
        if given.is_empty() && arguments.policy.is_empty() && arguments.pool.is_empty() {
            variations.extend(usual(recorded)?);
            if selection.can_be_merged(recording) {
                let merged = Self::new("pools merged".to_owned(), recorded, &PoolArguments::default())?;
                variations.push(Self { grouping: Grouping::Merged, ..merged });
            }
        } else {
            let policies =
                if arguments.policy.is_empty() { vec![recorded] } else { arguments.policy.clone() };
            policies::check(&policies, &given)?;
            for policy in policies {
                variations.extend(combinations(arguments, policy)?);
            }
        }
        Ok(variations)
    }

    fn new(what: String, policy: Policy, changes: &PoolArguments) -> Result<Self, PoolSpecError> {
        let (spec, limit) = (PoolSpec::new(changes)?, changes.pool);
        Ok(Self { what, policy, spec, limit, grouping: Grouping::Pools })
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

/// Every combination of the given options that the policy supports.
fn combinations(arguments: &WhatIfArguments, policy: Policy) -> Result<Vec<Variation>, PoolSpecError> {
    let mut all = vec![PoolArguments::default()];
    with_each(&mut all, policy, &arguments.split, |changes, split| changes.split = Some(split));
    with_each(&mut all, policy, &arguments.cut, |changes, cut| changes.cut = Some(cut));
    with_each(&mut all, policy, &arguments.join, |changes, join| changes.join = Some(join));
    with_each(&mut all, policy, &arguments.growth, |changes, growth| changes.growth = Some(growth));
    with_each(&mut all, policy, &arguments.pool, |changes, pool| changes.pool = Some(pool));
    let variation = |changes: &PoolArguments| {
        let words: Vec<String> = std::iter::once(policy.name.to_owned()).chain(changes.words()).collect();
        Variation::new(words.join(", "), policy, changes)
    };
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
