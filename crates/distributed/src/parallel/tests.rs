//! Ranks as threads against one process that accumulates the same batches.

use highwater_nn::io::Array;
use highwater_nn::modules::{
    Conv2d, Embedding, Flatten, Linear, MaxPool2d, Module, Relu, Sequential, TransformerBlock, module,
};
use highwater_nn::optim::{AdamW, Optimizer, ParameterGroup, Sgd};
use highwater_tensor::{DType, Device, Error, Gradients, Parameter, Result, Rng, Runtime, Tensor};

use highwater_tracking::Report;

use super::*;
use crate::threads::run_ranks;

mod agreement;
mod no_sync;

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn network(device: &Device, dtype: DType) -> Sequential {
    let rng = Rng::new(7);
    let network = Sequential::new()
        .with("fc1", Linear::new(device, 5, 33, &rng).unwrap())
        .with("relu", Relu)
        .with("fc2", Linear::new(device, 33, 33, &rng).unwrap())
        .with("fc3", Linear::new(device, 33, 3, &rng).unwrap());
    network.convert(dtype).unwrap();
    network
}

/// The loss of a micro-batch, which differs between micro-batches.
fn loss(network: &Sequential, device: &Device, dtype: DType, batch: usize) -> Result<Tensor> {
    let x = Tensor::randn(device, [4, 5], &Rng::new(100 + batch as u64))?.to_dtype(dtype)?;
    network.forward(&x)?.square()?.to_dtype(DType::F32)?.mean_all()
}

fn values(parameters: &[(String, Parameter)]) -> Vec<Vec<f32>> {
    let values = |(_, parameter): &(String, Parameter)| {
        parameter.value().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap()
    };
    parameters.iter().map(values).collect()
}

type Make = fn(ParameterGroup) -> Result<Box<dyn Optimizer>>;

fn adam_w(parameters: ParameterGroup) -> Result<Box<dyn Optimizer>> {
    Ok(Box::new(AdamW::new(parameters, 1e-2)?))
}

fn sgd(parameters: ParameterGroup) -> Result<Box<dyn Optimizer>> {
    Ok(Box::new(Sgd::new(parameters, 0.1)?.with_momentum(0.9)?))
}

const STEPS: usize = 3;

/// The parameters after some steps of one process that accumulates `batches` micro-batches per step.
fn accumulated(batches: usize, dtype: DType, make: Make) -> Vec<Vec<f32>> {
    let device = device();
    let network = network(&device, dtype);
    let mut optimizer = make(network.parameters().into()).unwrap();
    for step in 0..STEPS {
        let mut gradients = Gradients::default();
        for batch in 0..batches {
            let loss = loss(&network, &device, dtype, step * batches + batch).unwrap();
            gradients.accumulate(&mut loss.backward().unwrap()).unwrap();
        }
        gradients.scale(1.0 / batches as f64).unwrap();
        optimizer.clip_norm(&mut gradients, 0.02).unwrap();
        optimizer.step(gradients).unwrap();
    }
    values(&network.parameters())
}

/// The parameters of each rank after the same steps.
fn parallel(ranks: usize, dtype: DType, make: Make, shard: Shard, bucket: usize) -> Vec<Vec<Vec<f32>>> {
    run_ranks(ranks, |world| {
        let device = device();
        let network = network(&device, dtype);
        let optimizer = world.sharded(shard, network.parameters(), make).unwrap();
        let mut optimizer = optimizer.bucket_bytes(bucket);
        for step in 0..STEPS {
            let loss = loss(&network, &device, dtype, step * ranks + world.rank()).unwrap();
            let mut gradients = loss.backward().unwrap();
            assert!(optimizer.clip_norm(&mut gradients, 0.02).unwrap() > 0.02);
            optimizer.step(gradients).unwrap();
        }
        values(&network.parameters())
    })
}

