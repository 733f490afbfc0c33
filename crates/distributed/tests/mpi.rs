//! One rank of the MPI tests. `scripts/test-mpi` starts this program with several ranks, once per scenario, and checks
//! the output and the exit code of the failing ones. Without a launcher, the program checks a world of one rank.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

use std::env;
use std::error::Error;
use std::ffi::c_int;
use std::fmt::Debug;
use std::io::{self, Write};
use std::mem;
use std::process::{self, Command, ExitCode};
use std::thread;
use std::time::Duration;

use half::{bf16, f16};
use highwater::prelude::{Device, Linear, Module, Optimizer, Parameter, Rng, Sgd, Tensor};
use highwater::train::{EarlyStopping, Every, Figures, Saves, Trainer};
use highwater_distributed::{
    AgreeError, AgreedValue, Shard, SliceMut, SumOrder, World, no_sync, span, spans,
};

/// The time limit of scenarios that reach it.
const SHORT: Duration = Duration::from_secs(3);
/// The time limit of the others; the script ends them earlier.
const LONG: Duration = Duration::from_secs(100);

fn main() -> ExitCode {
    let scenario = env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or("values".into());
    let limit = if ["kill", "kill-inside", "hang"].contains(&scenario.as_str()) { SHORT } else { LONG };
    let world = World::from_env_with(limit).unwrap();
    let result = match scenario.as_str() {
        "values" => {
            values(&world);
            Ok(())
        }
        "abort" if world.is_main() => world.collective().abort(3),
        "length" => reduce(&world, 10 + world.rank()),
        "no-sync" => add_passes(&world),
        "freeze" => freeze_one_rank(&world),
        "uneven" => steps(&world, 5 - world.rank().min(1)),
        // The other ranks only receive from rank 1.
        "uneven-broadcast" => broadcasts(&world, 5 - usize::from(world.rank() == 1)),
        "uneven-exit" => steps(&world, 5 - world.rank().min(1)).map(|()| process::exit(0)),
        "uneven-ignored" => steps(&world, 5 - world.rank().min(1)).or_else(|error| {
            print_line(&*error);
            Ok(())
        }),
        "leak" => steps(&world, 2).map(|()| mem::forget(world.clone())),
        "fork" => fork_child(&world),
        "exit-inside" => exit_inside(&world),
        "train-stops" => train_until(&world, Some(1 + world.rank().min(1) as u64)),
        "train-saves" => train_until(&world, None),
        "train-sizes" => train_sizes(&world),
        "train-steps" => train(&world, 5 - world.rank().min(1) as u64, 4),
        "train-batches" => train(&world, 100, 4 - world.rank().min(1)),
        _ => (0..).try_for_each(|step| {
            if step == 3 && world.rank() == 1 {
                fail(&scenario)?;
            }
            reduce(&world, if scenario == "kill-inside" { 10_000_000 } else { 1000 })
        }),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    if scenario == "hang" {
        print_line(&*error);
        world.collective().abort(1);
    }
    // Prints the error after disconnecting, as a `main` that returns an error does.
    drop(world);
    print_line(&*error);
    ExitCode::FAILURE
}

/// Prints with one write, so that the lines of the ranks stay apart.
fn print_line(error: &dyn Error) {
    let _ = io::stderr().write_all(format!("{error}\n").as_bytes());
}

/// Rank 1 fails.
fn fail(scenario: &str) -> Result<(), Box<dyn Error>> {
    match scenario {
        "early" => return Err("rank 1 ends early".into()),
        "kill" => {
            Command::new("kill").args(["-9", &process::id().to_string()]).status()?;
        }
        "kill-inside" => {
            // While large messages are on their way.
            Command::new("sh").args(["-c", &format!("sleep 0.1; kill -9 {}", process::id())]).spawn()?;
            return Ok(());
        }
        "panic" => panic!("rank 1 panics"),
        _ => {}
    }
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

/// A pass alone and a common one.
fn add_passes(world: &World) -> Result<(), Box<dyn Error>> {
    let device = Device::cpu()?;
    let w = Parameter::new(Tensor::zeros(&device, [1])?)?;
    let mut optimizer = world.data_parallel(Sgd::new(vec![("w".into(), w.clone())], 1.0)?)?;
    let loss = |slope: f64| w.tensor().mul_scalar(slope)?.sum_all();
    let own = 10.0 * world.rank() as f64;
    let mut gradients = no_sync(|| loss(own)?.backward())?;
    gradients.accumulate(&mut loss(own + 2.0)?.backward()?)?;
    optimizer.step(gradients)?;
    // The sum of both means over all ranks.
    let expected = -2.0 - 10.0 * (world.size() - 1) as f32;
    assert_eq!(w.value().to_vec::<f32>()?, [expected]);
    Ok(())
}

fn freeze_one_rank(world: &World) -> Result<(), Box<dyn Error>> {
    let device = Device::cpu()?;
    let w = Parameter::new(Tensor::zeros(&device, [1])?)?;
    let b = Parameter::new(Tensor::zeros(&device, [1])?)?;
    let parameters = vec![("w".into(), w.clone()), ("b".into(), b.clone())];
    let mut optimizer = world.data_parallel(Sgd::new(parameters, 1.0)?)?;
    if world.rank() == 1 {
        b.freeze();
    }
    Ok(optimizer.step(w.tensor().add(&b.tensor())?.sum_all()?.backward()?)?)
}

fn steps(world: &World, count: usize) -> Result<(), Box<dyn Error>> {
    let device = Device::cpu()?;
    let model = Linear::new(&device, 8, 8, &Rng::new(0))?;
    let mut optimizer = world.data_parallel(Sgd::new(model.parameters(), 0.1)?)?;
    for _ in 0..count {
        let loss = model.forward(&Tensor::ones(&device, [4, 8])?)?.square()?.mean_all()?;
        optimizer.step(loss.backward()?)?;
    }
    Ok(())
}

fn broadcasts(world: &World, count: usize) -> Result<(), Box<dyn Error>> {
    for _ in 0..count {
        world.collective().broadcast((&mut [0_u8; 10][..]).into(), 1)?;
    }
    Ok(())
}

/// Trains at most this number of steps, on epochs with this number of batches.
fn train(world: &World, steps: u64, batches: usize) -> Result<(), Box<dyn Error>> {
    let device = Device::cpu()?;
    let model = Linear::new(&device, 8, 8, &Rng::new(0))?;
    let mut optimizer = world.data_parallel(Sgd::new(model.parameters(), 0.1)?)?;
    let trainer = Trainer::new(&model, &mut optimizer).world(world).ignore_signals().epochs(3);
    let batch = || Tensor::ones(&device, [4, 8]);
    let loss = |x: &Tensor| model.forward(x)?.square()?.mean_all();
    let outcome = if steps < 100 {
        trainer.train_steps(steps, |_| batch(), loss)?
    } else {
        trainer.train(|_| Ok((0..batches).map(|_| batch())), loss)?
    };
    println!("{outcome}");
    Ok(())
}

/// Trains epochs of 2 steps. Either the evaluation of a rank improves this number of times and the run stops early, or only
/// rank 0 saves, although the ranks divide the optimizer's state.
fn train_until(world: &World, improvements: Option<u64>) -> Result<(), Box<dyn Error>> {
    let device = Device::cpu()?;
    let model = Linear::new(&device, 8, 8, &Rng::new(0))?;
    let make = |own| Sgd::new(own, 0.1)?.with_momentum(0.9);
    let mut optimizer = world.sharded(Shard::Optimizer, model.parameters(), make)?;
    let mut trainer = Trainer::new(&model, &mut optimizer).world(world).ignore_signals().epochs(4);
    let mut evaluations = 0_u64;
    if let Some(improvements) = improvements {
        trainer = trainer.early_stopping(EarlyStopping::new("loss").patience(1)).evaluate(move || {
            evaluations += 1;
            Ok(Figures::from([("loss", -(evaluations.min(improvements) as f64))]))
        });
    } else if world.is_main() {
        let path = env::temp_dir().join(format!("ranks-{}.safetensors", process::id()));
        trainer = trainer.saves(Saves::to(path).every(Every::Steps(1)));
    }
    let outcome = trainer.train(
        |_| Ok((0..2).map(|_| Tensor::ones(&device, [4, 8]))),
        |x| model.forward(x)?.square()?.mean_all(),
    )?;
    println!("{outcome}");
    Ok(())
}

/// Trains one step on batches of different sizes, with a penalty on more weights than a batch has examples.
fn train_sizes(world: &World) -> Result<(), Box<dyn Error>> {
    let device = Device::cpu()?;
    for accumulate in [1, 2, 3] {
        let model = Linear::new(&device, 10, 1, &Rng::new(0))?;
        let mut optimizer = world.data_parallel(Sgd::new(model.parameters(), 0.5)?)?;
        let trainer = Trainer::new(&model, &mut optimizer).world(world).ignore_signals();
        let examples = |number: u64| -> usize { [4, 3, 2, 5, 1][number as usize % 5] };
        let outcome = trainer.accumulate(accumulate).train_steps(
            1,
            |number| Tensor::full(&device, [examples(number), 10], number as f64),
            |x| model.forward(x)?.mean_all()?.add(&model.weight().tensor().square()?.sum_all()?),
        )?;
        assert_eq!(outcome.steps, 1);
        // The step along the penalty's gradient leads to 0.
        let batches = 0..accumulate * world.size() as u64;
        let sum: f64 = batches.clone().map(|number| number as f64 * examples(number) as f64).sum();
        let mean = sum / batches.map(examples).sum::<usize>() as f64;
        for weight in model.weight().value().to_vec::<f32>()? {
            assert!((f64::from(weight) + 0.5 * mean).abs() < 1e-5, "{weight} for a mean of {mean}");
        }
    }
    Ok(())
}

unsafe extern "C" {
    safe fn fork() -> c_int;
    safe fn waitpid(process: c_int, status: Option<&mut c_int>, options: c_int) -> c_int;
}

/// A child of `fork` ends while its rank goes on.
fn fork_child(world: &World) -> Result<(), Box<dyn Error>> {
    steps(world, 1)?;
    let child = fork();
    if child == 0 {
        process::exit(7);
    }
    let mut status = 0;
    assert_eq!(waitpid(child, Some(&mut status), 0), child);
    assert_eq!(status >> 8, 7);
    steps(world, 2)
}

/// A thread ends the process while an operation waits for a rank that hangs.
fn exit_inside(world: &World) -> Result<(), Box<dyn Error>> {
    if world.rank() == 1 {
        return fail("hang");
    }
    thread::spawn(|| {
        thread::sleep(Duration::from_millis(500));
        process::exit(1)
    });
    reduce(world, 1000)
}

fn reduce(world: &World, length: usize) -> Result<(), Box<dyn Error>> {
    let mut data = vec![1.0_f32; length];
    let bytes = SumOrder::Ordered.workspace_bytes(length, highwater_tensor::DType::F32, world.size());
    let mut workspace = vec![0.0_f32; bytes / 4];
    let workspace = bytemuck::cast_slice_mut(&mut workspace);
    Ok(world.collective().all_reduce((&mut data[..]).into(), SumOrder::Ordered, workspace)?)
}

fn values(world: &World) {
    for length in [0, 1, 3, 1000, 100_003] {
        check(world, length, |value| value as f32, |values| values.reduce(|sum, value| sum + value));
        check(world, length, |value| value, |values| values.reduce(|sum, value| sum + value));
        check(world, length, f16::from_f64, |values| {
            values.map(f16::to_f32).reduce(|sum, value| sum + value).map(f16::from_f32)
        });
        check(world, length, bf16::from_f64, |values| {
            values.map(bf16::to_f32).reduce(|sum, value| sum + value).map(bf16::from_f32)
        });
    }
    let (rank, size) = (world.rank(), world.size());
    for root in 0..size {
        let mut bytes = vec![rank as u8; 70_000];
        world.collective().broadcast((&mut bytes[..]).into(), root).unwrap();
        assert_eq!(bytes, vec![root as u8; 70_000]);
    }
    world.collective().barrier().unwrap();
    let entry = |options: usize| AgreedValue {
        name: "seed".into(),
        shape: vec![],
        dtype: None,
        options: options.to_string(),
    };
    assert_eq!(world.agree(&[entry(7)]), Ok(()));
    match world.agree(&[entry(rank)]) {
        Ok(()) => assert_eq!(size, 1),
        Err(AgreeError::Differs { index: 0, rank: 1, theirs, expected }) => {
            assert_eq!((theirs.as_str(), expected.as_str()), ("seed: 1", "seed: 0"));
        }
        Err(error) => panic!("{error}"),
    }
    let line = format!("rank {rank} of {size}: all values are correct\n");
    let _ = io::stdout().write_all(line.as_bytes());
}

/// Checks reductions against sums in rank order, to the bit.
fn check<T: bytemuck::Pod + PartialEq + Debug>(
    world: &World,
    length: usize,
    element: impl Fn(f64) -> T,
    sum: impl Fn(&mut dyn Iterator<Item = T>) -> Option<T>,
) where
    for<'a> SliceMut<'a>: From<&'a mut [T]>,
{
    let (rank, size, collective) = (world.rank(), world.size(), world.collective());
    let value = |rank: usize, index: usize| {
        let hash = (rank * 7_919 + index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
        element(hash as f64 / 64.0 * if hash.is_multiple_of(3) { -0.01 } else { 0.3 })
    };
    let input: Vec<T> = (0..length).map(|index| value(rank, index)).collect();
    let sums: Vec<T> =
        (0..length).map(|index| sum(&mut (0..size).map(|rank| value(rank, index))).unwrap()).collect();

    let mut data = input.clone();
    let dtype = SliceMut::from(&mut data[..]).dtype();
    let most =
        [SumOrder::Ordered, SumOrder::Library].map(|reduce| reduce.workspace_bytes(length, dtype, size));
    let mut workspace = vec![T::zeroed(); most[0].max(most[1]) / size_of::<T>()];
    let workspace: &mut [u8] = bytemuck::cast_slice_mut(&mut workspace);
    collective.all_reduce((&mut data[..]).into(), SumOrder::Ordered, workspace).unwrap();
    assert_eq!(data, sums);

    let mut data = input.clone();
    let parts = spans(length, size);
    collective.reduce_scatter((&mut data[..]).into(), &parts, workspace).unwrap();
    let own = span(length, size, rank);
    assert_eq!(data[own.clone()], sums[own]);
    collective.all_gather((&mut data[..]).into(), &parts).unwrap();
    assert_eq!(data, sums);

    // These sums are exact in any order.
    let mut data = vec![element((rank + 1) as f64); length];
    collective.all_reduce((&mut data[..]).into(), SumOrder::Library, workspace).unwrap();
    assert_eq!(data, vec![element((size * (size + 1) / 2) as f64); length]);
}
