//! Several CUDA devices in one runtime. Each device has its own pool, stream and share of memory. The emulated
//! driver runs the kernels on the host and completes work with a delay. It marks a device as lost if the
//! device touches memory of another device.

use bfc_core::{Amount, Bytes, Category, DeviceId, DeviceKind, Environment, PoolOptions, default_reserve};
use highwater_nn::modules::{Linear, Module, Parameter};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_tensor::{DType, Device, Error, Result, Rng, Runtime, StepGraph, Tensor, no_grad};

use crate::controls::{lose, used_bytes};
use crate::emulated_driver::on_emulated_driver;

const fn cuda(ordinal: u32) -> DeviceId {
    DeviceId::new(DeviceKind::Cuda, ordinal)
}

fn runtime() -> Runtime {
    Runtime::builder().threads(1).environment(Environment::default()).build().unwrap()
}

/// Returns both devices of a runtime, and the CPU.
fn devices() -> [Device; 3] {
    let runtime = runtime();
    [runtime.device(cuda(0)).unwrap(), runtime.device(cuda(1)).unwrap(), runtime.cpu().unwrap()]
}

#[test]
fn transfers_keep_values_of_all_types() {
    on_emulated_driver(&[], || {
        let [first, second, host] = devices();
        for dtype in DType::ALL {
            let x = Tensor::arange(&host, 0, 60).unwrap().reshape([4, 15]).unwrap().to_dtype(dtype).unwrap();
            // A view that is not contiguous: a part of the transposed tensor.
            let x = x.t().unwrap().slice(0, 3..12).unwrap();
            let values = |x: &Tensor| x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            let mut moved = x.clone();
            for device in [&first, &second, &host, &second, &first, &host] {
                moved = moved.to_device(device).unwrap();
                assert_eq!((moved.device(), moved.dtype(), moved.dims()), (device, dtype, x.dims()));
                assert_eq!(values(&moved), values(&x), "{dtype} on {device}");
            }
        }
        let empty = Tensor::zeros(&first, [0, 3]).unwrap().to_device(&second).unwrap();
        assert_eq!((empty.dims(), empty.to_vec::<f32>().unwrap().len()), (&[0, 3][..], 0));
    });
}

#[test]
fn each_device_has_its_own_pool_stream_and_limit() {
    on_emulated_driver(&[], || {
        let share =
            |percent: u8| PoolOptions::default().with_limit(format!("{percent}%").parse::<Amount>().unwrap());
        let runtime = Runtime::builder().threads(1).environment(Environment::default());
        let runtime = runtime.pool_options(cuda(1), share(1)).build().unwrap();
        let (first, second) = (runtime.device(cuda(0)).unwrap(), runtime.device(cuda(1)).unwrap());
        let limit = |device: &Device| device.memory_stats().unwrap().bytes_limit.unwrap();
        let (memory, scratch) = (Bytes::gib(6).get(), 256);
        assert_eq!(limit(&first), memory - scratch - default_reserve(Bytes::gib(6), 9).get());
        assert_eq!(limit(&second), memory / 100);
        let stream = |device: &Device| device.default_allocator().unwrap().stream().unwrap().clone();
        assert_ne!(stream(&first), stream(&second));

        // Allocations on one device do not change the figures of the other, by category and by op.
        let figures = |device: &Device| {
            let allocator = device.default_allocator().unwrap();
            let ledger = allocator.ledger();
            (allocator.stats().bytes_in_use, ledger.category(Category::Output), allocator.stats().num_allocs)
        };
        let x = Tensor::ones(&first, [1000]).unwrap();
        assert_eq!((figures(&first), figures(&second)), ((4096, 4096, 1), (0, 0, 0)));
        let y = x.to_device(&second).unwrap();
        assert_eq!((figures(&first), figures(&second)), ((4096, 4096, 1), (4096, 4096, 1)));
        drop(x);
        let z = y.mul(&y).unwrap();
        assert_eq!((figures(&first), figures(&second)), ((0, 0, 1), (8192, 8192, 2)));
        assert_eq!(z.to_vec::<f32>().unwrap(), [1.0; 1000]);
        drop((y, z));
        assert_eq!(figures(&second).0, 0);
        // One device is out of memory, and the other is not.
        let much = || Tensor::zeros(&second, [16 << 20]).unwrap_err();
        let error = much();
        assert_eq!(error.out_of_memory().unwrap().allocator, "cuda:1");
        drop(Tensor::zeros(&first, [16 << 20]).unwrap());
    });
}

