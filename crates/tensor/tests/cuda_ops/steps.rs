//! Step graphs on the emulated CUDA device. Programs with and without graphs agree in every bit of the
//! results and every byte of memory.

use crate::ops_table::counting::Counting;
use crate::ops_table::{computed_by, dry_device, runtime};
use highwater_nn::modules::{Dropout, Embedding, Linear, Module, Relu, Sequential, TransformerBlock};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_tensor::{
    DType, Device, Error, Gradients, Parameter, Result, Rng, StepCounts, StepGraph, Tensor, no_grad,
};

/// A small network in training.
struct Training {
    device: Device,
    model: Sequential,
    optimizer: AdamW,
    data: Rng,
}

impl Training {
    fn new(device: &Device) -> Self {
        let rng = Rng::new(1);
        let model = Sequential::new()
            .with("first", Linear::new(device, 6, 16, &rng).unwrap())
            .with("relu", Relu)
            .with("dropout", Dropout::new(0.3, &rng.fork(1)).unwrap())
            .with("second", Linear::new(device, 16, 4, &rng).unwrap());
        let optimizer = AdamW::new(model.parameters(), 0.02).unwrap();
        Self { device: device.clone(), model, optimizer, data: Rng::new(2) }
    }

    fn batch(&self, rows: usize) -> (Tensor, Tensor) {
        let x: Vec<f32> = (0..rows * 6).map(|n| ((n * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let y: Vec<i64> = (0..rows as i64).map(|row| row * 7 % 4).collect();
        let x = Tensor::from_slice(&self.device, &x, [rows, 6]).unwrap();
        (x, Tensor::from_slice(&self.device, &y, rows).unwrap())
    }

    /// A step with random noise, dropout, and a learning rate that changes.
    fn step(&mut self, x: &Tensor, y: &Tensor, number: u64) -> Result<Tensor> {
        let noise = Tensor::normal(&self.device, x.dims(), 0.0, 0.01, &self.data)?;
        let loss = self.model.forward(&x.add(&noise)?)?.cross_entropy(y)?;
        self.optimizer.set_learning_rate(0.02 / (number + 1) as f64)?;
        self.optimizer.step(loss.backward()?)?;
        Ok(loss.detach())
    }

    fn parameters(&self) -> Vec<f32> {
        let values = |parameter: &highwater_tensor::Parameter| parameter.tensor().to_vec::<f32>().unwrap();
        self.model.parameters().iter().flat_map(|(_, parameter)| values(parameter)).collect()
    }
}

/// The emulated device, or a real device as in all tests of ops.
fn device() -> Device {
    if std::env::var_os("KERNELS_ON").is_some() {
        return crate::ops_table::device();
    }
    computed_by(Counting::new(false))
}

/// For each step: the rows of its batch, and whether the step reads a value before its end.
type Steps<'a> = &'a [(usize, bool)];

/// Runs these steps, with or without graphs, and returns the losses, the parameters and the counts.
fn train(device: &Device, steps: Steps<'_>, graphs: bool) -> (Vec<f32>, Vec<f32>, StepCounts) {
    let (mut training, graph) = (Training::new(device), StepGraph::new(device));
    let mut losses = Vec::new();
    for (number, &(rows, reads)) in steps.iter().enumerate() {
        let (x, y) = training.batch(rows);
        let mut step = || -> Result<Tensor> {
            if reads {
                let _ = x.sum_all()?.item::<f32>();
            }
            training.step(&x, &y, number as u64)
        };
        let loss = if graphs { graph.run(step) } else { step() }.unwrap();
        losses.extend(loss.item::<f32>());
    }
    let parameters = if device.is_dry() { Vec::new() } else { training.parameters() };
    (losses, parameters, graph.counts())
}

fn assert_same_with_graphs(steps: Steps<'_>) -> StepCounts {
    let (losses, parameters, none) = train(&device(), steps, false);
    let (same, also, counts) = train(&device(), steps, true);
    assert_eq!((losses, parameters), (same, also));
    assert_eq!((none, counts.runs), (StepCounts::default(), steps.len() as u64));
    assert_eq!(counts.refused, None);
    counts
}

#[test]
fn training_by_graphs_is_bit_identical() {
    let counts = assert_same_with_graphs(&[(8, false); 10]);
    // Memory is stable after two steps. From the fourth step on, every graph already exists.
    assert!(counts.graphs >= 7 && counts.prepared <= 2, "{counts:?}");
    assert!(counts.in_graphs > 2 * counts.singly, "{counts:?}");
    // Each step replaces the scalars of the noise, of the dropout and of the optimizer once.
    assert!(counts.replaced >= 3 * (counts.graphs - counts.prepared), "{counts:?}");
}

#[test]
fn each_batch_size_has_its_own_graph() {
    let steps: Vec<(usize, bool)> = (0..16).map(|n| (if n % 4 == 3 { 5 } else { 8 }, false)).collect();
    let counts = assert_same_with_graphs(&steps);
    assert!(counts.graphs >= 10, "{counts:?}");
}

#[test]
fn a_value_read_in_the_middle_divides_the_step() {
    let counts = assert_same_with_graphs(&[(8, true); 8]);
    assert!(counts.graphs >= 5, "{counts:?}");
    let mixed: Vec<(usize, bool)> = (0..12).map(|n| (8, n % 3 == 0)).collect();
    assert_same_with_graphs(&mixed);
}

#[test]
fn step_graphs_do_not_change_memory_requests() {
    let steps = [(8, false); 6];
    let figures = |device: &Device, graphs| {
        train(device, &steps, graphs);
        let stats = device.default_allocator().unwrap().stats();
        (stats.num_allocs, stats.peak_bytes_in_use, stats.bytes_requested)
    };
    let expected = figures(&device(), false);
    assert_eq!(figures(&device(), true), expected);
    assert_eq!(figures(&dry_device(), true), expected);
}

#[test]
fn devices_without_graphs_just_run_the_step() {
    let cpu = runtime().cpu().unwrap();
    let steps = [(8, false); 4];
    let (losses, parameters, _) = train(&cpu, &steps, false);
    assert_eq!(train(&cpu, &steps, true), (losses, parameters, StepCounts::default()));
}

#[test]
fn a_failed_or_panicking_step_keeps_its_results() {
    let device = device();
    let graph = StepGraph::new(&device);
    let x = Tensor::ones(&device, [4, 4]).unwrap();
    let chain = |x: &Tensor| x.mul(x)?.add(x)?.exp()?.sum_all();
    let expected = chain(&x).unwrap().item::<f32>().unwrap();
    for turn in 0..6 {
        let mut seen = None;
        let failed = graph.run(|| -> Result<()> {
            seen = Some(chain(&x)?);
            x.matmul(&Tensor::ones(&device, [3, 3])?).map(drop)
        });
        assert!(matches!(failed, Err(Error::ShapeMismatch { .. })), "{failed:?}");
        assert_eq!(seen.unwrap().item::<f32>().unwrap(), expected);
        let mut seen = None;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            graph.run(|| -> Result<()> {
                seen = Some(chain(&x)?);
                panic!("a user's own");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(seen.unwrap().item::<f32>().unwrap(), expected);
        assert_eq!(graph.counts().runs, 2 * turn + 2);
    }
    assert!(graph.counts().graphs > 0);
}

#[test]
fn pending_work_does_not_use_returned_memory() {
    let device = device();
    let graph = StepGraph::new(&device);
    for turn in 0..6 {
        let sum = graph.run(|| -> Result<Tensor> {
            let x = Tensor::full(&device, [300, 1000], f64::from(turn))?;
            let y = x.mul(&x)?.add(&x)?;
            let sum = y.sum_all()?;
            drop((x, y));
            // The device returns free regions, so the pool no longer holds them.
            device.empty_cache()?;
            Ok(sum)
        });
        let expected = f64::from(300_000 * turn * (turn + 1)) as f32;
        assert_eq!(sum.unwrap().item::<f32>().unwrap(), expected);
    }
}

#[test]
fn concurrent_steps_on_a_device_have_separate_results() {
    let device = device();
    let expected: Vec<f32> = (0..40).map(|n| (0..n).map(|_| 2.0).sum::<f32>() + 3.0).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let graph = StepGraph::new(&device);
                for (n, expected) in expected.iter().enumerate() {
                    let sum = graph.run(|| {
                        let mut sum = Tensor::full(&device, [1], 3.0)?;
                        for _ in 0..n {
                            sum = sum.add_scalar(2.0)?;
                        }
                        Ok::<_, Error>(sum)
                    });
                    assert_eq!(sum.unwrap().item::<f32>().unwrap(), *expected);
                }
            });
        }
    });
}

