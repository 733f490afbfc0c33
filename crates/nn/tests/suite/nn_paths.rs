//! The paths of modules: every byte of a network counts toward the module that a user would name.

use std::sync::Arc;

use crate::ops_table::device;
use crate::optim_unknown::Forgetful;
use highwater_nn::modules::{
    Checkpointed, Dropout, LayerNorm, Linear, Module, ModulePath, Relu, Sequential, chain, module,
};
use highwater_nn::optim::{Optimizer, Sgd};
use highwater_tensor::{Device, Error, Parameter, Result, Rng, Tensor, error::ShapeRule, no_grad};
use highwater_tracking::{Report, module};

#[derive(Debug, Module)]
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

#[module]
impl Module for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.relu.forward(&self.up.forward(&self.norm.forward(x)?)?)?)
    }
}

/// A layer that no activation is fused into.
#[derive(Debug, Module)]
struct Apart(#[module(rename = "")] Linear);

#[module]
impl Module for Apart {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }
}

#[derive(Debug, Module)]
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

#[module]
impl Module for Network {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.blocks.iter().try_fold(self.first.forward(x)?, |x, block| block.forward(&x))?;
        self.last.iter().try_fold(x, |x, last| last.forward(&x))
    }
}

/// Trains for two steps, and returns the rows of the report by module, phase and op, without the ops of the loss.
fn rows<M: Module>(
    make: impl FnOnce(&Device) -> M,
    forward: impl Fn(&M, &Tensor) -> Result<Tensor>,
) -> Vec<String> {
    let device = device();
    let net = make(&device);
    let mut sgd = Sgd::new(net.parameters(), 0.1).unwrap();
    for _ in 0..2 {
        let y = forward(&net, &Tensor::ones(&device, [3, 4]).unwrap()).unwrap();
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
            format!("{scope} {} {} {calls} {peak} {live} {}", row.phase, row.op, row.saved_bytes)
        })
        .collect();
    rows.sort();
    rows
}

#[test]
fn fields_have_the_same_accounts_as_a_sequence() {
    let fields = rows(Network::new, Module::forward);
    assert_eq!(fields, rows(|device| Network::new(device).sequential(), Module::forward));
    for row in [
        "blocks.1.up forward linear",
        "blocks.1.relu backward relu",
        "last optimizer sgd",
        "first forward init",
    ] {
        assert!(fields.iter().any(|found| found.starts_with(row)), "{row}: {fields:#?}");
    }
}

/// A module with several methods.
#[derive(Clone, Debug, Module)]
struct Gate {
    layer: Linear,
    scale: f64,
}

#[module]
impl Gate {
    fn forward_masked(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        self.layer.forward(x)?.mul_scalar(self.scale)?.mul(mask)
    }

    /// Returns the output and the number of outputs so far.
    fn forward_cached<'a>(&self, x: &Tensor, cache: &'a mut Vec<Tensor>) -> Result<(&'a Tensor, usize)> {
        if x.dims().len() != 2 {
            let (expected, shape) = ("two axes", *x.shape());
            return Err(Error::BadRank { op: "gate", expected, shape });
        }
        let own = self.layer.forward(x)?.sigmoid()?;
        cache.push(match cache.last() {
            Some(before) => before.add(&own)?,
            None => own,
        });
        Ok((&cache[cache.len() - 1], cache.len()))
    }
}

#[module]
impl Module for Gate {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layer.forward(x)?.tanh()
    }
}

/// Calls the forward of another module, and begins with a part that is absent.
#[derive(Clone, Debug, Module)]
struct Residual {
    before: Option<Linear>,
    norm: LayerNorm,
    gate: Gate,
}

#[module]
impl Module for Residual {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.add(&self.gate.forward(&self.norm.forward(x)?)?)
    }
}

#[derive(Debug, Module)]
enum Branch {
    Identity,
    Gated { gate: Gate },
    Linear(#[module(rename = "")] Linear),
}

#[module]
impl Module for Branch {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Identity => x.neg(),
            Self::Gated { gate } => gate.forward(x)?.neg(),
            Self::Linear(layer) => layer.forward(x)?.neg(),
        }
    }
}

/// The first part is a layer of another module.
#[derive(Debug, Module)]
struct Tied {
    table: Arc<Linear>,
    norm: LayerNorm,
}

#[module]
impl Module for Tied {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.table.forward(x)?)?.sigmoid()
    }
}

/// The only part is a layer of another module.
#[derive(Debug, Module)]
struct Borrowing {
    table: Arc<Linear>,
    path: ModulePath,
}

