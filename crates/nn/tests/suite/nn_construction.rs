//! How much work it takes to build and to visit large modules: counted, not timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use highwater_nn::modules::{Linear, Module, Parameter, PartVisitor, Parts, Relu, Sequential, module};
use highwater_nn::optim::Sgd;
use highwater_tensor::{Device, Result, Rng, Runtime, Tensor};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// A layer that counts how often it is visited.
#[derive(Debug)]
struct Counting {
    own: Parameter,
    visits: Arc<AtomicUsize>,
}

impl Parts for Counting {
    fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
        self.visits.fetch_add(1, Ordering::Relaxed);
        visitor.part("own", &self.own);
    }
}

#[module]
impl Module for Counting {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

/// Layers that share a counter.
struct Layers {
    device: Device,
    visits: Arc<AtomicUsize>,
}

impl Layers {
    fn new() -> Self {
        Self { device: device(), visits: Arc::default() }
    }

    fn layer(&self) -> Counting {
        let own = Parameter::new(Tensor::zeros(&self.device, [1]).unwrap()).unwrap();
        Counting { own, visits: Arc::clone(&self.visits) }
    }

    /// The visits since the last call.
    fn take(&self) -> usize {
        self.visits.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn a_sequence_is_built_without_a_visit_and_listed_with_one() {
    let layers = Layers::new();
    const COUNT: usize = 500;
    let mut net = Sequential::new();
    for number in 0..COUNT {
        // Names of their own, one name for all, and names with dots.
        net = match number % 3 {
            0 => net.with(&format!("fc{number}"), layers.layer()),
            1 => net.with("layer", layers.layer()),
            _ => net.with(&format!("block.{number}"), layers.layer()),
        };
    }
    assert_eq!(layers.take(), 0);
    assert_eq!(net.parameters().len(), COUNT);
    assert_eq!(layers.take(), COUNT);
}

#[test]
fn a_nest_visits_its_layers_once_when_it_is_listed() {
    let layers = Layers::new();
    const DEPTH: usize = 200;
    let mut net = Sequential::new().with("core", layers.layer());
    for _ in 0..DEPTH {
        net = Sequential::new().with("inner", net);
    }
    let path = format!("{}core.own", "inner.".repeat(DEPTH));
    assert_eq!(net.parameters()[0].0, path);
    assert_eq!(layers.take(), 1);
}

#[test]
fn a_deep_nest_charges_its_parameters_to_their_path() {
    let device = device();
    let layer = Linear::new(&device, 3, 3, &Rng::new(0)).unwrap();
    let mut net = Sequential::new().with("a.fc", layer).with("relu", Relu);
    for name in ["b", "c.d", "e"] {
        net = Sequential::new().with(name, net);
    }
    let listed = net.parameters().len();
    let pools = [Arc::clone(device.default_allocator().unwrap())];
    let report = highwater_tracking::Report::new(device.tracker(), &pools);
    let held = report.scopes.iter().find(|row| row.scope == "e.c.d.b.a.fc").unwrap();
    // A weight and a bias, of one granule each.
    assert_eq!((held.live_bytes, listed), (2 * 256, 2));
    let other = report.scopes.iter().filter(|row| row.scope.starts_with("a.") || row.scope.starts_with("b."));
    assert_eq!(other.map(|row| row.live_bytes).sum::<u64>(), 0);
}

#[test]
fn every_name_is_free_after_many_names_that_collide() {
    let layers = Layers::new();
    let mut net = Sequential::new();
    for name in
        ["relu", "relu2", "relu", "relu", "relu2", "relu22", "relu4", "a", "a.b", "a", "a.b", "a.b.c", "a2"]
    {
        net = net.with(name, layers.layer());
    }
    let paths: Vec<String> = net.parameters().into_iter().map(|(path, _)| path).collect();
    let expected = [
        "relu", "relu2", "relu3", "relu4", "relu22", "relu222", "relu42", "a", "a.b", "a2", "a.b2", "a.b.c",
        "a22",
    ];
    assert_eq!(paths, expected.map(|name| format!("{name}.own")));
}

#[test]
fn layers_above_and_below_a_dotted_name_keep_paths_apart() {
    let layers = Layers::new();
    let inside = || Sequential::new().with("b", layers.layer());
    let paths = |net: &Sequential| net.parameters().into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    let above = Sequential::new().with("a", inside()).with("a.b", layers.layer());
    assert_eq!(paths(&above), ["a.b.own", "a.b2.own"]);
    let below = Sequential::new().with("a.b", layers.layer()).with("a", inside());
    assert_eq!(paths(&below), ["a.b.own", "a2.b.own"]);
    let apart =
        Sequential::new().with("a.c", layers.layer()).with("a", inside()).with("a.b.c", layers.layer());
    assert_eq!(paths(&apart), ["a.c.own", "a.b.own", "a.b.c.own"]);
}

#[test]
fn four_thousand_shared_parameters_count_and_train_once() {
    let device = device();
    let own = Parameter::new(Tensor::zeros(&device, [2]).unwrap()).unwrap();
    let visits: Arc<AtomicUsize> = Arc::default();
    let net = (0..4000).fold(Sequential::new(), |net, _| {
        net.with("shared", Counting { own: own.clone(), visits: Arc::clone(&visits) })
    });
    assert_eq!((net.parameters().len(), net.parameter_count()), (4000, 2));
    let optimizer = Sgd::new(net.parameters(), 0.1).unwrap();
    assert_eq!(highwater_nn::optim::Optimizer::parameters(&optimizer).len(), 1);
}
