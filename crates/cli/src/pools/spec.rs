//! The pool to replay through, as described on the command line.

use std::collections::BTreeSet;
use std::io::{self, Write};

use bfc_core::setting::{
    ALLOC_CONF, CUT, FIRST_REGION, GARBAGE_COLLECTION, JOIN, REGION_MERGING, SPLIT, Setting, THREAD_CACHE,
};
use bfc_core::{
    BfcOptions, Bytes, CacheChoice, CutRule, GrowthRule, JoinRule, PoolConfig, PoolOptions, PytorchOptions,
    SplitChoice, printable,
};
use clap::{Args, ValueEnum};

use crate::error::CommandError;

/// The columns of a help text beside the names of options.
const HELP_COLUMNS: usize = 80;

/// The help of an option that sets a setting: what it does, and its values.
pub(crate) fn help(setting: &Setting) -> String {
    let mut text = String::new();
    let mut column = 0;
    for word in setting.help_text().split(' ') {
        let is_full = column + word.len() > HELP_COLUMNS;
        let separator = if column == 0 {
            ""
        } else if is_full {
            "\n"
        } else {
            " "
        };
        column = if is_full { word.len() } else { column + 1 + word.len() };
        text += separator;
        text += word;
    }
    text
}

/// Says on standard error which of PyTorch's settings do not change where blocks are placed.
pub(crate) fn remark_without_effect<'a>(
    settings: impl IntoIterator<Item = &'a PytorchOptions>,
) -> io::Result<()> {
    let names: BTreeSet<&str> = settings.into_iter().flat_map(PytorchOptions::without_effect).collect();
    for name in names {
        writeln!(io::stderr(), "highwater: --alloc-conf: {name} does not change where blocks are placed")?;
    }
    Ok(())
}

/// How a pool grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Growth {
    /// One region of the pool's full size.
    Fixed,
    /// Separate regions, added on demand.
    Regions,
    /// Adjacent regions that are used as one.
    Extend,
}

/// The options of `highwater replay` that describe the pool.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Pool")]
pub(crate) struct PoolArguments {
    /// The limit of the pool, such as 512MiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) pool: Option<Bytes>,

    /// Growth: fixed, regions or extend [default: fixed with --pool, else regions]
    #[arg(long, value_name = "HOW", hide_possible_values = true)]
    pub(crate) growth: Option<Growth>,

    /// Later regions: doubling[:CAP], as-requested, fixed:SIZE or proportional:PARTS
    #[arg(long, value_name = "RULE")]
    pub(crate) growth_rule: Option<GrowthRule>,

    #[arg(long, value_name = "SIZE", help = help(&FIRST_REGION))]
    pub(crate) first_region: Option<Bytes>,

    #[arg(long, value_name = "SWITCH", help = help(&REGION_MERGING), value_parser = |text: &str| REGION_MERGING.switch(text))]
    pub(crate) region_merging: Option<bool>,

    #[arg(long, value_name = "SWITCH", help = help(&GARBAGE_COLLECTION), value_parser = |text: &str| GARBAGE_COLLECTION.switch(text))]
    pub(crate) garbage_collection: Option<bool>,

    #[arg(long, value_name = "RULE", help = help(&SPLIT))]
    pub(crate) split: Option<SplitChoice>,

    #[arg(long, value_name = "RULE", help = help(&CUT))]
    pub(crate) cut: Option<CutRule>,

    #[arg(long, value_name = "RULE", help = help(&JOIN))]
    pub(crate) join: Option<JoinRule>,

    #[arg(long, value_name = "SIZES", num_args = 0..=1, default_missing_value = "on", require_equals = true, help = help(&THREAD_CACHE))]
    pub(crate) thread_cache: Option<CacheChoice>,

    #[arg(long, value_name = "SETTINGS", help = help(&ALLOC_CONF))]
    pub(crate) alloc_conf: Option<PytorchOptions>,
}

/// Settings of PyTorch's allocator as PyTorch writes them; empty for the defaults.
pub(crate) fn settings_text(settings: PytorchOptions) -> String {
    let text = settings.to_string();
    if text == PytorchOptions::default().to_string() { String::new() } else { text }
}

/// The name of settings of PyTorch's allocator: as PyTorch writes them, or `defaults`.
fn settings_name(settings: PytorchOptions) -> String {
    let text = settings_text(settings);
    if text.is_empty() { "defaults".to_owned() } else { text }
}

/// An invalid description of a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PoolSpecError {
    #[error("{option} is not supported by {policies}", policies = printable(policies))]
    Unsupported { option: &'static str, policies: String },
    #[error("{option} has no effect on a pool of one fixed region: remove --growth fixed")]
    NoGrowth { option: &'static str },
    #[error("--split {split}: a percentage needs the size of the pool: add --pool")]
    ShareOfNothing { split: SplitChoice },
}

impl From<PoolSpecError> for CommandError {
    fn from(error: PoolSpecError) -> Self {
        Self::Usage(error.to_string())
    }
}

/// The limit of an unlimited pool: more than any machine has, without overflow in sums.
const WITHOUT_LIMIT: Bytes = Bytes(1 << 56);

/// The default limit of pools with real memory: a file may request any size.
pub(crate) const REAL_MEMORY: Bytes = Bytes::gib(1);

/// The pool to replay through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolSpec {
    limit: Option<Bytes>,
    growth: Growth,
    options: PoolOptions,
    /// The limit for real memory.
    real: Bytes,
}

