//! Training runs that stop and resume.

use std::fs::File;

use crate::ops_table::optimizers::OPTIMIZERS;
use crate::walks::rng_paths;
use half::f16;
use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::io::{FileError, Safetensors, SafetensorsLimits, read_safetensors, write_safetensors_to};
use highwater_nn::modules::{Dropout, Linear, Module, PartVisitor, Parts, Relu, Sequential, module};
use highwater_nn::optim::{Adam, AdamW, Groups, LossScaler, Optimizer, Sgd};
use highwater_tensor::{DType, Device, Error, Rng, Runtime, Tensor};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn net(device: &Device, seed: u64, hidden: usize) -> Sequential {
    let rng = Rng::new(seed);
    Sequential::new()
        .with("fc1", Linear::new(device, 4, hidden, &rng).unwrap())
        .with("relu", Relu)
        .with("dropout", Dropout::new(0.3, &rng.fork(1)).unwrap())
        .with("fc2", Linear::new(device, hidden, 3, &rng).unwrap())
}

/// Runs the steps from number `from` up to `to`, each on data that depends on its number.
fn train(net: &Sequential, optimizer: &mut impl Optimizer, from: u64, to: u64) {
    let device = net.parameters()[0].1.tensor().device().clone();
    for step in from..to {
        let x = Tensor::normal(&device, [8, 4], 0.0, 1.0, &Rng::new(step)).unwrap();
        let loss = net.forward(&x).unwrap().square().unwrap().sum_all().unwrap();
        optimizer.step(loss.backward().unwrap()).unwrap();
    }
}

fn bits(net: &Sequential) -> Vec<u32> {
    let values = net.parameters().into_iter().flat_map(|(_, p)| p.tensor().to_vec::<f32>().unwrap());
    values.map(f32::to_bits).collect()
}

fn resumes_to_the_bit<O: Optimizer>(make: impl Fn(&Sequential) -> O) {
    let (device, folder) = (device(), tempfile::tempdir().unwrap());
    let path = folder.path().join("run.safetensors");
    let whole = net(&device, 0, 5);
    let mut optimizer = make(&whole);
    train(&whole, &mut optimizer, 0, 7);
    optimizer.set_learning_rate(0.004).unwrap();
    Checkpoint::of(&whole).unwrap().with_optimizer(&optimizer).unwrap().with_step(7).save(&path).unwrap();
    let at_seven = bits(&whole);
    train(&whole, &mut optimizer, 7, 20);

    let resumed = net(&device, 99, 5);
    let mut optimizer = make(&resumed);
    let checkpoint = Checkpoint::load(&path).unwrap();
    checkpoint.restore_all(&resumed, &mut optimizer).unwrap();
    assert_eq!(bits(&resumed), at_seven);
    assert_eq!(optimizer.learning_rate(), 0.004);
    train(&resumed, &mut optimizer, checkpoint.step().unwrap(), 20);
    assert_eq!(bits(&resumed), bits(&whole));
    assert_ne!(bits(&resumed), at_seven);
}

/// Two layers whose parameters have the same paths, as a custom `visit` may report them.
#[derive(Debug)]
struct Both(Linear, Linear);

impl Parts for Both {
    fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
        self.0.visit_parts(visitor);
        self.1.visit_parts(visitor);
    }
}

#[module]
impl Module for Both {
    fn forward(&self, x: &Tensor) -> highwater_tensor::Result<Tensor> {
        self.1.forward(&self.0.forward(x)?)
    }
}

#[test]
fn parameters_of_one_name_are_refused_before_one_is_lost() {
    let (device, rng) = (device(), Rng::new(0));
    let layer = || Linear::new(&device, 2, 2, &rng).unwrap();
    let both = Both(layer(), layer());
    let message = |error: Error| error.to_string();
    assert!(message(Checkpoint::of(&both).unwrap_err()).ends_with("have unique paths, got weight twice"));

    let adam = Adam::new(both.parameters(), 0.1).unwrap();
    assert!(message(adam.state().unwrap_err()).ends_with("parameters with unique paths, got weight twice"));
    let single = Adam::new(both.0.parameters(), 0.1).unwrap().state().unwrap();
    assert!(
        message(adam.check_state(&single).unwrap_err())
            .ends_with("parameters with unique paths, got weight twice")
    );

    // A shared parameter counts once, even under the same name.
    let shared = layer();
    let twin = Linear::from_parameters(shared.weight().clone(), shared.bias().cloned()).unwrap();
    assert_eq!(Checkpoint::of(&Both(shared, twin)).unwrap().parameters().len(), 2);
}

