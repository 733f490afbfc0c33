use std::time::Duration;

use super::*;
use crate::base::units::Bytes;
use crate::policy::bfc::{CutRule, JoinRule};
use crate::pool::{GrowthRule, ThreadCache};
use crate::registry::{AllocatorChoice, CacheChoice, DeviceId, DeviceKind, SplitChoice};

fn cpu_options(variables: &[(&str, &str)]) -> PoolOptions {
    Environment::from_vars(variables.iter().copied()).unwrap().settings().options(DeviceId::CPU)
}

fn error_of(name: &str, value: &str) -> EnvironmentError {
    Environment::from_vars([(name, value)]).unwrap_err()
}

#[test]
fn every_variable_of_the_table_chooses_its_option() {
    let options = cpu_options(&[
        ("HIGHWATER_ALLOCATOR", "bfc-tensorflow"),
        ("HIGHWATER_POOL_LIMIT", "75%"),
        ("HIGHWATER_GROWTH", "off"),
        ("HIGHWATER_FIRST_REGION", "64MiB"),
        ("HIGHWATER_REGION_MERGING", "0"),
        ("HIGHWATER_GARBAGE_COLLECTION", "Yes"),
        ("HIGHWATER_SPLIT", "twice:5%"),
        ("HIGHWATER_CUT", "low"),
        ("HIGHWATER_JOIN", "at-once"),
        ("HIGHWATER_RETRY_MS", "250"),
        ("HIGHWATER_THREAD_CACHE", "64KiB:4MiB"),
    ]);
    let cache = ThreadCache::new().with_largest_block(Bytes::kib(64)).with_bytes(Bytes::mib(4));
    let expected = PoolOptions {
        allocator: Some(AllocatorChoice::BfcTensorflow),
        allocator_where_possible: true,
        split: Some(SplitChoice::Twice("5%".parse().unwrap())),
        cut: Some(CutRule::Low),
        join: Some(JoinRule::AtOnce),
        ..PoolOptions::default()
    };
    let expected = expected
        .with_limit("75%".parse::<crate::Amount>().unwrap())
        .with_allow_growth(false)
        .with_first_region(Bytes::mib(64))
        .with_region_merging(false)
        .with_garbage_collection(true)
        .with_retry_timeout(Duration::from_millis(250))
        .with_thread_cache(CacheChoice::On(cache));
    assert_eq!(options, expected);
}

#[test]
fn growth_is_a_switch_or_a_rule() {
    let granule = Bytes::mib(2);
    let on = PoolOptions::default().with_allow_growth(true);
    for (text, expected) in [
        ("off", PoolOptions::default().with_allow_growth(false)),
        ("on", on),
        ("doubling", on.with_growth(GrowthRule::DOUBLING)),
        ("doubling:1GiB", on.with_growth(GrowthRule::Doubling { cap: Bytes::gib(1) })),
        ("as-requested", on.with_growth(GrowthRule::AsRequested { granule })),
        ("fixed:64MiB", on.with_growth(GrowthRule::Fixed(Bytes::mib(64)))),
        ("proportional:8", on.with_growth(GrowthRule::Proportional { parts: 8, granule })),
    ] {
        assert_eq!(cpu_options(&[("HIGHWATER_GROWTH", text)]), expected);
    }
    for bad in [
        "fixed",
        "fixed:0",
        "fixed:x",
        "proportional:0",
        "proportional:-1",
        "proportional",
        "as-requested:1",
        ":",
    ] {
        assert!(matches!(error_of("HIGHWATER_GROWTH", bad), EnvironmentError::BadValue { .. }), "{bad}");
    }
}

#[test]
fn a_name_may_end_in_a_kind_of_device_or_a_device() {
    let environment = Environment::from_vars([
        ("HIGHWATER_ALLOCATOR", "bfc"),
        ("HIGHWATER_ALLOCATOR_CUDA", "buddy"),
        ("HIGHWATER_ALLOCATOR_CUDA_1", "passthrough"),
        ("HIGHWATER_RETRY_MS_DRY_0", "0"),
    ])
    .unwrap();
    let allocator = |kind, ordinal| environment.settings().options(DeviceId::new(kind, ordinal)).allocator;
    assert_eq!(allocator(DeviceKind::Cpu, 0), Some(AllocatorChoice::Bfc));
    assert_eq!(allocator(DeviceKind::Cuda, 0), Some(AllocatorChoice::Buddy));
    assert_eq!(allocator(DeviceKind::Cuda, 1), Some(AllocatorChoice::Passthrough));
    let patience = |kind| environment.settings().options(DeviceId::new(kind, 0)).retry_timeout;
    assert_eq!((patience(DeviceKind::Dry), patience(DeviceKind::Cpu)), (Some(Duration::ZERO), None));
}

