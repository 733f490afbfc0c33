//! Gradients of passes without synchronization, alone and added to others.

use highwater_nn::optim::LossScaler;

use super::*;

const SHARDS: [Shard; 3] = [Shard::None, Shard::Optimizer, Shard::Gradients];

/// One parameter of zero, whose gradient is the slope of the loss.
fn line(device: &Device) -> Parameter {
    Parameter::new(Tensor::zeros(device, [1]).unwrap()).unwrap()
}

fn slope(parameter: &Parameter, slope: f64) -> Tensor {
    parameter.tensor().mul_scalar(slope).unwrap().sum_all().unwrap()
}

fn first(parameter: &Parameter) -> f32 {
    parameter.value().to_vec::<f32>().unwrap()[0]
}

#[test]
fn the_sum_with_a_synchronized_pass_is_the_mean_over_all_ranks() {
    for shard in SHARDS {
        let found = run_ranks(2, |world| {
            let w = line(&device());
            let make = |own| Sgd::new(own, 1.0);
            let mut optimizer = world.sharded(shard, vec![("w".into(), w.clone())], make).unwrap();
            let own = 10.0 * world.rank() as f64;
            let mut gradients = no_sync(|| slope(&w, own).backward()).unwrap();
            gradients.accumulate(&mut slope(&w, own + 2.0).backward().unwrap()).unwrap();
            optimizer.step(gradients).unwrap();
            first(&w)
        });
        // The mean of 0 and 10, and the mean of 2 and 12.
        assert_eq!(found, [-12.0; 2], "{shard:?}");
    }
}

/// The passes of a step: `true` for those without synchronization.
const PATTERNS: [&[bool]; 6] = [
    &[true],
    &[true, true],
    &[true, false],
    &[false, true],
    &[true, true, false, true],
    &[true, false, true, false],
];

#[test]
fn all_patterns_equal_one_process_that_accumulates() {
    for (ranks, dtype) in [(2, DType::F32), (3, DType::F64), (2, DType::BF16), (2, DType::F16)] {
        for pattern in PATTERNS {
            let batches = ranks * pattern.len();
            let expected = accumulated(batches, dtype, sgd);
            for (shard, bucket) in SHARDS.into_iter().zip([1, 1000, 1 << 20]) {
                let found = run_ranks(ranks, |world| {
                    let device = device();
                    let network = network(&device, dtype);
                    let optimizer = world.sharded(shard, network.parameters(), sgd).unwrap();
                    let mut optimizer = optimizer.bucket_bytes(bucket);
                    for step in 0..STEPS {
                        let mut gradients = Gradients::default();
                        for (pass, &is_alone) in pattern.iter().enumerate() {
                            let batch = step * batches + pass * ranks + world.rank();
                            let pass = || loss(&network, &device, dtype, batch)?.backward();
                            let mut own = if is_alone { no_sync(pass) } else { pass() }.unwrap();
                            gradients.accumulate(&mut own).unwrap();
                        }
                        gradients.scale(1.0 / pattern.len() as f64).unwrap();
                        optimizer.clip_norm(&mut gradients, 0.02).unwrap();
                        optimizer.step(gradients).unwrap();
                    }
                    values(&network.parameters())
                });
                let context = format!("{ranks} ranks, {dtype}, {pattern:?}, {shard:?}");
                assert!(found.iter().all(|values| *values == found[0]), "{context}");
                // The order of additions differs. A 16-bit float may round to its neighbor.
                let tolerance = if dtype.is_half() { 8e-3 } else { 1e-6 };
                for (found, expected) in found[0].iter().flatten().zip(expected.iter().flatten()) {
                    assert!((found - expected).abs() <= tolerance, "{context}: {found} {expected}");
                }
            }
        }
    }
}

#[test]
fn passes_may_lead_to_different_parameters() {
    for shard in SHARDS {
        let found = run_ranks(2, |world| {
            let parameters = parameters(&device(), 5);
            let make = |own| Sgd::new(own, 1.0);
            let mut optimizer = world.sharded(shard, named(&parameters), make).unwrap();
            // Passes alone of rank 0 use 0 and 1, those of rank 1 use 1 and 2. None uses 4.
            let [alone, together] = [&[[0, 1], [1, 2]], &[[1, 3], [1, 3]]].map(|used| used[world.rank()]);
            let mut gradients = no_sync(|| partial_loss(&parameters, &alone, 0.5).backward()).unwrap();
            let mut more = partial_loss(&parameters, &together, 0.25).backward().unwrap();
            gradients.accumulate(&mut more).unwrap();
            optimizer.step(gradients).unwrap();
            values(&named(&parameters)).into_iter().map(|values| values[0]).collect::<Vec<_>>()
        });
        // Gradients: half of 0.5·2·1; 0.5·2·2 and 0.25·2·2; half of 0.5·2·3; 0.25·2·4.
        let expected = [1.0 - 0.5, 2.0 - 2.0 - 1.0, 3.0 - 1.5, 4.0 - 2.0, 5.0];
        assert_eq!(found, [expected, expected], "{shard:?}");
    }
}

