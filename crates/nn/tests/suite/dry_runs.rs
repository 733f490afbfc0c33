//! Dry runs of training steps, compared with real runs.

use std::sync::Arc;

use bfc_core::sim::SimDevice;
use bfc_core::{
    AllocatorAttributes, Bytes, DeviceId, DeviceKind, Environment, PoolOptions, Registry, default_reserve,
};
use highwater_nn::modules::{Linear, Module};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_tensor::{
    Device, DeviceProfile, DryPeak, DryRun, DryRunOptions, Error, Result, Rng, Runtime, Tensor,
};
use highwater_tracking::{OpRow, Report};

fn on(profile: DeviceProfile) -> DryRunOptions {
    DryRunOptions::new(profile).environment(Environment::default())
}

/// Runs a few training steps, which read the loss.
fn train(device: &Device) -> Result<f32> {
    let rng = Rng::new(0);
    let layer = Linear::new(device, 300, 700, &rng)?;
    let mut optimizer = AdamW::new(layer.parameters(), 0.01)?;
    let mut last = 0.0;
    for _ in 0..3 {
        let x = Tensor::uniform(device, [50, 300], 0.0, 1.0, &rng)?;
        let loss = layer.forward(&x)?.square()?.mean_all()?;
        optimizer.step(loss.backward()?)?;
        last = loss.item_or(7.0)?;
    }
    Ok(last)
}

#[test]
fn a_dry_run_has_the_figures_of_the_real_one_to_the_byte() {
    let dry = on(DeviceProfile::this_machine()).run(train).unwrap();
    let runtime = Runtime::builder().environment(Environment::default()).build().unwrap();
    let cpu = runtime.cpu().unwrap();
    train(&cpu).unwrap();
    let pool = Arc::clone(cpu.default_allocator().unwrap());
    let stats = pool.stats();
    let DryPeak { requested, in_use, reserved, limit, .. } = dry.peak;
    assert_eq!((requested, in_use), (stats.peak_bytes_requested, stats.peak_bytes_in_use));
    assert_eq!((reserved, limit), (stats.peak_bytes_reserved, stats.bytes_limit));
    assert!(dry.peak.requested > 3 << 20 && dry.peak.requested < dry.peak.in_use);
    let report = Report::new(runtime.tracker(), &[pool]);
    // A dry run computes nothing, so it has no time.
    let untimed = |rows: Vec<OpRow>| {
        let untimed = rows.into_iter().map(|mut row| {
            row.time_ns = 0;
            row
        });
        untimed.collect::<Vec<_>>()
    };
    let expected = (untimed(report.ops), untimed(report.places));
    assert_eq!((dry.report.ops, dry.report.places), expected);
    assert_eq!(dry.result, 7.0);
}

#[test]
fn a_run_for_a_gpu_takes_its_memory_as_the_pool_of_that_gpu() {
    let card = DeviceProfile::cuda(Bytes::gib(8), (8, 6));
    let dry = on(card).run(train).unwrap();
    // A simulated device with the same amount of memory makes the same requests, to the pool that it is
    // registered with.
    let registry = Registry::new();
    let id = DeviceId::new(DeviceKind::Sim, 0);
    let device = Arc::new(SimDevice::new(Bytes::gib(8)));
    let reserve = default_reserve(Bytes::gib(8), 8);
    registry.register_device(id, device, reserve, PoolOptions::default(), None).unwrap();
    let memory = registry.allocator(id, AllocatorAttributes::default(), None).unwrap().allocator;
    let elsewhere = Runtime::builder().environment(Environment::default()).build().unwrap().dry().unwrap();
    let elsewhere = elsewhere.with_allocator(memory).unwrap();
    drop(Tensor::zeros(&elsewhere, [700, 300]).unwrap());
    let limit = elsewhere.allocator().stats().bytes_limit;
    assert_eq!(limit, Some(Bytes::gib(8).get() - Bytes::mib(1536).get()));
    assert_eq!(dry.peak.limit, limit);
    assert!(dry.peak.reserved.is_multiple_of(2 << 20), "pages of a device: {}", dry.peak);
    assert_eq!(dry.report.pools[0].memory, "device");
}

#[test]
fn gpu_and_cpu_dry_runs_differ_only_by_workspaces() {
    let card = DeviceProfile::cuda(Bytes::gib(8), (8, 6));
    let [there, here] = [card, DeviceProfile::this_machine()].map(|profile| on(profile).run(train).unwrap());
    let calls = |run: &DryRun<f32>| {
        let mut calls: Vec<_> =
            run.report.ops.iter().map(|op| (op.op.clone(), op.phase.name(), op.calls)).collect();
        calls.sort();
        calls
    };
    assert_eq!(calls(&there), calls(&here));
    assert_ne!(there.peak.requested, here.peak.requested);

    let profiles = || [DeviceProfile::cuda(Bytes::gib(8), (8, 6)), DeviceProfile::this_machine()];
    let without = |device: &Device| Tensor::ones(device, [700, 300])?.exp().map(drop);
    let [there, here] = profiles().map(|profile| on(profile).run(without).unwrap());
    assert_eq!((there.peak.requested, there.peak.in_use), (here.peak.requested, here.peak.in_use));
    assert_eq!(there.report.ops, here.report.ops);
    // 92 slabs of 2,304 elements to fill a GPU, six of 35,072 for the threads of a CPU.
    let sum = |device: &Device| Tensor::ones(device, [700, 300])?.sum_all().map(drop);
    let [there, here] = profiles().map(|profile| on(profile).run(sum).unwrap());
    assert_eq!(there.peak.requested - here.peak.requested, (92 - 6) * 4);
}

