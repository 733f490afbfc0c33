//! LoRA: values and gradients of adapters, what is frozen, merged weights, and folders in PEFT's format.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::io::{
    Array, Safetensors, SafetensorsLimits, read_safetensors, write_atomically, write_safetensors_to,
};
use highwater_nn::lora::{Adapters, Lora, LoraError, lora, lora_from};
use highwater_nn::modules::{
    Checkpointed, Dropout, Embedding, LayerNorm, Linear, LinearOptions, Module, MultiHeadAttention,
    Parameter, RmsNorm, Sequential, SwiGlu, TransformerBlock, module,
};
use highwater_nn::modules::{Gelu, Relu};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_tensor::{Activation, DType, Device, Result, Rng, Runtime, Tensor, no_grad};
use highwater_tracking::Report;

fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    values(tensor).into_iter().map(f64::to_bits).collect()
}

fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(found.dims(), expected.dims());
    for (found, expected) in values(found).into_iter().zip(values(expected)) {
        assert!((found - expected).abs() <= tolerance * expected.abs().max(1.0), "{found}, {expected}");
    }
}

fn options(patterns: &[&str]) -> Lora {
    Lora { rank: 3, alpha: 4.5, ..Lora::default() }.with_targets(patterns.iter().copied())
}

fn uniform(device: &Device, dims: &[usize], dtype: DType, seed: u64) -> Tensor {
    Tensor::uniform(device, dims, -1.0, 1.0, &Rng::new(seed)).unwrap().to_dtype(dtype).unwrap()
}

/// Gives all matrices of adapters values, so that the update is not zero.
fn scramble<M: Module + ?Sized>(adapters: &Adapters<'_, M>) {
    for (seed, (_, matrix)) in (100..).zip(adapters.parameters()) {
        let value = matrix.value();
        matrix.set(&uniform(value.device(), value.dims(), value.dtype(), seed)).unwrap();
    }
}

/// A linear layer of shape 5 to 4, with PyTorch's shape or not.
fn layer(device: &Device, dtype: DType, is_transposed: bool, has_bias: bool) -> Linear {
    let parameter = |dims: &[usize], seed| Parameter::new(uniform(device, dims, dtype, seed)).unwrap();
    let bias = has_bias.then(|| parameter(&[4], 2));
    if is_transposed {
        Linear::from_pytorch_parameters(parameter(&[4, 5], 1), bias).unwrap()
    } else {
        Linear::from_parameters(parameter(&[5, 4], 1), bias).unwrap()
    }
}

#[test]
fn an_adapter_adds_scale_b_a_before_the_activation() {
    let device = cpu();
    for is_transposed in [false, true] {
        for has_bias in [false, true] {
            for activation in [None, Some(Activation::Relu), Some(Activation::Gelu)] {
                for dims in [&[5][..], &[7, 5], &[2, 3, 5], &[0, 5]] {
                    let plain = layer(&device, DType::F64, is_transposed, has_bias);
                    let plain = match activation {
                        Some(activation) => plain.with_activation(activation),
                        None => plain,
                    };
                    let adapters = lora(&plain, &options(&["all-linear"]), &Rng::new(3)).unwrap();
                    scramble(&adapters);
                    let [a, b] = [0, 1].map(|index| adapters.parameters()[index].1.value());
                    assert_eq!((a.dims(), b.dims(), a.dtype()), (&[3, 5][..], &[4, 3][..], DType::F64));
                    let update = (b.matmul(&a).unwrap() * 1.5).unwrap();
                    let update = if is_transposed { update } else { update.t().unwrap() };
                    let dense = Parameter::new(plain.weight().value().add(&update).unwrap()).unwrap();
                    let bias = plain.bias().cloned();
                    let dense = if is_transposed {
                        Linear::from_pytorch_parameters(dense, bias)
                    } else {
                        Linear::from_parameters(dense, bias)
                    };
                    let x = uniform(&device, dims, DType::F64, 9);
                    let expected = dense.unwrap().forward(&x).unwrap().activated(activation).unwrap();
                    assert_close(&plain.forward(&x).unwrap(), &expected, 1e-12);
                }
            }
        }
    }
}

