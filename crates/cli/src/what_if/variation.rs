//! What is tried: other policies, other rules, other pools.

use bfc_core::{Bytes, CutRule, JoinRule, SplitChoice};
use clap::ValueEnum;
use highwater_tracking::Recording;

use super::WhatIfArguments;
use super::lanes::{Grouping, Lanes};
use crate::pools::policies::{self, POLICIES, Policy};
use crate::pools::spec::{Growth, Knob, PoolArguments, PoolSpec, PoolSpecError};

/// The policy of a run that does not say which it had.
const DEFAULT: &str = "bfc";

/// One thing to try.
#[derive(Clone, Debug)]
pub(super) struct Variation {
    /// What is other than recorded, for people.
    pub(super) what: String,
    pub(super) policy: Policy,
    pub(super) spec: PoolSpec,
    /// The size of the pool, if that was said.
    pub(super) limit: Option<Bytes>,
    pub(super) grouping: Grouping,
}

/// What can be said of a pool here.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    split: Option<SplitChoice>,
    cut: Option<CutRule>,
    join: Option<JoinRule>,
    growth: Option<Growth>,
    pool: Option<Bytes>,
}

impl Said {
    fn spec(self) -> Result<PoolSpec, PoolSpecError> {
        PoolSpec::new(&self.arguments())
    }

    fn arguments(self) -> PoolArguments {
        PoolArguments::said(self.pool, self.growth, self.split, self.cut, self.join)
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
    /// What the arguments ask for; without any, what is worth a try. The first is always the run as it was recorded.
    pub(super) fn asked(
        arguments: &WhatIfArguments,
        recording: &Recording,
        lanes: &Lanes,
    ) -> Result<Vec<Self>, PoolSpecError> {
        let recorded = recorded_policy(recording);
        let mut variations = vec![Self::new("as recorded".to_owned(), recorded, Said::default())?];
        let given = [
            (Knob::Split, !arguments.split.is_empty()),
            (Knob::Cut, !arguments.cut.is_empty()),
            (Knob::Join, !arguments.join.is_empty()),
            (Knob::Growth, !arguments.growth.is_empty()),
        ];
        let knobs: Vec<Knob> = given.into_iter().filter_map(|(knob, given)| given.then_some(knob)).collect();
        if knobs.is_empty() && arguments.policy.is_empty() && arguments.pool.is_empty() {
            variations.extend(usual(recorded)?);
            if lanes.can_be_merged(recording) {
                let merged = Self::new("pools merged".to_owned(), recorded, Said::default())?;
                variations.push(Self { grouping: Grouping::Merged, ..merged });
            }
        } else {
            let policies =
                if arguments.policy.is_empty() { vec![recorded] } else { arguments.policy.clone() };
            policies::check(&policies, &knobs)?;
            for policy in policies {
                variations.extend(product(arguments, policy)?);
            }
        }
        Ok(variations)
    }

    fn new(what: String, policy: Policy, said: Said) -> Result<Self, PoolSpecError> {
        let (spec, limit) = (said.spec()?, said.pool);
        Ok(Self { what, policy, spec, limit, grouping: Grouping::Pools })
    }
}

/// Every other policy of bare addresses, and one other rule at a time for the recorded one.
fn usual(recorded: Policy) -> Result<Vec<Variation>, PoolSpecError> {
    let others = POLICIES.iter().filter(|policy| policy.name != recorded.name && policy.is_of_addresses());
    let mut variations: Vec<Variation> = others
        .map(|policy| Variation::new(policy.name.to_owned(), *policy, Said::default()))
        .collect::<Result<_, _>>()?;
    let other_split =
        if recorded.name == "bfc-tensorflow" { SplitChoice::Always } else { SplitChoice::TENSORFLOW };
    for (knob, said) in [
        (Knob::Split, Said { split: Some(other_split), ..Said::default() }),
        (Knob::Growth, Said { growth: Some(Growth::Extend), ..Said::default() }),
    ] {
        if recorded.takes(knob) {
            variations.push(Variation::new(said.words().join(", "), recorded, said)?);
        }
    }
    Ok(variations)
}

/// One policy with every combination of what is said, of that which means anything to it.
fn product(arguments: &WhatIfArguments, policy: Policy) -> Result<Vec<Variation>, PoolSpecError> {
    let mut all = vec![Said::default()];
    all =
        with_each(&all, &arguments.split, policy.takes(Knob::Split), |said, split| said.split = Some(split));
    all = with_each(&all, &arguments.cut, policy.takes(Knob::Cut), |said, cut| said.cut = Some(cut));
    all = with_each(&all, &arguments.join, policy.takes(Knob::Join), |said, join| said.join = Some(join));
    all = with_each(&all, &arguments.growth, policy.takes(Knob::Growth), |said, growth| {
        said.growth = Some(growth)
    });
    all = with_each(&all, &arguments.pool, true, |said, pool| said.pool = Some(pool));
    all.into_iter()
        .map(|said| {
            let words: Vec<String> = std::iter::once(policy.name.to_owned()).chain(said.words()).collect();
            Variation::new(words.join(", "), policy, said)
        })
        .collect()
}

/// What was said so far, each with every choice of one thing more; as it was if none is given or it means nothing.
fn with_each<T: Copy>(
    all: &[Said],
    choices: &[T],
    means_anything: bool,
    say: impl Fn(&mut Said, T),
) -> Vec<Said> {
    if choices.is_empty() || !means_anything {
        return all.to_vec();
    }
    let each = all.iter().flat_map(|&said| choices.iter().map(move |&choice| (said, choice)));
    each.map(|(mut said, choice)| {
        say(&mut said, choice);
        said
    })
    .collect()
}

/// The policy that the run says it had.
fn recorded_policy(recording: &Recording) -> Policy {
    let named = |name: &str| name.parse::<Policy>().ok().filter(Policy::is_of_addresses);
    let said = recording.facts().get("allocator").and_then(named);
    said.or_else(|| named(DEFAULT)).unwrap_or(POLICIES[0])
}
