//! Trains a line on generated points or points from a file: gradient descent with tensors and a backward pass.
//!
//! cargo run --example linear_regression -- --help

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use highwater::data::{CsvOptions, TargetColumns, read_csv};
use highwater::io::{
    Array, Safetensors, SafetensorsLimits, read_safetensors, write_atomically, write_safetensors_to,
};
use highwater::train::{Every, Options, Run, SaveOptions, StopSignal};
use highwater::{Device, Error, Rng, Tensor, no_grad};
use serde_json::json;

/// The learning rate.
const RATE: f64 = 0.1;

/// Find a line through points by gradient descent.
#[derive(Debug, Parser)]
struct Args {
    /// Training steps
    #[arg(long, value_name = "N", default_value_t = 200)]
    steps: u64,

    /// A CSV file of points, x and y per line [default: generated points]
    #[arg(long, value_name = "FILE")]
    points: Option<PathBuf>,

    #[command(flatten)]
    saves: SaveOptions,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.run("linear_regression", |run| train(&args, run))
}

fn train(args: &Args, run: &Run) -> anyhow::Result<()> {
    let (device, saves) = (run.device(), args.saves.saves(Every::Steps));
    let (x, y) = match &args.points {
        Some(file) => read(file, device)?,
        None => make_up(device, run.seed())?,
    };

    // A tensor that requires gradients is a leaf: ops on it are recorded.
    let (mut slope, mut offset, first) = match saves.resume_path() {
        Some(path) => load(path, device)?,
        None => (Tensor::zeros(device, [1, 1])?, Tensor::zeros(device, [1])?, 0),
    };
    (slope, offset) = (slope.requiring_grad()?, offset.requiring_grad()?);
    let (mut output, stop) = (run.output(), StopSignal::listen());
    output.begin(first, Some(args.steps))?;
    let path = saves.path().filter(|_| !device.is_dry());
    while output.steps() < args.steps && !stop.is_requested() {
        let loss = output.run(|| {
            let loss = x.matmul(&slope)?.add(&offset)?.mse_loss(&y)?;
            let gradients = loss.backward()?;
            // The update must not be recorded. The old tensors are dropped, and their memory is reused.
            let descend = |leaf: &Tensor| match gradients.get(leaf) {
                Some(gradient) => no_grad(|| leaf.sub(&gradient.mul_scalar(RATE)?))?.requiring_grad(),
                None => Ok(leaf.clone()),
            };
            (slope, offset) = (descend(&slope)?, descend(&offset)?);
            Ok::<_, Error>(loss)
        })?;
        output.step(&loss, [("learning_rate", RATE)])?;
        if let Some(path) = path.filter(|_| saves.is_due_after_steps(output.steps())) {
            save(path, &slope, &offset, output.steps())?;
        }
    }
    output.finish()?;
    if let Some(path) = path {
        save(path, &slope, &offset, output.steps())?;
    }

    // A dry run has no values, only memory figures.
    let value = |tensor: &Tensor| if device.is_dry() { Ok(None) } else { tensor.item::<f32>().map(Some) };
    let (slope, offset) = (value(&slope)?, value(&offset)?);
    let summary = match (slope, offset) {
        (Some(slope), Some(offset)) => format!("y = {slope:.3} x + {offset:.3}"),
        _ => "dry run".to_owned(),
    };
    Ok(run.finish(&summary, json!({ "slope": slope, "offset": offset }))?)
}

/// Points around the line y = 3x + 0.5. One seed gives the same points on every machine.
fn make_up(device: &Device, seed: u64) -> anyhow::Result<(Tensor, Tensor)> {
    let rng = Rng::new(seed);
    let x = Tensor::uniform(device, [256, 1], -1.0, 1.0, &rng)?;
    let noise = Tensor::normal(device, [256, 1], 0.0, 0.1, &rng)?;
    let y = x.mul_scalar(3.0)?.add_scalar(0.5)?.add(&noise)?;
    Ok((x, y))
}

/// Points from a file, all in one batch.
fn read(file: &Path, device: &Device) -> anyhow::Result<(Tensor, Tensor)> {
    let points = read_csv(file, &CsvOptions::default().with_targets(TargetColumns::Last(1)))?;
    anyhow::ensure!(points.width() == 1, "{}: expected x and y in each line", file.display());
    let mut batches = points.batches(points.rows(), device)?;
    Ok(batches.next().context("a file without points is refused")??)
}

/// The key of the number of steps in a saved file.
const STEPS: &str = "steps";

/// Writes the line as a safetensors file, atomically.
fn save(path: &Path, slope: &Tensor, offset: &Tensor, steps: u64) -> anyhow::Result<()> {
    let mut contents = Safetensors::default();
    contents.arrays.insert("slope".to_owned(), Array::of(slope)?);
    contents.arrays.insert("offset".to_owned(), Array::of(offset)?);
    contents.metadata.insert(STEPS.to_owned(), steps.to_string());
    Ok(write_atomically(path, |file| write_safetensors_to(file, &contents))?)
}

/// Reads a line and its number of steps.
fn load(path: &Path, device: &Device) -> anyhow::Result<(Tensor, Tensor, u64)> {
    let contents = read_safetensors(path, &SafetensorsLimits::default())?;
    let tensor = |name: &str, dims: &[usize]| {
        let array = contents.arrays.get(name).filter(|array| array.shape().dims() == dims);
        let array = array.with_context(|| format!("{}: no {name} of shape {dims:?}", path.display()))?;
        Ok::<_, anyhow::Error>(array.to_tensor(device)?)
    };
    let steps = contents.metadata.get(STEPS).and_then(|steps| steps.parse().ok());
    let steps = steps.with_context(|| format!("{}: no number of steps", path.display()))?;
    Ok((tensor("slope", &[1, 1])?, tensor("offset", &[1])?, steps))
}