#[test]
fn a_new_adapter_changes_nothing_and_has_the_bounds_of_peft() {
    let device = cpu();
    for dtype in [DType::F32, DType::BF16] {
        let model = Sequential::new().with("fc", layer(&device, dtype, true, true)).with("relu", Relu);
        let x = uniform(&device, &[6, 5], dtype, 4);
        let before = model.forward(&x).unwrap();
        let adapters = lora(&model, &options(&["fc"]), &Rng::new(0)).unwrap();
        let after = model.forward(&x).unwrap();
        assert_eq!((after.dtype(), bits(&after)), (dtype, bits(&before)));
        let parameters = adapters.parameters();
        let paths: Vec<&str> = parameters.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["fc.lora_A.weight", "fc.lora_B.weight"]);
        let [a, b] = [0, 1].map(|index| parameters[index].1.value());
        assert_eq!([a.dtype(), b.dtype()], [DType::F32; 2]);
        let bound = 1.0 / 5f64.sqrt();
        assert!(
            values(&a).iter().all(|value| value.abs() <= bound)
                && values(&a).iter().any(|&value| value > 0.0)
        );
        assert!(values(&b).iter().all(|&value| value == 0.0));
    }
}

#[test]
fn gradients_of_a_and_b_equal_finite_differences() {
    const STEP: f64 = 1e-5;
    let device = cpu();
    let model =
        Sequential::new().with("one", layer(&device, DType::F64, true, true)).with("gelu", Gelu).with(
            "two",
            Linear::from_parameters(Parameter::new(uniform(&device, &[4, 2], DType::F64, 5)).unwrap(), None)
                .unwrap(),
        );
    let adapters = lora(&model, &options(&["one", "two"]), &Rng::new(3)).unwrap();
    scramble(&adapters);
    let x = uniform(&device, &[3, 5], DType::F64, 6);
    let loss = || adapters.forward(&x).unwrap().square().unwrap().sum_all().unwrap();
    let gradients = loss().backward().unwrap();
    assert_eq!(gradients.len(), 4);
    for (path, parameter) in adapters.parameters() {
        let value = parameter.value();
        let original = value.to_vec::<f64>().unwrap();
        let gradient = gradients.get(&parameter.tensor()).unwrap().to_vec::<f64>().unwrap();
        for at in 0..original.len() {
            let moved = |delta: f64| {
                let mut moved = original.clone();
                moved[at] += delta;
                parameter.set(&Tensor::from_slice(&device, &moved, value.shape()).unwrap()).unwrap();
                no_grad(|| loss().item::<f64>()).unwrap()
            };
            let numeric = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            assert!((gradient[at] - numeric).abs() < 1e-6 * numeric.abs().max(1.0), "{path}: {at}");
        }
        parameter.set(&Tensor::from_slice(&device, &original, value.shape()).unwrap()).unwrap();
    }
}

/// Layers whose frozen weights could save activations: the blocks of language models.
#[derive(Debug, Module)]
struct Network {
    embed: Embedding,
    norm: RmsNorm,
    attention: MultiHeadAttention,
    norm2: LayerNorm,
    mlp: SwiGlu,
    head: Linear,
}

impl Network {
    fn new(device: &Device) -> Self {
        let rng = Rng::new(1);
        Self {
            embed: Embedding::new(device, 50, 16, &rng).unwrap(),
            norm: RmsNorm::new(device, 16).unwrap(),
            attention: MultiHeadAttention::new(device, 16, 2, &rng).unwrap().causal(),
            norm2: LayerNorm::new(device, 16).unwrap(),
            mlp: SwiGlu::new(device, 16, 32, &rng).unwrap(),
            head: Linear::new(device, 16, 50, &rng).unwrap(),
        }
    }
}

#[module]
impl Module for Network {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward(&self.embed.forward(tokens)?)?;
        let x = (self.attention.forward(&x)? + &x)?;
        let x = (self.mlp.forward(&self.norm2.forward(&x)?)? + &x)?;
        self.head.forward(&x)
    }
}

fn tokens(device: &Device) -> Tensor {
    let tokens: Vec<i64> = (0..24).map(|at| at * 7 % 50).collect();
    Tensor::from_slice(device, &tokens, [3, 8]).unwrap()
}