#[test]
fn a_dry_limit_is_a_share_of_the_device_memory() {
    let take = |bytes: u64| move |device: &Device| Tensor::zeros(device, [bytes as usize / 4]).map(drop);
    for profile in [DeviceProfile::cpu(Bytes::gib(4)), DeviceProfile::cuda(Bytes::gib(4), (9, 0))] {
        on(profile.clone()).run(take(2 << 30)).unwrap();
        // A GPU's pool leaves some of it to the driver, a CPU's to the rest of the process.
        let more = on(profile.clone()).run(take(4 << 30)).unwrap_err();
        assert!(more.out_of_memory().is_some());
        let half = on(profile.with_limit("50%".parse::<bfc_core::Amount>().unwrap()));
        assert_eq!(half.run(take(1 << 30)).unwrap().peak.limit, Some(2 << 30));
        // An explicit limit of the pool overrides the limit of the profile.
        assert_eq!(half.limit(Bytes::gib(1)).run(take(1 << 20)).unwrap().peak.limit, Some(1 << 30));
    }
}

#[test]
fn the_pool_of_a_cpu_leaves_a_sixteenth_of_its_memory() {
    let take = |bytes: u64| move |device: &Device| Tensor::zeros(device, [bytes as usize / 4]).map(drop);
    let machine = on(DeviceProfile::cpu(Bytes::gib(4)));
    let limit = (4 << 30) - (256 << 20);
    assert_eq!(machine.run(take(limit)).unwrap().peak.limit, Some(limit));
    assert!(machine.run(take(limit + 256)).is_err());
}

#[test]
fn a_dry_run_reads_only_scripted_values() {
    let read = |device: &Device| {
        let loss = Tensor::zeros(device, [3, 3])?.mean_all()?.item::<f32>()?;
        let classes = Tensor::zeros(device, [3, 3])?.argmax(1)?.to_vec::<i64>()?;
        Ok((loss, classes))
    };
    let error = on(DeviceProfile::this_machine()).run(read).unwrap_err();
    assert!(matches!(error, Error::NoData { op: "item", .. }), "{error}");
    let some =
        on(DeviceProfile::this_machine()).values(|read| (read.shape.elements() == 1).then(|| 0.25.into()));
    assert!(matches!(some.run(read), Err(Error::NoData { .. })));
    let all = some.values(|read| Some(if read.dtype.is_float() { 0.25.into() } else { 2.into() }));
    assert_eq!(all.run(read).unwrap().result, (0.25, vec![2, 2, 2]));
}

#[test]
fn a_dry_run_sets_the_best_device_only_inside() {
    let inside = on(DeviceProfile::this_machine()).run(|_| Ok(Device::best()?.is_dry())).unwrap();
    assert!(inside.result && !Device::best().unwrap().is_dry());
}

#[test]
fn huge_memory_sizes_never_cause_a_panic() {
    for bytes in [1, 1 << 20, 1 << 50, u64::MAX] {
        for profile in [DeviceProfile::cpu(Bytes(bytes)), DeviceProfile::cuda(Bytes(bytes), (9, 9))] {
            let _ = on(profile).run(|device| Tensor::zeros(device, [10]).map(drop));
        }
    }
}

#[test]
fn a_gpu_dry_run_reports_pinned_staging_memory() {
    let upload = |mebibytes: usize| {
        move |device: &Device| {
            let values = vec![0.0_f32; mebibytes << 18];
            for _ in 0..2 {
                Tensor::from_slice(device, &values, values.len())?;
            }
            Ok(())
        }
    };
    let card = || on(DeviceProfile::gpu("t4").unwrap());
    for (mebibytes, kept) in [(1, 2), (40, 80), (50, 82), (100, 96)] {
        let run = card().run(upload(mebibytes)).unwrap();
        let page_locked = run.page_locked.unwrap();
        assert_eq!(page_locked.in_use >> 20, kept, "twice {mebibytes} MiB");
        assert_eq!(page_locked.limit, Some(Bytes::gib(128).get()));
        assert!(run.to_string().contains("\npage-locked for uploads: "), "{run}");
    }
    let run = card().run(|device| Tensor::zeros(device, [10]).map(drop)).unwrap();
    assert!(!run.to_string().contains("page-locked"));
    assert_eq!(on(DeviceProfile::this_machine()).run(upload(1)).unwrap().page_locked, None);
}