/// Two dropouts whose sources have the same path.
#[derive(Debug)]
struct Dropouts([Dropout; 2]);

impl Parts for Dropouts {
    fn visit_parts(&self, visitor: &mut PartVisitor<'_>) {
        self.0.iter().for_each(|dropout| dropout.visit_parts(visitor));
    }
}

#[module]
impl Module for Dropouts {
    fn forward(&self, x: &Tensor) -> highwater_tensor::Result<Tensor> {
        self.0[1].forward(&self.0[0].forward(x)?)
    }
}

#[test]
fn random_generators_with_equal_paths_are_refused() {
    let both = Dropouts([1, 2].map(|seed| Dropout::new(0.5, &Rng::new(seed)).unwrap()));
    let message = Checkpoint::of(&both).unwrap_err().to_string();
    assert!(message.ends_with("random generators have unique paths, got rng twice"), "{message}");
    let single = Checkpoint::of(&both.0[0]).unwrap();
    let mut adam = Groups::new().with(Vec::new(), |none| Adam::new(none, 0.1)).unwrap();
    let single = single.with_optimizer(&adam).unwrap();
    let message = single.restore_all(&both, &mut adam).unwrap_err().to_string();
    assert!(message.contains("rng twice"), "{message}");
    // `Sequential` renames the second dropout if names with dots lead to the same path.
    let dropout = || Dropout::new(0.5, &Rng::new(1)).unwrap();
    let inside = Sequential::new().with("b", dropout());
    let net = Sequential::new().with("a", inside).with("a.b", dropout());
    assert_eq!(rng_paths(&net), ["a.b.rng", "a.b2.rng"]);
    Checkpoint::of(&net).unwrap();
}

#[test]
fn resuming_requires_the_random_generator_states() {
    let device = device();
    let with = net(&device, 0, 5);
    let without = || {
        let rng = Rng::new(0);
        Sequential::new()
            .with("fc1", Linear::new(&device, 4, 5, &rng).unwrap())
            .with("fc2", Linear::new(&device, 5, 3, &rng).unwrap())
    };
    let checkpoint = |net: &Sequential| {
        let adam = Adam::new(net.parameters(), 0.1).unwrap();
        Checkpoint::of(net).unwrap().with_optimizer(&adam).unwrap()
    };
    let names = |from: &Sequential, to: &Sequential| {
        let before = bits(to);
        let mut adam = Adam::new(to.parameters(), 0.1).unwrap();
        let Err(Error::Mismatch(mismatch)) = checkpoint(from).restore_all(to, &mut adam) else {
            panic!("the sources differ")
        };
        assert_eq!(bits(to), before);
        // The parameters alone fit.
        checkpoint(from).restore(to).unwrap();
        assert!(
            mismatch
                .to_string()
                .starts_with("load: the file does not match the expected sources of randomness; ")
        );
        (mismatch.missing, mismatch.unexpected)
    };
    let source = || vec!["dropout.rng".to_owned()];
    assert_eq!(names(&without(), &with), (source(), vec![]));
    assert_eq!(names(&with, &without()), (vec![], source()));
}

#[test]
fn boxed_networks_and_optimizers_are_saved_and_restored() {
    let (device, folder) = (device(), tempfile::tempdir().unwrap());
    let path = folder.path().join("run.safetensors");
    let choose = |name: &str, net: &Sequential| -> Box<dyn Optimizer> {
        match name {
            "adam" => Box::new(Adam::new(net.parameters(), 0.01).unwrap()),
            _ => Box::new(Sgd::new(net.parameters(), 0.01).unwrap().with_momentum(0.9).unwrap()),
        }
    };
    for name in ["adam", "sgd"] {
        let whole = net(&device, 0, 5);
        let mut optimizer = choose(name, &whole);
        train(&whole, &mut optimizer, 0, 3);
        let part: &dyn Module = &whole;
        Checkpoint::of(part).unwrap().with_optimizer(&optimizer).unwrap().save(&path).unwrap();
        train(&whole, &mut optimizer, 3, 6);

        let resumed = net(&device, 9, 5);
        let mut optimizer = choose(name, &resumed);
        let checkpoint = Checkpoint::load(&path).unwrap();
        checkpoint.restore_all(&resumed as &dyn Module, &mut *optimizer).unwrap();
        train(&resumed, &mut optimizer, 3, 6);
        assert_eq!(bits(&resumed), bits(&whole));
    }
}