#[test]
fn only_adapters_have_gradients_and_optimizer_state() {
    let device = cpu();
    let model = Network::new(&device);
    let adapters = lora(&model, &options(&["project"]), &Rng::new(2)).unwrap();
    let frozen: Vec<_> =
        model.parameters().into_iter().filter(|(_, parameter)| parameter.is_frozen()).collect();
    assert_eq!(frozen.len(), model.parameters().len() - 2);
    let before: Vec<_> = frozen.iter().map(|(_, parameter)| bits(&parameter.value())).collect();
    let memory = device.default_allocator().unwrap();
    let in_use = memory.stats().bytes_in_use;
    let mut adam = AdamW::new(adapters.parameters(), 0.1).unwrap();
    // A is [3, 16] and B is [48, 3]; blocks have a multiple of 256 bytes.
    let of_adapters = (3 * 16 * 4u64).next_multiple_of(256) + (48 * 3 * 4u64).next_multiple_of(256);
    let with_state = memory.stats().bytes_in_use;
    assert_eq!(with_state - in_use, 2 * of_adapters, "the two moments of Adam");
    let loss = model.forward(&tokens(&device)).unwrap().square().unwrap().mean_all().unwrap();
    let gradients = loss.backward().unwrap();
    drop(loss);
    assert_eq!(gradients.len(), 2);
    for (path, parameter) in &frozen {
        assert!(gradients.get(&parameter.tensor()).is_none(), "{path}");
    }
    assert_eq!(memory.stats().bytes_in_use - with_state, of_adapters, "gradients");
    adam.step(gradients).unwrap();
    assert_eq!(memory.stats().bytes_in_use, with_state);
    for ((path, parameter), before) in frozen.iter().zip(before) {
        assert_eq!(bits(&parameter.value()), before, "{path}");
    }
}

/// The bytes that a forward pass keeps for the backward pass, and its result.
fn saved(device: &Device, run: impl FnOnce() -> Tensor) -> (u64, Tensor) {
    let report = || Report::new(device.tracker(), &[device.default_allocator().unwrap().clone()]);
    let before = report().saved.live_bytes;
    let y = run();
    (report().saved.live_bytes - before, y)
}

#[test]
fn a_frozen_layer_saves_only_what_the_gradient_of_its_input_needs() {
    let device = cpu();
    let rng = Rng::new(0);
    let rows = |count: u64| count * 64 * 4;
    // An input of 64 values that requires a gradient. Weights are parameters, which are in use anyway.
    let x = || uniform(&device, &[4, 16], DType::F32, 1).requiring_grad().unwrap();
    let linear = |activation: Option<Activation>| {
        let layer = Linear::new(&device, 16, 16, &rng).unwrap();
        activation.map_or_else(|| layer.clone(), |activation| layer.clone().with_activation(activation))
    };
    let cases: Vec<(&str, Box<dyn Module>, u64)> = vec![
        ("linear", Box::new(linear(None)), 0),
        ("linear without a bias", Box::new(linear(None).without_bias()), 0),
        // Its result, which the derivative reads.
        ("linear with relu", Box::new(linear(Some(Activation::Relu))), rows(1)),
        ("linear with silu", Box::new(linear(Some(Activation::Silu))), rows(1)),
        // The input, and statistics in one block of 256 bytes.
        ("rms norm", Box::new(RmsNorm::new(&device, 16).unwrap()), rows(1) + 256),
        ("layer norm", Box::new(LayerNorm::new(&device, 16).unwrap()), rows(1) + 256),
        // Gate and up.
        ("swiglu", Box::new(SwiGlu::new(&device, 16, 16, &rng).unwrap()), rows(2)),
    ];
    for (name, layer, expected) in cases {
        layer.freeze();
        let input = x();
        let (found, y) = saved(&device, || layer.forward(&input).unwrap());
        assert_eq!(found, expected, "{name}");
        drop(y);
        layer.unfreeze();
        let input = x();
        let (trained, _y) = saved(&device, || layer.forward(&input).unwrap());
        assert!(trained >= found, "{name}");
    }
    let table = Embedding::new(&device, 50, 16, &rng).unwrap();
    table.freeze();
    let (found, y) = saved(&device, || table.forward(&tokens(&device)).unwrap());
    assert_eq!((found, y.requires_grad()), (0, false));
}