#[module]
impl Module for Borrowing {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.table.forward(x)?.relu()
    }
}

/// One module as two parts.
#[derive(Debug, Module)]
struct Twins {
    left: Arc<Gate>,
    right: Arc<Gate>,
}

#[module]
impl Module for Twins {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.left.forward(x)?.sub(&self.right.forward(&x.neg()?)?)
    }
}

#[derive(Debug, Module)]
struct Model {
    table: Arc<Linear>,
    residuals: Vec<Residual>,
    gates: (Gate, Option<Gate>),
    absent: Option<Gate>,
    branches: [Branch; 3],
    tied: Tied,
    borrowing: Borrowing,
    twins: Twins,
    again: Arc<Gate>,
    boxed: Box<dyn Module>,
}

impl Model {
    fn new(device: &Device) -> Self {
        let rng = Rng::new(0);
        let linear = || Linear::new(device, 4, 4, &rng).unwrap();
        let norm = || LayerNorm::new(device, 4).unwrap();
        let gate = || Gate { layer: linear(), scale: 0.5 };
        let residual = || Residual { before: None, norm: norm(), gate: gate() };
        let (table, twin) = (Arc::new(linear()), Arc::new(gate()));
        Self {
            residuals: vec![residual(), residual()],
            gates: (gate(), Some(gate())),
            absent: None,
            branches: [Branch::Identity, Branch::Gated { gate: gate() }, Branch::Linear(linear())],
            tied: Tied { table: Arc::clone(&table), norm: norm() },
            borrowing: Borrowing { table: Arc::clone(&table), path: ModulePath::new() },
            table,
            twins: Twins { left: Arc::clone(&twin), right: Arc::clone(&twin) },
            again: twin,
            boxed: Box::new(residual()),
        }
    }
}

#[module]
impl Module for Model {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.table.forward(x)?;
        for residual in &self.residuals {
            x = residual.forward(&x)?;
        }
        let mask = x.gt(0.0)?.to_dtype(x.dtype())?;
        x = self.gates.0.forward_masked(&x, &mask)?;
        let mut cache = Vec::new();
        if let Some(gate) = &self.gates.1 {
            gate.forward_cached(&x, &mut cache)?;
            x = gate.forward_cached(&x, &mut cache)?.0.clone();
        }
        for branch in &self.branches[1..] {
            x = branch.forward(&x)?;
        }
        x = self.borrowing.forward(&self.tied.forward(&x)?)?;
        x = self.again.forward(&self.twins.forward(&x)?)?;
        self.boxed.forward(&x)
    }
}

/// The ops of [`Model`], each in a scope with the expected path.
fn by_hand(model: &Model, x: &Tensor) -> Result<Tensor> {
    let parameters: std::collections::HashMap<String, Parameter> = model.parameters().into_iter().collect();
    let of = |path: &str| parameters[path].tensor();
    let at = |path: &str, run: &dyn Fn() -> Result<Tensor>| {
        let _scope = module(path);
        run()
    };
    let linear = |path: &str, x: &Tensor| {
        at(path, &|| x.linear(&of(&format!("{path}.weight")), &of(&format!("{path}.bias"))))
    };
    let norm = |path: &str, x: &Tensor| {
        let parts = (of(&format!("{path}.weight")), of(&format!("{path}.bias")));
        at(path, &|| x.layer_norm(Some((&parts.0, &parts.1)), 1e-5))
    };
    let gate = |path: &str, x: &Tensor| {
        let y = linear(&format!("{path}.layer"), x)?;
        at(path, &|| y.tanh())
    };
    let residual = |path: &str, x: &Tensor| {
        let y = gate(&format!("{path}.gate"), &norm(&format!("{path}.norm"), x)?)?;
        at(path, &|| x.add(&y))
    };
    let mut x = linear("table", x)?;
    x = residual("residuals.0", &x)?;
    x = residual("residuals.1", &x)?;
    let mask = x.gt(0.0)?.to_dtype(x.dtype())?;
    let y = linear("gates.0.layer", &x)?;
    x = at("gates.0", &|| y.mul_scalar(0.5)?.mul(&mask))?;
    let first = linear("gates.1.layer", &x)?;
    let first = at("gates.1", &|| first.sigmoid())?;
    let second = linear("gates.1.layer", &x)?;
    x = at("gates.1", &|| first.add(&second.sigmoid()?))?;
    let y = gate("branches.1.gate", &x)?;
    x = at("branches.1", &|| y.neg())?;
    x = linear("branches.2", &x)?;
    x = at("branches.2", &|| x.neg())?;
    let y = norm("tied.norm", &linear("table", &x)?)?;
    x = at("tied", &|| y.sigmoid())?;
    let y = linear("table", &x)?;
    x = at("borrowing", &|| y.relu())?;
    let left = gate("twins.left", &x)?;
    let right = at("twins", &|| x.neg())?;
    let right = gate("twins.left", &right)?;
    x = at("twins", &|| left.sub(&right))?;
    x = gate("twins.left", &x)?;
    residual("boxed", &x)
}