#[test]
fn a_resumed_run_equals_the_uninterrupted_one_to_the_bit() {
    for case in OPTIMIZERS {
        resumes_to_the_bit(|net| (case.make)(net.parameters()).unwrap());
    }
}

/// Runs the steps from number `from` up to `to` of a half-precision net. The loss scaler may skip each step.
fn train_scaled(net: &Sequential, optimizer: &mut Adam, scaler: &mut LossScaler, from: u64, to: u64) -> u64 {
    let device = net.parameters()[0].1.tensor().device().clone();
    let mut taken = 0;
    for step in from..to {
        let x = Tensor::normal(&device, [8, 4], 0.0, 1.0, &Rng::new(step)).unwrap();
        let y = net.forward(&x.to_dtype(DType::F16).unwrap()).unwrap().to_dtype(DType::F32).unwrap();
        let gradients = scaler.scale(&y.square().unwrap().sum_all().unwrap()).unwrap().backward().unwrap();
        taken += u64::from(scaler.step(optimizer, gradients).unwrap().is_taken());
    }
    taken
}

#[test]
fn a_resumed_run_with_a_loss_scaler_is_bit_identical() {
    let (device, folder) = (device(), tempfile::tempdir().unwrap());
    let path = folder.path().join("run.safetensors");
    let start = || {
        let net = net(&device, 0, 5);
        net.convert(DType::F16).unwrap();
        let adam = Adam::new(net.parameters(), 0.01).unwrap();
        // The scale exceeds f16 at first, and grows again after three steps.
        (net, adam, LossScaler::dynamic_from(1e6, 3).unwrap())
    };
    let (whole, mut adam, mut scaler) = start();
    let taken = train_scaled(&whole, &mut adam, &mut scaler, 0, 9);
    let checkpoint = Checkpoint::of(&whole).unwrap().with_optimizer(&adam).unwrap().with_step(9);
    checkpoint.with_scaler(&scaler).save(&path).unwrap();
    let at_nine = scaler.clone();
    let taken = taken + train_scaled(&whole, &mut adam, &mut scaler, 9, 20);
    assert!((1..20).contains(&taken), "{taken}");

    let (resumed, mut adam, fresh) = start();
    let checkpoint = Checkpoint::load(&path).unwrap();
    checkpoint.restore_all(&resumed, &mut adam).unwrap();
    let mut again = checkpoint.scaler().unwrap().clone();
    assert_eq!(again, at_nine);
    assert_ne!(again, fresh);
    train_scaled(&resumed, &mut adam, &mut again, checkpoint.step().unwrap(), 20);
    assert_eq!(again, scaler);
    let values = |net: &Sequential| -> Vec<u16> {
        let parameters = net.parameters().into_iter();
        parameters.flat_map(|(_, p)| p.tensor().to_vec::<f16>().unwrap()).map(f16::to_bits).collect()
    };
    assert_eq!(values(&resumed), values(&whole));
}

#[test]
fn notes_are_read_back_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let layer = Linear::new(&device(), 2, 2, &Rng::new(0)).unwrap();
    let checkpoint = Checkpoint::of(&layer).unwrap().with_note("alphabet", "\n\"ä").with_note("", "x");
    checkpoint.save(&path).unwrap();
    let loaded = Checkpoint::load(&path).unwrap();
    assert_eq!(
        [loaded.note("alphabet"), loaded.note(""), loaded.note("a")],
        [Some("\n\"ä"), Some("x"), None]
    );
}