#[test]
fn an_adapter_saves_its_input_and_the_small_product() {
    let device = cpu();
    let model = Linear::new(&device, 64, 64, &Rng::new(0)).unwrap();
    let x = uniform(&device, &[256, 64], DType::F32, 1);
    let _adapters = lora(&model, &Lora { rank: 4, ..options(&["all-linear"]) }, &Rng::new(1)).unwrap();
    let memory = device.default_allocator().unwrap();
    let (bytes, in_use) = (256 * 64 * 4, memory.stats().bytes_in_use);
    memory.clear_stats();
    let y = model.forward(&x).unwrap();
    let stats = memory.stats();
    // The result, which the update was added to in place, and the small product. x was there before.
    assert_eq!(stats.bytes_in_use - in_use, bytes + 256 * 4 * 4);
    // At most, the update beside them.
    assert!(stats.peak_bytes_in_use - in_use <= 2 * bytes + 2 * 256 * 4 * 4 + 65536);
    drop(y);
    assert_eq!(memory.stats().bytes_in_use, in_use);
}

#[test]
fn merged_weights_compute_the_same_without_adapters_and_unmerge_restores_every_bit() {
    let device = cpu();
    for (dtype, is_transposed, tolerance) in [
        (DType::F32, true, 1e-6),
        (DType::F32, false, 1e-6),
        (DType::BF16, true, 2e-2),
        (DType::F64, false, 1e-12),
    ] {
        let model =
            Sequential::new().with("fc", layer(&device, dtype, is_transposed, true)).with("relu", Relu);
        let x = uniform(&device, &[6, 5], dtype, 4);
        let plain = model.forward(&x).unwrap();
        let weight = model.parameters()[0].1.clone();
        let old = bits(&weight.value());
        let adapters = lora(&model, &options(&["fc"]), &Rng::new(0)).unwrap();
        scramble(&adapters);
        let adapted = model.forward(&x).unwrap();
        adapters.merge().unwrap();
        adapters.merge().unwrap();
        assert!(adapters.is_merged() && bits(&weight.value()) != old);
        assert!(format!("{adapters:?} {model:?}").matches("merged").count() == 2, "{adapters:?} {model:?}");
        let merged = model.forward(&x).unwrap();
        assert!(!merged.requires_grad(), "the adapters take no part");
        assert_close(&merged, &adapted, tolerance);
        assert!(matches!(adapters.load("no/folder"), Err(LoraError::Merged)));
        adapters.unmerge().unwrap();
        adapters.unmerge().unwrap();
        assert_eq!((bits(&weight.value()), adapters.is_merged()), (old.clone(), false));
        assert_eq!(bits(&model.forward(&x).unwrap()), bits(&adapted));
        adapters.merge().unwrap();
        adapters.detach();
        assert_eq!(bits(&model.forward(&x).unwrap()), bits(&merged), "the update stays");
        assert!(
            model
                .parameters()
                .iter()
                .all(|(path, parameter)| { parameter.is_frozen() && !path.contains("lora") })
        );
        assert!(plain.elements() > 0);
    }
}

/// An output layer that shares the table of the embedding, and a layer in two places.
#[derive(Debug, Module)]
struct Tied {
    embed: Embedding,
    first: Arc<Linear>,
    second: Arc<Linear>,
    head: Linear,
}

#[module]
impl Module for Tied {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let x = self.second.forward(&self.first.forward(&self.embed.forward(tokens)?)?)?;
        self.head.forward(&x)
    }
}

#[test]
fn shared_layers_have_one_adapter_and_shared_weights_are_not_merged() {
    let device = cpu();
    let rng = Rng::new(0);
    let embed = Embedding::new(&device, 50, 16, &rng).unwrap();
    let head = Linear::from_pytorch_parameters(embed.weight().clone(), None).unwrap();
    let shared = Arc::new(Linear::new(&device, 16, 16, &rng).unwrap());
    let model = Tied { embed, first: Arc::clone(&shared), second: shared, head };
    let adapters = lora(&model, &options(&["first"]), &rng).unwrap();
    assert_eq!(adapters.layers().collect::<Vec<_>>(), ["first"]);
    scramble(&adapters);
    let adapted = model.forward(&tokens(&device)).unwrap();
    adapters.merge().unwrap();
    assert_close(&model.forward(&tokens(&device)).unwrap(), &adapted, 1e-5);
    adapters.unmerge().unwrap();
    let of_head = lora(&model, &options(&["head"]), &rng).unwrap();
    let error = of_head.merge().unwrap_err();
    assert!(matches!(&error, LoraError::SharedWeight { layer } if layer == "head"), "{error}");
    // The adapters of the first call are not frozen by the second.
    assert!(adapters.parameters().iter().all(|(_, parameter)| !parameter.is_frozen()));
}