#[test]
fn a_step_within_a_step_is_part_of_it() {
    let device = device();
    let (outer, inner) = (StepGraph::new(&device), StepGraph::new(&device));
    for _ in 0..4 {
        let value = outer.run(|| {
            let x = Tensor::ones(&device, [8])?.mul_scalar(3.0)?;
            inner.run(|| no_grad(|| x.add_scalar(1.0)?.sqrt()?.sum_all()))
        });
        assert_eq!(value.unwrap().item::<f32>().unwrap(), 16.0);
    }
    assert_eq!((outer.counts().runs, inner.counts()), (4, StepCounts::default()));
}

/// Trains a small transformer for `steps` steps, which optionally read the gradient norm. Returns the losses,
/// the number of parameters, and the counts of the graph.
fn transformer(device: &Device, steps: u64, reads: bool, graphs: bool) -> (Vec<f32>, u64, StepCounts) {
    let rng = Rng::new(3);
    let tokens = Embedding::new(device, 11, 8, &rng).unwrap();
    let block = TransformerBlock::new(device, 8, 2, &rng).unwrap().causal();
    let head = Linear::new(device, 8, 11, &rng).unwrap();
    let model = Sequential::new().with("tokens", tokens).with("block", block).with("head", head);
    let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
    let graph = StepGraph::new(device);
    let mut losses = Vec::new();
    for n in 0..steps.cast_signed() {
        let words: Vec<i64> = (0..24).map(|place| (place * 5 + n * 3) % 11).collect();
        let x = Tensor::from_slice(device, &words, [3, 8]).unwrap();
        let y = Tensor::from_slice(device, &words, [24]).unwrap();
        let mut step = || {
            let loss = model.forward(&x)?.flatten(0, 1)?.cross_entropy(&y)?;
            let mut gradients = loss.backward()?;
            if reads {
                gradients.clip_norm(1.0)?;
            } else {
                let _ = gradients.clip_norm_unread(1.0)?;
            }
            optimizer.step(gradients)?;
            Ok::<_, Error>(loss.detach())
        };
        losses.push(if graphs { graph.run(step) } else { step() }.unwrap().item::<f32>().unwrap());
    }
    (losses, model.parameters().len() as u64, graph.counts())
}