#[test]
fn the_variables_of_others_and_empty_values_choose_nothing() {
    let variables = [
        ("PATH", "/bin"),
        ("highwater_allocator", "nonsense"),
        ("HIGHWATER", "nonsense"),
        ("HIGHWATER_TRACES", "folder"),
        ("HIGHWATER_NVRTC", "/opt/libnvrtc.so.12"),
        ("HIGHWATER_CUBLAS", "/opt/libcublas.so.12"),
        ("HIGHWATER_NCCL", "/opt/libnccl.so.2"),
        ("HIGHWATER_DEVICE", " "),
        ("HIGHWATER_ALLOCATOR", ""),
        ("HIGHWATER_SPLIT", " \t "),
    ];
    let environment = Environment::from_vars(variables).unwrap();
    assert_eq!((environment.settings(), environment.device()), (&PoolSettings::default(), None));
    assert_eq!(Environment::from_vars(Vec::<(String, String)>::new()), Ok(Environment::default()));
}

#[test]
fn a_device_is_chosen_by_name_or_automatically() {
    let device = |value: &str| Environment::from_vars([("HIGHWATER_DEVICE", value)]).unwrap().device();
    assert_eq!(device("cpu"), Some(DeviceId::CPU));
    assert_eq!(device(" cuda:1 "), Some(DeviceId::new(DeviceKind::Cuda, 1)));
    assert_eq!((device("auto"), Environment::default().device()), (None, None));
}

#[test]
fn spaces_around_a_value_do_not_matter() {
    let options = cpu_options(&[("HIGHWATER_POOL_LIMIT", " 2 GiB\n"), ("HIGHWATER_GROWTH", "\ton ")]);
    assert_eq!(options, PoolOptions::default().with_limit(Bytes::gib(2)).with_allow_growth(true));
}

#[test]
fn a_bad_value_is_named_with_its_variable_and_what_was_expected() {
    let cases = [
        ("HIGHWATER_ALLOCATOR", "BFC", "one of bfc, bfc-tensorflow, buddy"),
        ("HIGHWATER_ALLOCATOR_CPU", "slab", "passthrough"),
        ("HIGHWATER_POOL_LIMIT", "-1", "bytes"),
        ("HIGHWATER_POOL_LIMIT", "NaN", "bytes"),
        ("HIGHWATER_POOL_LIMIT", "nan%", "percentage"),
        ("HIGHWATER_POOL_LIMIT", "1e30%", "percentage"),
        ("HIGHWATER_POOL_LIMIT", "99999999999999999999", "4GiB"),
        ("HIGHWATER_POOL_LIMIT", "0%", "above 0"),
        ("HIGHWATER_POOL_LIMIT", "1 2", "bytes"),
        ("HIGHWATER_GROWTH", "maybe", "on, off, doubling"),
        ("HIGHWATER_GROWTH", "doubling:", "doubling:CAP"),
        ("HIGHWATER_CUT", "high", "large-high"),
        ("HIGHWATER_JOIN", "never", "at-once or deferred"),
        ("HIGHWATER_GARBAGE_COLLECTION", "2", "on or off"),
        ("HIGHWATER_FIRST_REGION", "50%", "bytes"),
        ("HIGHWATER_SPLIT", "twice:-5%", "twice:AMOUNT"),
        ("HIGHWATER_RETRY_MS", "-1", "from 0 to 3600000"),
        ("HIGHWATER_RETRY_MS", "+1", "whole number"),
        ("HIGHWATER_RETRY_MS", "0.5", "whole number"),
        ("HIGHWATER_RETRY_MS", "3600001", "from 0 to 3600000"),
        ("HIGHWATER_RETRY_MS", "18446744073709551616", "whole number"),
        ("HIGHWATER_RETRY_MS", "inf", "whole number"),
        ("HIGHWATER_THREAD_CACHE", "2", "on, off, or LARGEST"),
        ("HIGHWATER_THREAD_CACHE", "64KiB:", "LARGEST[:KEPT]"),
        ("HIGHWATER_THREAD_CACHE_CPU", "5%", "as in 64KiB"),
        ("HIGHWATER_DEVICE", "gpu", "auto, or a device, as in cpu"),
        ("HIGHWATER_DEVICE", "cuda:-1", "or cuda:1"),
    ];
    for (name, value, expected) in cases {
        let error = error_of(name, value);
        let EnvironmentError::BadValue { name: at, value: found, expected: listed } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((at.as_str(), found.as_str()), (name, value));
        assert!(listed.contains(expected), "{error}");
    }
}