#[test]
fn wrong_options_and_patterns_are_errors_that_leave_the_model_unchanged() {
    let device = cpu();
    let model = Network::new(&device);
    let rng = Rng::new(0);
    let error = |options: &Lora| lora(&model, options, &rng).unwrap_err();
    for (options, name) in [
        (Lora { rank: 0, ..options(&["head"]) }, "rank"),
        (Lora { alpha: f64::NAN, ..options(&["head"]) }, "alpha"),
        (Lora { dropout: 1.0, ..options(&["head"]) }, "dropout"),
        (options(&[]), "targets"),
    ] {
        assert!(matches!(error(&options), LoraError::BadOption { option, .. } if option == name), "{name}");
    }
    let text = error(&options(&["head", "q_proj"])).to_string();
    assert_eq!(
        text,
        "lora: the pattern `q_proj` matches no linear layer; the model has attention.output, attention.project, \
         head, mlp.down_proj, mlp.gate_proj, mlp.up_proj"
    );
    assert!(model.parameters().iter().all(|(_, parameter)| !parameter.is_frozen()));
    let adapters = lora(&model, &options(&["head"]), &rng).unwrap();
    let twice = error(&options(&["mlp.*", "head"]));
    assert_eq!(twice.to_string(), "lora: head already has an adapter; detach it first");
    assert_eq!(model.parameters().iter().filter(|(path, _)| path.contains("lora")).count(), 2);
    adapters.detach();
    let all = lora(&model, &options(&["all-linear"]), &rng).unwrap();
    assert_eq!(all.layers().len(), 6);
    let numbers: Vec<Linear> = (0..20).map(|_| Linear::new(&device, 2, 2, &rng).unwrap()).collect();
    let mut blocks = Sequential::new();
    for (number, block) in numbers.into_iter().enumerate() {
        blocks = blocks.with(&format!("{number}.fc"), block);
    }
    let text = lora(&blocks, &options(&["nothing"]), &rng).unwrap_err().to_string();
    assert!(text.ends_with("the model has *.fc"), "{text}");
}

#[test]
fn reports_and_debug_show_the_adapter_in_its_layer() {
    let device = cpu();
    let model = Sequential::new().with("fc", Checkpointed::new(layer(&device, DType::F32, true, false)));
    let _adapters = lora(&model, &options(&["fc"]), &Rng::new(0)).unwrap();
    assert_eq!(format!("{model:?}"), "Sequential { fc: Checkpointed(Linear(5 -> 4, no bias, lora rank 3)) }");
    model.forward(&uniform(&device, &[2, 5], DType::F32, 1)).unwrap();
    let report = Report::new(device.tracker(), &[device.default_allocator().unwrap().clone()]);
    let paths: Vec<String> = report.places.iter().map(|row| row.path()).collect();
    for path in
        ["fc.matmul", "fc.add", "fc.mul_scalar", "fc.lora_A.matmul", "fc.lora_A.init", "fc.lora_B.matmul"]
    {
        assert!(paths.contains(&path.to_owned()), "{path} in {paths:?}");
    }
}

/// A block with its own dropout, whose adapters drop too. It may run again in the backward pass.
fn dropping(device: &Device, again: bool) -> Sequential {
    let block = TransformerBlock::new(device, 16, 2, &Rng::new(1)).unwrap();
    let dropout = Dropout::new(0.2, &Rng::new(8)).unwrap();
    let net = Sequential::new().with("dropout", dropout);
    if again { net.with("block", Checkpointed::new(block)) } else { net.with("block", block) }
}

