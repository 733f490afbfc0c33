//! The settings of PyTorch's allocator to try on a recorded run.
//!
//! The report of a snapshot and `what-if` share this list. Each entry is a text in the syntax of
//! `PYTORCH_CUDA_ALLOC_CONF`; an empty text means the defaults.

/// Settings that change where blocks are placed or when memory is returned.
const EFFECTIVE: [&str; 5] = [
    "expandable_segments",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
];

/// Single settings to try.
const SINGLE: [&str; 8] = [
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
];

/// The setting that has an effect only on pools with a limit.
const WITH_LIMIT: &str = "garbage_collection_threshold:0.8";

/// Returns the settings to try on a run, without duplicates. The first are the recorded ones, or the defaults. The
/// defaults, the recorded settings without each of them, and common single settings follow.
///
/// `has_limit` states whether the pools have a limit, because `garbage_collection_threshold` needs one.
///
/// ```
/// use highwater_traces::setting_variations;
/// let all = setting_variations(Some("max_split_size_mb:128,expandable_segments:True"), false);
/// assert_eq!(all[..3], ["max_split_size_mb:128,expandable_segments:True", "", "expandable_segments:True"]);
/// assert!(all.contains(&"roundup_power2_divisions:8".to_owned()));
/// ```
#[must_use]
pub fn setting_variations(recorded: Option<&str>, has_limit: bool) -> Vec<String> {
    let recorded = pairs(recorded.unwrap_or_default());
    let mut all = vec![recorded.join(",")];
    let mut add = |settings: String| {
        if !all.contains(&settings) {
            all.push(settings);
        }
    };
    add(String::new());
    let (effective, others): (Vec<&str>, Vec<&str>) =
        recorded.iter().copied().partition(|pair| EFFECTIVE.contains(&name(pair)));
    for omitted in effective.iter().filter(|_| effective.len() > 1) {
        add(recorded.iter().copied().filter(|pair| pair != omitted).collect::<Vec<_>>().join(","));
    }
    let has_own = !effective.is_empty() && !effective.iter().any(|pair| name(pair) == EFFECTIVE[0]);
    if has_own {
        // Both together may help where each alone does not.
        add([&effective[..], &others, &[SINGLE[0]]].concat().join(","));
    }
    SINGLE.iter().for_each(|&single| add(single.to_owned()));
    if has_limit {
        add(WITH_LIMIT.to_owned());
    }
    all
}

/// The name of a setting in a text such as `name:value`.
fn name(pair: &str) -> &str {
    pair.split(':').next().unwrap_or_default().trim()
}

/// Splits settings at commas outside of brackets: the values of a list belong to one setting.
fn pairs(settings: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let parts = settings.split(|letter: char| {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        letter == ',' && depth <= 0
    });
    parts.map(str::trim).filter(|pair| !pair.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_stay_whole_and_the_recorded_settings_come_first() {
        let recorded = "roundup_power2_divisions:[256:1,512:2,>:4], max_split_size_mb:64 ,";
        assert_eq!(pairs(recorded), ["roundup_power2_divisions:[256:1,512:2,>:4]", "max_split_size_mb:64"]);
        let all = setting_variations(Some(recorded), true);
        assert_eq!(all[0], "roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:64");
        assert_eq!(all[1..4], ["", "max_split_size_mb:64", "roundup_power2_divisions:[256:1,512:2,>:4]"]);
        assert!(all[4].ends_with(",max_split_size_mb:64,expandable_segments:True"));
        assert_eq!(all.last().map(String::as_str), Some(WITH_LIMIT));
        let mut unique = all.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), all.len());
    }

    #[test]
    fn without_recorded_settings_the_defaults_are_first() {
        let all = setting_variations(None, false);
        assert_eq!((all[0].as_str(), all.len()), ("", 1 + SINGLE.len()));
        assert!(!all.contains(&WITH_LIMIT.to_owned()));
        // A setting without effect on placement is neither omitted nor combined.
        let all = setting_variations(Some("backend:native"), false);
        assert_eq!(all[..3], ["backend:native", "", "expandable_segments:True"]);
    }
}
