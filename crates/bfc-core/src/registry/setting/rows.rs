//! The rows: settings of pools, with the fields and methods of [`PoolOptions`] that they set, and of devices.

use std::time::Duration;

use super::{Setting, SettingKind, SettingScope};
use crate::base::amount::Amount;
use crate::base::units::{Bytes, switch};
use crate::policy::bfc::{CutRule, JoinRule};
use crate::policy::pytorch::PytorchOptions;
use crate::pool::GrowthRule;
use crate::registry::choice::AllocatorChoice;
use crate::registry::rules::{CacheChoice, SplitChoice};

/// The longest wait for frees: an hour.
const MAX_RETRY_MS: u64 = 3_600_000;

/// The names of all allocators.
const ALLOCATORS: &[&str] = &{
    let mut names = [""; AllocatorChoice::ALL.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = AllocatorChoice::ALL[index].name();
        index += 1;
    }
    names
};

/// A setting of pools, with its parser and its text form.
pub(crate) struct PoolSettingRow {
    pub(crate) setting: &'static Setting,
    /// Sets the option from text; `None` if the text is invalid.
    pub(crate) set: fn(PoolOptions, &str) -> Option<PoolOptions>,
    /// Returns the option as text; `None` if it is unset.
    pub(crate) text: fn(&PoolOptions) -> Option<String>,
}