#[test]
fn graph_steps_reuse_addresses_and_update_only_scalars() {
    const STEPS: u64 = 8;
    for reads in [false, true] {
        let (losses, _, counts) = transformer(&device(), STEPS, reads, true);
        assert_eq!(losses, transformer(&device(), STEPS, reads, false).0);
        // A read ends the graph. The few launches after it run singly. From the third step on, no graph is new.
        let steady = STEPS - 2;
        assert_eq!(counts.graphs - counts.prepared, steady, "{counts:?}");
        // A graph with the optimizer's launch replaces its scalars: the bias correction depends on the step number.
        assert_eq!(counts.replaced, if reads { 0 } else { steady }, "{counts:?}");
        assert!(counts.in_graphs > 4 * counts.replaced, "{counts:?}");
    }
}

/// Parameters of many sizes: none, odd ones, and some of several chunks. Gradients of matrices are transposed.
fn parameters_of_many_sizes(device: &Device, dtype: DType) -> (Vec<(String, Parameter)>, Vec<Tensor>) {
    let rng = Rng::new(3);
    let numbers = |dims: &[usize]| Tensor::randn(device, dims, &rng).unwrap().to_dtype(dtype).unwrap();
    (0..130)
        .map(|n| {
            let count = [0, 1, 64, 4095, 4096, 4097, 10_000][n % 7];
            let (value, gradient) = match n % 11 {
                10 => (numbers(&[70, 60]), numbers(&[60, 70]).t().unwrap()),
                _ => (numbers(&[count]), numbers(&[count])),
            };
            ((n.to_string(), Parameter::new(value).unwrap()), gradient)
        })
        .unzip()
}

#[test]
fn an_optimizer_updates_all_parameters_in_few_launches() {
    for dtype in [DType::F32, DType::BF16] {
        let stepped = |device: &Device, at_once: usize| {
            let (parameters, all) = parameters_of_many_sizes(device, dtype);
            for (own, all) in parameters.chunks(at_once).zip(all.chunks(at_once)) {
                let mut optimizer = AdamW::new(own.to_vec(), 0.01).unwrap();
                for _ in 0..2 {
                    let mut gradients = Gradients::default();
                    for ((_, parameter), gradient) in own.iter().zip(all) {
                        gradients.insert(parameter, gradient.clone()).unwrap();
                    }
                    gradients.scale(0.5).unwrap();
                    optimizer.step(gradients).unwrap();
                }
            }
            let values = |(_, parameter): &(String, Parameter)| {
                parameter.value().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap()
            };
            parameters.iter().map(values).collect::<Vec<_>>()
        };
        let compute = Counting::new(false);
        let at_once = stepped(&computed_by(compute.clone()), 130);
        let launches = |name| compute.launched().iter().filter(|launched| **launched == name).count();
        // The scaled gradients are contiguous copies, as other handles share the originals.
        assert_eq!((launches("adam"), launches("clip")), (2 * 3, 2 * 3));
        assert!(at_once == stepped(&device(), 1), "{dtype}, one after another on the device");
        for threads in [1, 3] {
            let cpu = highwater_tensor::Runtime::builder().threads(threads).build().unwrap().cpu().unwrap();
            assert!(stepped(&cpu, 130) == stepped(&cpu, 1), "{dtype}, {threads} threads");
        }
    }
}