#[test]
fn dropout_draws_the_same_when_a_block_runs_again_and_after_a_checkpoint() {
    let device = cpu();
    let x = uniform(&device, &[2, 4, 16], DType::F32, 3);
    let lora_options = Lora { dropout: 0.5, ..options(&["up", "project"]) };
    let step = |adapters: &Adapters<'_, Sequential>| {
        let loss = adapters.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
        let gradients = loss.backward().unwrap();
        let parameters = adapters.parameters();
        let of = |(_, parameter): &(String, Parameter)| bits(gradients.get(&parameter.tensor()).unwrap());
        (bits(&loss), parameters.iter().map(of).collect::<Vec<_>>())
    };
    let run = |again: bool| {
        let model = dropping(&device, again);
        let adapters = lora(&model, &lora_options, &Rng::new(5)).unwrap();
        scramble(&adapters);
        (step(&adapters), step(&adapters))
    };
    let (first, second) = run(false);
    assert_ne!(first, second);
    assert_eq!((first, second.clone()), run(true));

    let model = dropping(&device, false);
    let adapters = lora(&model, &lora_options, &Rng::new(5)).unwrap();
    scramble(&adapters);
    step(&adapters);
    let checkpoint = Checkpoint::of(&adapters).unwrap();
    let names: Vec<_> = checkpoint.parameters().keys().collect();
    assert_eq!(names.len(), 4, "{names:?}");
    // The generators of the model's own dropout are in it, too.
    let model = dropping(&device, false);
    let adapters = lora(&model, &lora_options, &Rng::new(77)).unwrap();
    checkpoint.restore(&adapters).unwrap();
    assert_eq!(step(&adapters), second);
    // Without gradients, nothing is dropped.
    let [one, other] = [0, 1].map(|_| no_grad(|| adapters.forward(&x)).unwrap());
    assert_eq!(bits(&one), bits(&other));
}

fn model(device: &Device) -> Sequential {
    let layer = |inputs, outputs, seed| {
        let options = LinearOptions::default();
        Linear::with_options(device, inputs, outputs, options, &Rng::new(seed)).unwrap()
    };
    Sequential::new().with("a.fc", layer(5, 4, 1)).with("relu", Relu).with("b.fc", layer(4, 6, 2))
}

#[test]
fn a_saved_folder_gives_the_same_values() {
    let device = cpu();
    let (folder, rng) = (tempfile::tempdir().unwrap(), Rng::new(0));
    let folder = folder.path().join("new/folder");
    let trained = model(&device);
    let saved_options = Lora {
        dropout: 0.25,
        rslora: true,
        base_model: Some("some/model".to_owned()),
        ..options(&["a.*", "fc"])
    };
    let adapters = lora(&trained, &saved_options, &rng).unwrap();
    scramble(&adapters);
    adapters.save(&folder).unwrap();
    adapters.save(&folder).unwrap();
    let x = uniform(&device, &[3, 5], DType::F32, 1);
    let expected = bits(&no_grad(|| trained.forward(&x)).unwrap());
    let contents = read_safetensors(folder.join("adapter_model.safetensors"), &SafetensorsLimits::default());
    let contents = contents.unwrap();
    assert_eq!(contents.metadata["format"], "pt");
    let names: Vec<_> = contents.arrays.keys().map(String::as_str).collect();
    let expected_names = ["a.fc.lora_A", "a.fc.lora_B", "b.fc.lora_A", "b.fc.lora_B"];
    assert_eq!(names, expected_names.map(|name| format!("base_model.model.{name}.weight")));

    let other = model(&device);
    let attached = lora(&other, &saved_options, &Rng::new(4)).unwrap();
    attached.load(&folder).unwrap();
    assert_eq!(bits(&no_grad(|| other.forward(&x)).unwrap()), expected);
    attached.detach();
    let loaded = lora_from(&other, &folder, Some("some/model"), &rng).unwrap();
    assert_eq!(bits(&no_grad(|| other.forward(&x)).unwrap()), expected);
    let expected = Lora { targets: vec!["fc".to_owned()], ..saved_options };
    assert_eq!(loaded.options(), &expected);
    assert!(loaded.parameters().iter().all(|(_, parameter)| !parameter.is_frozen()));
    assert!(matches!(lora_from(&other, &folder, None, &rng), Err(LoraError::AlreadyAttached { .. })));
}