/// Defines [`PoolOptions`], the rows of its settings, and the setters `with_…`.
///
/// A setting is a field, its type, its setter, its parser, its text form and its row.
macro_rules! pool_settings {
    ($(
        $(#[$doc:meta])*
        $field:ident: $type:ty $(, $with:ident)?;
        $set:expr, $text:expr;
        $ROW:ident = $setting:expr;
    )*) => {
        /// User options of a device's pool. Unset options leave the pool's defaults.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct PoolOptions {
            $($(#[$doc])* pub $field: Option<$type>,)*
            /// Whether memory that the chosen allocator [does not support](AllocatorChoice::serves) uses
            /// [`AllocatorChoice::Bfc`]. Otherwise that is an error.
            pub allocator_where_possible: bool,
            /// Whether the pool grows on demand, or takes the whole limit at once. Default: it grows, unless the limit is
            /// set.
            pub allow_growth: Option<bool>,
        }

        impl PoolOptions {
            $($(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $with(mut self, value: impl Into<$type>) -> Self {
                    self.$field = Some(value.into());
                    self
                }
            )?)*

            /// Returns these options, with `defaults` for unset ones.
            #[must_use]
            pub fn or(self, defaults: Self) -> Self {
                let chooser = if self.allocator.is_some() { self } else { defaults };
                Self {
                    $($field: self.$field.or(defaults.$field),)*
                    allocator_where_possible: chooser.allocator_where_possible,
                    allow_growth: self.allow_growth.or(defaults.allow_growth),
                }
            }
        }

        $(
            #[doc = concat!("The setting `", stringify!($field), "` of [`PoolOptions`].")]
            pub const $ROW: Setting = $setting;
        )*

        /// All settings of pools, in display order.
        pub(crate) const POOL: &[PoolSettingRow] = &[$(PoolSettingRow { setting: &$ROW, set: $set, text: $text }),*];

        /// The settings of this crate: those of pools, of the choice of a device, and of tests.
        pub const SETTINGS: &[Setting] = &[$($ROW,)* DEVICE, TRACES, SOAK_STEPS, SOAK_SEED];
    };
}

pool_settings! {
    /// The allocator.
    allocator: AllocatorChoice;
    |options, text| Some(options.with_allocator(text.parse().ok()?)),
    |options| options.allocator.map(|choice| choice.to_string());
    ALLOCATOR = Setting {
        name: "allocator",
        variable: Some("HIGHWATER_ALLOCATOR"),
        option: Some("--allocator"),
        scope: SettingScope::Pool,
        kind: SettingKind::OneOf(ALLOCATORS),
        default: "bfc",
        help: "The allocator, which places the blocks",
        example: "guard",
    };

    /// The settings of PyTorch's allocator. Only for [`AllocatorChoice::Pytorch`].
    alloc_conf: PytorchOptions, with_alloc_conf;
    |options, text| Some(options.with_alloc_conf(text.parse::<PytorchOptions>().ok()?)),
    |options| options.alloc_conf.map(|settings| settings.to_string());
    ALLOC_CONF = Setting {
        name: "alloc_conf",
        variable: Some("HIGHWATER_ALLOC_CONF"),
        option: Some("--alloc-conf"),
        scope: SettingScope::Pool,
        kind: SettingKind::Settings {
            expected: "settings in the syntax of PYTORCH_CUDA_ALLOC_CONF, as in expandable_segments:True",
            check: |text| text.parse::<PytorchOptions>().map(|_| ()).map_err(|error| error.to_string()),
        },
        default: "PyTorch's defaults",
        help: "The settings of the allocator pytorch",
        example: "expandable_segments:True",
    };

    /// The most bytes that the pool may reserve, or a share of the device's memory. The pool rounds it down to whole
    /// regions of its source, such as the 2 MiB of a GPU. A limit below one region is an error.
    ///
    /// A limit is fixed: the first request takes all of it as one region, so that no region border splits it. The
    /// system provides pages of host memory when they are first used; other memory is reserved at once. The pool grows
    /// up to the limit if [`allow_growth`](Self::allow_growth), [`first_region`](Self::first_region) or
    /// [`growth`](Self::growth) ask for it.
    limit: Amount, with_limit;
    |options, text| Some(options.with_limit(text.parse::<Amount>().ok()?)),
    |options| options.limit.map(|limit| limit.to_string());
    LIMIT = Setting {
        name: "limit",
        variable: Some("HIGHWATER_POOL_LIMIT"),
        option: Some("--pool"),
        scope: SettingScope::Pool,
        kind: SettingKind::Amount,
        default: "on the CPU, memory available to the process less one sixteenth (at most 1 GiB); on a GPU, free memory \
                  less TensorFlow's reserve",
        help: "The most bytes that the pool reserves. It takes them as one region, unless another setting asks for growth",
        example: "75%",
    };

    /// The size rule for later regions of a growing pool.
    growth: GrowthRule, with_growth;
    set_growth,
    growth_text;
    GROWTH = Setting {
        name: "growth",
        variable: Some("HIGHWATER_GROWTH"),
        option: None,
        scope: SettingScope::Pool,
        kind: SettingKind::Rule {
            expected: "on, off, doubling, doubling:CAP, as-requested, fixed:SIZE, or proportional:PARTS",
            names: &["on", "off", "doubling", "as-requested", "fixed", "proportional"],
            check: |text| set_growth(PoolOptions::default(), text).is_some(),
        },
        default: "off if a limit is set, else proportional:32",
        help: "Whether and by which sizes of regions the pool grows; off takes the limit at once",
        example: "doubling:1GiB",
    };

    /// The size of a growing pool's first region.
    first_region: Bytes, with_first_region;
    |options, text| Some(options.with_first_region(text.parse::<Bytes>().ok()?)),
    |options| options.first_region.map(|bytes| bytes.to_string());
    FIRST_REGION = Setting {
        name: "first_region",
        variable: Some("HIGHWATER_FIRST_REGION"),
        option: None,
        scope: SettingScope::Pool,
        kind: SettingKind::Size,
        default: "2MiB",
        help: "The size of a growing pool's first region",
        example: "64MiB",
    };

    /// Whether the pool returns idle regions before it takes a new one.
    region_merging: bool, with_region_merging;
    |options, text| Some(options.with_region_merging(switch(text)?)),
    |options| options.region_merging.map(switch_text);
    REGION_MERGING = Setting {
        name: "region_merging",
        variable: Some("HIGHWATER_REGION_MERGING"),
        option: None,
        scope: SettingScope::Pool,
        kind: SettingKind::Switch,
        default: "on",
        help: "Whether a growing pool returns idle regions before it takes a new one",
        example: "off",
    };

    /// Whether the pool returns idle regions to make room for a larger one.
    garbage_collection: bool, with_garbage_collection;
    |options, text| Some(options.with_garbage_collection(switch(text)?)),
    |options| options.garbage_collection.map(switch_text);
    GARBAGE_COLLECTION = Setting {
        name: "garbage_collection",
        variable: Some("HIGHWATER_GARBAGE_COLLECTION"),
        option: None,
        scope: SettingScope::Pool,
        kind: SettingKind::Switch,
        default: "on",
        help: "Whether a pool returns idle regions to make room for a larger one",
        example: "off",
    };

    /// When the rest of a chunk becomes a separate chunk.
    split: SplitChoice, with_split;
    |options, text| Some(options.with_split(text.parse::<SplitChoice>().ok()?)),
    |options| options.split.map(|split| split.to_string());
    SPLIT = Setting {
        name: "split",
        variable: Some("HIGHWATER_SPLIT"),
        option: None,
        scope: SettingScope::Pool,
        kind: SettingKind::Rule {
            expected: SplitChoice::EXPECTED,
            names: SplitChoice::NAMES,
            check: |text| text.parse::<SplitChoice>().is_ok(),
        },
        default: "always",
        help: "When the rest of a chunk becomes a separate chunk",
        example: "twice:5%",
    };

    /// The end of a free chunk from which a block is cut.
    cut: CutRule, with_cut;
    |options, text| Some(options.with_cut(text.parse::<CutRule>().ok()?)),
    |options| options.cut.map(|cut| cut.to_string());
    CUT = Setting {
        name: "cut",
        variable: Some("HIGHWATER_CUT"),
        option: None,
        scope: SettingScope::Pool,
        kind: SettingKind::Rule {
            expected: CutRule::EXPECTED,
            names: CutRule::NAMES,
            check: |text| text.parse::<CutRule>().is_ok(),
        },
        default: "large-high; a growing pool uses low",
        help: "The end of free memory from which blocks are cut",
        example: "low",
    };

    /// When a freed block merges with adjacent free memory.
    join: JoinRule, with_join;
    |options, text| Some(options.with_join(text.parse::<JoinRule>().ok()?)),
    |options| options.join.map(|join| join.to_string());
    JOIN = Setting {
        name: "join",
        variable: Some("HIGHWATER_JOIN"),
        option: None,
        scope: SettingScope::Pool,
        kind: SettingKind::Rule {
            expected: JoinRule::EXPECTED,
            names: JoinRule::NAMES,
            check: |text| text.parse::<JoinRule>().is_ok(),
        },
        default: "deferred; at-once on a GPU",
        help: "When freed blocks merge with their neighbors",
        example: "at-once",
    };

    /// How long a request waits for frees before it fails; 0 disables waiting.
    retry_timeout: Duration, with_retry_timeout;
    |options, text| Some(options.with_retry_timeout(Duration::from_millis(RETRY_MS.number(text).ok()?))),
    |options| options.retry_timeout.map(|timeout| format!("{} ms", timeout.as_millis()));
    RETRY_MS = Setting {
        name: "retry_ms",
        variable: Some("HIGHWATER_RETRY_MS"),
        option: None,
        scope: SettingScope::Pool,
        kind: SettingKind::Number { least: 0, most: MAX_RETRY_MS, unit: "milliseconds" },
        default: "10000",
        help: "How long a request waits for other threads to free blocks; 0 disables waiting",
        example: "0",
    };

    /// Whether threads cache small blocks.
    thread_cache: CacheChoice, with_thread_cache;
    |options, text| Some(options.with_thread_cache(text.parse::<CacheChoice>().ok()?)),
    |options| options.thread_cache.map(|cache| cache.to_string());
    THREAD_CACHE = Setting {
        name: "thread_cache",
        variable: Some("HIGHWATER_THREAD_CACHE"),
        option: None,
        scope: SettingScope::Pool,
        kind: SettingKind::Rule {
            expected: CacheChoice::EXPECTED,
            names: CacheChoice::NAMES,
            check: |text| text.parse::<CacheChoice>().is_ok(),
        },
        default: "off",
        help: "Caches of small blocks per thread, with the largest cached block and the capacity of each cache",
        example: "64KiB:4MiB",
    };
}

/// The device of a program that names none.
pub const DEVICE: Setting = Setting {
    name: "device",
    variable: Some("HIGHWATER_DEVICE"),
    option: Some("--device"),
    scope: SettingScope::Device,
    kind: SettingKind::Device,
    default: "auto: cuda:0 if it passes a self-check, else cpu",
    help: "The device of a program that names none",
    example: "cpu",
};

/// A folder with further traces for the benchmark of replays.
pub const TRACES: Setting = Setting {
    name: "traces",
    variable: Some("HIGHWATER_TRACES"),
    option: None,
    scope: SettingScope::Test,
    kind: SettingKind::Path,
    default: "unset",
    help: "A folder of further traces for cargo bench -p highwater-benches --bench replay",
    example: "/data/traces",
};

/// The number of random operations in the soak test of pools.
pub const SOAK_STEPS: Setting = Setting {
    name: "soak_steps",
    variable: Some("HIGHWATER_SOAK_STEPS"),
    option: None,
    scope: SettingScope::Test,
    kind: SettingKind::Number { least: 1, most: u64::MAX, unit: "" },
    default: "1000000",
    help: "The number of random operations of bfc-core's soak test of pools",
    example: "5000",
};

/// The first seed of the soak test of pools.
pub const SOAK_SEED: Setting = Setting {
    name: "soak_seed",
    variable: Some("HIGHWATER_SOAK_SEED"),
    option: None,
    scope: SettingScope::Test,
    kind: SettingKind::Number { least: 0, most: u64::MAX, unit: "" },
    default: "0",
    help: "The first seed of bfc-core's soak test of pools",
    example: "7",
};

/// Parses whether and how the pool grows.
fn set_growth(options: PoolOptions, text: &str) -> Option<PoolOptions> {
    if let Some(allow) = switch(text) {
        return Some(options.with_allow_growth(allow));
    }
    text.parse::<GrowthRule>().ok().map(|rule| options.with_allow_growth(true).with_growth(rule))
}

fn growth_text(options: &PoolOptions) -> Option<String> {
    match (options.allow_growth, options.growth) {
        (Some(false), _) => Some(switch_text(false)),
        (_, Some(rule)) => Some(rule.to_string()),
        (allow, None) => allow.map(switch_text),
    }
}

fn switch_text(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}
