//! The settings of PyTorch's allocator, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.

use std::fmt;
use std::str::FromStr;

use super::rounding::Divisions;
use super::{OWN_REGION, REGION};
use crate::base::closest::did_you_mean;
use crate::base::printable::printable;
use crate::base::units::{Bytes, MIB};

/// The default of `large_segment_size_mb`, in bytes.
const LARGE_SEGMENT: u64 = 20 * MIB;

/// The most characters of a name or value in an error.
const MAX_QUOTED: usize = 64;

/// The settings that change placement.
const WITH_EFFECT: [&str; 7] = [
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "expandable_segments",
    "large_segment_size_mb",
    "per_process_memory_fraction",
];

/// The settings that do not change placement, with the check of their values.
const WITHOUT_EFFECT: [(&str, Value); 15] = [
    ("backend", Value::Backend),
    ("release_lock_on_cudamalloc", Value::Switch),
    ("release_lock_on_hipmalloc", Value::Switch),
    ("throw_on_cudamalloc_oom", Value::Switch),
    ("graph_capture_record_stream_reuse", Value::Switch),
    ("expandable_segments_reserve", Value::Any),
    ("expandable_segments_reserve_by_class", Value::Any),
    ("pinned_use_cuda_host_register", Value::Switch),
    ("pinned_use_hip_host_register", Value::Switch),
    ("pinned_use_background_threads", Value::Switch),
    ("pinned_free_catch_all", Value::Switch),
    ("pinned_num_register_threads", Value::Number),
    ("pinned_reserve_segment_size_mb", Value::Number),
    ("pinned_max_round_threshold_mb", Value::Number),
    ("pinned_max_cached_size_mb", Value::Number),
];

/// The values of a setting without an effect.
#[derive(Clone, Copy, Debug)]
enum Value {
    Switch,
    Number,
    Backend,
    Any,
}

/// A share from 0 to 1, as the bits of a float, so that options are equal if their bits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share(u64);

impl Share {
    const fn new(share: f64) -> Self {
        Self(share.to_bits())
    }

    const fn get(self) -> f64 {
        f64::from_bits(self.0)
    }

    fn of(self, bytes: u64) -> u64 {
        (bytes as f64 * self.get()) as u64
    }
}

/// The settings of PyTorch's allocator for a [`Pytorch`](super::Pytorch) policy.
///
/// As text: PyTorch's own syntax, as in the variables `PYTORCH_CUDA_ALLOC_CONF` and `PYTORCH_ALLOC_CONF`.
///
/// ```
/// use bfc_core::PytorchOptions;
/// let options: PytorchOptions = "max_split_size_mb:128, pinned_num_register_threads:8".parse()?;
/// assert_eq!(options.to_string(), "max_split_size_mb:128");
/// assert_eq!(options.without_effect().collect::<Vec<_>>(), ["pinned_num_register_threads"]);
/// let error = "expandable_segment:True".parse::<PytorchOptions>().unwrap_err();
/// assert!(error.to_string().contains("did you mean expandable_segments?"));
/// # Ok::<(), bfc_core::PytorchOptionsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PytorchOptions {
    max_split: Option<u64>,
    /// `None`: the size of large segments.
    max_non_split_rounding: Option<u64>,
    large_segment: u64,
    divisions: Divisions,
    collection_threshold: Share,
    memory_fraction: Share,
    expandable_segments: bool,
    /// The given settings without an effect: bit `n` stands for row `n` of [`WITHOUT_EFFECT`].
    without_effect: u16,
    /// The limit of the pool.
    limit: Option<u64>,
}

/// An error in PyTorch's settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PytorchOptionsError {
    /// A name that is no setting.
    #[error(
        "{name:?} is not a setting of PyTorch's allocator{}",
        did_you_mean(name, PytorchOptions::names())
    )]
    UnknownName {
        /// The name, or its start.
        name: String,
    },
    /// A value that the setting does not support.
    #[error("{setting}: {value:?} is not valid: expected {expected}", expected = printable(expected))]
    InvalidValue {
        /// The setting.
        setting: &'static str,
        /// The value, or its start.
        value: String,
        /// The supported values.
        expected: String,
    },
    /// The backend without a policy.
    #[error(
        "backend:cudaMallocAsync: the driver places the blocks, so there is nothing to reproduce: expected backend:native"
    )]
    DriverBackend,
}

