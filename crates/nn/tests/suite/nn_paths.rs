//! The paths of layers: the accounts of a network of fields equal those of the same network as a `Sequential`.

use std::sync::Arc;

use crate::ops_table::device;
use crate::optim_unknown::Forgetful;
use highwater_nn::modules::{Checkpointed, Dropout, LayerNorm, Linear, Module, Relu, Sequential};
use highwater_nn::optim::{Optimizer, Sgd};
use highwater_nn::visit_parts;
use highwater_tensor::{Device, Error, Result, Rng, Tensor, error::ShapeRule, no_grad};
use highwater_tracking::{Report, module};

#[derive(Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    relu: Relu,
    down: Linear,
}

impl Block {
    fn new(device: &Device, rng: &Rng) -> Self {
        Self {
            norm: LayerNorm::new(device, 8).unwrap(),
            up: Linear::new(device, 8, 16, rng).unwrap(),
            relu: Relu,
            down: Linear::new(device, 16, 8, rng).unwrap(),
        }
    }

    /// The same layers in the same order.
    fn sequential(self) -> Sequential {
        Sequential::new()
            .with("norm", self.norm)
            .with("up", Apart(self.up))
            .with("relu", self.relu)
            .with("down", self.down)
    }
}

impl Module for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.relu.forward(&self.up.forward(&self.norm.forward(x)?)?)?)
    }

    visit_parts!(norm, up, relu, down);
}

/// A layer that no activation is fused into.
#[derive(Debug)]
struct Apart(Linear);

impl Module for Apart {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }

    fn visit_parts(&self, visitor: &mut highwater_nn::modules::PartVisitor<'_>) {
        self.0.visit_parts(visitor);
    }
}

#[derive(Debug)]
struct Network {
    first: Linear,
    blocks: Vec<Block>,
    last: Option<Linear>,
}

impl Network {
    fn new(device: &Device) -> Self {
        let rng = Rng::new(0);
        Self {
            first: Linear::new(device, 4, 8, &rng).unwrap(),
            blocks: vec![Block::new(device, &rng), Block::new(device, &rng)],
            last: Some(Linear::new(device, 8, 2, &rng).unwrap()),
        }
    }

    fn sequential(self) -> Sequential {
        let mut net = Sequential::new().with("first", self.first);
        for (number, block) in self.blocks.into_iter().enumerate() {
            net = net.with(&format!("blocks.{number}"), block.sequential());
        }
        net.with("last", self.last.unwrap())
    }
}

impl Module for Network {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.blocks.iter().try_fold(self.first.forward(x)?, |x, block| block.call(&x))?;
        self.last.iter().try_fold(x, |x, last| last.forward(&x))
    }

    visit_parts!(first, blocks, last);
}

/// Trains for two steps, and returns the rows of the report by module, phase and op, without the ops of the loss.
fn rows(make: impl FnOnce(&Device) -> Box<dyn Module>) -> Vec<String> {
    let device = device();
    let net = make(&device);
    let mut sgd = Sgd::new(net.parameters(), 0.1).unwrap();
    for _ in 0..2 {
        let y = net.forward(&Tensor::ones(&device, [3, 4]).unwrap()).unwrap();
        let loss = {
            let _scope = module("loss");
            y.square().unwrap().mean_all().unwrap()
        };
        sgd.step(loss.backward().unwrap()).unwrap();
    }
    let report = Report::new(device.tracker(), &[Arc::clone(device.default_allocator().unwrap())]);
    assert!(report.unlisted_layers.is_empty(), "{:?}", report.unlisted_layers);
    let places = report.places.iter().filter(|row| row.scope.as_deref() != Some("loss"));
    let mut rows: Vec<String> = places
        .map(|row| {
            let scope = row.scope.as_deref().unwrap_or("");
            let [calls, peak, live] = [row.calls, row.high_water_bytes, row.live_bytes];
            format!("{scope} {} {} {calls} {peak} {live}", row.phase, row.op)
        })
        .collect();
    rows.sort();
    rows
}

#[test]
fn fields_have_the_same_accounts_as_a_sequence() {
    let fields = rows(|device| Box::new(Network::new(device)));
    assert_eq!(fields, rows(|device| Box::new(Network::new(device).sequential())));
    for row in [
        "blocks.1.up forward linear",
        "blocks.1.relu backward relu",
        "last optimizer sgd",
        "first forward init",
    ] {
        assert!(fields.iter().any(|found| found.starts_with(row)), "{row}: {fields:#?}");
    }
}

/// The scopes that hold memory or ran ops.
fn scopes(device: &Device) -> Vec<String> {
    let report = Report::new(device.tracker(), &[Arc::clone(device.default_allocator().unwrap())]);
    let mut scopes: Vec<String> =
        report.places.iter().filter(|row| row.calls > 0).filter_map(|row| row.scope.clone()).collect();
    scopes.sort();
    scopes.dedup();
    scopes
}

