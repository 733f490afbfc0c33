//! The settings of PyTorch's allocator in a snapshot.

use bfc_core::MIB;
use highwater_files::boundary::floor_boundary;
use highwater_files::pickle::Value;

use super::file::SnapshotFile;
use super::rounding::Rounding;

/// The most settings, and the most bytes of a text.
const MOST: usize = 64;
const MOST_BYTES: usize = 4096;

/// The names of the settings in a snapshot.
const CONF: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
const DIVISIONS: &str = "roundup_power2_divisions";
const MAX_SPLIT_SIZE: &str = "max_split_size";

/// Reads the settings as texts. A dictionary becomes `key:value,key:value`.
pub(super) fn read(file: &SnapshotFile<'_>) -> Vec<(String, String)> {
    let Some(settings) = file.settings().filter(|_| !file.is_exported()) else { return Vec::new() };
    let text = |value| value_text(file, value);
    entries(file, settings)
        .filter_map(|(key, value)| {
            let value = match value {
                Value::Dict(_) => {
                    let inner = entries(file, value);
                    let inner = inner.filter_map(|(key, value)| Some(format!("{key}:{}", text(value)?)));
                    inner.collect::<Vec<_>>().join(",")
                }
                value => text(value)?,
            };
            Some((key.to_owned(), value))
        })
        .collect()
}

fn entries<'a>(file: &SnapshotFile<'a>, dict: Value) -> impl Iterator<Item = (&'a str, Value)> {
    let heap = file.heap;
    let pairs = heap.pairs(dict).into_iter().flatten();
    pairs.take(MOST).filter_map(|(key, value)| {
        let key = heap.as_text(key)?;
        Some((&key[..floor_boundary(key, MOST_BYTES)], value))
    })
}

fn value_text(file: &SnapshotFile<'_>, value: Value) -> Option<String> {
    Some(match value {
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Natural(number) => number.to_string(),
        // Sizes without a limit are the largest number, which PyTorch writes as -1.
        Value::Integer => "-1".to_owned(),
        Value::Float(number) => number.to_string(),
        Value::Text(_) => {
            let text = file.heap.as_text(value)?;
            text[..floor_boundary(text, MOST_BYTES)].to_owned()
        }
        _ => return None,
    })
}

fn setting<'a>(settings: &'a [(String, String)], name: &str) -> Option<&'a str> {
    settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// Returns the settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`. The text that the program set is preferred over the
/// values that it led to.
pub(super) fn alloc_conf(settings: &[(String, String)]) -> Option<String> {
    if settings.is_empty() {
        return None;
    }
    if let Some(text) = CONF.iter().find_map(|name| setting(settings, name)).filter(|text| !text.is_empty()) {
        return Some(text.to_owned());
    }
    let mut parts = Vec::new();
    let flag = |name: &str| setting(settings, name) == Some("True");
    if flag("expandable_segments") {
        parts.push("expandable_segments:True".to_owned());
    }
    if let Some(bytes) = max_split_size(settings) {
        parts.push(format!("max_split_size_mb:{}", bytes / MIB));
    }
    let threshold = setting(settings, "garbage_collection_threshold");
    if let Some(threshold) = threshold.filter(|text| text.parse::<f64>().is_ok_and(|share| share > 0.0)) {
        parts.push(format!("garbage_collection_threshold:{threshold}"));
    }
    let divisions = divisions(settings);
    if divisions.iter().any(|&count| count > 0) {
        let equal = divisions.iter().all(|&count| count == divisions[0]);
        if equal {
            parts.push(format!("roundup_power2_divisions:{}", divisions[0]));
        } else {
            let ranges = (0..).zip(divisions).map(|(range, count)| format!("{}:{count}", 1_u64 << range));
            parts.push(format!("roundup_power2_divisions:[{}]", ranges.collect::<Vec<_>>().join(",")));
        }
    }
    Some(parts.join(","))
}

fn max_split_size(settings: &[(String, String)]) -> Option<u64> {
    setting(settings, MAX_SPLIT_SIZE)?.parse().ok().filter(|&bytes| bytes > 0 && bytes < u64::MAX / 2)
}

/// Returns the divisions of each range of sizes; zeros without rounding.
fn divisions(settings: &[(String, String)]) -> [u64; 16] {
    let mut divisions = [0; 16];
    let Some(text) = setting(settings, DIVISIONS) else { return divisions };
    if let Ok(count) = text.parse() {
        return [count; 16];
    }
    for (key, count) in text.split(',').filter_map(|pair| pair.split_once(':')) {
        let (Ok(key), Ok(count)) = (key.parse::<u64>(), count.parse()) else { continue };
        if let Some(slot) = key.checked_ilog2().and_then(|range| divisions.get_mut(range as usize)) {
            *slot = count;
        }
    }
    divisions
}

/// Returns the settings that decide the sizes of blocks.
pub(super) fn rounding(settings: &[(String, String)]) -> Rounding {
    Rounding { divisions: divisions(settings), max_split_size: max_split_size(settings).unwrap_or(u64::MAX) }
}