#[test]
fn a_copy_between_devices_keeps_the_order_of_work() {
    on_emulated_driver(&[], || {
        let [first, second, _] = devices();
        for turn in 0..40 {
            let mut x = Tensor::full(&first, [5000], turn).unwrap();
            for _ in 0..8 {
                x = x.add_scalar(1.0).unwrap();
            }
            let y = x.to_device(&second).unwrap();
            // The source device reuses the memory of the copied tensor immediately.
            drop(x);
            let others: Vec<Tensor> = (0..3).map(|_| Tensor::full(&first, [5000], -1.0).unwrap()).collect();
            let sum = y.mul_scalar(2.0).unwrap().sum_all().unwrap().to_device(&first).unwrap();
            drop(y);
            drop(Tensor::full(&second, [5000], -1.0).unwrap());
            assert_eq!(sum.add_scalar(1.0).unwrap().item::<f32>().unwrap(), ((turn + 8) * 10_000 + 1) as f32);
            drop(others);
        }
    });
}

#[test]
fn training_across_two_devices_equals_training_on_one() {
    on_emulated_driver(&[], || {
        let [first, second, host] = devices();
        let train = |front: &Device, back: &Device| -> Result<(Vec<f32>, Vec<Vec<f32>>)> {
            let rng = Rng::new(5);
            let (lower, upper) = (Linear::new(&host, 6, 16, &rng)?, Linear::new(&host, 16, 3, &rng)?);
            let on = |device: &Device, layer: &Linear| -> Result<[Parameter; 2]> {
                let parameters = layer.parameters();
                let moved = |n: usize| no_grad(|| parameters[n].1.tensor().to_device(device));
                Ok([Parameter::new(moved(0)?)?, Parameter::new(moved(1)?)?])
            };
            let (lower, upper) = (on(front, &lower)?, on(back, &upper)?);
            let named = |layer: &str, of: &[Parameter; 2]| {
                let [weight, bias] = of.clone();
                [(format!("{layer}.weight"), weight), (format!("{layer}.bias"), bias)]
            };
            let all = [named("lower", &lower), named("upper", &upper)].concat();
            let mut optimizer = AdamW::new(all.clone(), 0.05)?;
            let x: Vec<f32> = (0..48).map(|n| (n * 37 % 101) as f32 / 50.0 - 1.0).collect();
            let x = Tensor::from_slice(front, &x, [8, 6])?;
            let y = Tensor::from_slice(back, &[0_i64, 1, 2, 0, 1, 2, 0, 1], 8)?;
            let mut losses = Vec::new();
            for _ in 0..6 {
                let hidden = x.linear(&lower[0].tensor(), &lower[1].tensor())?.relu()?.to_device(back)?;
                let loss = hidden.linear(&upper[0].tensor(), &upper[1].tensor())?.cross_entropy(&y)?;
                let gradients = loss.backward()?;
                for (parameter, device) in
                    lower.iter().map(|of| (of, front)).chain(upper.iter().map(|of| (of, back)))
                {
                    assert_eq!(gradients.get(&parameter.tensor()).unwrap().device(), device);
                }
                optimizer.step(gradients)?;
                losses.push(loss.item::<f32>()?);
            }
            Ok((losses, all.iter().map(|(_, of)| of.tensor().to_vec::<f32>().unwrap()).collect()))
        };
        let one = train(&first, &first).unwrap();
        assert!(one.0[5] < one.0[0]);
        assert_eq!(train(&first, &second).unwrap(), one);
        assert_eq!(train(&second, &first).unwrap(), one);
        // The copy goes through the CPU, which rounds some values differently.
        let mixed = train(&second, &host).unwrap();
        assert!(mixed.0.iter().zip(&one.0).all(|(a, b)| (a - b).abs() < 1e-4), "{mixed:?}");
    });
}

#[test]
fn operands_on_two_devices_are_an_error() {
    on_emulated_driver(&[], || {
        let [first, second, host] = devices();
        let x = Tensor::ones(&first, [3, 3]).unwrap();
        for other in [&second, &host] {
            let y = Tensor::ones(other, [3, 3]).unwrap();
            let indices = Tensor::from_slice(other, &[0_i64, 1, 2], 3).unwrap();
            let condition = y.gt(&y).unwrap();
            for error in [
                x.add(&y).unwrap_err(),
                x.matmul(&y).unwrap_err(),
                condition.where_(&x, &x).unwrap_err(),
                x.cross_entropy(&indices).unwrap_err(),
                Tensor::concat(&[&x, &y], 0).unwrap_err(),
            ] {
                let Error::DeviceMismatch { lhs, rhs, .. } = &error else { panic!("{error}") };
                let mut named = [lhs.as_str(), rhs.as_str()];
                named.sort_unstable();
                let mut both = ["cuda:0".to_owned(), other.to_string()];
                both.sort_unstable();
                assert_eq!(named, [both[0].as_str(), both[1].as_str()], "{error}");
            }
        }
        assert_eq!(x.sum_all().unwrap().item::<f32>().unwrap(), 9.0);
    });
}