#[test]
fn the_outermost_call_names_a_model_that_has_no_optimizer() {
    let device = device();
    let net = Network::new(&device);
    device.tracker().reset();
    no_grad(|| net.call(&Tensor::ones(&device, [3, 4]).unwrap())).unwrap();
    let scopes = scopes(&device);
    for scope in ["first", "blocks.0.norm", "blocks.1.down", "last"] {
        assert!(scopes.iter().any(|found| found == scope), "{scope}: {scopes:?}");
    }
}

#[test]
fn a_base_scope_precedes_all_paths() {
    let device = device();
    let net = Network::new(&device);
    let _base = module("student");
    let _parameters = net.parameters();
    device.tracker().reset();
    net.forward(&Tensor::ones(&device, [3, 4]).unwrap()).unwrap().square().unwrap();
    let scopes = scopes(&device);
    assert!(scopes.iter().all(|scope| scope.starts_with("student")), "{scopes:?}");
    assert!(scopes.contains(&"student.blocks.0.up".to_owned()), "{scopes:?}");
}

/// One layer as two fields.
#[derive(Debug)]
struct Shared {
    encoder: Arc<Linear>,
    decoder: Arc<Linear>,
}

impl Module for Shared {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.decoder.forward(&self.encoder.forward(x)?)
    }

    visit_parts!(encoder, decoder);
}

#[test]
fn a_shared_layer_has_the_first_of_its_paths() {
    let device = device();
    let encoder = Arc::new(Linear::new(&device, 4, 4, &Rng::new(0)).unwrap());
    let net = Shared { decoder: Arc::clone(&encoder), encoder };
    assert_eq!((net.parameters().len(), net.parameter_count()), (4, 20));
    device.tracker().reset();
    net.forward(&Tensor::ones(&device, [3, 4]).unwrap()).unwrap();
    let report = Report::new(device.tracker(), &[Arc::clone(device.default_allocator().unwrap())]);
    let linear: Vec<_> = report.places.iter().filter(|row| row.op == "linear").collect();
    assert_eq!((linear.len(), linear[0].calls), (1, 2));
    assert_eq!(linear[0].scope.as_deref(), Some("encoder"));
}

#[test]
fn a_report_warns_about_a_layer_that_no_list_has() {
    let (device, rng) = (device(), Rng::new(0));
    let layer = |inputs, outputs| Linear::new(&device, inputs, outputs, &rng).unwrap();
    let net = Forgetful { first: layer(4, 3), second: layer(3, 2) };
    let report = || Report::new(device.tracker(), &[Arc::clone(device.default_allocator().unwrap())]);
    let x = Tensor::ones(&device, [3, 4]).unwrap();
    net.forward(&x).unwrap();
    assert!(report().unlisted_layers.is_empty(), "the parameters may still be listed");
    let _parameters = net.parameters();
    net.call(&x).unwrap();
    assert_eq!(report().unlisted_layers, ["a layer with the weight [3, 2] in (top)"]);
    assert!(
        report().to_string().contains("warning: a layer with the weight [3, 2] in (top) ran without a path")
    );
}

#[test]
fn a_shape_error_names_the_module() {
    let device = device();
    let net = Network::new(&device);
    let x = Tensor::ones(&device, [3, 5]).unwrap();
    let error = net.call(&x).unwrap_err();
    let expected =
        "in first: linear: shapes [3, 5] and [4, 8] do not match: the inner sizes 5 and 4 must be equal";
    assert_eq!(error.to_string(), expected);
    assert!(matches!(error.root(), Error::ShapeMismatch { op: "linear", rule: ShapeRule::Product, .. }));
    let error = net.blocks[1].down.forward(&x).unwrap_err().to_string();
    assert!(error.starts_with("in blocks.1.down: linear: "), "{error}");
}

#[test]
fn a_repeated_part_has_the_paths_of_the_first_run() {
    let device = device();
    let net = Sequential::new()
        .with("dropout", Dropout::new(0.1, &Rng::new(1)).unwrap())
        .with("block", Checkpointed::new(Block::new(&device, &Rng::new(0))));
    let _parameters = net.parameters();
    let loss = {
        let _base = module("student");
        net.forward(&Tensor::ones(&device, [3, 8]).unwrap()).unwrap().square().unwrap().mean_all().unwrap()
    };
    device.tracker().reset();
    loss.backward().unwrap();
    let scopes = scopes(&device);
    // The pass itself begins outside of all modules.
    assert!(scopes[1..].iter().all(|scope| scope.starts_with("student")), "{scopes:?}");
    assert!(scopes.contains(&"student.block.up".to_owned()), "{scopes:?}");
}
