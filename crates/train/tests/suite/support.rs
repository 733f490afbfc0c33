//! A small problem that all tests share: points of two classes, and a perceptron with dropout.

use highwater::prelude::*;
use highwater::train::{Accuracy, Figures, Loss, evaluate};
use highwater::{Result, Runtime};

/// The number of points per batch: three batches per epoch, the last one smaller.
pub(crate) const BATCH: usize = 8;

/// A CPU with one thread.
pub(crate) fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// Twenty points on a line: those below 10 belong to class 0.
pub(crate) fn points() -> ArrayDataset {
    let features = (0..20).map(|point| point as f32 / 20.0).collect();
    ArrayDataset::new(features, (0..20).map(|point| i64::from(point >= 10)).collect(), 1).unwrap()
}

pub(crate) fn model(device: &Device) -> Sequential {
    let rng = Rng::new(7);
    Sequential::new()
        .with("fc1", Linear::new(device, 1, 16, &rng).unwrap())
        .with("relu", Relu)
        .with("dropout", Dropout::new(0.5, &rng.fork(0)).unwrap())
        .with("fc2", Linear::new(device, 16, 2, &rng).unwrap())
}

/// The loss and the accuracy over all points.
pub(crate) fn measure(model: &Sequential, data: &ArrayDataset, device: &Device) -> Result<Figures> {
    let mut loss = Loss::new(|scores, classes| scores.cross_entropy(classes)).named("validation_loss");
    let batches = data.batches(BATCH, device)?;
    evaluate(batches, |x| model.forward(x), &mut [&mut loss, &mut Accuracy::default()])
}

/// The values of all parameters.
pub(crate) fn values(model: &impl Module) -> Vec<f32> {
    model.parameters().iter().flat_map(|(_, parameter)| parameter.tensor().to_vec::<f32>().unwrap()).collect()
}