#[test]
fn ranks_may_run_different_numbers_of_passes_alone() {
    for shard in SHARDS {
        for is_clipped in [false, true] {
            let found = run_ranks(3, |world| {
                let w = line(&device());
                let make = |own| Sgd::new(own, 1.0);
                let mut optimizer = world.sharded(shard, vec![("w".into(), w.clone())], make).unwrap();
                let mut gradients = slope(&w, 4.0).backward().unwrap();
                for _ in 0..world.rank() {
                    gradients.accumulate(&mut no_sync(|| slope(&w, 2.0).backward()).unwrap()).unwrap();
                }
                if is_clipped {
                    assert_eq!(optimizer.clip_norm(&mut gradients, 100.0).unwrap(), 6.0);
                }
                optimizer.step(gradients).unwrap();
                first(&w)
            });
            assert_eq!(found, [-6.0; 3], "{shard:?}");
        }
    }
}

#[test]
fn dropped_gradients_do_not_count() {
    let found = run_ranks(2, |world| {
        let w = line(&device());
        let mut optimizer =
            world.data_parallel(Sgd::new(vec![("w".into(), w.clone())], 1.0).unwrap()).unwrap();
        for _ in 0..2 {
            if world.is_main() {
                let gradients = no_sync(|| slope(&w, 100.0).backward()).unwrap();
                assert_eq!(gradients.norm().unwrap(), 100.0);
            }
            optimizer.step(slope(&w, 1.0).backward().unwrap()).unwrap();
        }
        first(&w)
    });
    assert_eq!(found, [-2.0; 2]);
}

#[test]
fn one_sum_may_belong_to_two_optimizers() {
    let found = run_ranks(2, |world| {
        let device = device();
        let (a, b) = (line(&device), line(&device));
        let list = |name: &str, parameter: &Parameter| vec![(name.to_owned(), parameter.clone())];
        let make = |own| Sgd::new(own, 1.0);
        let mut first_optimizer = world.sharded(Shard::Gradients, list("a", &a), make).unwrap();
        let mut second = world.sharded(Shard::None, list("b", &b), make).unwrap();
        let own = 10.0 * world.rank() as f64;
        let both = |slope_of: f64| slope(&a, slope_of).add(&slope(&b, 2.0 * slope_of)).unwrap().backward();
        let mut gradients = no_sync(|| both(own)).unwrap();
        gradients.accumulate(&mut both(own + 2.0).unwrap()).unwrap();
        second.step(gradients.split_off(&list("b", &b))).unwrap();
        first_optimizer.step(gradients).unwrap();
        [first(&a), first(&b)]
    });
    assert_eq!(found, [[-12.0, -24.0]; 2]);
}

#[test]
fn gradients_that_are_taken_and_inserted_again_stay_local() {
    for shard in SHARDS {
        let found = run_ranks(2, |world| {
            let w = line(&device());
            let make = |own| Sgd::new(own, 1.0);
            let mut optimizer = world.sharded(shard, vec![("w".into(), w.clone())], make).unwrap();
            let own = 10.0 * world.rank() as f64;
            let mut gradients = no_sync(|| slope(&w, own).backward()).unwrap();
            let half = gradients.take_of(&w).unwrap().mul_scalar(0.5).unwrap();
            assert!(!gradients.has_local() && !gradients.is_local(&w));
            gradients.insert(&w, half).unwrap();
            assert!(gradients.has_local() && gradients.is_local(&w));
            // A gradient that only its owner has, in a sum with a local one.
            let mut more = slope(&w, own + 2.0).backward().unwrap();
            if let Some(gradient) = more.take(&w.tensor()) {
                more.insert(&w, gradient.mul_scalar(2.0).unwrap()).unwrap();
            }
            gradients.accumulate(&mut more).unwrap();
            optimizer.step(gradients).unwrap();

            // One that replaces a taken one is that of its pass.
            let mut gradients = no_sync(|| slope(&w, own).backward()).unwrap();
            drop(gradients.take_of(&w));
            gradients.accumulate(&mut slope(&w, 1.0).backward().unwrap()).unwrap();
            assert!(!gradients.has_local());
            optimizer.step(gradients).unwrap();
            first(&w)
        });
        // Half of the mean of 0 and 10, twice the mean of 2 and 12, and 1.
        assert_eq!(found, [-17.5; 2], "{shard:?}");
    }
}