#[test]
fn an_unknown_name_is_listed_with_the_closest_known_one() {
    let cases = [
        ("HIGHWATER_POOLLIMIT", Some("HIGHWATER_POOL_LIMIT")),
        ("HIGHWATER_ALOCATOR", Some("HIGHWATER_ALLOCATOR")),
        ("HIGHWATER_ALLOCATER_CUDA_0", Some("HIGHWATER_ALLOCATOR")),
        ("HIGHWATER_ALLOCATOR_GPU", Some("HIGHWATER_ALLOCATOR")),
        ("HIGHWATER_ALLOCATOR_CUDA_", Some("HIGHWATER_ALLOCATOR")),
        ("HIGHWATER_ALLOCATOR_CUDA_-1", Some("HIGHWATER_ALLOCATOR")),
        ("HIGHWATER_ALLOCATOR_CUDA_4294967296", Some("HIGHWATER_ALLOCATOR")),
        ("HIGHWATER_DEVICES", Some("HIGHWATER_DEVICE")),
        ("HIGHWATER_DEVICE_CUDA", Some("HIGHWATER_DEVICE")),
        ("HIGHWATER_SOAK_STEP", Some("HIGHWATER_SOAK_STEPS")),
        ("HIGHWATER_allocator", None),
        ("HIGHWATER_COLOUR_OF_THE_SKY", None),
        ("HIGHWATER_", None),
    ];
    for (name, nearest) in cases {
        let environment = Environment::from_vars([(name, "bfc")]).unwrap();
        let expected = UnknownVariable { name: name.to_owned(), nearest: nearest.map(str::to_owned) };
        assert_eq!(environment.unknown(&[]), [expected]);
        assert_eq!(environment.settings(), &PoolSettings::default());
    }
    assert!(Environment::from_vars([("HIGHWATER_POOLLIMIT", "")]).unwrap().unknown(&[]).is_empty());
    let nothing_like_it = Environment::from_vars([("HIGHWATER_", "x")]).unwrap();
    assert_eq!(nothing_like_it.unknown(&[])[0].to_string(), "unknown variable HIGHWATER_");
}

#[test]
fn settings_of_other_crates_have_values_and_no_warning() {
    const WORKERS: Setting = Setting {
        name: "workers",
        variable: Some("HIGHWATER_WORKERS"),
        option: None,
        scope: SettingScope::Run,
        kind: crate::setting::SettingKind::Number { least: 1, most: 64, unit: "" },
        default: "4",
        help: "Threads that load data",
        example: "8",
    };
    let environment = |value: &str| {
        Environment::from_vars([("HIGHWATER_WORKERS", value), ("HIGHWATER_WORKER", "1")]).unwrap()
    };
    assert_eq!(environment(" 8 ").number(&WORKERS), Ok(Some(8)));
    assert_eq!(environment(" ").number(&WORKERS), Ok(None));
    let error = environment("65").number(&WORKERS).unwrap_err().to_string();
    let expected = "\"65\" is not valid: expected a whole number from 1 to 64";
    assert_eq!(error, format!("environment variable HIGHWATER_WORKERS: {expected}"));
    let unknown = environment("8").unknown(&[WORKERS]);
    assert_eq!(unknown.len(), 1);
    assert_eq!(unknown[0].nearest.as_deref(), Some("HIGHWATER_WORKERS"));
}

#[test]
fn unknown_names_do_not_hide_a_choice_or_an_invalid_value() {
    let known = [("HIGHWATER_ALOCATOR", "x"), ("HIGHWATER_DEVICE", "cpu"), ("HIGHWATER_SPLITS", "x")];
    let environment = Environment::from_vars(known).unwrap();
    let unknown = environment.unknown(&[]);
    let names: Vec<&str> = unknown.iter().map(|unknown| unknown.name.as_str()).collect();
    assert_eq!(
        (names, environment.device()),
        (vec!["HIGHWATER_ALOCATOR", "HIGHWATER_SPLITS"], Some(DeviceId::CPU))
    );
    let error = Environment::from_vars([("HIGHWATER_ALOCATOR", "x"), ("HIGHWATER_SPLIT", "x")]).unwrap_err();
    assert!(matches!(error, EnvironmentError::BadValue { .. }), "{error}");
}

#[test]
fn texts_of_any_length_are_quoted_in_part() {
    let EnvironmentError::BadValue { value, .. } = error_of("HIGHWATER_SPLIT", &"x".repeat(1 << 20)) else {
        panic!()
    };
    assert_eq!(value.len(), MAX_QUOTED);
    let environment = Environment::from_vars([(format!("{PREFIX}{}", "é".repeat(1 << 16)), "x")]).unwrap();
    assert_eq!(environment.unknown(&[])[0].name.chars().count(), MAX_QUOTED);
}

#[cfg(unix)]
#[test]
fn what_is_not_text_is_an_error_and_no_panic() {
    use std::os::unix::ffi::OsStringExt;
    let broken = |text: &[u8]| OsString::from_vec([text, &[0xff, 0xfe]].concat());
    let value = Environment::from_vars([(OsString::from("HIGHWATER_SPLIT"), broken(b"always"))]).unwrap_err();
    assert!(
        matches!(&value, EnvironmentError::NotUnicode { name, .. } if name == "HIGHWATER_SPLIT"),
        "{value}"
    );
    let name = Environment::from_vars([(broken(b"HIGHWATER_SPLIT"), broken(b"always"))]).unwrap();
    assert_eq!(name.unknown(&[]).len(), 1);
    // Variables of other programs may have any value.
    assert!(Environment::from_vars([(broken(b"OTHER"), broken(b"x"))]).is_ok());
}

#[test]
fn of_several_faults_the_first_by_name_is_told() {
    let error = Environment::from_vars([("HIGHWATER_SPLIT", "x"), ("HIGHWATER_GROWTH", "x")]).unwrap_err();
    assert!(error.to_string().starts_with("environment variable HIGHWATER_GROWTH: \"x\" is not valid"));
}