#[test]
fn a_damaged_state_of_a_loss_scaler_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let metadata = [("highwater.loss_scaler".to_owned(), "many 2000 0".to_owned())].into_iter().collect();
    let contents = Safetensors { metadata, ..Safetensors::default() };
    write_safetensors_to(File::create(&path).unwrap(), &contents).unwrap();
    let error = Checkpoint::load(&path).unwrap_err().to_string();
    assert!(error.contains("highwater.loss_scaler is \"many 2000 0\""), "{error}");
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let device = device();
    let (small, large) = (net(&device, 0, 5), net(&device, 1, 6));
    let checkpoint = Checkpoint::of(&small).unwrap();
    let before = bits(&large);
    let renamed = checkpoint.clone().renamed(|name| Some(name.replace("fc2.bias", "fc3.bias"))).unwrap();
    let Err(Error::Mismatch(mismatch)) = renamed.restore(&large) else { panic!("it does not fit") };
    assert_eq!(mismatch.missing, ["fc2.bias"]);
    assert_eq!(mismatch.unexpected, ["fc3.bias"]);
    let different: Vec<_> = mismatch.different.iter().map(|difference| difference.name.as_str()).collect();
    assert_eq!(different, ["fc1.bias", "fc1.weight", "fc2.weight"]);
    let message = mismatch.to_string();
    assert!(message.contains("fc1.weight is f32 [4, 5], should be f32 [4, 6]"), "{message}");
    assert_eq!(bits(&large), before);
}

#[test]
fn the_state_of_another_optimizer_changes_nothing() {
    let device = device();
    let (saved, other) = (net(&device, 0, 5), net(&device, 1, 5));
    let adam = Adam::new(saved.parameters(), 0.1).unwrap();
    let checkpoint = Checkpoint::of(&saved).unwrap().with_optimizer(&adam).unwrap();
    let before = bits(&other);
    let mut sgd = Sgd::new(other.parameters(), 0.1).unwrap().with_momentum(0.5).unwrap();
    let Err(Error::Mismatch(mismatch)) = checkpoint.restore_all(&other, &mut sgd) else { panic!("no Adam") };
    assert_eq!((mismatch.missing.len(), mismatch.unexpected.len()), (4, 12));
    assert!(mismatch.missing.contains(&"fc1.weight.momentum".to_owned()));
    let message = mismatch.to_string();
    assert!(
        message.starts_with("load: the file does not match the state of sgd for these parameters; missing: "),
        "{message}"
    );
    assert_eq!(bits(&other), before);
    let without = Checkpoint::of(&saved).unwrap().restore_all(&other, &mut sgd);
    assert!(matches!(without, Err(Error::File(FileError::Absent { .. }))));
    assert_eq!(bits(&other), before);
}

#[test]
fn optimizer_states_are_distinguished_by_kind() {
    let device = device();
    let net = net(&device, 0, 8);
    let mut adam = Adam::new(net.parameters(), 0.01).unwrap();
    let mut adamw = AdamW::new(net.parameters(), 0.01).unwrap();
    let of_adamw = Checkpoint::of(&net).unwrap().with_optimizer(&adamw).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    of_adamw.save(&path).unwrap();
    let loaded = Checkpoint::load(&path).unwrap();
    assert_eq!(loaded.parameters(), of_adamw.parameters());
    for checkpoint in [&of_adamw, &loaded] {
        let message = checkpoint.restore_all(&net, &mut adam).unwrap_err().to_string();
        assert_eq!(
            message,
            "load: optimizer must be of the kind of the saved state, got adam for the state of adamw"
        );
        checkpoint.restore_all(&net, &mut adamw).unwrap();
        let boxed: &mut dyn Optimizer = &mut Box::new(AdamW::new(net.parameters(), 0.01).unwrap());
        checkpoint.restore_all(&net, boxed).unwrap();
    }
}

#[test]
fn parameters_of_other_names_are_mapped_and_no_two_to_one() {
    let device = device();
    let (saved, other) = (net(&device, 0, 5), net(&device, 1, 5));
    let foreign = Checkpoint::of(&saved).unwrap().renamed(|name| Some(format!("module.{name}"))).unwrap();
    assert!(foreign.restore(&other).is_err());
    let mapped = foreign.clone().renamed(|name| name.strip_prefix("module.").map(str::to_owned)).unwrap();
    mapped.restore(&other).unwrap();
    assert_eq!(bits(&other), bits(&saved));
    assert!(matches!(foreign.renamed(|_| Some("x".into())), Err(Error::BadArgument { .. })));
}