impl PoolSpec {
    /// The pool that the arguments describe.
    pub(crate) fn new(arguments: &PoolArguments) -> Result<Self, PoolSpecError> {
        let options = arguments.options();
        let growing = arguments
            .given()
            .into_iter()
            .find(|option| matches!(*option, "--growth-rule" | "--first-region"));
        let growth = match (arguments.growth, growing) {
            (Some(Growth::Fixed), Some(option)) => return Err(PoolSpecError::NoGrowth { option }),
            (Some(growth), _) => growth,
            (None, None) if arguments.pool.is_some() => Growth::Fixed,
            (None, _) => Growth::Regions,
        };
        if let Some(split @ SplitChoice::Twice(bfc_core::Amount::Share(_))) = options.split
            && arguments.pool.is_none()
        {
            return Err(PoolSpecError::ShareOfNothing { split });
        }
        let real = arguments.pool.map_or(REAL_MEMORY, |limit| limit.max(REAL_MEMORY));
        Ok(Self { limit: arguments.pool, growth, options, real })
    }

    /// The same pool with exactly `bytes` bytes in one region.
    pub(crate) const fn fixed(self, bytes: u64) -> Self {
        Self { limit: Some(Bytes(bytes)), growth: Growth::Fixed, ..self }
    }

    pub(crate) fn limit(self) -> Bytes {
        self.limit.unwrap_or(WITHOUT_LIMIT)
    }

    /// The limit if the pool uses real memory.
    pub(crate) fn real_limit(self) -> Bytes {
        self.limit.unwrap_or(REAL_MEMORY).min(self.real)
    }

    pub(crate) fn is_fixed(self) -> bool {
        self.growth == Growth::Fixed
    }

    /// Whether adjacent regions are used as one.
    pub(crate) fn extends(self) -> bool {
        self.growth == Growth::Extend
    }

    /// Applies the options to a configuration.
    pub(crate) fn configure<O>(self, config: PoolConfig<O>) -> PoolConfig<O> {
        self.options.configure(config).with_allow_growth(!self.is_fixed())
    }

    /// The settings of PyTorch's allocator.
    pub(crate) fn alloc_conf(self) -> PytorchOptions {
        self.options.alloc_conf.unwrap_or_default()
    }

    /// Applies the options to the rules for splitting and joining chunks.
    pub(crate) fn cutting(self, rules: BfcOptions) -> BfcOptions {
        self.options.cutting(rules, self.limit())
    }
}

impl PoolArguments {
    fn options(&self) -> PoolOptions {
        let mut options = PoolOptions::default();
        options.growth = self.growth_rule;
        options.first_region = self.first_region;
        options.region_merging = self.region_merging;
        options.garbage_collection = self.garbage_collection;
        options.split = self.split;
        options.cut = self.cut;
        options.join = self.join;
        options.thread_cache = self.thread_cache;
        options.alloc_conf = self.alloc_conf;
        options
    }

    /// The options that were given, except the size.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let given = [
            ("--growth", self.growth.is_some()),
            ("--growth-rule", self.growth_rule.is_some()),
            ("--first-region", self.first_region.is_some()),
            ("--region-merging", self.region_merging.is_some()),
            ("--garbage-collection", self.garbage_collection.is_some()),
            ("--split", self.split.is_some()),
            ("--cut", self.cut.is_some()),
            ("--join", self.join.is_some()),
            ("--thread-cache", self.thread_cache.is_some()),
            ("--alloc-conf", self.alloc_conf.is_some()),
        ];
        given.into_iter().filter_map(|(option, given)| given.then_some(option)).collect()
    }

    /// Describes the options that `what-if` changes.
    pub(crate) fn words(&self) -> Vec<String> {
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
            self.alloc_conf.map(settings_name),
            self.pool.map(|pool| format!("pool {pool}")),
        ];
        words.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(bytes: u64) -> PoolArguments {
        PoolArguments { pool: Some(Bytes(bytes)), ..PoolArguments::default() }
    }

    #[test]
    fn a_pool_with_a_size_is_fixed_unless_growth_is_given() {
        let growth = |arguments: PoolArguments| PoolSpec::new(&arguments).unwrap().growth;
        assert_eq!(growth(pool(1)), Growth::Fixed);
        assert_eq!(growth(PoolArguments::default()), Growth::Regions);
        assert_eq!(growth(PoolArguments { growth: Some(Growth::Extend), ..pool(1) }), Growth::Extend);
        assert_eq!(growth(PoolArguments { first_region: Some(Bytes(1)), ..pool(1) }), Growth::Regions);
    }

    #[test]
    fn rules_that_mean_nothing_are_refused() {
        let rule = PoolArguments { growth_rule: Some(GrowthRule::DOUBLING), ..pool(1) };
        let fixed = PoolArguments { growth: Some(Growth::Fixed), ..rule };
        let error = PoolSpecError::NoGrowth { option: "--growth-rule" };
        assert_eq!(PoolSpec::new(&fixed), Err(error));

        let split: SplitChoice = "twice:5%".parse().unwrap();
        let share = |pool| PoolSpec::new(&PoolArguments { split: Some(split), ..pool });
        assert_eq!(share(PoolArguments::default()), Err(PoolSpecError::ShareOfNothing { split }));
        let rules = share(pool(1000)).unwrap().cutting(BfcOptions::new());
        assert_eq!(rules.split, split.rule(Bytes(1000)));
    }

    #[test]
    fn only_the_pool_size_raises_the_limit_of_real_memory() {
        let real = |arguments: &PoolArguments| PoolSpec::new(arguments).unwrap().real_limit();
        let large = REAL_MEMORY.get() * 2;
        assert_eq!(real(&PoolArguments::default()), REAL_MEMORY);
        assert_eq!((real(&pool(1000)), real(&pool(large))), (Bytes(1000), Bytes(large)));
        let small = PoolSpec::new(&pool(1000)).unwrap();
        assert_eq!(small.fixed(large).real_limit(), REAL_MEMORY);
        assert_eq!(small.fixed(large).limit(), Bytes(large));
    }
}
