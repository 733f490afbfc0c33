//! Compares a dry device with the GPU that it simulates: both make the same requests to the device pool and
//! to the pinned pool. The emulated driver runs kernels on the host and completes work with a delay.

use bfc_core::{AllocatorAttributes, Bytes, DeviceId, DeviceKind, Environment, MIB, Stats};
use highwater_nn::modules::{Linear, Module};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_tensor::{Device, DeviceProfile, Result, Rng, Runtime, Tensor};

use crate::emulated_driver::on_emulated_driver;

const CUDA: DeviceId = DeviceId::new(DeviceKind::Cuda, 0);

fn computed() -> Device {
    let runtime = Runtime::builder().threads(1).environment(Environment::default()).build().unwrap();
    runtime.device(CUDA).unwrap()
}

/// The size of the driver's devices: 6 GiB. The device allocates its scratch memory when it creates the pool.
fn profile() -> DeviceProfile {
    DeviceProfile::cuda(Bytes(Bytes::gib(6).get() - 256), (9, 0))
}

fn dry() -> Device {
    let runtime = Runtime::builder().threads(1).environment(Environment::default()).dry_profile(profile());
    runtime.dry_values(|_| Some(1.into())).build().unwrap().dry().unwrap()
}

/// Records the statistics of both pools after each step of a program.
struct Watch<'a> {
    device: &'a Device,
    seen: Vec<(&'static str, Stats, Stats)>,
}

impl Watch<'_> {
    fn look(&mut self, after: &'static str) {
        let pinned = AllocatorAttributes::default().with_on_host(true).with_gpu_compatible(true);
        let pinned = self.device.allocator(pinned).unwrap();
        self.seen.push((after, self.device.memory_stats().unwrap(), pinned.allocator().stats()));
    }
}

fn watched<'a>(
    device: &'a Device,
    program: impl FnOnce(&mut Watch<'a>) -> Result<()>,
) -> Vec<(&'static str, Stats, Stats)> {
    let mut watch = Watch { device, seen: Vec::new() };
    program(&mut watch).unwrap();
    watch.seen
}

/// Uploads of all sizes with occasional reads. The bytes and the pieces exceed the limits for pending
/// uploads.
fn uploads(watch: &mut Watch<'_>) -> Result<()> {
    let device = watch.device;
    let large = vec![1.0_f32; 101 * MIB as usize / 4];
    let up = |elements: usize| Tensor::from_slice(device, &large[..elements], elements);
    for elements in [1, 0, 1000, 8 << 20, (8 << 20) + 1] {
        drop(up(elements)?);
        watch.look("one upload");
    }
    let whole = up(large.len())?;
    watch.look("101 MiB");
    drop(up(30)?);
    watch.look("a few beside them");
    whole.slice(0, ..3)?.to_vec::<f32>()?;
    watch.look("a read");
    for n in 1..200 {
        drop(up(n)?);
        watch.look("many small ones");
    }
    whole.slice(0, ..0)?.to_vec::<f32>()?;
    watch.look("a read of nothing");
    // A copy from another device, which has no values in the dry run.
    let host = Runtime::builder().threads(1).build()?.cpu()?;
    let moved = Tensor::ones(&host, [300, 7])?.t()?.to_device(device)?;
    watch.look("from the host's device");
    moved.to_vec::<f32>()?;
    watch.look("another read");
    Ok(())
}

/// Trains on batches from the host, with indices that the device computes.
fn training(watch: &mut Watch<'_>) -> Result<()> {
    let (device, rng) = (watch.device, Rng::new(1));
    let model = Linear::new(device, 20, 10, &rng)?;
    let mut optimizer = AdamW::new(model.parameters(), 0.01)?;
    for step in 0..50 {
        let x = Tensor::from_slice(device, &vec![0.5_f32; 20 * 32], [32, 20])?;
        let y = Tensor::from_slice(device, &[3_i64; 32], [32])?;
        let logits = model.forward(&x)?;
        let best = logits.detach().argmax(1)?.unsqueeze(1)?;
        // The op checks the indices on the device before it follows them. The check waits and allocates
        // nothing.
        drop(logits.detach().gather(1, &best)?);
        let loss = logits.cross_entropy(&y)?;
        optimizer.step(loss.backward()?)?;
        if step % 20 == 19 {
            loss.item::<f32>()?;
        }
        watch.look("a step");
    }
    Ok(())
}

fn assert_foretold(program: impl Fn(&mut Watch<'_>) -> Result<()>) {
    let (foretold, seen) = (watched(&dry(), &program), watched(&computed(), &program));
    assert_eq!(foretold.len(), seen.len());
    for (n, (foretold, seen)) in foretold.iter().zip(&seen).enumerate() {
        assert_eq!(foretold, seen, "look {n}");
    }
    let (_, _, pinned) = seen.last().unwrap();
    assert!(pinned.num_allocs > 60 && pinned.peak_bytes_in_use <= 96 * MIB, "{pinned:?}");
}

#[test]
fn uploads_take_of_page_locked_memory_what_the_dry_run_says() {
    on_emulated_driver(&[], || assert_foretold(uploads));
}

#[test]
fn training_takes_of_both_pools_what_the_dry_run_says() {
    on_emulated_driver(&[], || assert_foretold(training));
}
