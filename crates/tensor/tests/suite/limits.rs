//! A limit is an upper bound of the bytes in use and reserved, on every profile and on real devices.

use bfc_core::{
    AllocatorChoice, Bytes, DeviceId, Environment, GrowthRule, PoolOptions, PytorchOptions, RegistryError,
    SourceError,
};
use highwater_tensor::{
    Device, DeviceProfile, DryRunOptions, Error, Result, Runtime, Tensor, largest_fit, smallest_pool,
};

/// Limits around the regions of a GPU, and odd ones, in bytes.
const LIMITS: &[u64] = &[
    100 << 10,
    1 << 20,
    (2 << 20) - 1,
    2 << 20,
    (2 << 20) + 1,
    3 << 20,
    5 << 20,
    7169 << 10,
    (65 << 20) + 1,
];

/// The smallest region of a GPU, and of PyTorch's allocator.
const REGION: u64 = 2 << 20;

/// Whether the smallest region is that of a GPU on every device.
fn has_large_regions(options: PoolOptions) -> bool {
    options.allocator == Some(AllocatorChoice::Pytorch)
}

/// Fills a device with tensors of several sizes, until none fits.
fn fill(device: &Device) -> Result<()> {
    let mut tensors = Vec::new();
    for elements in [1_000_003, 65_536, 4096, 64] {
        loop {
            match Tensor::zeros(device, [elements]) {
                Ok(tensor) => tensors.push(tensor),
                Err(error) if error.out_of_memory().is_some() => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// A pool of one region, one that grows, and other allocators.
fn pools() -> Vec<PoolOptions> {
    let options = PoolOptions::default();
    let mut pools = vec![
        options,
        options.with_allow_growth(true),
        options.with_growth(GrowthRule::DOUBLING),
        options.with_first_region(Bytes(3 << 20)),
    ];
    pools.extend(AllocatorChoice::ALL.map(|choice| options.with_allocator(choice)));
    pools
}

#[test]
fn no_profile_exceeds_its_limit() {
    let cards = DeviceProfile::gpus().map(|name| DeviceProfile::gpu(name).unwrap());
    let cpus = [DeviceProfile::this_machine(), DeviceProfile::cpu(Bytes::gib(1))];
    for (at, profile) in cpus.into_iter().chain(cards).enumerate() {
        // The cards have the same rules, so one of them runs with every pool.
        let pools = if at < 3 { pools() } else { vec![PoolOptions::default()] };
        let is_card = at >= 2;
        for (limit, options) in LIMITS.iter().flat_map(|&limit| pools.iter().map(move |pool| (limit, *pool)))
        {
            if options.allocator == Some(AllocatorChoice::Guard) {
                continue; // Only host memory can be guarded.
            }
            let run = DryRunOptions::new(profile.clone().with_limit(Bytes(limit)))
                .environment(Environment::default())
                .pool_options(options)
                .run(fill);
            let case = format!("{}, limit {limit}, {options}", profile.name());
            match run {
                Ok(run) => {
                    let peak = run.peak;
                    assert!(!is_card || limit >= REGION, "{case}: {peak}");
                    assert!(0 < peak.in_use && peak.in_use <= peak.reserved, "{case}: {peak}");
                    assert!(peak.reserved <= limit && peak.limit.unwrap() <= limit, "{case}: {peak}");
                    let usable = if is_card { limit / REGION * REGION } else { limit };
                    let is_rest_small = usable - peak.in_use < 64 << 10;
                    let has_chunks = options.allocator.is_some_and(|allocator| {
                        !matches!(allocator, AllocatorChoice::Bfc | AllocatorChoice::Packed)
                    });
                    assert!(has_chunks || is_rest_small, "{case}: {peak}");
                }
                Err(error) => {
                    assert!((is_card || has_large_regions(options)) && limit < REGION, "{case}: {error}");
                    assert!(error.needs_more_memory(), "{error}");
                    let Error::Registry(RegistryError::Source { error: source, .. }) = error.root() else {
                        panic!("{error}")
                    };
                    assert_eq!(*source, SourceError::LimitTooSmall { limit, region: REGION });
                    let text = error.to_string();
                    assert!(text.contains(&format!("{limit} bytes")) && text.contains("2097152"), "{text}");
                }
            }
        }
    }
}

#[test]
fn shares_and_variables_bound_a_profile_too() {
    let fill = |options: &DryRunOptions| options.run(fill).unwrap().peak;
    for (text, most) in [
        ("cuda,memory=100MiB,limit=3.5%", 3_670_016),
        ("cuda,memory=100MiB,limit=all-97MiB", 3 << 20),
        ("cuda,memory=9000001", 9_000_001),
        ("cuda,memory=3MiB,limit=200%", 3 << 20),
        ("cpu,memory=9000001,limit=33.3%", 2_997_000),
        ("cpu,memory=3MiB,limit=200%", 3 << 20),
    ] {
        let profile: DeviceProfile = text.parse().unwrap();
        let options = DryRunOptions::new(profile).environment(Environment::default());
        let peak = fill(&options);
        assert!(0 < peak.in_use && peak.reserved <= most, "{text}: {peak}");
    }
    let said = Environment::from_vars([("HIGHWATER_POOL_LIMIT", "3MiB")]).unwrap();
    for name in ["t4", "cpu,memory=1GiB"] {
        let peak = fill(&DryRunOptions::new(name.parse().unwrap()).environment(said.clone()));
        assert!(peak.reserved <= 3 << 20 && peak.in_use > 1 << 20, "{name}: {peak}");
    }
    let said = Environment::from_vars([("HIGHWATER_POOL_LIMIT", "1MiB")]).unwrap();
    let error = DryRunOptions::new("t4".parse().unwrap()).environment(said).run(|_| Ok(())).unwrap_err();
    assert!(error.needs_more_memory(), "{error}");
}

#[test]
fn the_cpu_stays_within_its_limit() {
    for &limit in LIMITS {
        for options in pools() {
            let device = Runtime::builder()
                .environment(Environment::default())
                .threads(1)
                .pool_options(DeviceId::CPU, options.with_limit(Bytes(limit)))
                .build()
                .and_then(|runtime| runtime.cpu())
                .unwrap();
            let filled = fill(&device);
            if has_large_regions(options) && limit < REGION {
                assert!(filled.unwrap_err().needs_more_memory(), "{options}, limit {limit}");
                continue;
            }
            filled.unwrap();
            let stats = device.memory_stats().unwrap();
            assert!(stats.peak_bytes_reserved <= limit, "{options}, limit {limit}: {stats}");
            assert!(stats.peak_bytes_in_use > limit / 2, "{options}, limit {limit}: {stats}");
        }
    }
}

#[test]
fn searches_report_a_limit_below_one_region() {
    let card = || DeviceProfile::gpu("t4").unwrap().with_limit(Bytes::mib(1));
    let tensor = |device: &Device, elements: u64| Tensor::zeros(device, [elements as usize]).map(drop);
    let found = largest_fit(card(), 1..=100, tensor).unwrap();
    assert_eq!(found.largest, None);
    assert!(found.to_string().contains("the limit of 1048576 bytes is below one region"), "{found}");
    let error = smallest_pool(card(), |device| tensor(device, 100)).unwrap_err();
    assert!(error.needs_more_memory(), "{error}");
}

#[test]
fn a_dry_run_of_the_cpu_uses_the_memory_of_the_cpu_with_settings_of_pytorch() {
    for settings in ["", "expandable_segments:True", "max_split_size_mb:20"] {
        let options = PoolOptions::default()
            .with_allocator(AllocatorChoice::Pytorch)
            .with_alloc_conf(settings.parse::<PytorchOptions>().unwrap())
            .with_limit(Bytes::mib(65));
        let runtime =
            Runtime::builder().environment(Environment::default()).pool_options(DeviceId::CPU, options);
        let device = runtime.build().and_then(|runtime| runtime.cpu()).unwrap();
        fill(&device).unwrap();
        let stats = device.memory_stats().unwrap();
        let profile = DeviceProfile::this_machine();
        let dry = DryRunOptions::new(profile).environment(Environment::default()).pool_options(options);
        let peak = dry.run(fill).unwrap().peak;
        let real = (stats.peak_bytes_in_use, stats.peak_bytes_reserved);
        assert_eq!((peak.in_use, peak.reserved), real, "{settings}");
    }
}