#[test]
fn a_device_that_is_lost_leaves_the_other_working() {
    on_emulated_driver(&[], || {
        let [first, second, host] = devices();
        let x = Tensor::ones(&first, [1000]).unwrap().requiring_grad().unwrap();
        let y = x.to_device(&second).unwrap().mul_scalar(2.0).unwrap();
        let healthy = Tensor::full(&second, [1000], 3.0).unwrap();
        lose(0);
        let is_lost = |error: &Error| {
            let text = error.to_string();
            assert!(text.contains("cuda:0 (Emulated Device) is lost to this process"), "{text}");
            matches!(error, Error::Device { .. } | Error::Allocation { .. })
        };
        assert!(is_lost(&x.to_vec::<f32>().unwrap_err()));
        assert!(is_lost(&x.mul_scalar(2.0).unwrap_err()));
        assert!(is_lost(&x.to_device(&second).unwrap_err()));
        assert!(is_lost(&healthy.to_device(&first).unwrap_err()));
        // A gradient that ends there is an error too.
        assert!(is_lost(&y.sum_all().unwrap().backward().unwrap_err()));
        // The other device stays usable, even for tensors that came from the lost device.
        assert_eq!(y.add(&healthy).unwrap().to_vec::<f32>().unwrap(), [5.0; 1000]);
        let square = healthy.mul(&healthy).unwrap().to_device(&host).unwrap();
        assert_eq!(square.to_vec::<f32>().unwrap(), [9.0; 1000]);
        let before = second.memory_allocated().unwrap();
        drop((x, y));
        assert_eq!(first.memory_allocated().unwrap(), Bytes(0));
        drop(first);
        let more = Tensor::from_slice(&second, &[1.0_f32; 100], 100).unwrap();
        assert_eq!(more.sum_all().unwrap().item::<f32>().unwrap(), 100.0);
        assert!(second.memory_allocated().unwrap() < before);
    });
}

#[test]
fn devices_and_tensors_are_dropped_in_any_order() {
    on_emulated_driver(&[], || {
        for order in 0..6 {
            let runtime = runtime();
            let (first, second) = (runtime.device(cuda(0)).unwrap(), runtime.device(cuda(1)).unwrap());
            let x = Tensor::full(&first, [1000], 2.0).unwrap().requiring_grad().unwrap();
            // A graph that spans both devices.
            let y = x.to_device(&second).unwrap().mul_scalar(3.0).unwrap();
            assert!(used_bytes(0) > 0 && used_bytes(1) > 0);
            match order {
                0 => drop((runtime, first, second, x, y)),
                1 => drop((y, x, second, first, runtime)),
                2 => {
                    drop((first, runtime, x));
                    assert_eq!(y.to_vec::<f32>().unwrap(), [6.0; 1000]);
                    drop((second, y));
                }
                3 => {
                    drop((second, y, runtime));
                    assert_eq!(x.mul_scalar(2.0).unwrap().to_vec::<f32>().unwrap(), [4.0; 1000]);
                    drop((x, first));
                }
                4 => {
                    drop((runtime, first, second));
                    let gradients = y.sum_all().unwrap().backward().unwrap();
                    assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [3.0; 1000]);
                    drop((gradients, x, y));
                }
                _ => std::thread::spawn(move || drop((second, x, runtime, y, first))).join().unwrap(),
            }
            assert_eq!((used_bytes(0), used_bytes(1)), (0, 0), "{order}");
        }
    });
}

#[test]
fn threads_work_on_two_devices_at_once() {
    on_emulated_driver(&[], || {
        let [first, second, _] = devices();
        std::thread::scope(|scope| {
            for (from, to) in [(&first, &second), (&second, &first)] {
                scope.spawn(move || {
                    for n in 0..30 {
                        let x = Tensor::full(from, [777], n).unwrap().mul_scalar(2.0).unwrap();
                        let y = x.to_device(to).unwrap().add_scalar(1.0).unwrap().to_device(from).unwrap();
                        assert_eq!(x.add(&y).unwrap().to_vec::<f32>().unwrap(), [(4 * n + 1) as f32; 777]);
                    }
                });
            }
        });
    });
}

#[test]
fn a_second_device_does_not_change_a_step_graph() {
    on_emulated_driver(&[], || {
        let [first, second, _] = devices();
        let x = Tensor::full(&first, [50], 2.0).unwrap();
        let step = |n: i32| -> Result<Tensor> {
            let there = x.mul_scalar(f64::from(n))?.add_scalar(1.0)?.exp()?.log()?.to_device(&second)?;
            let back = there.mul(&there)?.sub(&there)?.add_scalar(3.0)?.abs()?.to_device(&first)?;
            back.add(&x)?.mul_scalar(0.5)?.sqrt()?.sum_all()
        };
        let (outer, inner) = (StepGraph::new(&first), StepGraph::new(&second));
        for n in 0..6 {
            let value = outer.run(|| inner.run(|| step(n))).unwrap().item::<f32>().unwrap();
            assert_eq!(value, step(n).unwrap().item::<f32>().unwrap());
        }
        assert_eq!((outer.counts().runs, inner.counts().runs), (6, 6));
    });
}
