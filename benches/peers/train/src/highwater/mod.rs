//! The programs in Highwater.

mod convolution;
pub mod estimate;
mod gpt;

use highwater::distributed::World;
use highwater::nn::{Flatten, MaxPool2d};
use highwater::prelude::*;
use highwater::tracking::Tracker;

use crate::workload::recurrent::Recurrent;
use crate::workload::{Data, Network, Workload, convolution as images, recurrent};
use crate::{Program, workload};

/// How Highwater runs.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// Disables Highwater's op accounts.
    #[arg(long)]
    unmarked: bool,
    /// Element type of Highwater's parameters and activations: f32, bf16 or f16.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: Floats,
    /// Trains in mixed precision: activations in bf16, parameters in f32.
    #[arg(long)]
    pub mixed: bool,
    /// Trains with the ranks that a launcher started. Each has a batch per step.
    #[arg(long)]
    pub ranks: bool,
    /// Prints Highwater's memory report, with the time of each op.
    #[arg(long)]
    pub report: bool,
}

/// The element type of a model.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Floats {
    F32,
    Bf16,
    F16,
}

/// Prepares the workload on this many threads.
pub fn start(workload: Workload, threads: usize, options: Options) -> anyhow::Result<Program> {
    let tracker = if options.unmarked { Tracker::disabled() } else { Tracker::new() };
    let runtime = Runtime::builder().threads(threads).tracker(tracker).build()?;
    start_on(workload, runtime.cpu()?, options)
}

/// Prepares the workload on a device.
pub fn start_on(workload: Workload, device: Device, options: Options) -> anyhow::Result<Program> {
    let model = network(workload.network(), &device)?;
    fill(model.as_ref(), workload.weights())?;
    let dtype = match options.dtype {
        Floats::F32 => DType::F32,
        Floats::Bf16 => DType::BF16,
        Floats::F16 => DType::F16,
    };
    model.convert(dtype)?;
    let world = if options.ranks { World::from_env()? } else { World::alone() };
    let mut optimizer = world.data_parallel(optimizer(workload.optimizer(), model.parameters())?)?;
    let (batches, of_step) = (workload.batches(), device.clone());
    let prints = world.is_main();
    let step = move |step: usize| {
        let batch = &batches[(step * world.size() + world.rank()) % batches.len()];
        let x = tensor(&of_step, &batch.input)?;
        let x = if x.dtype() == DType::F32 { x.to_dtype(dtype)? } else { x };
        let _guard = options.mixed.then(|| mixed(DType::BF16)).transpose()?;
        let (y, target) = (model.forward(&x)?.to_dtype(DType::F32)?, tensor(&of_step, &batch.target)?);
        let loss = match batch.target {
            Data::Floats { .. } => y.mse_loss(&target)?,
            Data::Indices { .. } => y.cross_entropy(&target)?,
        };
        let value = loss.item::<f32>()?;
        optimizer.step(loss.backward()?)?;
        Ok(value)
    };
    Ok(Program { step: Box::new(step), device: Some(device), prints })
}

fn network(network: Network, device: &Device) -> Result<Box<dyn Module>> {
    let rng = &Rng::new(0);
    Ok(match network {
        Network::Perceptron(sizes) => Box::new(perceptron(sizes, device, rng)?),
        Network::Cnn => Box::new(cnn(device, rng)?),
        Network::ResNet18 => Box::new(convolution::resnet18(device, rng)?),
        Network::Recurrent(sizes) => recurrent_network(sizes, device, rng)?,
        Network::Gpt(sizes) => Box::new(gpt::Gpt::new(sizes, device, rng)?),
    })
}

fn perceptron(sizes: &[usize], device: &Device, rng: &Rng) -> Result<Sequential> {
    let mut layers = Sequential::new();
    for layer in 1..sizes.len() {
        if layer > 1 {
            layers = layers.with(&format!("relu{}", layer - 1), Relu);
        }
        layers =
            layers.with(&format!("fc{layer}"), Linear::new(device, sizes[layer - 1], sizes[layer], rng)?);
    }
    Ok(layers)
}

fn cnn(device: &Device, rng: &Rng) -> Result<Sequential> {
    let conv = |inputs, outputs| Conv2d::new(device, inputs, outputs, [3, 3], Conv2dOptions::padded(1), rng);
    Ok(Sequential::new()
        .with("conv1", conv(1, 16)?)
        .with("relu1", Relu)
        .with("pool1", MaxPool2d::new(2))
        .with("conv2", conv(16, 32)?)
        .with("relu2", Relu)
        .with("pool2", MaxPool2d::new(2))
        .with("flatten", Flatten)
        .with("fc", Linear::new(device, 32 * 49, images::CLASSES, rng)?))
}

/// Recurrent layers, and a linear layer on the last state.
#[derive(Debug, Module)]
struct Classifier<R> {
    layers: R,
    head: Linear,
}

#[module]
impl<R: Module> Module for Classifier<R> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.layers.forward(x)?.select(1, -1)?)
    }
}

fn recurrent_network(sizes: Recurrent, device: &Device, rng: &Rng) -> Result<Box<dyn Module>> {
    let Recurrent { gates, layers, inputs, hidden, classes, .. } = sizes;
    let options = RecurrentOptions { layers, ..RecurrentOptions::default() };
    let head = Linear::new(device, hidden, classes, rng)?;
    Ok(if gates == recurrent::LSTM.gates {
        Box::new(Classifier { layers: Lstm::with_options(device, inputs, hidden, options, rng)?, head })
    } else {
        Box::new(Classifier { layers: Gru::with_options(device, inputs, hidden, options, rng)?, head })
    })
}

/// Sets the parameters of a model to the workload's first values.
fn fill(model: &dyn Module, weights: Vec<(Vec<usize>, Vec<f32>)>) -> anyhow::Result<()> {
    let parameters = model.parameters();
    anyhow::ensure!(parameters.len() == weights.len(), "{} parameters", parameters.len());
    for ((name, parameter), (shape, values)) in parameters.iter().zip(&weights) {
        let tensor = parameter.tensor();
        anyhow::ensure!(tensor.dims() == *shape, "{name}: {:?}", tensor.dims());
        parameter.set(&Tensor::from_slice(tensor.device(), values, &shape[..])?)?;
    }
    Ok(())
}

fn optimizer(kind: workload::Optimizer, parameters: Vec<(String, Parameter)>) -> Result<Box<dyn Optimizer>> {
    Ok(match kind {
        workload::Optimizer::Sgd { rate, momentum: 0.0 } => Box::new(Sgd::new(parameters, rate)?),
        workload::Optimizer::Sgd { rate, momentum } => {
            Box::new(Sgd::new(parameters, rate)?.with_momentum(momentum)?)
        }
        workload::Optimizer::AdamW { rate } => {
            Box::new(AdamW::new(parameters, rate)?.with_weight_decay(0.01)?)
        }
    })
}

fn tensor(device: &Device, data: &Data) -> Result<Tensor> {
    match data {
        Data::Floats { shape, values } => Tensor::from_slice(device, values, &shape[..]),
        Data::Indices { shape, values } => Tensor::from_slice(device, values, &shape[..]),
    }
}
