//! Trains on a table with text, reports memory by module, and finds a leak and the largest batch. The second run resumes.
use highwater::prelude::*;
use highwater::train::{Accuracy, Direction, EarlyStopping, ProgressBar, Saves, Trainer, evaluate};
use highwater::{DeviceProfile, largest_fit, tracking::Report};

#[derive(Debug, Module)]
struct Residual {
    inner: Sequential,
}

#[module]
impl Module for Residual {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x + &self.inner.forward(x)?
    }
}

fn mlp(device: &Device, sizes: [usize; 3]) -> Result<Sequential> {
    let linear = |layer: usize| Linear::new(device, sizes[layer], sizes[layer + 1], &Rng::new(layer as u64));
    Ok(Sequential::new().with("up", linear(0)?).with("relu", Relu).with("down", linear(1)?))
}

fn network(device: &Device, width: usize, classes: usize) -> Result<Sequential> {
    let block = Residual { inner: mlp(device, [width, 32, width])? };
    Ok(Sequential::new().with("block", block).with("head", mlp(device, [width, 32, classes])?))
}

fn main() -> Result<()> {
    let options = CsvOptions::default().with_classes("fruit").with_one_hot(["origin"]).with_ignored(["id"]);
    let data = read_csv("data/fruit.csv", &options.with_missing(Missing::Mean))?;
    let (device, width, classes) = (Device::cpu()?, data.width(), data.class_names().len());
    let normalize = Normalize::of(&data, width)?;
    let (train, test) = data.normalized(&normalize)?.split(0.2, 7)?;
    device.tracker().start_log(Bytes::mib(8));
    let (net, mut kept) = (network(&device, width, classes)?, Vec::new());
    let mut optimizer = AdamW::new(net.parameters(), 0.003)?;
    let test_batches = || test.batches(64, &device);
    let outcome = Trainer::new(&net, &mut optimizer)
        .epochs(100)
        .saves(Saves::resumable(std::env::temp_dir().join("quickstart.safetensors")))
        .early_stopping(EarlyStopping::new("accuracy").direction(Direction::Maximize))
        .observe(ProgressBar::new())
        .evaluate(|| evaluate(test_batches()?, |x| net.forward(x), &mut [&mut Accuracy::default()]))
        .train(
            |epoch| Ok(train.batches(32, &device)?.shuffled(7, epoch)),
            // Keeping the losses is a leak, which the report finds.
            |(x, y)| net.forward(x)?.cross_entropy(y).inspect(|loss| kept.push(loss.clone())),
        )?;
    println!("{}\n{outcome}: {:?}", Report::from_recording(&device.tracker().take_log()), outcome.best);
    let pool = DeviceProfile::this_machine().with_limit(Bytes::mib(2));
    let fit = largest_fit(pool, 1..=9_999, |device, batch| {
        let net = network(device, width, classes)?;
        let y = net.forward(&Tensor::zeros(device, (batch as usize, width))?)?;
        AdamW::new(net.parameters(), 0.003)?.step(y.square()?.mean_all()?.backward()?)
    })?;
    println!("{fit}");
    let iris = mlp(&device, [4, 16, 3])?; // nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    Checkpoint::load("data/iris.pt")?.converted_from_pytorch(&iris)?.restore(&iris)?;
    let flower = Tensor::from_slice(&device, &[6.3f32, 3.3, 6.0, 2.5], (1, 4))?;
    println!("{}", iris.forward(&flower)?.argmax(-1)?);
    Ok(())
}
