//! Compares the plan that a search chooses with all plans of an enumerated space, measured on this machine's CPU.
//!
//! `cargo bench -p highwater-benches --bench fit`
//!
//! Each network has a space of at most 64 plans: sizes of micro-batches, and the sets of blocks that run again. For limits of
//! 75, 50 and 25 % of the plain peak, every plan that fits trains a few steps, round after round. The chosen plan should be at most
//! 5 % slower than the fastest one, and its peak must be the predicted one.

use anyhow::{Context, ensure};
use highwater::alloc::Bytes;
use highwater::fit::{FitError, Plan, Space, fit};
use highwater::nn::recompute::{Recomputation, Recompute};
use highwater::prelude::*;
use highwater::tensor::record_passes;
use highwater::tracking::table::{Table, bytes};
use highwater::{DeviceSpeed, dry_run};

/// The shares of the plain peak.
const SHARES: [f64; 3] = [0.75, 0.5, 0.25];

/// The rounds in which every plan is measured; the fastest counts.
const ROUNDS: usize = 2;

/// The steps of a measurement. The first one allocates, and is not counted.
const STEPS: u64 = 4;

/// A network with its training step.
struct Program {
    name: &'static str,
    batch: usize,
    micro_batches: &'static [usize],
    /// The blocks of the chain `blocks`.
    blocks: usize,
    /// The number of blocks that neighboring sets differ in, so that there are at most 64 plans.
    groups: usize,
    train: fn(&Device, &Plan) -> highwater::Result<()>,
}

const PROGRAMS: [Program; 3] = [
    Program {
        name: "GPT, 4 blocks of width 64, context 128, batch 32",
        batch: 32,
        micro_batches: &[32, 16, 8, 4],
        blocks: 4,
        groups: 4,
        train: |device, plan| gpt(device, plan, (4, 64, 128)),
    },
    Program {
        name: "GPT, 6 blocks of width 128, context 128, batch 16",
        batch: 16,
        micro_batches: &[16, 8, 4, 2],
        blocks: 6,
        groups: 3,
        train: |device, plan| gpt(device, plan, (6, 128, 128)),
    },
    Program {
        name: "residual CNN with batch norm, 6 blocks, batch 32",
        batch: 32,
        micro_batches: &[32],
        blocks: 6,
        groups: 6,
        train: cnn,
    },
];

fn main() -> anyhow::Result<()> {
    // `cargo test --benches` and CI only check that it runs.
    let is_test = std::env::args().any(|arg| arg == "--test");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let speed = DeviceSpeed::of_this_machine(threads)?;
    let profile = DeviceProfile::this_machine().with_threads(threads).with_speed(speed);
    for program in PROGRAMS.iter().take(if is_test { 1 } else { usize::MAX }) {
        let mut table = Table::new(&[
            "limit",
            "plans",
            "fit",
            "chosen",
            "peak",
            "step",
            "fastest of all that fit",
            "step",
            "ratio",
        ]);
        let plain = dry_run(profile.clone(), |device| (program.train)(device, &Plan::new(program.batch)))?;
        let peak = plain.peak.in_use;
        let shares = if is_test { &SHARES[..1] } else { &SHARES };
        for share in shares {
            let limit = Bytes((peak as f64 * share) as u64);
            let cells = compare(program, (&profile, limit), threads, is_test)?;
            table.line(&format!("{:.0} %", share * 100.0), cells);
        }
        println!("{}: {} without a limit\n\n{table}", program.name, bytes(peak));
    }
    Ok(())
}

/// Measures the chosen plan and all enumerated plans that fit. Returns the cells of a line.
fn compare(
    program: &Program,
    (profile, limit): (&DeviceProfile, Bytes),
    threads: usize,
    is_test: bool,
) -> anyhow::Result<Vec<String>> {
    let limited = profile.clone().with_limit(limit);
    let device = || Runtime::builder().pool(limit).threads(threads).build()?.cpu();
    let space = Space::new(program.batch).micro_batches(program.micro_batches.iter().copied());
    let mut found = match fit(limited.clone(), &space, program.train) {
        Ok(found) => found,
        Err(FitError::NothingFits(nothing)) => {
            let needed = format!("{} are necessary", bytes(nothing.required_bytes));
            return Ok(vec!["–".into(), "–".into(), needed]);
        }
        Err(error) => return Err(error.into()),
    };
    found.measure(device, program.train, |_| ())?;
    let chosen = found.chosen();

    let all = program.plans();
    let fits = |plan: &Plan| dry_run(limited.clone(), |device| program.run(device, plan)).is_ok();
    let mut fitting: Vec<Plan> = all.iter().filter(|plan| fits(plan)).cloned().collect();
    // The chosen plan last, so that it is measured as the others are.
    fitting.push(chosen.plan.clone());
    let mut seconds = vec![f64::INFINITY; fitting.len()];
    for _ in 0..if is_test { 1 } else { ROUNDS } {
        for (plan, fastest) in fitting.iter().zip(&mut seconds) {
            let (device, passes) = (device()?, plan.accumulate as usize);
            let (result, ends) = record_passes(|| program.run(&device, plan));
            result?;
            let ends: Vec<_> = ends.iter().skip(passes - 1).step_by(passes).map(|end| end.at).collect();
            let steps = ends.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64());
            *fastest = steps.fold(*fastest, f64::min);
            let peak = device.default_allocator()?.stats().peak_bytes_in_use;
            ensure!(*plan != chosen.plan || peak == chosen.peak_bytes, "{peak}, not {}", chosen.peak_bytes);
        }
    }
    let own = seconds.pop().context("the chosen plan")?;
    let best = (0..seconds.len()).min_by(|one, other| seconds[*one].total_cmp(&seconds[*other]));
    let milliseconds = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    let (fastest, time) =
        best.map_or((String::new(), own), |best| (fitting[best].to_string(), seconds[best]));
    Ok(vec![
        all.len().to_string(),
        seconds.len().to_string(),
        chosen.plan.to_string(),
        bytes(chosen.peak_bytes),
        milliseconds(own),
        fastest,
        milliseconds(time),
        format!("{:.3}", own / time),
    ])
}