#[test]
fn every_byte_of_a_model_has_the_path_of_its_module() {
    let rows_of_model = rows(Model::new, Module::forward);
    assert_eq!(rows_of_model, rows(Model::new, by_hand));
    let mut scopes: Vec<&str> = rows_of_model
        .iter()
        .filter_map(|row| row.split(' ').next())
        .filter(|scope| !scope.is_empty())
        .collect();
    scopes.dedup();
    let expected = "borrowing boxed boxed.gate boxed.gate.layer boxed.norm branches.1 branches.1.gate \
        branches.1.gate.layer branches.2 gates.0 gates.0.layer gates.1 gates.1.layer residuals.0 \
        residuals.0.gate residuals.0.gate.layer residuals.0.norm residuals.1 residuals.1.gate \
        residuals.1.gate.layer residuals.1.norm table tied tied.norm twins twins.left twins.left.layer";
    assert_eq!(scopes.join(" "), expected);
}

/// A walk or call of a part, before or after one of the whole model, changes no row.
#[test]
fn the_order_of_calls_changes_no_path() {
    let expected = rows(Model::new, Module::forward);
    let uses: [fn(&Model); 6] = [
        |model| drop(model.tied.parameters()),
        |model| drop(model.borrowing.parameters()),
        |model| drop(model.residuals[1].gate.parameters()),
        |model| drop(model.again.parameters()),
        |model| drop(model.twins.right.parameters()),
        |model| drop(model.branches[1].parameters()),
    ];
    for (number, part) in uses.into_iter().enumerate() {
        let before = |device: &Device| {
            let model = Model::new(device);
            part(&model);
            model
        };
        assert_eq!(rows(before, Module::forward), expected, "{number}");
        let during = |model: &Model, x: &Tensor| {
            part(model);
            model.forward(x)
        };
        assert_eq!(rows(Model::new, during), expected, "{number}");
    }
}

#[test]
fn the_outermost_forward_replaces_paths_from_a_forward_of_a_part() {
    let device = device();
    let model = Model::new(&device);
    let x = Tensor::ones(&device, [3, 4]).unwrap();
    model.residuals[0].gate.forward(&x).unwrap();
    model.residuals[0].forward(&x).unwrap();
    model.branches[0].forward(&x).unwrap();
    device.tracker().reset();
    model.forward(&x).unwrap();
    let scopes = scopes(&device);
    assert!(scopes.contains(&"residuals.0.gate.layer".to_owned()), "{scopes:?}");
    assert!(scopes.contains(&"residuals.0".to_owned()), "{scopes:?}");
    assert!(!scopes.contains(&"layer".to_owned()), "{scopes:?}");
}

#[test]
fn errors_in_a_method_name_its_module() {
    let device = device();
    let model = Model::new(&device);
    let _parameters = model.parameters();
    let gate = model.gates.1.as_ref().unwrap();
    let x = Tensor::ones(&device, [4]).unwrap();
    let error = gate.forward_cached(&x, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.starts_with("in gates.1: gate: "), "{error}");
    let (x, mask) = (Tensor::ones(&device, [3, 4]).unwrap(), Tensor::ones(&device, [5]).unwrap());
    let error = gate.forward_masked(&x, &mask).unwrap_err().to_string();
    assert!(error.starts_with("in gates.1: mul: "), "{error}");
}

