//! Hooks receive each gradient once, when it is complete.

use std::sync::{Arc, Mutex};

use bfc_core::{Allocator, BfcAllocator, BfcConfig, Bytes, HostMemory};
use highwater_tensor::error::HookError;
use highwater_tensor::{
    AttentionOptions, Device, Error, GradientHook, GradientPass, Gradients, Parameter, Result, Runtime,
    Tensor, checkpoint, hook_gradients,
};

/// Records what passes do, and returns the gradients doubled.
#[derive(Debug)]
struct Recorder {
    parameters: Vec<Parameter>,
    events: Arc<Mutex<Vec<String>>>,
    fails: bool,
}

struct Pass {
    parameters: Vec<Parameter>,
    events: Arc<Mutex<Vec<String>>>,
    fails: bool,
    gradients: Gradients,
}

impl GradientHook for Recorder {
    fn begin(&self) -> Result<Option<Box<dyn GradientPass>>> {
        self.events.lock().unwrap().push("begin".into());
        Ok(Some(Box::new(Pass {
            parameters: self.parameters.clone(),
            events: Arc::clone(&self.events),
            fails: self.fails,
            gradients: Gradients::default(),
        })))
    }
}

impl GradientPass for Pass {
    fn place(&mut self, parameter: usize) -> Result<Option<Arc<dyn Allocator>>> {
        self.events.lock().unwrap().push(format!("place {parameter}"));
        Ok(None)
    }

    fn ready(&mut self, parameter: usize, gradient: Tensor) -> Result<()> {
        if self.fails {
            return Err(HookError::new(std::io::Error::other("the hook failed")).into());
        }
        let value = gradient.to_vec::<f32>()?[0];
        self.events.lock().unwrap().push(format!("ready {parameter} {value}"));
        self.gradients.insert(&self.parameters[parameter], gradient.mul_scalar(2.0)?)
    }

    fn finish(self: Box<Self>) -> Result<Gradients> {
        self.events.lock().unwrap().push("finish".into());
        Ok(self.gradients)
    }
}

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn parameters(device: &Device, values: &[f64]) -> Vec<Parameter> {
    let parameter = |value: &f64| Parameter::new(Tensor::full(device, [1], *value).unwrap()).unwrap();
    values.iter().map(parameter).collect()
}

/// Runs a backward pass with a recorder. Returns its events and the gradients.
fn recorded(parameters: &[Parameter], loss: impl Fn() -> Result<Tensor>) -> (Vec<String>, Result<Gradients>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let hook = Recorder { parameters: parameters.to_vec(), events: Arc::clone(&events), fails: false };
    let all: Vec<&Parameter> = parameters.iter().collect();
    let guard = hook_gradients(&all, Arc::new(hook)).unwrap();
    let gradients = loss().unwrap().backward();
    drop(guard);
    // Without the guard nothing is recorded.
    let before = events.lock().unwrap().len();
    loss()
        .unwrap()
        .backward()
        .map(drop)
        .or_else(|error| match error {
            Error::LateGradient => Ok(()),
            error => Err(error),
        })
        .unwrap();
    let events = events.lock().unwrap().clone();
    assert_eq!(events.len(), before);
    (events, gradients)
}

fn gradient(gradients: &Gradients, parameter: &Parameter) -> f32 {
    gradients.get(&parameter.tensor()).unwrap().to_vec::<f32>().unwrap()[0]
}

#[test]
fn each_gradient_is_passed_on_after_its_last_use() {
    let device = device();
    let all = parameters(&device, &[2.0, 3.0, 5.0]);
    let [a, b, c] = &all[..] else { unreachable!() };
    let plain = Tensor::full(&device, [1], 7.0).unwrap().requiring_grad().unwrap();
    // a·(a·b) + c·plain: `a` is used at both ends.
    let loss = || {
        let last = c.tensor().mul(&plain)?;
        a.tensor().mul(&a.tensor().mul(&b.tensor())?)?.add(&last)?.sum_all()
    };
    let (events, gradients) = recorded(&all, loss);
    let gradients = gradients.unwrap();
    let ready: Vec<_> = events.iter().filter(|event| !event.starts_with("place")).collect();
    assert_eq!(ready, ["begin", "ready 1 4", "ready 0 12", "ready 2 7", "finish"]);
    assert_eq!([a, b, c].map(|own| gradient(&gradients, own)), [24.0, 8.0, 14.0]);
    assert_eq!(gradients.get(&plain).unwrap().to_vec::<f32>().unwrap(), [5.0]);
}

