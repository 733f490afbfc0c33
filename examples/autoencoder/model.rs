//! The network: an encoder and a decoder.

use highwater::Result;
use highwater::prelude::*;

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
    back.mse_loss(pictures, Reduction::Mean)
}

/// The mean squared error over a data set; `None` on a device that computes nothing.
pub(crate) fn mean_loss(
    network: &Sequential,
    data: &ArrayDataset,
    batch_size: usize,
    device: &Device,
) -> Result<Option<f64>> {
    let _scope = module("validation");
    let mut sum = 0.0;
    for batch in data.batches(batch_size, device)? {
        let (pictures, _) = batch?;
        let mean = no_grad(|| loss(network, &pictures))?.item_or(0.0_f32)?;
        sum += f64::from(mean) * pictures.dims().first().copied().unwrap_or(0) as f64;
    }
    Ok((!device.is_dry()).then(|| sum / data.rows() as f64))
}
