//! Estimated and measured times of training steps.

use std::time::Instant;

use highwater::prelude::*;
use highwater::{DeviceSpeed, Runtime, StepTime};

use super::{Options, start, start_on};
use crate::Program;
use crate::workload::Workload;

/// One way to run a workload.
struct Case {
    name: String,
    estimate: StepTime,
    program: Program,
    steps: usize,
    seconds: f64,
}

/// Prints a table of estimated and measured times: f32 and mixed precision, on one thread and on `threads`.
pub fn compare(
    workloads: &[Workload],
    threads: usize,
    rounds: usize,
    options: Options,
) -> anyhow::Result<()> {
    let mut counts = vec![1, threads];
    counts.dedup();
    for &threads in &counts {
        let start = Instant::now();
        let speed = DeviceSpeed::of_this_machine(threads)?;
        println!("{threads} threads: {speed}; found in {:.2} s", start.elapsed().as_secs_f64());
    }
    println!("\n| step | estimated, ms | measured, ms | error | limit |\n|---|---|---|---|---|");
    for &workload in workloads {
        // The cases of a workload are interleaved, and the fastest step of each counts.
        let mut cases = Vec::new();
        for &threads in &counts {
            for mixed in [false, true] {
                cases.push(Case::new(workload, threads, Options { mixed, ..options })?);
            }
        }
        for _ in 0..rounds {
            cases.iter_mut().try_for_each(|case| case.measure(workload))?;
        }
        cases.iter().for_each(Case::print);
    }
    Ok(())
}

impl Case {
    fn new(workload: Workload, threads: usize, options: Options) -> anyhow::Result<Self> {
        let precision = if options.mixed { "mixed" } else { "f32" };
        let name = format!("{workload:?}, {precision}, {threads} threads").to_lowercase();
        let estimate = estimate(workload, threads, options)?;
        let program = start(workload, threads, options)?;
        Ok(Self { name, estimate, program, steps: 0, seconds: f64::INFINITY })
    }

    /// Runs a block of steps after one that is not counted, as other cases have emptied the caches.
    fn measure(&mut self, workload: Workload) -> anyhow::Result<()> {
        let steps = workload.steps_per_block();
        for number in 0..=steps {
            let start = Instant::now();
            (self.program.step)(self.steps)?;
            self.steps += 1;
            if number > 0 {
                self.seconds = self.seconds.min(start.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }

    fn print(&self) {
        let [estimated, measured] = [self.estimate.seconds, self.seconds].map(|seconds| seconds * 1e3);
        let error = (estimated / measured - 1.0) * 100.0;
        let limit = self.estimate.limit();
        println!("| {} | {estimated:.3} | {measured:.3} | {error:+.0} % | {limit} |", self.name);
    }
}

/// A GPT without position embeddings, in bf16 or f32: layers, width, heads, classes, sequences and their length.
const GPTS: [([usize; 6], DType); 2] =
    [([4, 128, 4, 96, 16, 64], DType::F32), ([12, 768, 12, 8192, 8, 512], DType::BF16)];

/// Prints the estimated times of the training steps of `examples/op_bench` on a GPU.
pub fn estimate_gpu(profile: &DeviceProfile) -> anyhow::Result<()> {
    if let Some(speed) = profile.speed() {
        println!("{profile}: {speed}");
    }
    let show = |name: String, time: StepTime| println!("{name}: {time}, {time:?}");
    show(
        "perceptron 64-128-10".to_owned(),
        estimate_model(profile, DType::F32, [64, 1], 10, |device, rng| {
            Ok(Sequential::new()
                .with("fc1", Linear::new(device, 64, 128, rng)?)
                .with("relu", Relu)
                .with("fc2", Linear::new(device, 128, 10, rng)?))
        })?,
    );
    for ([layers, width, heads, classes, sequences, length], dtype) in GPTS {
        let time = estimate_model(profile, dtype, [sequences, length], classes, |device, rng| {
            let mut model = Sequential::new().with("tokens", Embedding::new(device, classes, width, rng)?);
            for layer in 0..layers {
                let block = TransformerBlock::new(device, width, heads, rng)?.causal();
                model = model.with(&format!("block{layer}"), block);
            }
            Ok(model.with("head", Linear::new(device, width, classes, rng)?))
        })?;
        show(format!("GPT {layers} by {width}, {sequences} of {length}, {dtype}"), time);
    }
    Ok(())
}

/// Returns the estimated time of a model's step with AdamW: images of 64 values if the length is 1, else tokens.
fn estimate_model(
    profile: &DeviceProfile,
    dtype: DType,
    [sequences, length]: [usize; 2],
    classes: usize,
    model: impl FnOnce(&Device, &Rng) -> Result<Sequential>,
) -> anyhow::Result<StepTime> {
    let (device, rng) = (Device::dry_as(profile.clone())?, Rng::new(0));
    let model = model(&device, &rng)?;
    model.convert(dtype)?;
    let mut optimizer = AdamW::new(model.parameters(), 1e-3)?;
    let words: Vec<i64> = (0..(sequences * length) as i64).map(|place| place % classes as i64).collect();
    let y = Tensor::from_slice(&device, &words, [words.len()])?;
    let x = match length {
        1 => Tensor::zeros(&device, [sequences, 64])?,
        _ => Tensor::from_slice(&device, &words, [sequences, length])?,
    };
    let mut step = || {
        let scores = model.forward(&x)?;
        let loss = scores.reshape([words.len(), classes])?.cross_entropy(&y)?;
        optimizer.step(loss.backward()?)
    };
    // The first step also creates the state of the optimizer.
    step()?;
    let before = device.estimated_time().unwrap_or_default();
    step()?;
    let time = device.estimated_time().unwrap_or_default() - before;
    let mut fastest = f64::INFINITY;
    for _ in 0..50 {
        let start = Instant::now();
        step()?;
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    println!("a dry step takes {:.3} ms", fastest * 1e3);
    Ok(time)
}

/// Returns the estimated time of a step, from a dry run.
fn estimate(workload: Workload, threads: usize, options: Options) -> anyhow::Result<StepTime> {
    let profile = DeviceProfile::this_machine()
        .with_threads(threads)
        .with_speed(DeviceSpeed::of_this_machine(threads)?);
    let runtime = Runtime::builder().dry_profile(profile).dry_values(|_| Some(0.5.into())).build()?;
    let device = runtime.dry()?;
    let mut program = start_on(workload, device.clone(), options)?;
    // The first step also creates the state of the optimizer.
    (program.step)(0)?;
    let before = device.estimated_time().unwrap_or_default();
    (program.step)(1)?;
    Ok(device.estimated_time().unwrap_or_default() - before)
}