#[test]
fn gradients_of_checkpointed_parts_are_complete_after_the_second_run() {
    let device = device();
    let all = parameters(&device, &[2.0, 3.0]);
    let (a, b) = (all[0].clone(), all[1].clone());
    // The part uses `b` twice, and `a` is used before it and within it.
    let loss = || {
        let (inner_a, inner_b) = (a.clone(), b.clone());
        let x = a.tensor().square()?;
        let y = checkpoint(&x, move |x| {
            x.mul(&inner_b.tensor())?.mul(&inner_b.tensor())?.mul(&inner_a.tensor())
        })?;
        y.sum_all()
    };
    let (events, gradients) = recorded(&all, loss);
    let gradients = gradients.unwrap();
    let ready: Vec<_> = events.iter().filter(|event| event.starts_with("ready")).collect();
    // a³b²: 2a³b = 48, 3a²b² = 108.
    assert_eq!(ready, ["ready 1 48", "ready 0 108"]);
    assert_eq!((gradient(&gradients, &a), gradient(&gradients, &b)), (216.0, 96.0));
}

#[test]
fn a_gradient_that_comes_too_late_is_an_error() {
    let device = device();
    let all = parameters(&device, &[2.0, 3.0]);
    let (a, b) = (all[0].clone(), all[1].clone());
    // The part captures a graph outside of it, which leads to `a`, while `a` is complete after the last product.
    let loss = || {
        let outside = a.tensor().square()?;
        let y = checkpoint(&b.tensor(), move |x| x.mul(&outside))?;
        y.mul(&a.tensor())?.sum_all()
    };
    let (_, gradients) = recorded(&all, loss);
    assert_eq!(gradients.unwrap_err(), Error::LateGradient);
}

#[test]
fn memory_is_asked_for_unless_the_gradient_is_a_sum() {
    let device = device();
    let all = parameters(&device, &[2.0, 3.0]);
    let (events, _) = recorded(&all, || all[0].tensor().mul(&all[1].tensor())?.sum_all());
    assert_eq!(events, ["begin", "place 0", "place 1", "ready 1 2", "ready 0 3", "finish"]);
    let (events, _) = recorded(&all[..1], || all[0].tensor().mul(&all[0].tensor())?.sum_all());
    assert_eq!(events, ["begin", "ready 0 4", "finish"]);
}

/// Has memory of its own for each gradient, and notes which gradients lie there.
#[derive(Clone, Debug)]
struct Placed {
    parameters: Vec<Parameter>,
    memory: Vec<Arc<dyn Allocator>>,
    is_in_place: Arc<Mutex<Vec<bool>>>,
}

impl GradientHook for Placed {
    fn begin(&self) -> Result<Option<Box<dyn GradientPass>>> {
        Ok(Some(Box::new(PlacedPass(self.clone(), Gradients::default()))))
    }
}

struct PlacedPass(Placed, Gradients);

impl GradientPass for PlacedPass {
    fn place(&mut self, parameter: usize) -> Result<Option<Arc<dyn Allocator>>> {
        Ok(Some(Arc::clone(&self.0.memory[parameter])))
    }

    fn ready(&mut self, parameter: usize, gradient: Tensor) -> Result<()> {
        let allocation = gradient.view().storage().allocation();
        let is_in_place = Arc::ptr_eq(allocation.allocator(), &self.0.memory[parameter]);
        self.0.is_in_place.lock().unwrap()[parameter] = is_in_place;
        self.1.insert(&self.0.parameters[parameter], gradient)
    }

    fn finish(self: Box<Self>) -> Result<Gradients> {
        Ok(self.1)
    }
}

/// The parameters of each op have equal shapes, so that only their numbers distinguish them.
#[test]
fn ops_write_each_gradient_to_its_own_memory() {
    type Forward = fn(&[Tensor]) -> Result<Tensor>;
    let ops: [(&[usize], [bool; 3], Forward); 4] = [
        (&[4], [true, true, false], |p| p[2].detach().layer_norm(Some((&p[0], &p[1])), 1e-5)),
        (&[2, 2], [true, true, false], |p| p[0].linear(&p[1], &p[2].detach().sum(0)?)),
        (&[1, 2, 2], [true; 3], |p| p[0].attention(&p[1], &p[2], None, AttentionOptions::default())),
        (&[4], [true; 3], |p| p[0].exp()?.add(&p[1].sigmoid()?)?.add(&p[2].tanh()?)),
    ];
    for (number, (dims, expected, forward)) in ops.into_iter().enumerate() {
        let device = device();
        let values = [[0.5f32, -1.0, 2.0, 0.125], [1.5, 0.25, -0.5, 1.0], [3.0, 1.0, -2.0, 0.75]];
        let parameter =
            |values: &[f32; 4]| Parameter::new(Tensor::from_slice(&device, values, dims).unwrap()).unwrap();
        let all: Vec<Parameter> = values.iter().map(parameter).collect();
        let gradients = || {
            let tensors: Vec<Tensor> = all.iter().map(Parameter::tensor).collect();
            let gradients =
                forward(&tensors).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap();
            let values = |tensor: &Tensor| gradients.get(tensor).map(|found| found.to_vec::<f32>().unwrap());
            tensors.iter().map(values).collect::<Vec<_>>()
        };
        let plain = gradients();
        let pool = |_| -> Arc<dyn Allocator> {
            let config = BfcConfig::new(Bytes::mib(1));
            Arc::new(BfcAllocator::new("own", Arc::new(HostMemory::new()), config))
        };
        let hook = Placed {
            parameters: all.clone(),
            memory: (0..3).map(pool).collect(),
            is_in_place: Arc::new(Mutex::new(vec![false; 3])),
        };
        let _guard = hook_gradients(&all.iter().collect::<Vec<_>>(), Arc::new(hook.clone())).unwrap();
        assert_eq!(gradients(), plain, "op {number}");
        assert_eq!(*hook.is_in_place.lock().unwrap(), expected, "op {number}");
    }
}