impl Default for PytorchOptions {
    /// PyTorch's defaults.
    fn default() -> Self {
        Self {
            max_split: None,
            max_non_split_rounding: None,
            large_segment: LARGE_SEGMENT,
            divisions: Divisions::default(),
            collection_threshold: Share::new(0.0),
            memory_fraction: Share::new(1.0),
            expandable_segments: false,
            without_effect: 0,
            limit: None,
        }
    }
}

impl PytorchOptions {
    /// Returns the names of all settings.
    pub fn names() -> impl Iterator<Item = &'static str> {
        WITH_EFFECT.into_iter().chain(WITHOUT_EFFECT.into_iter().map(|(name, _)| name))
    }

    /// Returns the names of the given settings that do not change placement.
    pub fn without_effect(&self) -> impl Iterator<Item = &'static str> + use<> {
        let given = self.without_effect;
        let names = WITHOUT_EFFECT.into_iter().enumerate();
        names.filter(move |(row, _)| given >> row & 1 == 1).map(|(_, (name, _))| name)
    }

    /// Sets whether memory is mapped into segments that grow, as `expandable_segments` does.
    #[must_use]
    pub const fn with_expandable_segments(mut self, expandable: bool) -> Self {
        self.expandable_segments = expandable;
        self
    }

    /// Sets the limit of the pool, of which `garbage_collection_threshold` is a share. Without one, the policy collects
    /// nothing.
    #[must_use]
    pub const fn with_limit(mut self, limit: Bytes) -> Self {
        self.limit = Some(limit.0);
        self
    }

    /// Returns `per_process_memory_fraction` of a device's memory.
    #[must_use]
    pub fn memory_of(&self, total: Bytes) -> Bytes {
        if self.memory_fraction == Share::new(1.0) { total } else { Bytes(self.memory_fraction.of(total.0)) }
    }

    /// Whether memory is mapped into segments that grow.
    #[must_use]
    pub const fn has_expandable_segments(&self) -> bool {
        self.expandable_segments
    }

    pub(super) const fn divisions(&self) -> &Divisions {
        &self.divisions
    }

    /// Returns the size from which on blocks are oversize: they are not split, and serve oversize requests alone.
    pub(super) const fn max_split(&self) -> u64 {
        match self.max_split {
            Some(bytes) => bytes,
            None => u64::MAX,
        }
    }

    /// Whether a request may take a free chunk that fits: neither or both are oversize, and the rest of an oversize one is
    /// small.
    pub(super) fn may_take(&self, rounded: u64, chunk: u64) -> bool {
        let oversize = self.max_split();
        let rounding = self.max_non_split_rounding.unwrap_or(self.large_segment);
        if rounded < oversize { chunk < oversize } else { chunk < rounded.saturating_add(rounding) }
    }

    /// Returns the size of regions and handles for small or for large requests below 10 MiB.
    pub(super) const fn shared_region(&self, is_small: bool) -> u64 {
        if is_small { REGION } else { self.large_segment }
    }

    /// Whether idle regions leave before the pool grows.
    #[inline]
    pub(super) fn collects_garbage(&self) -> bool {
        self.limit.is_some() && self.collection_threshold.get() > 0.0
    }

    /// Returns the reserved bytes above which idle regions leave before the pool grows.
    pub(super) fn collected_from(&self) -> u64 {
        self.limit.map_or(u64::MAX, |limit| self.collection_threshold.of(limit))
    }

    /// Sets one setting.
    fn set(&mut self, name: &str, value: &str) -> Result<(), PytorchOptionsError> {
        let without_effect = WITHOUT_EFFECT.iter().position(|(known, _)| *known == name);
        if let Some(row) = without_effect {
            let (name, kind) = WITHOUT_EFFECT[row];
            kind.check(name, value)?;
            self.without_effect |= 1 << row;
            return Ok(());
        }
        let known = WITH_EFFECT.into_iter().find(|known| *known == name);
        let name = known.ok_or_else(|| PytorchOptionsError::UnknownName { name: quoted(name) })?;
        match name {
            "max_split_size_mb" => self.max_split = Some(mebibytes(name, value)?),
            "max_non_split_rounding_mb" => self.max_non_split_rounding = Some(mebibytes(name, value)?),
            "large_segment_size_mb" => self.large_segment = mebibytes(name, value)?,
            "expandable_segments" => self.expandable_segments = switch(name, value)?,
            "roundup_power2_divisions" => {
                let divisions = Divisions::parse(value);
                self.divisions = divisions.ok_or_else(|| invalid(name, value, Divisions::EXPECTED))?;
            }
            "garbage_collection_threshold" => {
                let expected = "a number above 0 and below 1";
                self.collection_threshold = share(name, value, expected, |share| 0.0 < share && share < 1.0)?;
            }
            _ => {
                let expected = "a number from 0 to 1";
                self.memory_fraction = share(name, value, expected, |share| (0.0..=1.0).contains(&share))?;
            }
        }
        Ok(())
    }

    /// Checks the sizes, whose lower bounds depend on each other.
    fn check(&self) -> Result<(), PytorchOptionsError> {
        let whole = |bytes: u64| (bytes / MIB).to_string();
        let check = |setting, bytes: u64, valid: bool, least: u64| {
            let expected = || format!("a whole number of MiB of at least {}", whole(least));
            if valid { Ok(()) } else { Err(invalid(setting, &whole(bytes), &expected())) }
        };
        let (large, split, rounding) = (self.large_segment, self.max_split, self.max_non_split_rounding);
        check("large_segment_size_mb", large, large > OWN_REGION, OWN_REGION + MIB)?;
        let [split, rounding] = [split, rounding].map(|bytes| bytes.unwrap_or(large));
        check("max_split_size_mb", split, split >= large, large)?;
        check("max_non_split_rounding_mb", rounding, rounding >= large, large)
    }
}

