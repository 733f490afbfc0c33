//! Compares the bytes of a training step by op with a file, so that a review shows every change.

use highwater::alloc::{Bytes, Environment};
use highwater::prelude::*;
use highwater::{DryRunOptions, Result, assert_flat_after, assert_golden, assert_peak};

/// A typical network and a training step.
struct Training {
    network: Sequential,
    optimizer: AdamW,
    device: Device,
}

impl Training {
    fn new(device: &Device) -> Result<Self> {
        let rng = Rng::new(0);
        let network = Sequential::new()
            .with("fc1", Linear::new(device, 64, 256, &rng)?)
            .with("relu", Relu)
            .with("dropout", Dropout::new(0.2, &rng.fork(0)).unwrap())
            .with("fc2", Linear::new(device, 256, 10, &rng)?);
        let optimizer = AdamW::new(network.parameters(), 0.005)?;
        Ok(Self { network, optimizer, device: device.clone() })
    }

    fn step(&mut self) -> Result<()> {
        let x = Tensor::zeros(&self.device, [64, 64])?;
        let y = Tensor::zeros_of(&self.device, [64], DType::I64)?;
        let loss = self.network.forward(&x)?.cross_entropy(&y)?;
        self.optimizer.step(loss.backward()?)
    }
}

#[test]
fn a_training_step_takes_the_bytes_by_op_that_it_took_before() {
    let options = DryRunOptions::new(DeviceProfile::this_machine()).environment(Environment::default());
    let run = options.run(|device| {
        let mut training = Training::new(device)?;
        (0..3).try_for_each(|_| training.step())
    });
    assert_golden!(run.unwrap().report, "tests/golden/training_step.txt");
}

#[test]
fn training_is_flat_after_the_first_step() {
    let device = Runtime::builder().environment(Environment::default()).build().unwrap().dry().unwrap();
    let mut training = Training::new(&device).unwrap();
    assert_peak!(device, Bytes::mib(1), || training.step()).unwrap();
    assert_flat_after!(device, 1, 10, |_| training.step());
}