#[test]
fn ranks_equal_one_process_that_accumulates() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for (make, ranks) in [(adam_w as Make, 2), (sgd, 4), (adam_w, 3)] {
            let expected = accumulated(ranks, dtype, make);
            for shard in [Shard::None, Shard::Optimizer, Shard::Gradients] {
                for bucket in [1, 1000, 1 << 20] {
                    for (rank, found) in parallel(ranks, dtype, make, shard, bucket).iter().enumerate() {
                        assert_eq!(found, &expected, "rank {rank} of {ranks}, {dtype}, {shard:?}, {bucket}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_exchange_of_16_bits_rounds_each_gradient_once_and_each_sum_once() {
    let summed = |exchange, shard| {
        run_ranks(3, |world| {
            let device = device();
            let network = network(&device, DType::F32);
            let optimizer = world.sharded(shard, network.parameters(), sgd).unwrap();
            let optimizer = optimizer.bucket_bytes(1000).exchange_dtype(exchange).unwrap();
            let gradients = |step: usize| {
                let loss = loss(&network, &device, DType::F32, step * 3 + world.rank()).unwrap();
                loss.backward().unwrap()
            };
            // The second pass has the buckets of the first one's order.
            drop(gradients(0));
            let alone = no_sync(|| gradients(1));
            let sums = gradients(1);
            let values = |gradients: &Gradients| {
                let of = |(_, parameter): &(String, Parameter)| gradients.get(&parameter.tensor());
                let all: Vec<Option<Vec<f32>>> = network
                    .parameters()
                    .iter()
                    .map(|parameter| of(parameter).map(|gradient| gradient.to_vec().unwrap()))
                    .collect();
                all
            };
            (values(&alone), values(&sums), optimizer.bucket_sizes().iter().sum::<usize>())
        })
    };
    for shard in [Shard::None, Shard::Optimizer, Shard::Gradients] {
        let exact = summed(DType::F32, shard);
        for (exchange, epsilon) in [(DType::BF16, 1.0 / 256.0), (DType::F16, 1.0 / 2048.0)] {
            let rounded = summed(exchange, shard);
            for (rank, (_, sums, bytes)) in rounded.iter().enumerate() {
                // Gaps between gradients have the same bytes.
                assert!(*bytes * 9 < exact[rank].2 * 5, "{bytes} bytes instead of {}", exact[rank].2);
                for (parameter, sum) in sums.iter().enumerate() {
                    let Some(sum) = sum else { continue };
                    if shard != Shard::Gradients {
                        assert_eq!(Some(sum), rounded[0].1[parameter].as_ref(), "equal on all ranks");
                    }
                    for (n, sum) in sum.iter().enumerate() {
                        let alone: Vec<f32> =
                            exact.iter().map(|(alone, ..)| alone[parameter].as_ref().unwrap()[n]).collect();
                        let mean = alone.iter().sum::<f32>() / 3.0;
                        let size = alone.iter().map(|x| x.abs()).sum::<f32>() / 3.0;
                        // Below the smallest normal f16, the rounding has a fixed size.
                        let most = (2.0 * size * epsilon).max(2e-7);
                        assert!((sum - mean).abs() <= most, "{sum} instead of {mean}");
                    }
                }
            }
        }
    }
}

#[test]
fn only_f32_and_16_bit_floats_can_be_exchanged() {
    let network = network(&device(), DType::F32);
    let optimizer = World::alone().sharded(Shard::None, network.parameters(), sgd).unwrap();
    let refused = optimizer.exchange_dtype(DType::I64).unwrap_err();
    assert!(matches!(refused, Error::BadArgument { argument: "exchange_dtype", .. }), "{refused}");
}

/// A convolutional network and a transformer, whose embedding table is also the output layer.
fn larger_networks(device: &Device) -> [(&'static str, Box<dyn Module>, Tensor); 2] {
    let rng = Rng::new(11);
    let same = highwater_tensor::Conv2dOptions::padded(1);
    let convolutional = Sequential::new()
        .with("conv", Conv2d::new(device, 1, 4, [3, 3], same, &rng).unwrap())
        .with("relu", Relu)
        .with("pool", MaxPool2d::new(2))
        .with("flat", Flatten)
        .with("fc", Linear::new(device, 4 * 4 * 4, 5, &rng).unwrap());
    let gpt = Gpt {
        tokens: Embedding::new(device, 7, 8, &rng).unwrap(),
        block: TransformerBlock::new(device, 8, 2, &rng).unwrap().causal(),
    };
    let images = Tensor::zeros(device, [2, 1, 8, 8]).unwrap();
    let text = Tensor::zeros_of(device, [2, 6], DType::I64).unwrap();
    [("cnn", Box::new(convolutional), images), ("gpt", Box::new(gpt), text)]
}

#[derive(Debug, Module)]
struct Gpt {
    tokens: Embedding,
    block: TransformerBlock,
}

#[module]
impl Module for Gpt {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.block.forward(&self.tokens.forward(x)?)?;
        x.matmul(&self.tokens.weight().tensor().t()?)
    }
}

/// The loss of a micro-batch of a network whose input has this shape.
fn loss_of(network: &dyn Module, input: &Tensor, batch: usize) -> Tensor {
    let input = if input.dtype() == DType::I64 {
        let tokens: Vec<i64> = (0..input.elements() as i64).map(|at| (at * at + batch as i64) % 7).collect();
        Tensor::from_slice(input.device(), &tokens, input.dims()).unwrap()
    } else {
        Tensor::randn(input.device(), input.dims(), &Rng::new(batch as u64)).unwrap()
    };
    network.forward(&input).unwrap().square().unwrap().mean_all().unwrap()
}

#[test]
fn convolutional_networks_and_transformers_equal_one_process() {
    for (make, ranks) in [(adam_w as Make, 2), (sgd, 2), (sgd, 4), (adam_w, 4)] {
        for at in 0..2 {
            let (name, network, input) = &larger_networks(&device())[at];
            let mut optimizer = make(network.parameters().into()).unwrap();
            for step in 0..STEPS {
                let mut gradients = Gradients::default();
                for batch in 0..ranks {
                    let loss = loss_of(network.as_ref(), input, step * ranks + batch);
                    gradients.accumulate(&mut loss.backward().unwrap()).unwrap();
                }
                gradients.scale(1.0 / ranks as f64).unwrap();
                optimizer.step(gradients).unwrap();
            }
            let expected = values(&network.parameters());
            for shard in [Shard::None, Shard::Optimizer, Shard::Gradients] {
                let found = run_ranks(ranks, |world| {
                    let (_, network, input) = &larger_networks(&device())[at];
                    let optimizer = world.sharded(shard, network.parameters(), make).unwrap();
                    let mut optimizer = optimizer.bucket_bytes(500);
                    for step in 0..STEPS {
                        let loss = loss_of(network.as_ref(), input, step * ranks + world.rank());
                        optimizer.step(loss.backward().unwrap()).unwrap();
                    }
                    values(&network.parameters())
                });
                assert_eq!(found, vec![expected.clone(); ranks], "{name}, {ranks} ranks, {shard:?}");
            }
        }
    }
}

/// A loss that uses only some of the parameters.
fn partial_loss(parameters: &[Parameter], used: &[usize], factor: f32) -> Tensor {
    let mut sum = Tensor::zeros(parameters[0].value().device(), ()).unwrap();
    for &index in used {
        let term = parameters[index].tensor().square().unwrap().sum_all().unwrap();
        sum = sum.add(&term.mul_scalar(factor).unwrap()).unwrap();
    }
    sum
}

fn parameters(device: &Device, count: usize) -> Vec<Parameter> {
    (0..count)
        .map(|index| Parameter::new(Tensor::full(device, [3], 1.0 + index as f64).unwrap()).unwrap())
        .collect()
}

fn named(parameters: &[Parameter]) -> Vec<(String, Parameter)> {
    parameters.iter().enumerate().map(|(index, own)| (index.to_string(), own.clone())).collect()
}

#[test]
fn gradients_that_some_ranks_lack_count_as_zero() {
    for bucket in [1, 1 << 20] {
        for shard in [Shard::None, Shard::Gradients] {
            let found = run_ranks(2, |world| {
                let parameters = parameters(&device(), 4);
                // Momentum would move a parameter without a gradient, if it counted as zero on all ranks.
                let make = |own| Sgd::new(own, 1.0)?.with_momentum(0.5);
                let optimizer = world.sharded(shard, named(&parameters), make).unwrap();
                let mut optimizer = optimizer.bucket_bytes(bucket);
                // Both ranks use 0, rank 1 uses 1, none uses 2 in the second step, and none ever uses 3.
                for used in [[&[0, 2][..], &[0, 1, 2]], [&[0], &[0, 1]]] {
                    let loss = partial_loss(&parameters, used[world.rank()], 0.25);
                    optimizer.step(loss.backward().unwrap()).unwrap();
                }
                values(&named(&parameters)).into_iter().map(|values| values[0]).collect::<Vec<_>>()
            });
            // x0: gradients 0.5·1, 0.25; x1: half of 0.25·2·2 and then of 0.75; x2: 1.5 once.
            let expected = [1.0 - 0.5 - (0.25 + 0.25), 2.0 - 0.5 - (0.375 + 0.25), 1.5, 4.0];
            assert_eq!(found, [expected, expected], "{shard:?} {bucket}");
        }
    }
}

/// The executions of the op that owns buckets.
fn calls(device: &Device) -> u64 {
    let report = Report::new(device.tracker(), &[]);
    report.ops.iter().filter(|row| row.op == "gradient_bucket").map(|row| row.calls).sum()
}

#[test]
fn gradients_are_computed_in_their_bucket() {
    let found = run_ranks(2, |world| {
        let device = device();
        let network = network(&device, DType::F32);
        let mut optimizer = world.data_parallel(sgd(network.parameters().into()).unwrap()).unwrap();
        let mut copies = 0;
        for step in 0..2 {
            let before = calls(&device);
            let gradients = loss(&network, &device, DType::F32, step).unwrap().backward().unwrap();
            let after = calls(&device);
            copies = after - before;
            optimizer.step(gradients).unwrap();
        }
        copies
    });
    // One allocation per bucket; a copy would be a further call.
    assert_eq!(found, [1, 1]);
}

#[test]
fn a_parameter_used_twice_is_complete_after_its_last_use() {
    let run = |world: Option<&World>, batches: std::ops::Range<usize>| {
        let device = device();
        let rng = Rng::new(3);
        let (tied, last) =
            (Linear::new(&device, 8, 8, &rng).unwrap(), Linear::new(&device, 8, 8, &rng).unwrap());
        let all = || [named_part("tied", &tied), named_part("last", &last)].concat();
        let mut optimizer =
            world.map(|world| world.data_parallel(Sgd::new(all(), 0.1).unwrap()).unwrap().bucket_bytes(1));
        let mut plain = Sgd::new(all(), 0.1).unwrap();
        let count = batches.len();
        let mut gradients = Gradients::default();
        for batch in batches {
            let x = Tensor::randn(&device, [4, 8], &Rng::new(batch as u64)).unwrap();
            let hidden = tied.forward(&tied.forward(&x).unwrap().relu().unwrap()).unwrap();
            let loss = last.forward(&hidden).unwrap().square().unwrap().mean_all().unwrap();
            gradients.accumulate(&mut loss.backward().unwrap()).unwrap();
        }
        match &mut optimizer {
            Some(optimizer) => optimizer.step(gradients).unwrap(),
            None => {
                gradients.scale(1.0 / count as f64).unwrap();
                plain.step(gradients).unwrap();
            }
        }
        values(&all())
    };
    let expected = run(None, 0..2);
    let found = run_ranks(2, |world| run(Some(&world), world.rank()..world.rank() + 1));
    assert_eq!(found, [expected.clone(), expected]);
}

fn named_part(name: &str, module: &dyn Module) -> Vec<(String, Parameter)> {
    module.parameters().into_iter().map(|(path, own)| (format!("{name}.{path}"), own)).collect()
}

#[test]
fn a_rank_that_fails_makes_all_ranks_discard_the_step() {
    // Rank 1 fails before the backward pass, and rank 0 after it.
    for (failing, out_of_memory) in [(1, false), (0, true)] {
        let found = run_ranks(3, |world| {
            let device = device();
            let network = network(&device, DType::F32);
            let mut optimizer = world.data_parallel(adam_w(network.parameters().into()).unwrap()).unwrap();
            let before = values(&network.parameters());
            let result = optimizer.attempt(|optimizer| {
                let too_large = || Tensor::zeros(&device, [1_usize << 40]).map(drop);
                if world.rank() == failing && !out_of_memory {
                    return Err(Error::NoGraph);
                }
                let gradients = loss(&network, &device, DType::F32, world.rank())?.backward()?;
                if world.rank() == failing {
                    too_large()?;
                }
                optimizer.step(gradients)
            });
            let error = result.unwrap_err();
            assert_eq!(ParallelError::is_out_of_memory(&error), out_of_memory);
            if world.rank() != failing {
                let discarded = ParallelError::Discarded { rank: failing, out_of_memory };
                assert_eq!(ParallelError::of(&error), Some(&discarded));
            }
            assert_eq!(values(&network.parameters()), before);
            // The next step succeeds.
            let next = optimizer.attempt(|optimizer| {
                let gradients = loss(&network, &device, DType::F32, world.rank())?.backward()?;
                optimizer.step(gradients)
            });
            next.unwrap();
            values(&network.parameters())
        });
        assert_eq!(found, vec![found[0].clone(); 3]);
    }
}

/// Memory runs out on two ranks at once, at different buckets of the pass.
#[test]
fn ranks_that_fail_together_agree_on_the_next_step() {
    let found = run_ranks(4, |world| {
        let device = device();
        let parameters = parameters(&device, 8);
        let optimizer = world.data_parallel(Sgd::new(named(&parameters), 0.1).unwrap()).unwrap();
        let mut optimizer = optimizer.bucket_bytes(1);
        for round in 0..20 {
            let result = optimizer.attempt(|optimizer| {
                let mut loss = partial_loss(&parameters, &[0, 1, 2, 3], 0.1);
                // An op of the backward pass fails on ranks 1 and 3, after some buckets.
                if world.rank() % 2 == 1 && round % 2 == 0 {
                    let fails = FailsBackward(world.rank() == 1);
                    loss = highwater_tensor::apply(fails, &[&loss])?;
                }
                loss = loss.add(&partial_loss(&parameters, &[4, 5, 6, 7], 0.1))?;
                optimizer.step(loss.backward()?)
            });
            assert_eq!(result.is_err(), round % 2 == 0, "round {round}: {result:?}");
        }
        values(&named(&parameters))
    });
    assert_eq!(found, vec![found[0].clone(); 4]);
}

/// An op without a backward pass.
#[derive(Debug)]
struct FailsBackward(bool);

impl highwater_tensor::Op for FailsBackward {
    fn name(&self) -> &'static str {
        "fails"
    }

    fn forward(&self, _: &highwater_tensor::OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        inputs[0].mul_scalar(1.0)
    }

    fn backward(
        &self,
        _: &highwater_tensor::OpContext<'_>,
        _: &mut highwater_tensor::Saved,
        grad: Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        if self.0 {
            // Some buckets are on their way meanwhile.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Tensor::zeros(grad.device(), [1_usize << 40]).map(|zeros| vec![Some(zeros)])
    }
}

#[test]
fn ranks_at_different_stages_get_an_error() {
    let found = run_ranks(2, |world| {
        let device = device();
        let network = network(&device, DType::F32);
        let mut optimizer = world.data_parallel(adam_w(network.parameters().into()).unwrap()).unwrap();
        let step = |optimizer: &mut DataParallel<_>| {
            if world.rank() == 1 {
                return optimizer.step(Gradients::default());
            }
            optimizer.step(loss(&network, &device, DType::F32, 0)?.backward()?)
        };
        step(&mut optimizer).unwrap_err().to_string()
    });
    let message = "rank 1 is at the optimizer's step, but rank 0 at the sum of bucket 0: \
                   all ranks must run the same backward passes and steps";
    assert_eq!(found, [message, message]);
}

#[test]
fn different_models_are_refused() {
    let found = run_ranks(2, |world| {
        let device = device();
        let layer = Linear::new(&device, 3, 4 + world.rank(), &Rng::new(0)).unwrap();
        world.data_parallel(Sgd::new(layer.parameters(), 0.1).unwrap()).unwrap_err().to_string()
    });
    let message = "entry 0 is `weight: f32 [3, 5]` on rank 1, but `weight: f32 [3, 4]` on rank 0: \
                   start all ranks with the same model and options";
    assert_eq!(found, [message, message]);
}

#[test]
fn all_ranks_start_from_the_parameters_of_rank_0() {
    let found = run_ranks(3, |world| {
        let device = device();
        let layer = Linear::new(&device, 3, 4, &Rng::new(world.rank() as u64)).unwrap();
        let _optimizer = world.data_parallel(Sgd::new(layer.parameters(), 0.1).unwrap()).unwrap();
        values(&layer.parameters())
    });
    let layer = Linear::new(&device(), 3, 4, &Rng::new(0)).unwrap();
    assert_eq!(found, vec![values(&layer.parameters()); 3]);
}

#[test]
fn a_pass_of_one_rank_alone_returns_its_own_gradients() {
    run_ranks(2, |world| {
        let parameters = parameters(&device(), 1);
        let _optimizer = world.data_parallel(Sgd::new(named(&parameters), 0.1).unwrap()).unwrap();
        if world.is_main() {
            let gradients = no_sync(|| partial_loss(&parameters, &[0], 1.0).backward()).unwrap();
            let own = gradients.get(&parameters[0].tensor()).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(own, [2.0; 3]);
        }
    });
}

#[test]
fn the_state_of_all_ranks_continues_with_other_ranks() {
    // From step `unfreezes` on, all parameters are trained.
    let train = |world: &World, state: Option<&Arrays>, steps: std::ops::Range<usize>, unfreezes: usize| {
        let device = device();
        let network = network(&device, DType::F32);
        let parameters = network.parameters();
        let first = parameters.iter().filter(|(path, _)| unfreezes > 0 && path.starts_with("fc1"));
        first.for_each(|(_, parameter)| parameter.freeze());
        let mut optimizer = world.sharded(Shard::Optimizer, network.parameters(), adam_w).unwrap();
        if let Some(state) = state {
            // The parameters continue too: they have the names of the state.
            for (path, parameter) in network.parameters() {
                parameter.set_bytes("test", state[&format!("value.{path}.of")].bytes()).unwrap();
            }
            let own = state.iter().filter(|(name, _)| !name.starts_with("value."));
            let own = own.map(|(name, array)| (name.clone(), array.clone())).collect();
            optimizer.check_state(&own).unwrap();
            optimizer.load_state(&own).unwrap();
        }
        for step in steps {
            if step == unfreezes {
                network.unfreeze();
            }
            // All ranks have the same batch, so that the number of ranks does not matter.
            let gradients = loss(&network, &device, DType::F32, step).unwrap().backward().unwrap();
            optimizer.step(gradients).unwrap();
        }
        let mut state = optimizer.state().unwrap();
        for (path, parameter) in network.parameters() {
            state.insert(format!("value.{path}.of"), Array::of(&parameter.value()).unwrap());
        }
        state
    };
    for (unfreezes, means) in [(0, 6), (2, 6), (3, 6), (9, 4)] {
        let whole = run_ranks(4, |world| train(&world, None, 0..4, unfreezes));
        let half = run_ranks(4, |world| train(&world, None, 0..2, unfreezes));
        let rest = run_ranks(2, |world| train(&world, Some(&half[3]), 2..4, unfreezes));
        assert_eq!(whole[0].keys().filter(|name| name.ends_with("mean")).count(), means);
        assert!(rest.iter().chain(&whole).all(|state| *state == whole[0]), "{unfreezes}");
    }
}

#[test]
fn one_pass_may_lead_to_two_optimizers() {
    let train = |world: Option<&World>| {
        let device = device();
        let rng = Rng::new(5);
        let (front, back) =
            (Linear::new(&device, 5, 40, &rng).unwrap(), Linear::new(&device, 40, 3, &rng).unwrap());
        let forward = |batch: usize| {
            let x = Tensor::randn(&device, [4, 5], &Rng::new(batch as u64)).unwrap();
            back.forward(&front.forward(&x).unwrap()).unwrap().square().unwrap().mean_all().unwrap()
        };
        let alone = World::alone();
        let world = world.unwrap_or(&alone);
        let wrap = |module: &Linear| {
            let optimizer = world.data_parallel(Sgd::new(module.parameters(), 0.1).unwrap()).unwrap();
            optimizer.bucket_bytes(100)
        };
        let (mut first, mut second) = (wrap(&front), wrap(&back));
        for step in 0..4 {
            let mut gradients = if world.size() == 1 {
                let mut sum = forward(2 * step).backward().unwrap();
                sum.accumulate(&mut forward(2 * step + 1).backward().unwrap()).unwrap();
                sum.scale(0.5).unwrap();
                sum
            } else {
                forward(2 * step + world.rank()).backward().unwrap()
            };
            second.step(gradients.split_off(&back.parameters())).unwrap();
            first.step(gradients).unwrap();
        }
        [values(&front.parameters()), values(&back.parameters())]
    };
    let expected = train(None);
    assert_eq!(run_ranks(2, |world| train(Some(&world))), [expected.clone(), expected]);
}

#[test]
fn checkpointed_parts_have_the_same_gradients() {
    use highwater_nn::modules::Checkpointed;

    let train = |world: &World, checkpointed: bool| {
        let device = device();
        let block = || Linear::new(&device, 6, 6, &Rng::new(2)).unwrap();
        let network = if checkpointed {
            Sequential::new().with("a", Checkpointed::new(block())).with("b", Checkpointed::new(block()))
        } else {
            Sequential::new().with("a", block()).with("b", block())
        };
        let optimizer = world.data_parallel(Sgd::new(network.parameters(), 0.1).unwrap()).unwrap();
        let mut optimizer = optimizer.bucket_bytes(1);
        for step in 0..3 {
            let x = Tensor::randn(&device, [4, 6], &Rng::new((step * 2 + world.rank()) as u64)).unwrap();
            let loss = network.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
            optimizer.step(loss.backward().unwrap()).unwrap();
        }
        values(&network.parameters())
    };
    let [with, without] = [true, false].map(|checkpointed| run_ranks(2, |world| train(&world, checkpointed)));
    assert_eq!(with, without);
}
