//! Ranks with different settings, and ranks that run different operations: all of them get an error that names the
//! difference.

use super::*;
use crate::agree::{AgreeError, AgreedValue};
use crate::error::CollectiveError;
use crate::reduction::RunStage;

/// The errors of two ranks that train a layer. `change` runs on rank 1 before the second step.
fn errors_after(
    shard: Shard,
    change: impl Fn(&Linear, &mut DataParallel<Box<dyn Optimizer>>) + Sync,
) -> Vec<String> {
    run_ranks(2, |world| {
        let device = device();
        let layer = Linear::new(&device, 3, 2, &Rng::new(0)).unwrap();
        let mut optimizer = world.sharded(shard, layer.parameters(), adam_w).unwrap();
        let step = |optimizer: &mut DataParallel<_>| {
            let loss = layer.forward(&Tensor::ones(&device, [4, 3])?)?.square()?.mean_all()?;
            optimizer.step(loss.backward()?)
        };
        step(&mut optimizer).unwrap();
        let before = values(&layer.parameters());
        if world.rank() == 1 {
            change(&layer, &mut optimizer);
        }
        let error = step(&mut optimizer).unwrap_err();
        assert!(ParallelError::of(&error).is_some(), "{error}");
        assert_eq!(values(&layer.parameters()), before);
        // The ranks do not go on as if nothing had happened.
        assert!(step(&mut optimizer).is_err());
        error.to_string()
    })
}