/// Writes a folder with a configuration and changed tensors.
fn write(folder: &Path, config: &str, change: impl FnOnce(&mut Safetensors)) {
    let device = cpu();
    let model = model(&device);
    let adapters = lora(&model, &options(&["fc"]), &Rng::new(0)).unwrap();
    adapters.save(folder).unwrap();
    if !config.is_empty() {
        fs::write(folder.join("adapter_config.json"), config).unwrap();
    }
    let path = folder.join("adapter_model.safetensors");
    let mut contents = read_safetensors(&path, &SafetensorsLimits::default()).unwrap();
    change(&mut contents);
    write_atomically(&path, |file| write_safetensors_to(file, &contents)).unwrap();
}

/// Errors of [`lora_from`] and of [`Adapters::load`] for a folder. Neither changes anything.
fn refused(folder: &Path) -> [String; 2] {
    let device = cpu();
    let fresh = model(&device);
    let from = lora_from(&fresh, folder, Some("some/model"), &Rng::new(0)).unwrap_err().to_string();
    assert!(
        fresh.parameters().iter().all(|(path, parameter)| !parameter.is_frozen() && !path.contains("lora"))
    );
    let adapters = lora(&fresh, &options(&["fc"]), &Rng::new(0)).unwrap();
    let before: Vec<_> =
        adapters.parameters().iter().map(|(_, parameter)| bits(&parameter.value())).collect();
    let load = adapters.load(folder).unwrap_err().to_string();
    let after: Vec<_> = adapters.parameters().iter().map(|(_, parameter)| bits(&parameter.value())).collect();
    assert_eq!(before, after);
    [from, load].map(|text| text.replace(&folder.display().to_string(), "F"))
}

const CONFIG: &str = r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 4.5}"#;

#[test]
fn a_folder_of_other_adapters_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    const A: &str = "base_model.model.a.fc.lora_A.weight";
    write(folder, CONFIG, |contents| {
        contents.arrays.remove(A);
    });
    for text in refused(folder) {
        assert_eq!(
            text,
            format!(
                "F/adapter_model.safetensors: the tensors do not match the adapters; missing: {A}; of no adapted linear layer: none"
            )
        );
    }
    write(folder, CONFIG, |contents| {
        for name in ["base_model.model.c.fc.lora_A.weight", "a.fc.lora_A.weight"] {
            contents.arrays.insert(name.to_owned(), Array::from_slice(&[1.0f32], [1]).unwrap());
        }
    });
    for text in refused(folder) {
        assert!(text.ends_with("missing: none; of no adapted linear layer: a.fc.lora_A.weight, base_model.model.c.fc.lora_A.weight"), "{text}");
    }
    write(folder, CONFIG, |contents| {
        contents.arrays.insert(A.to_owned(), Array::from_slice(&[1.0f32; 12], [3, 4]).unwrap());
    });
    for text in refused(folder) {
        assert!(
            text.ends_with(&format!("{A} has the shape [3, 4], but the layer requires [3, 5]")),
            "{text}"
        );
    }
    write(folder, CONFIG, |contents| {
        contents.arrays.insert(A.to_owned(), Array::from_slice(&[1i64; 15], [3, 5]).unwrap());
    });
    for text in refused(folder) {
        assert!(text.ends_with("has the element type i64, but adapters consist of floats"), "{text}");
    }
    write(folder, &CONFIG.replace('3', "4"), |_| {});
    let [from, load] = refused(folder);
    assert!(from.contains("has the shape [3, 5], but the layer requires [4, 5]"), "{from}");
    assert_eq!(load, "F/adapter_config.json: the option `r` is 4, but the attached adapters have 3");
    write(folder, &CONFIG.replace("4.5", "9"), |_| {});
    let adapters = model(&cpu());
    let adapters = lora(&adapters, &options(&["fc"]), &Rng::new(0)).unwrap();
    let text = adapters.load(folder).unwrap_err().to_string();
    assert!(text.ends_with("the option `lora_alpha` is 9, but the attached adapters have 4.5"), "{text}");
    write(
        folder,
        r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 4.5, "base_model_name_or_path": "other"}"#,
        |_| {},
    );
    let text = lora_from(&model(&cpu()), folder, Some("some/model"), &Rng::new(0)).unwrap_err().to_string();
    assert!(
        text.ends_with(
            "the option `base_model_name_or_path` is other, but the attached adapters have some/model"
        ),
        "{text}"
    );
    lora_from(&model(&cpu()), folder, None, &Rng::new(0)).unwrap();
    fs::remove_file(folder.join("adapter_model.safetensors")).unwrap();
    assert!(refused(folder).iter().all(|text| text.starts_with("F/adapter_model.safetensors: ")));
    fs::write(folder.join("adapter_config.json"), vec![b' '; (1 << 20) + 1]).unwrap();
    assert!(refused(folder).iter().all(|text| text.contains("more than the 1048576 allowed")));
}