#[test]
fn passes_without_hooked_parameters_do_not_begin() {
    let device = device();
    let all = parameters(&device, &[2.0]);
    let other = Parameter::new(Tensor::ones(&device, [1]).unwrap()).unwrap();
    let (events, gradients) = recorded(&all, || other.tensor().square()?.sum_all());
    assert!(events.is_empty());
    assert_eq!(gradient(&gradients.unwrap(), &other), 2.0);
}

#[test]
fn the_error_of_a_hook_ends_the_pass() {
    let device = device();
    let all = parameters(&device, &[2.0]);
    let hook = Recorder { parameters: all.clone(), events: Arc::default(), fails: true };
    let _guard = hook_gradients(&[&all[0]], Arc::new(hook)).unwrap();
    let error = all[0].tensor().square().unwrap().sum_all().unwrap().backward().unwrap_err();
    assert!(matches!(&error, Error::Hook(hook) if hook.downcast_ref::<std::io::Error>().is_some()));
    assert_eq!(error.to_string(), "the hook failed");
}

#[test]
fn a_parameter_has_at_most_one_hook() {
    let device = device();
    let all = parameters(&device, &[2.0, 3.0]);
    let hook = || Arc::new(Recorder { parameters: all.clone(), events: Arc::default(), fails: false });
    let guard = hook_gradients(&[&all[0]], hook()).unwrap();
    let refused = hook_gradients(&[&all[1], &all[0]], hook()).unwrap_err();
    assert!(matches!(refused, Error::BadArgument { argument: "parameters", .. }));
    drop(guard);
    let _again = hook_gradients(&[&all[1], &all[0]], hook()).unwrap();
    assert!(hook_gradients(&[&all[1], &all[1]], hook()).is_err());
}

/// Leaves the gradients of a pass to this process.
#[derive(Debug)]
struct Alone;

impl GradientHook for Alone {
    fn begin(&self) -> Result<Option<Box<dyn GradientPass>>> {
        Ok(None)
    }
}

#[test]
fn gradients_that_a_hook_leaves_to_the_pass_are_local() {
    let device = device();
    let all = parameters(&device, &[2.0, 3.0]);
    let [own, other] = &all[..] else { unreachable!() };
    let _guard = hook_gradients(&[own], Arc::new(Alone)).unwrap();
    let pass = || own.tensor().mul(&other.tensor()).unwrap().sum_all().unwrap().backward().unwrap();
    let mut gradients = pass();
    assert!(gradients.has_local() && gradients.is_local(own) && !gradients.is_local(other));
    assert!(matches!(gradients.clip_norm(1.0), Err(Error::BadArgument { argument: "gradients", .. })));

    // The mark follows the gradient.
    let mut split = gradients.split_off(&[("own".to_owned(), own.clone())]);
    assert!(!gradients.has_local() && split.is_local(own));
    gradients.accumulate(&mut split).unwrap();
    assert!(gradients.is_local(own) && !split.has_local());
    assert!(gradients.take(&own.tensor()).is_some());
    assert!(!gradients.has_local());

    // In a mean over four processes, a mean that only its owner has counts four times.
    let mean = || Tensor::full(&device, [1], 10.0).unwrap();
    for is_first in [true, false] {
        let mut owned = Gradients::default();
        owned.insert_owned(own, mean(), 4).unwrap();
        let mut local = pass();
        let sum = if is_first {
            owned.accumulate(&mut local).unwrap();
            &mut owned
        } else {
            local.accumulate(&mut owned).unwrap();
            &mut local
        };
        assert!(sum.is_local(own));
        let part = sum.take_part_of_mean(own).unwrap().unwrap();
        assert_eq!(part.to_vec::<f32>().unwrap(), [3.0 + 40.0]);
        assert!(!sum.has_local());
    }
}
