//! The variations to try: policies, rules and pools.

use bfc_core::{Bytes, CutRule, JoinRule, SplitChoice};
use clap::ValueEnum;
use highwater_tracking::Recording;

use super::WhatIfArguments;
use super::selection::{Grouping, PoolSelection};
use crate::pools::policies::{self, POLICIES, Policy};
use crate::pools::spec::{Growth, Knob, PoolArguments, PoolSpec, PoolSpecError};

/// The default policy of a run.
const DEFAULT: &str = "bfc";

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

/// The pool options that differ from the recorded run.
#[derive(Clone, Copy, Debug, Default)]
struct PoolChanges {
    split: Option<SplitChoice>,
    cut: Option<CutRule>,
    join: Option<JoinRule>,
    growth: Option<Growth>,
    pool: Option<Bytes>,
}

impl PoolChanges {
    fn spec(self) -> Result<PoolSpec, PoolSpecError> {
        PoolSpec::new(&self.arguments())
    }

    fn arguments(self) -> PoolArguments {
        PoolArguments::with(self.pool, self.growth, self.split, self.cut, self.join)
    }

    fn words(self) -> Vec<String> {
        let growth = self.growth.and_then(|growth| Some(growth.to_possible_value()?.get_name().to_owned()));
        let words = [
            self.split.map(|split| format!("split {split}")),
            self.cut.map(|cut| match cut {
                CutRule::Low => "cut low".to_owned(),
                _ => "cut large-high".to_owned(),
            }),
            self.join.map(|join| match join {
                JoinRule::AtOnce => "join at-once".to_owned(),
                _ => "join deferred".to_owned(),
            }),
            growth.map(|growth| format!("growth {growth}")),
            self.pool.map(|pool| format!("pool {pool}")),
        ];
        words.into_iter().flatten().collect()
    }
}

impl Variation {
    /// The variations that the arguments request, or a default selection. The first is always the run as recorded.
    pub(super) fn requested(
        arguments: &WhatIfArguments,
        recording: &Recording,
        selection: &PoolSelection,
    ) -> Result<Vec<Self>, PoolSpecError> {
        let recorded = recorded_policy(recording);
        let mut variations = vec![Self::new("as recorded".to_owned(), recorded, PoolChanges::default())?];
        let given = [
            (Knob::Split, !arguments.split.is_empty()),
            (Knob::Cut, !arguments.cut.is_empty()),
            (Knob::Join, !arguments.join.is_empty()),
            (Knob::Growth, !arguments.growth.is_empty()),
        ];
        let knobs: Vec<Knob> = given.into_iter().filter_map(|(knob, given)| given.then_some(knob)).collect();
        if knobs.is_empty() && arguments.policy.is_empty() && arguments.pool.is_empty() {
            variations.extend(usual(recorded)?);
            if selection.can_be_merged(recording) {
                let merged = Self::new("pools merged".to_owned(), recorded, PoolChanges::default())?;
                variations.push(Self { grouping: Grouping::Merged, ..merged });
            }
        } else {
            let policies =
                if arguments.policy.is_empty() { vec![recorded] } else { arguments.policy.clone() };
            policies::check(&policies, &knobs)?;
            for policy in policies {
                variations.extend(combinations(arguments, policy)?);
            }
        }
        Ok(variations)
    }

    fn new(what: String, policy: Policy, changes: PoolChanges) -> Result<Self, PoolSpecError> {
        let (spec, limit) = (changes.spec()?, changes.pool);
        Ok(Self { what, policy, spec, limit, grouping: Grouping::Pools })
    }
}

/// Every other policy without real memory, and one other rule at a time for the recorded policy.
fn usual(recorded: Policy) -> Result<Vec<Variation>, PoolSpecError> {
    let others = POLICIES.iter().filter(|policy| policy.name != recorded.name && policy.is_address_only());
    let mut variations: Vec<Variation> = others
        .map(|policy| Variation::new(policy.name.to_owned(), *policy, PoolChanges::default()))
        .collect::<Result<_, _>>()?;
    let other_split =
        if recorded.name == "bfc-tensorflow" { SplitChoice::Always } else { SplitChoice::TENSORFLOW };
    for (knob, changes) in [
        (Knob::Split, PoolChanges { split: Some(other_split), ..PoolChanges::default() }),
        (Knob::Growth, PoolChanges { growth: Some(Growth::Extend), ..PoolChanges::default() }),
    ] {
        if recorded.supports(knob) {
            variations.push(Variation::new(changes.words().join(", "), recorded, changes)?);
        }
    }
    Ok(variations)
}

/// Every combination of the given options that the policy supports.
fn combinations(arguments: &WhatIfArguments, policy: Policy) -> Result<Vec<Variation>, PoolSpecError> {
    let mut all = vec![PoolChanges::default()];
    all = with_each(&all, &arguments.split, policy.supports(Knob::Split), |changes, split| {
        changes.split = Some(split)
    });
    all = with_each(&all, &arguments.cut, policy.supports(Knob::Cut), |changes, cut| changes.cut = Some(cut));
    all = with_each(&all, &arguments.join, policy.supports(Knob::Join), |changes, join| {
        changes.join = Some(join)
    });
    all = with_each(&all, &arguments.growth, policy.supports(Knob::Growth), |changes, growth| {
        changes.growth = Some(growth)
    });
    all = with_each(&all, &arguments.pool, true, |changes, pool| changes.pool = Some(pool));
    all.into_iter()
        .map(|changes| {
            let words: Vec<String> = std::iter::once(policy.name.to_owned()).chain(changes.words()).collect();
            Variation::new(words.join(", "), policy, changes)
        })
        .collect()
}

/// Combines each element with each choice. Returns the elements unchanged if there is no choice or the policy does not
/// support the option.
fn with_each<T: Copy>(
    all: &[PoolChanges],
    choices: &[T],
    supported: bool,
    set: impl Fn(&mut PoolChanges, T),
) -> Vec<PoolChanges> {
    if choices.is_empty() || !supported {
        return all.to_vec();
    }
    let each = all.iter().flat_map(|&changes| choices.iter().map(move |&choice| (changes, choice)));
    each.map(|(mut changes, choice)| {
        set(&mut changes, choice);
        changes
    })
    .collect()
}

/// The policy of the recorded run.
fn recorded_policy(recording: &Recording) -> Policy {
    let named = |name: &str| name.parse::<Policy>().ok().filter(Policy::is_address_only);
    let stated = recording.facts().get("allocator").and_then(named);
    stated.or_else(|| named(DEFAULT)).unwrap_or(POLICIES[0])
}
