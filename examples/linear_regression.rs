//! Fits a line to points by gradient descent, with nothing but tensors and a backward pass.
//!
//! cargo run --example linear_regression -- --help

mod harness;

use std::process::ExitCode;

use clap::Parser;
use harness::Session;
use highwater::{Rng, Tensor, no_grad};
use serde_json::json;

/// Fit a line to points by gradient descent.
#[derive(Debug, Parser)]
struct Args {
    /// Steps of descent
    #[arg(long, value_name = "N", default_value_t = 200)]
    steps: u32,

    #[command(flatten)]
    options: harness::Options,
}

impl AsRef<harness::Options> for Args {
    fn as_ref(&self) -> &harness::Options {
        &self.options
    }
}

fn main() -> ExitCode {
    harness::main("linear_regression", fit)
}

fn fit(args: &Args, session: Session) -> anyhow::Result<()> {
    // Points around the line y = 3x + 0.5. One seed gives the same points on every machine.
    let (device, rng) = (&session.device, Rng::new(args.options.seed));
    let x = Tensor::uniform(device, [256, 1], -1.0, 1.0, &rng)?;
    let noise = Tensor::normal(device, [256, 1], 0.0, 0.1, &rng)?;
    let y = x.mul_scalar(3.0)?.add_scalar(0.5)?.add(&noise)?;

    // A tensor that requires gradients is a leaf: ops on it are recorded.
    let mut slope = Tensor::zeros(device, [1, 1])?.requiring_grad()?;
    let mut offset = Tensor::zeros(device, [1])?.requiring_grad()?;
    for _ in 0..args.steps {
        let loss = x.matmul(&slope)?.add(&offset)?.mse_loss(&y)?;
        let gradients = loss.backward()?;
        // The step itself must not be recorded. The old tensors are dropped, and their memory is used again.
        let descend = |leaf: &Tensor| match gradients.get(leaf) {
            Some(gradient) => no_grad(|| leaf.sub(&gradient.mul_scalar(0.1)?))?.requiring_grad(),
            None => Ok(leaf.clone()),
        };
        (slope, offset) = (descend(&slope)?, descend(&offset)?);
    }

    // On a dry run there are no values to read, only the memory that they would have taken.
    let value = |tensor: &Tensor| if device.is_dry() { Ok(None) } else { tensor.item::<f32>().map(Some) };
    let (slope, offset) = (value(&slope)?, value(&offset)?);
    let summary = match (slope, offset) {
        (Some(slope), Some(offset)) => format!("y = {slope:.3} x + {offset:.3}"),
        _ => "nothing computed".to_owned(),
    };
    session.finish(&summary, json!({ "slope": slope, "offset": offset }))
}