impl Program {
    /// All plans: each size of micro-batches with each set of groups of blocks that run again.
    fn plans(&self) -> Vec<Plan> {
        let mut plans = Vec::new();
        for &micro_batch in self.micro_batches {
            for set in 0..1usize << self.groups {
                let mut plan = Plan::new(micro_batch);
                plan.accumulate = (self.batch / micro_batch) as u64;
                let again =
                    (0..self.blocks).filter(|block| set >> (block * self.groups / self.blocks) & 1 == 1);
                if set > 0 {
                    plan.recompute =
                        Recompute::new().with("blocks", Recomputation::of_blocks(self.blocks, again));
                }
                plans.push(plan);
            }
        }
        plans
    }

    fn run(&self, device: &Device, plan: &Plan) -> highwater::Result<()> {
        let _plan = plan.enter()?;
        (self.train)(device, plan)
    }
}

/// Steps with AdamW, whose gradients are sums over micro-batches.
fn steps(
    model: &impl Module,
    plan: &Plan,
    loss: impl Fn() -> highwater::Result<Tensor>,
) -> highwater::Result<()> {
    let mut optimizer = AdamW::new(model.parameters(), 1e-4)?;
    for _ in 0..plan.steps(STEPS) {
        let mut gradients = loss()?.backward()?;
        for _ in 1..plan.accumulate {
            gradients.accumulate(&mut loss()?.backward()?)?;
        }
        if plan.accumulate > 1 {
            gradients.scale(1.0 / plan.accumulate as f64)?;
        }
        optimizer.step(gradients)?;
    }
    Ok(())
}

fn gpt(
    device: &Device,
    plan: &Plan,
    (layers, width, context): (usize, usize, usize),
) -> highwater::Result<()> {
    let rng = Rng::new(0);
    let mut blocks = Sequential::new();
    for layer in 0..layers {
        let block = TransformerBlock::new(device, width, width / 32, &rng)?.causal();
        blocks = blocks.with(&layer.to_string(), block);
    }
    let (tokens, head) = (Embedding::new(device, 96, width, &rng)?, Linear::new(device, width, 96, &rng)?);
    let model = Sequential::new().with("tokens", tokens).with("blocks", blocks).with("head", head);
    let text = Tensor::zeros_of(device, [plan.micro_batch, context], DType::I64)?;
    steps(&model, plan, || model.forward(&text)?.flatten(0, 1)?.cross_entropy(&text.flatten(0, 1)?))
}

fn cnn(device: &Device, plan: &Plan) -> highwater::Result<()> {
    let rng = Rng::new(0);
    let mut blocks = Sequential::new();
    for block in 0..6 {
        blocks = blocks.with(&block.to_string(), Residual::new(device, 32, &rng)?);
    }
    let stem = Conv2d::new(device, 3, 32, [3, 3], Conv2dOptions::padded(1), &rng)?;
    let model = Sequential::new()
        .with("stem", stem)
        .with("blocks", blocks)
        .with("pool", AvgPool2d::new(32))
        .with("flat", Flatten)
        .with("classes", Linear::new(device, 32, 10, &rng)?);
    let images = Tensor::normal(device, [plan.micro_batch, 3, 32, 32], 0.0, 1.0, &rng)?;
    let classes = Tensor::zeros_of(device, [plan.micro_batch], DType::I64)?;
    steps(&model, plan, || model.forward(&images)?.cross_entropy(&classes))
}

/// y = relu(x + norm(conv(x)))
#[derive(Debug, Module)]
struct Residual {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Residual {
    fn new(device: &Device, channels: usize, rng: &Rng) -> highwater::Result<Self> {
        let conv = Conv2d::new(device, channels, channels, [3, 3], Conv2dOptions::padded(1), rng)?;
        Ok(Self { conv, norm: BatchNorm::new(device, channels)? })
    }
}

#[module]
impl Module for Residual {
    fn forward(&self, x: &Tensor) -> highwater::Result<Tensor> {
        self.norm.forward_add_relu(&self.conv.forward(x)?, x)
    }
}
