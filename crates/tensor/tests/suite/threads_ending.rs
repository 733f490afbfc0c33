//! Ops in the destructors of thread-local values. The thread may already have dropped the thread-local values
//! that ops use.
//!
//! A panic in such a destructor aborts the process, including this test program.

use std::cell::RefCell;
use std::sync::mpsc;

use highwater_nn::modules::{Linear, Module, Parameter};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_tensor::{
    Activation, AttentionOptions, Conv2dOptions, DType, Device, Result, Rng, Runtime, Tensor, checkpoint,
    with_device,
};
use highwater_tracking::module;

/// Runs a program when the thread drops it.
struct AtEnd(Box<dyn FnMut()>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        (self.0)();
    }
}

thread_local!(static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) });

/// The time at which the thread creates its value with a destructor. Threads drop their values in the
/// opposite order.
#[derive(Clone, Copy, Debug)]
enum Made {
    /// Before its first op: the destructor runs after the values that ops use were dropped.
    First,
    /// After the first ops: the values that ops use still exist in the destructor.
    Last,
    /// No op runs before the destructor.
    Alone,
}

type Program = fn(&Device) -> Result<Vec<Tensor>>;

/// Runs a program in the destructor of a thread-local value and returns its results.
fn in_destructor(device: &Device, made: Made, program: Program) -> Vec<Vec<f64>> {
    let (tell, told) = mpsc::channel();
    let device = device.clone();
    let thread = std::thread::spawn(move || {
        let run = move |device: &Device| values(&program(device).unwrap());
        let at_end = {
            let device = device.clone();
            AtEnd(Box::new(move || tell.send(run(&device)).unwrap()))
        };
        let keep = |at_end| AT_END.with(|kept| *kept.borrow_mut() = Some(at_end));
        match made {
            Made::First => {
                keep(at_end);
                run(&device);
            }
            Made::Last => {
                run(&device);
                keep(at_end);
            }
            Made::Alone => keep(at_end),
        }
    });
    thread.join().unwrap();
    told.recv().unwrap()
}

fn values(tensors: &[Tensor]) -> Vec<Vec<f64>> {
    tensors.iter().map(|tensor| tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()).collect()
}

fn numbers(device: &Device, dims: &[usize], dtype: DType) -> Result<Tensor> {
    let count = dims.iter().product::<usize>();
    let values: Vec<f64> = (0..count).map(|i| ((i * 37 + 11) % 23) as f64 / 64.0 - 0.15).collect();
    Tensor::from_slice(device, &values, dims)?.to_dtype(dtype)
}

/// Returns the result, and the gradients of the inputs.
fn with_gradients(inputs: &[Tensor], function: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let leaves = inputs.iter().map(|x| x.detach().requiring_grad()).collect::<Result<Vec<_>>>()?;
    let y = function(&leaves)?;
    let gradients = y.square()?.sum_all()?.backward()?;
    let of_leaves = leaves.iter().map(|leaf| gradients.get(leaf).unwrap().clone());
    Ok(std::iter::once(y.detach()).chain(of_leaves).collect())
}

const PROGRAMS: &[(&str, Program)] = &[
    ("products", |device| {
        let mut all = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            // Few elements, many elements, and enough that several threads share them.
            for [m, k, n] in [[3, 4, 5], [33, 65, 47], [300, 300, 300]] {
                let (x, y) = (numbers(device, &[m, k], dtype)?, numbers(device, &[k, n], dtype)?);
                all.extend(with_gradients(&[x, y], |x| x[0].matmul(&x[1]))?);
            }
        }
        Ok(all)
    }),
    ("products of transposes, stacks and integers", |device| {
        let x = numbers(device, &[4, 40, 70], DType::F32)?;
        let y = numbers(device, &[60, 70], DType::F32)?.t()?;
        let integers = numbers(device, &[40, 40], DType::I64)?;
        Ok(vec![x.matmul(&y)?, y.t()?.matmul(&x.transpose(1, 2)?)?, integers.matmul(&integers.t()?)?])
    }),
    ("layers", |device| {
        let operands = [
            numbers(device, &[50, 60], DType::F32)?,
            numbers(device, &[60, 70], DType::F32)?.mul_scalar(0.05)?,
            numbers(device, &[70], DType::F32)?,
        ];
        with_gradients(&operands, |x| x[0].linear_activation(&x[1], &x[2], Activation::Gelu))
    }),
    ("convolutions and pools", |device| {
        let operands = [
            numbers(device, &[2, 8, 12, 12], DType::F32)?,
            numbers(device, &[16, 8, 3, 3], DType::F32)?.mul_scalar(0.1)?,
        ];
        with_gradients(&operands, |x| x[0].conv2d(&x[1], Conv2dOptions::padded(1))?.avg_pool2d(2))
    }),
    ("attention", |device| {
        let part = || numbers(device, &[2, 70, 16], DType::F32);
        let operands = [part()?, part()?.mul_scalar(0.3)?, part()?];
        with_gradients(&operands, |x| x[0].attention(&x[1], &x[2], None, AttentionOptions::default()))
    }),
    ("norms, folds, orders and random numbers", |device| {
        let x = numbers(device, &[200, 300], DType::F32)?;
        let mut all = with_gradients(std::slice::from_ref(&x), |x| {
            x[0].layer_norm(None, 1e-5)?.softmax(1)?.logsumexp(0)
        })?;
        all.extend([x.argmax(1)?, x.cumsum(0)?, Tensor::normal(device, 5000, 0.0, 1.0, &Rng::new(3))?]);
        Ok(all)
    }),
    ("checkpoints", |device| {
        let weight = numbers(device, &[40, 40], DType::F32)?.mul_scalar(0.05)?;
        with_gradients(&[numbers(device, &[30, 40], DType::F32)?], |x| {
            let (weight, rng) = (weight.clone(), Rng::new(5));
            checkpoint(&x[0], move |x| x.matmul(&weight)?.dropout(0.25, &rng))
        })
    }),
    ("training on a chosen device", |device| {
        with_device(device, || {
            let _scope = module("at_the_end");
            let chosen = Device::best()?;
            let layer = Linear::new(&chosen, 40, 30, &Rng::new(1))?;
            let mut optimizer = AdamW::new(layer.parameters(), 0.01)?;
            let x = numbers(&chosen, &[20, 40], DType::F32)?;
            for _ in 0..3 {
                optimizer.step(layer.forward(&x)?.square()?.mean_all()?.backward()?)?;
            }
            let tensor = |(_, parameter): (String, Parameter)| parameter.tensor().detach();
            Ok(layer.parameters().into_iter().map(tensor).collect())
        })
    }),
];

#[test]
fn ops_run_in_destructors_of_thread_local_values() {
    for threads in [1, 2] {
        let device = Runtime::builder().threads(threads).build().unwrap().cpu().unwrap();
        for (name, program) in PROGRAMS {
            let expected = values(&program(&device).unwrap());
            for made in [Made::First, Made::Last, Made::Alone] {
                let found = in_destructor(&device, made, *program);
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(&expected) {
                    let size = expected.iter().fold(1.0, |size: f64, value| size.max(value.abs()));
                    assert_eq!(found.len(), expected.len());
                    for (a, b) in found.iter().zip(expected) {
                        // Another order of additions may round 16-bit floats to a neighboring value.
                        assert!((a - b).abs() <= 8e-3 * size, "{name}, {made:?}: {a} and {b}");
                    }
                }
            }
        }
    }
}
