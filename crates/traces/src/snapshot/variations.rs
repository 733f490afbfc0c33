//! The settings of PyTorch's allocator that reports and what-ifs try.

/// Settings to try on any run, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`. The empty settings are the defaults.
const ALWAYS: &[&str] = &[
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "expandable_segments:True,roundup_power2_divisions:8",
];

/// Further settings for a device of known size: their effect depends on it.
const WITH_LIMIT: &[&str] =
    &["garbage_collection_threshold:0.8", "max_split_size_mb:128,garbage_collection_threshold:0.8"];

/// Returns the settings of PyTorch's allocator to try on a run, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`. Empty
/// settings are the defaults.
///
/// `recorded` are the settings of the run, which come first. `None` means that they are unknown, or that another
/// allocator served the run. `limit` is the memory of the device in bytes, if known.
///
/// ```
/// use highwater_traces::pytorch_variations;
/// let all = pytorch_variations(Some("max_split_size_mb:128"), None);
/// assert_eq!(all[..2], ["max_split_size_mb:128", ""]);
/// assert_eq!(all.iter().filter(|settings| *settings == "max_split_size_mb:128").count(), 1);
/// ```
#[must_use]
pub fn pytorch_variations(recorded: Option<&str>, limit: Option<u64>) -> Vec<String> {
    let with_limit = if limit.is_some() { WITH_LIMIT } else { &[] };
    let mut all: Vec<String> = Vec::new();
    for settings in recorded.into_iter().chain(ALWAYS.iter().chain(with_limit).copied()) {
        let settings: String = settings.split_whitespace().collect();
        if !all.contains(&settings) {
            all.push(settings);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_settings_come_first_and_once() {
        let all = pytorch_variations(Some("max_split_size_mb:64, expandable_segments:True"), None);
        assert_eq!(all[0], "max_split_size_mb:64,expandable_segments:True");
        assert_eq!(all.len(), 1 + ALWAYS.len());
        assert_eq!(pytorch_variations(Some(" "), None), pytorch_variations(None, None));
        assert_eq!(pytorch_variations(Some(""), Some(1)).len(), ALWAYS.len() + WITH_LIMIT.len());
    }
}