#[test]
fn options_that_change_the_update_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, CONFIG, |_| {});
    let with = |field: &str| format!("{},{field}}}", CONFIG.strip_suffix('}').unwrap());
    let path = folder.join("adapter_config.json");
    for (field, option) in [
        (r#""use_dora": true"#, "use_dora"),
        (r#""bias": "all""#, "bias"),
        (r#""modules_to_save": ["lm_head"]"#, "modules_to_save"),
        (r#""rank_pattern": {"q_proj": 4}"#, "rank_pattern"),
        (r#""alpha_pattern": {"q_proj": 4}"#, "alpha_pattern"),
        (r#""init_lora_weights": "pissa""#, "init_lora_weights"),
        (r#""layer_replication": [[0, 4]]"#, "layer_replication"),
        (r#""lora_bias": true"#, "lora_bias"),
        (r#""option_of_a_later_version": 3"#, "option_of_a_later_version"),
        (r#""peft_type": "IA3""#, "peft_type"),
    ] {
        fs::write(&path, with(field)).unwrap();
        for text in refused(folder) {
            assert!(text.contains(&format!("the option `{option}` = ")), "{text}");
        }
    }
    for (config, part) in [
        ("[]", "expected an object"),
        ("{", "no valid JSON"),
        (r#"{"r": 3, "lora_alpha": 1}"#, "`peft_type` must be \"LORA\", got nothing"),
        (
            r#"{"peft_type": "LORA", "lora_alpha": 1}"#,
            "`r` must be a whole number from 1 to 1048576, got nothing",
        ),
        (r#"{"peft_type": "LORA", "r": 0, "lora_alpha": 1}"#, "got 0"),
        (r#"{"peft_type": "LORA", "r": 1e30, "lora_alpha": 1}"#, "`r` must be"),
        (r#"{"peft_type": "LORA", "r": 3}"#, "`lora_alpha` must be a number, got nothing"),
        (r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 1, "lora_dropout": 1}"#, "`lora_dropout` must be"),
        (r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 1, "use_rslora": 1}"#, "`use_rslora` must be"),
        (r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 1, "base_model_name_or_path": 1}"#, "a text or null"),
    ] {
        fs::write(&path, config).unwrap();
        for text in refused(folder) {
            assert!(text.contains(part), "{text}");
        }
    }
    // All options of PEFT 0.21 that are off, and those that change nothing.
    let off = r#""alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
        "bias": "none", "ensure_weight_tying": false, "fan_in_fan_out": true, "inference_mode": true,
        "init_lora_weights": "gaussian", "layers_to_transform": [1], "loftq_config": {}, "megatron_core": "megatron.core",
        "modules_to_save": null, "peft_version": "0.21.2", "qalora_group_size": 16, "rank_pattern": {},
        "target_modules": "all-linear", "task_type": "CAUSAL_LM", "use_dora": false, "use_qalora": false"#;
    fs::write(&path, with(off)).unwrap();
    lora_from(&model(&cpu()), folder, None, &Rng::new(0)).unwrap();
}

#[test]
fn half_precision_folders_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, CONFIG, |contents| {
        for array in contents.arrays.values_mut() {
            let tensor = array.to_tensor(&cpu()).unwrap().to_dtype(DType::BF16).unwrap();
            *array = Array::of(&tensor).unwrap();
        }
    });
    let model = model(&cpu());
    let adapters = lora_from(&model, folder, None, &Rng::new(0)).unwrap();
    assert!(adapters.parameters().iter().all(|(_, parameter)| parameter.value().dtype() == DType::F32));
}