fn assert_named(
    shard: Shard,
    expected: &str,
    change: impl Fn(&Linear, &mut DataParallel<Box<dyn Optimizer>>) + Sync,
) {
    let errors = errors_after(shard, change);
    assert!(errors[0].contains(expected), "{}", errors[0]);
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn settings_that_change_on_one_rank_are_named() {
    for shard in [Shard::None, Shard::Optimizer, Shard::Gradients] {
        assert_named(
            shard,
            "entry 1 is `bias: f32 [2] frozen` on rank 1, but `bias: f32 [2]` on rank 0",
            |layer, _| layer.parameters()[1].1.freeze(),
        );
        assert_named(shard, "`lr: 0.5` on rank 1, but `lr: 0.01` on rank 0", |_, optimizer| {
            optimizer.set_learning_rate(0.5).unwrap()
        });
        assert_named(
            shard,
            "`weight: f64 [3, 2]` on rank 1, but `weight: f32 [3, 2]` on rank 0",
            |layer, _| {
                layer.parameters()[0].1.convert(DType::F64).unwrap();
            },
        );
    }
}

#[test]
fn a_rank_without_trained_parameters_is_named() {
    let found = run_ranks(2, |world| {
        let parameters = parameters(&device(), 1);
        let mut optimizer = world.data_parallel(Sgd::new(named(&parameters), 1.0).unwrap()).unwrap();
        if world.is_main() {
            parameters[0].freeze();
            return optimizer.step(Gradients::default()).unwrap_err().to_string();
        }
        partial_loss(&parameters, &[0], 1.0).backward().unwrap_err().to_string()
    });
    assert!(found[0].contains("`0: f32 [3]` on rank 1, but `0: f32 [3] frozen` on rank 0"), "{}", found[0]);
    assert_eq!(found[0], found[1]);
}

#[test]
fn all_ranks_may_freeze_and_unfreeze_together() {
    let found = run_ranks(2, |world| {
        let parameters = parameters(&device(), 2);
        let mut optimizer = world.data_parallel(Sgd::new(named(&parameters), 1.0).unwrap()).unwrap();
        for step in 0..3 {
            let change = if step == 1 { Parameter::freeze } else { Parameter::unfreeze };
            change(&parameters[1]);
            optimizer.set_learning_rate(1.0 / f64::from(step + 1)).unwrap();
            optimizer.step(partial_loss(&parameters, &[0, 1], 0.125).backward().unwrap()).unwrap();
        }
        values(&named(&parameters))
    });
    assert_eq!(found[0], found[1]);
}

/// The error of each rank that wraps an optimizer.
fn wrap<O: Optimizer>(make: impl Fn(&World, ParameterGroup) -> Result<O> + Sync) -> Vec<String> {
    run_ranks(2, |world| {
        let parameters = parameters(&device(), 2);
        world.sharded(Shard::None, named(&parameters), |own| make(&world, own)).unwrap_err().to_string()
    })
}

#[test]
fn different_options_are_refused() {
    let all =
        [
            (
                wrap(|world, own| Sgd::new(own, 0.1)?.with_weight_decay(world.rank() as f64)),
                "`weight_decay: 1` on rank 1, but `weight_decay: 0` on rank 0",
            ),
            (
                wrap(|world, own| AdamW::new(own, 0.1)?.with_betas(0.9, 0.99 + 0.001 * world.rank() as f64)),
                "`beta2: 0.991` on rank 1, but `beta2: 0.99` on rank 0",
            ),
            (
                wrap(|world, own| if world.is_main() { sgd(own) } else { adam_w(own) }),
                "`optimizer: adamw` on rank 1, but `optimizer: sgd` on rank 0",
            ),
            (
                wrap(|world, own| {
                    if world.is_main() { Sgd::new(own, 0.1) } else { Sgd::new(own, 0.1)?.with_momentum(2.0) }
                }),
                "",
            ),
        ];
    for (errors, expected) in &all[..3] {
        assert!(errors[0].contains(expected), "{}", errors[0]);
        assert_eq!(errors[0], errors[1]);
    }
    // The other rank does not wait for one that could not create its optimizer.
    let (failed, _) = &all[3];
    assert!(failed[0].contains("rank 1 failed") && failed[1].contains("momentum"), "{failed:?}");
}

/// The parameters of a rank.
type List = fn(usize, &[Parameter]) -> Vec<(String, Parameter)>;

#[test]
fn different_parameters_are_refused() {
    let refused = |list: List| {
        let found = run_ranks(2, |world| {
            let parameters = parameters(&device(), 3);
            let optimizer = Sgd::new(list(world.rank(), &parameters), 0.1).unwrap();
            world.data_parallel(optimizer).unwrap_err().to_string()
        });
        assert_eq!(found[0], found[1]);
        found[0].clone()
    };
    // Another order, a missing one, and a tied one.
    let order = refused(|rank, all| {
        let mut all = named(all);
        if rank == 1 {
            all.reverse();
        }
        all
    });
    assert!(order.contains("entry 0 is `2: f32 [3]` on rank 1, but `0: f32 [3]` on rank 0"), "{order}");
    let missing = refused(|rank, all| named(&all[..3 - rank]));
    assert!(missing.contains("entry 2 is `optimizer: sgd` on rank 1, but `2: f32 [3]`"), "{missing}");
    let tied = refused(|rank, all| {
        let mut list = named(&all[..2]);
        list.push(("tied".into(), if rank == 1 { all[0].clone() } else { all[2].clone() }));
        list
    });
    assert!(tied.contains("but `tied: f32 [3]` on rank 0"), "{tied}");
}

#[test]
fn different_buckets_and_orders_of_additions_are_named() {
    let found = run_ranks(2, |world| {
        let parameters = parameters(&device(), 2);
        let optimizer = world.data_parallel(Sgd::new(named(&parameters), 1.0).unwrap()).unwrap();
        let _optimizer = if world.is_main() { optimizer } else { optimizer.bucket_bytes(100) };
        partial_loss(&parameters, &[0, 1], 1.0).backward().unwrap_err().to_string()
    });
    assert!(found[0].contains("`bucket bytes: 100` on rank 1"), "{}", found[0]);
    assert_eq!(found[0], found[1]);
}

#[test]
fn a_rank_that_skips_a_step_is_named() {
    let found = run_ranks(2, |world| {
        let parameters = parameters(&device(), 1);
        let mut optimizer = world.data_parallel(Sgd::new(named(&parameters), 1.0).unwrap()).unwrap();
        let pass = || partial_loss(&parameters, &[0], 1.0).backward();
        let gradients = pass().unwrap();
        let error = if world.is_main() { optimizer.step(gradients).err() } else { pass().err() };
        error.unwrap().to_string()
    });
    let message = "rank 1 is at the sum of bucket 0, but rank 0 at the optimizer's step: \
                   all ranks must run the same backward passes and steps";
    assert_eq!(found, [message, message]);
}

#[test]
fn a_rank_that_loads_a_checkpoint_alone_is_named() {
    for is_other_state in [false, true] {
        let found = run_ranks(2, |world| {
            let parameters = parameters(&device(), 1);
            let mut optimizer = world.data_parallel(AdamW::new(named(&parameters), 1.0).unwrap()).unwrap();
            let early = optimizer.state().unwrap();
            let step = |optimizer: &mut DataParallel<AdamW>| {
                optimizer.step(partial_loss(&parameters, &[0], 1.0).backward()?)
            };
            step(&mut optimizer).unwrap();
            let late = optimizer.state().unwrap();
            if is_other_state {
                // Rank 1 has other values than the state that it will not load.
                step(&mut optimizer).unwrap();
            }
            let before = optimizer.state().unwrap();
            let loaded = match (world.rank(), is_other_state) {
                (0, false) => step(&mut optimizer),
                (0, true) => optimizer.load_state(&late),
                _ => optimizer.load_state(&early),
            };
            let message = loaded.unwrap_err().to_string();
            assert_eq!(optimizer.inner().state().unwrap(), before);
            message
        });
        let expected =
            if is_other_state { "is `state 0." } else { "rank 1 is at loading the optimizer's state" };
        assert!(found[0].contains(expected), "{}", found[0]);
        assert_eq!(found[0], found[1]);
    }
}

#[test]
fn ranks_that_load_a_checkpoint_together_have_the_parameters_of_rank_0() {
    let found = run_ranks(2, |world| {
        let parameters = parameters(&device(), 1);
        let mut optimizer = world.data_parallel(AdamW::new(named(&parameters), 1.0).unwrap()).unwrap();
        let state = optimizer.state().unwrap();
        let values_of_rank = Tensor::full(parameters[0].value().device(), [3], world.rank() as f64);
        parameters[0].set(&values_of_rank.unwrap()).unwrap();
        optimizer.load_state(&state).unwrap();
        values(&named(&parameters))
    });
    assert_eq!(found, vec![vec![vec![0.0; 3]]; 2]);
}

/// A rank ends while the others run another step: they get an error at once.
#[test]
fn a_rank_that_ends_early_is_named() {
    for gone in [0, 1, 2] {
        let found = run_ranks(3, |world| {
            let parameters = parameters(&device(), 2);
            let mut optimizer = world.data_parallel(Sgd::new(named(&parameters), 0.1).unwrap()).unwrap();
            for _ in 0..if world.rank() == gone { 1 } else { 2 } {
                let step = partial_loss(&parameters, &[0, 1], 1.0).backward();
                if let Err(error) = step.and_then(|gradients| optimizer.step(gradients)) {
                    return ParallelError::of(&error).cloned();
                }
            }
            None
        });
        for (rank, error) in found.into_iter().enumerate() {
            match error {
                None => assert_eq!(rank, gone),
                // A rank that ends after such an error is gone too.
                Some(ParallelError::Collective(CollectiveError::Left { .. })) => assert_ne!(rank, gone),
                Some(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn numbers_of_a_stage_are_those_of_all_ranks() {
    let found = run_ranks(3, |world| {
        let (rank, batch) = (world.rank(), RunStage::Batch);
        let equal = world.gather_at(batch, &[1.5, -0.0]).unwrap();
        let different = world.gather_at(batch, &vec![rank as f64; 2 - rank]).unwrap();
        let stage = if rank == 2 { RunStage::End } else { batch };
        (equal, different, world.gather_at(stage, &[rank as f64]).unwrap_err().to_string())
    });
    for (equal, different, message) in found {
        assert_eq!(equal, vec![vec![1.5, -0.0]; 3]);
        assert_eq!(different, [vec![0.0; 2], vec![1.0], vec![]]);
        assert!(message.starts_with("rank 2 is at the end of a run, but rank 0 at the loss of a batch"));
    }
}

#[test]
fn stages_and_entries_of_runs_are_compared() {
    let entry = |value: usize| {
        vec![AgreedValue { name: "steps".into(), shape: vec![], dtype: None, options: value.to_string() }]
    };
    let found = run_ranks(2, |world| {
        assert_eq!(world.agree_at(RunStage::Begin, entry(7)), Ok(()));
        let differs = world.agree_at(RunStage::Begin, entry(world.rank())).unwrap_err();
        assert!(matches!(differs, ParallelError::Disagree(AgreeError::Differs { index: 0, rank: 1, .. })));
        let stage = [RunStage::End, RunStage::EndEpoch][world.rank()];
        world.agree_at(stage, entry(0)).unwrap_err()
    });
    let expected = ParallelError::OutOfStep { rank: 1, theirs: Stage::EndEpoch, expected: Stage::EndRun };
    assert_eq!(found, [expected.clone(), expected]);
}
