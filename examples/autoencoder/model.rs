//! The network: an encoder and a decoder.

use highwater::Result;
use highwater::prelude::*;
use highwater::train::{Figures, Mean};

/// Encodes pictures of `pixels` pixels to `code` values and decodes them, with `hidden` units on both sides.
pub(crate) fn autoencoder(
    device: &Device,
    [pixels, hidden, code]: [usize; 3],
    rng: &Rng,
) -> Result<Sequential> {
    let halve = |[from, to]: [usize; 2]| -> Result<Sequential> {
        Ok(Sequential::new()
            .with("fc1", Linear::new(device, from, hidden, rng)?)
            .with("gelu", Gelu)
            .with("fc2", Linear::new(device, hidden, to, rng)?))
    };
    Ok(Sequential::new()
        .with("encoder", halve([pixels, code])?)
        .with("decoder", halve([code, pixels])?)
        .with("brightness", Sigmoid))
}

/// The mean squared error of the reconstructions.
pub(crate) fn loss(network: &Sequential, pictures: &Tensor) -> Result<Tensor> {
    let back = network.forward(pictures)?;
    let _scope = module("loss");
    back.mse_loss(pictures)
}

/// The mean squared error over a data set, as `validation_loss`.
pub(crate) fn mean_loss(
    network: &Sequential,
    data: &ArrayDataset,
    batch_size: usize,
    device: &Device,
) -> Result<Figures> {
    let mut mean = Mean::default();
    for batch in data.batches(batch_size, device)? {
        let (pictures, _) = batch?;
        mean.add(&loss(network, &pictures)?, pictures.dims().first().copied().unwrap_or(0))?;
    }
    Ok([("validation_loss", mean.value())].into())
}