impl Value {
    fn check(self, name: &'static str, value: &str) -> Result<(), PytorchOptionsError> {
        match (self, value) {
            (Self::Switch, _) => switch(name, value).map(|_| ()),
            (Self::Number, _) => number(name, value).map(|_| ()),
            (Self::Backend, "native") => Ok(()),
            (Self::Backend, "cudaMallocAsync" | "hipMallocAsync") => Err(PytorchOptionsError::DriverBackend),
            (Self::Backend, _) => Err(invalid(name, value, "native")),
            (Self::Any, "") => Err(invalid(name, value, "a value")),
            (Self::Any, _) => Ok(()),
        }
    }
}

fn quoted(text: &str) -> String {
    text.chars().take(MAX_QUOTED).collect()
}

fn invalid(setting: &'static str, value: &str, expected: &str) -> PytorchOptionsError {
    PytorchOptionsError::InvalidValue { setting, value: quoted(value), expected: expected.to_owned() }
}

fn switch(name: &'static str, value: &str) -> Result<bool, PytorchOptionsError> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err(invalid(name, value, "True or False")),
    }
}

fn number(name: &'static str, value: &str) -> Result<u64, PytorchOptionsError> {
    value.parse().map_err(|_| invalid(name, value, "a whole number"))
}

/// Parses a size in MiB. Sizes beyond the address space are as good as the largest one within.
fn mebibytes(name: &'static str, value: &str) -> Result<u64, PytorchOptionsError> {
    Ok(number(name, value)?.min(u64::MAX / MIB) * MIB)
}

fn share(
    name: &'static str,
    value: &str,
    expected: &str,
    is_valid: impl Fn(f64) -> bool,
) -> Result<Share, PytorchOptionsError> {
    let share = value.parse().ok().filter(|&share| is_valid(share));
    share.map(Share::new).ok_or_else(|| invalid(name, value, expected))
}

impl FromStr for PytorchOptions {
    type Err = PytorchOptionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text: String = text.chars().filter(|character| !character.is_ascii_whitespace()).collect();
        let mut options = Self::default();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            // Commas within brackets separate the entries of a list.
            let mut depth = 0_u32;
            let ends = |character: char| {
                depth = match character {
                    '[' => depth + 1,
                    ']' => depth.saturating_sub(1),
                    _ => depth,
                };
                character == ',' && depth == 0
            };
            let (setting, behind) = match rest.find(ends) {
                Some(comma) => (&rest[..comma], &rest[comma + 1..]),
                None => (rest, ""),
            };
            let (name, value) = setting.split_once(':').unwrap_or((setting, ""));
            options.set(name, value)?;
            rest = behind;
        }
        options.check()?;
        Ok(options)
    }
}