#[test]
fn a_graph_keeps_its_values_when_a_checkpoint_is_loaded() {
    let device = device();
    let (saved, other) = (net(&device, 0, 5), net(&device, 1, 5));
    let held = other.parameters()[0].1.tensor();
    let before = held.to_vec::<f32>().unwrap();
    Checkpoint::of(&saved).unwrap().restore(&other).unwrap();
    assert_eq!(held.to_vec::<f32>().unwrap(), before);
    assert_eq!(bits(&other), bits(&saved));
}

#[test]
fn a_parameter_with_a_reserved_name_is_not_saved() {
    let (device, folder) = (device(), tempfile::tempdir().unwrap());
    let path = folder.path().join("run.safetensors");
    let layer = Linear::new(&device, 4, 3, &Rng::new(0)).unwrap();
    let net = Sequential::new().with("optimizer/fc", layer);
    let Err(FileError::ReservedName { name, .. }) = Checkpoint::of(&net).unwrap().save(&path) else {
        panic!("it would be read back as the optimiser's")
    };
    assert_eq!(name, "optimizer/fc.bias");
    assert!(!path.exists());
    let renamed = Checkpoint::of(&net).unwrap().renamed(|name| Some(name.replace('/', "."))).unwrap();
    renamed.save(&path).unwrap();
}

#[test]
fn a_checkpoint_takes_the_state_of_one_optimizer_and_loses_none() {
    let device = device();
    let net = net(&device, 0, 5);
    let (adam, sgd) = (Adam::new(net.parameters(), 0.1).unwrap(), Sgd::new(net.parameters(), 0.1).unwrap());
    let checkpoint = Checkpoint::of(&net).unwrap().with_optimizer(&adam).unwrap();
    let refused = checkpoint.with_optimizer(&sgd).unwrap_err();
    assert!(matches!(&refused, Error::BadArgument { argument: "optimizer", .. }), "{refused}");
    assert!(refused.to_string().ends_with("got another one, after adam"), "{refused}");
}

#[test]
fn a_partial_load_reports_missing_and_unused_tensors() {
    let device = device();
    let (learnt, fresh) = (net(&device, 1, 5), net(&device, 2, 5));
    let values = |net: &Sequential, path: &str| {
        let mut parameters = net.parameters().into_iter();
        parameters.find(|(name, _)| name == path).unwrap().1.tensor().to_vec::<f32>().unwrap()
    };
    let of_head = values(&fresh, "fc2.weight");
    let checkpoint = Checkpoint::of(&learnt).unwrap();
    let other_head = |name: &str| Some(name.replace("fc2.", "fc3."));
    let restored = checkpoint.clone().renamed(other_head).unwrap().restore_partly(&fresh).unwrap();
    assert_eq!(restored.missing, ["fc2.bias", "fc2.weight"]);
    assert_eq!(restored.unexpected, ["fc3.bias", "fc3.weight"]);
    assert_eq!(values(&fresh, "fc1.weight"), values(&learnt, "fc1.weight"));
    assert_eq!(values(&fresh, "fc2.weight"), of_head);
    // The checkpoint and the net have the same parameters.
    assert_eq!(checkpoint.restore_partly(&fresh).unwrap(), Default::default());
    assert_eq!(bits(&fresh), bits(&learnt));
}

#[test]
fn a_partial_load_refuses_other_shapes_and_no_common_name() {
    let device = device();
    let fresh = net(&device, 2, 5);
    let before = bits(&fresh);
    let other = Checkpoint::of(&net(&device, 1, 6)).unwrap();
    let shapes = other.restore_partly(&fresh).unwrap_err();
    let Error::Mismatch(mismatch) = &shapes else { panic!("{shapes}") };
    assert_eq!((mismatch.different.len(), mismatch.missing.len()), (3, 0), "{mismatch}");
    // The checkpoint has the names of another program.
    let prefixed = Checkpoint::of(&net(&device, 1, 5)).unwrap();
    let prefixed = prefixed.renamed(|name| Some(format!("module.{name}"))).unwrap();
    let names = prefixed.restore_partly(&fresh).unwrap_err();
    let Error::Mismatch(mismatch) = &names else { panic!("{names}") };
    assert_eq!((mismatch.missing.len(), mismatch.unexpected.len()), (4, 4), "{mismatch}");
    assert_eq!(bits(&fresh), before);
}