#[test]
fn incomplete_gradients_are_not_clipped() {
    for shard in SHARDS {
        run_ranks(2, |world| {
            let w = line(&device());
            let make = |own| Sgd::new(own, 1.0);
            let optimizer = world.sharded(shard, vec![("w".into(), w.clone())], make).unwrap();
            let own = 1.0 + world.rank() as f64;
            let mut gradients = no_sync(|| slope(&w, own).backward()).unwrap();
            assert!(gradients.has_local() && gradients.is_local(&w));
            let message = gradients.clip_norm(1.0).unwrap_err().to_string();
            assert!(message.contains("call `clip_norm` or `sync_gradients` of the optimizer"), "{message}");
            assert!(gradients.clip_value(1.0).is_err() && gradients.clip_norm_unread(1.0).is_err());
            optimizer.sync_gradients(&mut gradients).unwrap();
            assert!(!gradients.has_local());
            let is_owner = shard != Shard::Gradients || world.is_main();
            let mean = gradients.get(&w.tensor()).map(|mean| mean.to_vec::<f32>().unwrap());
            assert_eq!(mean, is_owner.then(|| vec![1.5]), "{shard:?}");
            assert_eq!(gradients.clip_norm(1.0).is_err(), shard == Shard::Gradients && is_owner);
            gradients.clip_value(1.0).unwrap();
        });
    }
}

#[test]
fn all_ranks_skip_a_step_with_an_infinite_gradient_of_one_rank() {
    for shard in SHARDS {
        for is_alone in [true, false] {
            let found = run_ranks(2, |world| {
                let w = line(&device());
                let make = |own| Sgd::new(own, 1.0);
                let mut optimizer = world.sharded(shard, vec![("w".into(), w.clone())], make).unwrap();
                let mut scaler = LossScaler::dynamic();
                for step in 0..3 {
                    let bad = if step == 1 && world.rank() == 1 { f64::INFINITY } else { 1.0 };
                    let pass = || scaler.scale(&slope(&w, bad))?.backward();
                    let gradients = if is_alone { no_sync(pass) } else { pass() }.unwrap();
                    let taken = scaler.step(&mut optimizer, gradients).unwrap();
                    assert_eq!(taken.is_taken(), step != 1, "{shard:?}");
                }
                (first(&w), scaler.current())
            });
            assert_eq!(found, [(-2.0, 16_384.0); 2], "{shard:?}");
        }
    }
}

#[test]
fn other_scales_of_a_rank_are_named() {
    for shard in SHARDS {
        for is_clipped in [false, true] {
            let found = run_ranks(2, |world| {
                let w = line(&device());
                let make = |own| Sgd::new(own, 1.0);
                let mut optimizer = world.sharded(shard, vec![("w".into(), w.clone())], make).unwrap();
                // The scales differ after two steps.
                let mut scaler = LossScaler::dynamic_from(8.0, 2 + world.rank() as u64).unwrap();
                let mut step = || {
                    let gradients = scaler.scale(&slope(&w, 1.0))?.backward()?;
                    if !is_clipped {
                        return scaler.step(&mut optimizer, gradients).map(drop);
                    }
                    let mut gradients = scaler.unscale_for(&optimizer, gradients)?.unwrap();
                    optimizer.clip_norm(&mut gradients, 9.0)?;
                    optimizer.step(gradients)
                };
                step().and_then(|()| step()).unwrap();
                let message = step().unwrap_err().to_string();
                assert_eq!(first(&w), -2.0);
                message
            });
            assert!(
                found[0].contains("`loss scale: 8` on rank 1, but `loss scale: 16` on rank 0"),
                "{}",
                found[0]
            );
            assert_eq!(found[0], found[1]);
        }
    }
}

/// Also after the first passes, whose order the assignment adopts.
#[test]
fn a_dry_run_has_the_peak_of_each_rank() {
    let program = |world: &World, device: &Device, dtype, shard| {
        let network = network(device, dtype);
        let make = |own| AdamW::new(own, 1e-2);
        let mut optimizer = world.sharded(shard, network.parameters(), make).unwrap();
        for step in 0..3 {
            let x = Tensor::ones_of(device, [4, 5], dtype).unwrap();
            let pass = || network.forward(&x)?.square()?.to_dtype(DType::F32)?.mean_all()?.backward();
            let mut gradients = no_sync(pass).unwrap();
            if step != 1 {
                gradients.accumulate(&mut pass().unwrap()).unwrap();
            }
            if step > 0 {
                optimizer.clip_norm(&mut gradients, 1.0).unwrap();
            }
            optimizer.step(gradients).unwrap();
        }
        device.default_allocator().unwrap().stats().peak_bytes_in_use
    };
    for dtype in [DType::F32, DType::BF16] {
        for shard in SHARDS {
            let real = run_ranks(2, |world| program(&world, &device(), dtype, shard));
            let dry = [0, 1].map(|rank| {
                let device = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
                program(&World::rehearsal(rank, 2).unwrap(), &device, dtype, shard)
            });
            assert_eq!(real, dry, "{dtype} {shard:?}");
        }
    }
}