impl fmt::Display for PytorchOptions {
    /// The settings with an effect that differ from the defaults, in PyTorch's syntax.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let size = |bytes: u64| (bytes / MIB).to_string();
        let large = Some(self.large_segment).filter(|&bytes| bytes != default.large_segment);
        let given = |share: Share, default: Share| (share != default).then(|| share.get().to_string());
        let settings = [
            ("expandable_segments", self.expandable_segments.then(|| "True".to_owned())),
            ("large_segment_size_mb", large.map(size)),
            ("max_split_size_mb", self.max_split.map(size)),
            ("max_non_split_rounding_mb", self.max_non_split_rounding.map(size)),
            (
                "roundup_power2_divisions",
                (self.divisions != default.divisions).then(|| self.divisions.to_string()),
            ),
            ("garbage_collection_threshold", given(self.collection_threshold, default.collection_threshold)),
            ("per_process_memory_fraction", given(self.memory_fraction, default.memory_fraction)),
        ];
        let text: Vec<String> = settings
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| format!("{name}:{value}")))
            .collect();
        // An empty text would not say that these are settings.
        f.write_str(if text.is_empty() { "expandable_segments:False" } else { "" })?;
        f.write_str(&text.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> PytorchOptions {
        text.parse().unwrap()
    }

    fn error(text: &str) -> String {
        text.parse::<PytorchOptions>().unwrap_err().to_string()
    }

    #[test]
    fn settings_are_read_as_pytorch_reads_them_and_written_back() {
        for text in [
            "expandable_segments:False",
            "expandable_segments:True",
            "max_split_size_mb:64",
            "large_segment_size_mb:64,max_split_size_mb:128,max_non_split_rounding_mb:64",
            "roundup_power2_divisions:[256:1,512:2,>:4]",
            "garbage_collection_threshold:0.8,per_process_memory_fraction:0.25",
        ] {
            assert_eq!(options(text).to_string(), text);
        }
        assert_eq!(options(""), PytorchOptions::default());
        assert_eq!(
            options("max_split_size_mb:64,max_split_size_mb : 128 ,\n"),
            options("max_split_size_mb:128")
        );
        assert_eq!(options("max_split_size_mb:18446744073709551615").max_split(), u64::MAX / MIB * MIB);
        let listed = options("roundup_power2_divisions:[64:4,>:8],expandable_segments:True");
        assert!(
            listed.has_expandable_segments()
                && listed.divisions() == options("roundup_power2_divisions:[64:4,>:8]").divisions()
        );
    }

    #[test]
    fn settings_without_an_effect_on_placement_are_named() {
        let given = options(
            "backend:native,expandable_segments_reserve_by_class:[a:0.5,b:2G],pinned_free_catch_all:True",
        );
        let names: Vec<_> = given.without_effect().collect();
        assert_eq!(names, ["backend", "expandable_segments_reserve_by_class", "pinned_free_catch_all"]);
        assert_eq!(given.to_string(), "expandable_segments:False");
    }

    #[test]
    fn an_error_names_the_setting_and_its_values() {
        assert_eq!(
            error("expandable_segmets:True"),
            "\"expandable_segmets\" is not a setting of PyTorch's allocator (did you mean expandable_segments?)"
        );
        assert_eq!(
            error("max_split_size_mb:19"),
            "max_split_size_mb: \"19\" is not valid: expected a whole number of MiB of at least 20"
        );
        assert_eq!(
            error("max_split_size_mb:32,large_segment_size_mb:64"),
            "max_split_size_mb: \"32\" is not valid: expected a whole number of MiB of at least 64"
        );
        for (text, expected) in [
            ("large_segment_size_mb:10", "at least 11"),
            ("max_non_split_rounding_mb:5", "at least 20"),
            ("max_split_size_mb", "a whole number"),
            ("max_split_size_mb:-1", "a whole number"),
            ("expandable_segments:true", "True or False"),
            ("garbage_collection_threshold:1", "below 1"),
            ("garbage_collection_threshold:nan", "below 1"),
            ("per_process_memory_fraction:1.5", "from 0 to 1"),
            ("roundup_power2_divisions:3", "a power of two"),
            ("roundup_power2_divisions:[64:4", "a power of two"),
            ("backend:cudaMallocAsync", "backend:native"),
            ("backend:other", "native"),
            ("pinned_num_register_threads:x", "a whole number"),
            ("expandable_segments_reserve", "a value"),
            (",max_split_size_mb:64", "is not a setting"),
        ] {
            assert!(error(text).contains(expected), "{text}: {}", error(text));
        }
        assert!(error(&"x".repeat(1000)).len() < 200);
    }
}