/// The same blocks in each container have the same rows, under the path of the container.
#[test]
fn containers_run_the_modules_of_users_in_their_paths() {
    #[derive(Debug, Module)]
    struct Chain {
        blocks: Vec<Residual>,
    }

    #[module]
    impl Module for Chain {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            chain(&self.blocks, x)
        }
    }

    #[derive(Debug, Module)]
    struct Pointers {
        blocks: (Box<dyn Module>, Arc<Residual>),
    }

    #[module]
    impl Module for Pointers {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            self.blocks.1.forward(&self.blocks.0.forward(x)?)
        }
    }

    let blocks = |device: &Device| std::mem::take(&mut Model::new(device).residuals);
    let expected = rows(|device| Chain { blocks: blocks(device) }, Module::forward);
    assert!(expected.iter().any(|row| row.starts_with("blocks.1 forward add ")), "{expected:#?}");
    let pointers = |device: &Device| {
        let [first, second] = blocks(device).try_into().unwrap();
        Pointers { blocks: (Box::new(first), Arc::new(second)) }
    };
    assert_eq!(rows(pointers, Module::forward), expected);
    let sequence = |device: &Device| {
        let named = blocks(device).into_iter().enumerate();
        named.fold(Sequential::new(), |net, (number, block)| net.with(&format!("blocks.{number}"), block))
    };
    assert_eq!(rows(sequence, Module::forward), expected);
    let checkpointed = |device: &Device| {
        let named = blocks(device).into_iter().map(Checkpointed::new).enumerate();
        named.fold(Sequential::new(), |net, (number, block)| net.with(&format!("blocks.{number}"), block))
    };
    let names = |rows: Vec<String>| -> std::collections::BTreeSet<String> {
        rows.iter().filter_map(|row| row.split(' ').next().map(str::to_owned)).collect()
    };
    assert_eq!(names(rows(checkpointed, Module::forward)), names(expected));
}

/// Methods keep their signatures; the attribute leaves `async` and `const` methods and those that take `self` alone.
#[test]
fn signatures_of_any_kind_compile() {
    #[derive(Debug, Module)]
    struct Generic<M, const N: usize>
    where
        M: Module,
    {
        inner: [M; N],
        #[module(skip)]
        changed: std::sync::OnceLock<()>,
    }

    #[module]
    impl<M: Module, const N: usize> Generic<M, N> {
        const COUNT: fn() -> bool = || N < 2 && N > 0;

        const fn count(&self) -> usize {
            N
        }

        fn into_inner(self) -> [M; N] {
            self.inner
        }

        fn members<'a>(&'a self) -> (impl Iterator<Item = &'a M> + 'a, usize) {
            (self.inner.iter(), N)
        }

        fn first(&self) -> Option<&M> {
            self.members().0.next()
        }

        fn each<F: Fn(&M) -> Result<Tensor>, T>(
            self: &Arc<Self>,
            run: F,
            make: impl Fn(Tensor) -> T,
        ) -> Result<Vec<T>>
        where
            Self: Sized,
        {
            self.inner.iter().map(|inner| Ok(make(run(inner)?))).collect()
        }

        fn change(&mut self, change: impl FnOnce(&mut [M; N])) -> &mut Self {
            self.changed.get_or_init(|| change(&mut self.inner));
            self
        }

        async fn later(&self) -> usize {
            self.count()
        }
    }

    #[module]
    impl<M: Module, const N: usize> Module for Generic<M, N>
    where
        for<'a> &'a M: Send,
    {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            self.inner.iter().try_fold(x.clone(), |x, inner| inner.forward(&x))
        }
    }

    let device = device();
    let gate = || Gate { layer: Linear::new(&device, 4, 4, &Rng::new(0)).unwrap(), scale: 1.0 };
    let mut generic = Generic { inner: [gate(), gate()], changed: std::sync::OnceLock::new() };
    generic.change(|inner| inner[0].scale = 2.0);
    assert_eq!((generic.count(), generic.members().0.count()), (2, 2));
    assert!(std::ptr::eq(generic.first().unwrap(), &generic.inner[0]));
    drop(generic.later());
    assert!(!Generic::<Gate, 2>::COUNT());
    let x = Tensor::ones(&device, [3, 4]).unwrap();
    let generic = Arc::new(generic);
    assert_eq!(generic.each(|gate| gate.forward(&x), |y| y.elements()).unwrap(), [12, 12]);
    assert_eq!(Arc::into_inner(generic).unwrap().into_inner()[0].scale, 2.0);
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
fn the_outermost_forward_names_a_model_that_has_no_optimizer() {
    let device = device();
    let net = Network::new(&device);
    device.tracker().reset();
    no_grad(|| net.forward(&Tensor::ones(&device, [3, 4]).unwrap())).unwrap();
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
#[derive(Debug, Module)]
struct Shared {
    encoder: Arc<Linear>,
    decoder: Arc<Linear>,
}

#[module]
impl Module for Shared {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.decoder.forward(&self.encoder.forward(x)?)
    }
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
    net.second.forward(&net.first.forward(&x).unwrap()).unwrap();
    assert!(report().unlisted_layers.is_empty(), "the parameters may still be listed");
    net.forward(&x).unwrap();
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
    let error = net.forward(&x).unwrap_err();
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