#[test]
fn entries_of_a_checkpoint_that_are_misspelled_or_contradict_it_are_refused() {
    let device = device();
    let (saved, other) = (net(&device, 0, 5), net(&device, 1, 5));
    let optimizer = AdamW::new(saved.parameters(), 0.1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let checkpoint = Checkpoint::of(&saved).unwrap().with_optimizer(&optimizer).unwrap().with_step(3);
    checkpoint.save(&path).unwrap();
    let contents = read_safetensors(&path, &SafetensorsLimits::default()).unwrap();

    let mut adamw = AdamW::new(other.parameters(), 0.5).unwrap();
    let before = (bits(&other), adamw.state().unwrap());
    // The file with this entry in place of another one.
    let mut refusal = |replaced: &str, entry: Option<(&str, &str)>| {
        let mut contents = contents.clone();
        assert!(contents.metadata.remove(replaced).is_some());
        contents.metadata.extend(entry.map(|(key, value)| (key.to_owned(), value.to_owned())));
        write_safetensors_to(File::create(&path).unwrap(), &contents).unwrap();
        let restored = Checkpoint::load(&path)
            .map_err(Error::from)
            .and_then(|checkpoint| checkpoint.restore_all(&other, &mut adamw));
        assert_eq!((bits(&other), adamw.state().unwrap()), before, "{entry:?}");
        restored.unwrap_err().to_string()
    };
    const OPTIMIZER: &str = "highwater.optimizer";
    for key in [
        "highwater.optimiser",
        "highwater.optimizers",
        "highwater.Optimizer",
        "Highwater.optimizer",
        "HIGHWATER.OPTIMIZER",
        "highwater.optimizer ",
        " highwater.optimizer",
        "highwater_optimizer",
        "highwater/optimizer",
        "highwater.optimizer.name",
        "highwater.",
    ] {
        let refused = refusal(OPTIMIZER, Some((key, "adamw")));
        assert!(
            refused.contains(&format!("{key:?} is no entry of a checkpoint; the entries are ")),
            "{refused}"
        );
    }
    for value in ["", " ", "adamw ", "\tadamw", "adamw\n"] {
        let refused = refusal(OPTIMIZER, Some((OPTIMIZER, value)));
        assert!(refused.ends_with(&format!("highwater.optimizer is {value:?}")), "{refused}");
    }
    for value in ["adam", "AdamW", "adamww", "sgd"] {
        let refused = refusal(OPTIMIZER, Some((OPTIMIZER, value)));
        assert!(refused.ends_with(&format!("got adamw for the state of {value}")), "{refused}");
    }
    // Without its prefix, an entry may belong to another program.
    for entry in [None, Some(("optimizer", "adamw")), Some(("hihgwater.optimizer", "adamw"))] {
        let refused = refusal(OPTIMIZER, entry);
        assert!(refused.contains("contains no name of the optimizer"), "{refused}");
    }
    const STEP: &str = "highwater.step";
    for value in ["", "-1", "+1", "1.0", " 1", "1e3", "three", "18446744073709551616"] {
        let refused = refusal(STEP, Some((STEP, value)));
        assert!(refused.ends_with(&format!("highwater.step is {value:?}")), "{refused}");
    }
    for key in
        ["highwater.steps", "highwater.rng", "highwater.note", "highwater.loss_scalar", "highwater.Step"]
    {
        let refused = refusal(STEP, Some((key, "3")));
        assert!(refused.contains("is no entry of a checkpoint"), "{key}: {refused}");
    }
    write_safetensors_to(File::create(&path).unwrap(), &contents).unwrap();
    Checkpoint::load(&path).unwrap().restore_all(&other, &mut adamw).unwrap();
    assert_eq!(bits(&other), bits(&saved));
}
