//! Blocks that run again in the backward pass: bits, memory, and the recomputations that `trade_offs` finds.

use crate::ops_table::{device, dry_device};
use bfc_core::Environment;
use highwater_nn::modules::{
    AvgPool2d, BatchNorm, Checkpointed, Conv2d, Dropout, Flatten, Gelu, LayerNorm, Linear, MaxPool2d, Module,
    Relu, Sequential, TransformerBlock, chain, module,
};
use highwater_nn::optim::{Optimizer, Sgd};
use highwater_nn::recompute::{Observed, Recomputation, Recompute, Segment, observe, trade_offs};
use highwater_tensor::{
    Conv2dOptions, Device, DeviceProfile, DryRunOptions, Error, Parameter, Result, Rng, Runtime, Tensor,
    no_grad,
};

const WIDTH: usize = 8;

/// A block of a user: y = x + down(dropout(gelu(up(norm(x))))).
#[derive(Clone, Debug, Module)]
struct Block {
    norm: LayerNorm,
    inner: Sequential,
}

impl Block {
    fn new(device: &Device, hidden: usize, rng: &Rng) -> Self {
        let inner = Sequential::new()
            .with("up", Linear::new(device, WIDTH, hidden, rng).unwrap())
            .with("gelu", Gelu)
            .with("dropout", Dropout::new(0.2, &rng.fork(1)).unwrap())
            .with("down", Linear::new(device, hidden, WIDTH, rng).unwrap());
        Self { norm: LayerNorm::new(device, WIDTH).unwrap(), inner }
    }
}

#[module]
impl Module for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.add(&self.inner.forward(&self.norm.forward(x)?)?)
    }
}

/// A stem, a chain of blocks of different sizes, and a head.
#[derive(Debug, Module)]
struct Network {
    stem: Linear,
    blocks: Vec<Block>,
    head: Linear,
}

impl Network {
    fn new(device: &Device) -> Self {
        let rng = Rng::new(3);
        Self {
            stem: Linear::new(device, WIDTH, WIDTH, &rng).unwrap(),
            blocks: [16, 64, 8, 32, 24].map(|hidden| Block::new(device, hidden, &rng)).into(),
            head: Linear::new(device, WIDTH, 2, &rng).unwrap(),
        }
    }
}

#[module]
impl Module for Network {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&chain(&self.blocks, &self.stem.forward(x)?)?)
    }
}

/// A chain of modules without a stem.
fn perceptron(device: &Device) -> Sequential {
    let rng = Rng::new(4);
    let linear = |inputs, outputs| Linear::new(device, inputs, outputs, &rng).unwrap();
    Sequential::new()
        .with("fc1", linear(WIDTH, 32))
        .with("relu", Relu)
        .with("dropout", Dropout::new(0.3, &rng.fork(1)).unwrap())
        .with("fc2", linear(32, 16))
        .with("gelu", Gelu)
        .with("norm", LayerNorm::new(device, 16).unwrap())
        .with("fc3", linear(16, 2))
}

/// A network of convolutions on images of 8 × 8, with batch norms.
fn convolutions(device: &Device) -> Sequential {
    let rng = Rng::new(5);
    let mut net = Sequential::new();
    for (stage, [inputs, outputs]) in [[1, 8], [8, 12], [12, 6]].into_iter().enumerate() {
        let conv = Conv2d::new(device, inputs, outputs, [3, 3], Conv2dOptions::padded(1), &rng).unwrap();
        let norm = BatchNorm::new(device, outputs).unwrap();
        net = net.with("conv", conv).with("norm", norm).with("relu", Relu);
        net = match stage {
            0 => net.with("pool", MaxPool2d::new(2)),
            1 => net.with("dropout", Dropout::new(0.2, &rng.fork(1)).unwrap()),
            _ => net.with("pool", AvgPool2d::new(2)),
        };
    }
    net.with("flat", Flatten).with("fc", Linear::new(device, 24, 2, &rng).unwrap())
}

fn loss(model: &dyn Module, x: &Tensor) -> Result<Tensor> {
    model.forward(x)?.square()?.mean_all()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Losses, gradients, and then parameters, buffers and random generators of three steps, as bits.
fn train(model: &dyn Module, x: &Tensor, recompute: &Recompute) -> Vec<(String, Vec<u32>)> {
    let mut seen = Vec::new();
    let parameters = model.parameters();
    let mut sgd = Sgd::new(parameters.clone(), 0.05).unwrap().with_momentum(0.9).unwrap();
    let guard = recompute.enter();
    for _ in 0..3 {
        let loss = loss(model, x).unwrap();
        seen.push(("loss".to_owned(), bits(&loss)));
        let gradients = loss.backward().unwrap();
        for (path, parameter) in &parameters {
            seen.push((format!("gradient of {path}"), bits(gradients.get(&parameter.tensor()).unwrap())));
        }
        sgd.step(gradients).unwrap();
    }
    assert_eq!(guard.unused(), [""; 0]);
    let values = |(path, parameter): (String, Parameter)| (path, bits(&parameter.value()));
    seen.extend(model.parameters().into_iter().chain(model.buffers()).map(values));
    let state = |rng: Rng| u32::try_from(rng.state().sequence).unwrap();
    seen.extend(model.rngs().into_iter().map(|(path, rng)| (path, vec![state(rng)])));
    seen
}

/// The same values, contiguous and as a part of a larger tensor.
fn inputs(device: &Device, dims: &[usize]) -> [Tensor; 2] {
    let x = Tensor::normal(device, dims, 0.0, 1.0, &Rng::new(9)).unwrap();
    let beside = Tensor::ones(device, dims).unwrap();
    let offset = Tensor::concat(&[&beside, &x, &beside], 0).unwrap().narrow(0, dims[0], dims[0]).unwrap();
    [x, offset]
}

/// Checks that a model trains to the same bits with each of these recomputations for a chain.
fn assert_same_bits<M: Module>(
    make: impl Fn(&Device) -> M,
    dims: &[usize],
    path: &str,
    recomputations: &[&str],
) {
    let device = device();
    for x in inputs(&device, dims) {
        let plain = train(&make(&device), &x, &Recompute::new());
        for text in recomputations {
            let recompute = Recompute::new().with(path, text.parse().unwrap());
            let recomputed = train(&make(&device), &x, &recompute);
            for (recomputed, plain) in recomputed.iter().zip(&plain) {
                assert_eq!(recomputed, plain, "{recompute}");
            }
            assert_eq!(recomputed.len(), plain.len());
        }
    }
}

#[test]
fn a_sequence_trains_to_the_same_bits() {
    let recomputations =
        ["5", "(1) (1) (1) (1) (1)", "(2) 3", "(5)", "(2) (2 (1))", "(((1) 1) 1) 2", "1 (1) (2 (1))"];
    assert_same_bits(perceptron, &[6, WIDTH], "", &recomputations);
}

#[test]
fn blocks_of_a_user_train_to_the_same_bits() {
    let recomputations = ["(1) 1 (1) 1 (1)", "(2) (2) 1", "(5)", "((2) (1) 1) 1", "1 ((1) 1) (2)"];
    assert_same_bits(Network::new, &[6, WIDTH], "blocks", &recomputations);
    // A chain inside a block.
    assert_same_bits(Network::new, &[6, WIDTH], "blocks.1.inner", &["(1) 1 (1)", "((1) 1) 1"]);
}

#[test]
fn running_means_move_once() {
    let recomputations =
        ["(1) (1) (1) (1) (1) (1) (1) (1) (1) (1) (1)", "(5) 6", "((3) 1) 2 (3) 2", "((1) (1) (1 (1)) (7))"];
    assert_same_bits(convolutions, &[3, 1, 8, 8], "", &recomputations);
}

/// Transformer blocks in shared pointers.
#[derive(Debug, Module)]
struct Shared {
    blocks: Vec<std::sync::Arc<TransformerBlock>>,
}

#[module]
impl Module for Shared {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        chain(&self.blocks, x)
    }
}

#[test]
fn shared_blocks_train_to_the_same_bits() {
    let make = |device: &Device| {
        let rng = Rng::new(2);
        let block = || {
            TransformerBlock::new(device, WIDTH, 2, &rng)
                .unwrap()
                .causal()
                .with_dropout(0.1, &rng.fork(7))
                .unwrap()
        };
        Shared { blocks: (0..3).map(|_| std::sync::Arc::new(block())).collect() }
    };
    assert_same_bits(make, &[2, 5, WIDTH], "blocks", &["(1) (1) 1", "(3)", "((1) 1) 1"]);
}

#[test]
fn a_clone_shares_values_and_random_numbers() {
    let device = device();
    let net = convolutions(&device);
    let clone = net.clone();
    let [own, cloned] = [&net, &clone].map(|net| net.parameters().into_iter().chain(net.buffers()));
    for ((path, own), (cloned_path, cloned)) in own.zip(cloned) {
        assert!(path == cloned_path && own.is_same(&cloned), "{path}");
    }
    let x = Tensor::ones(&device, [2, 1, 8, 8]).unwrap();
    clone.forward(&x).unwrap();
    assert_eq!(net.rngs()[0].1.state(), clone.rngs()[0].1.state());
    assert_eq!(net.rngs()[0].1.state().sequence, 1);
}

#[test]
fn another_number_of_blocks_is_an_error_that_names_both() {
    let device = dry_device();
    let net = perceptron(&device);
    let x = Tensor::zeros(&device, [6, WIDTH]).unwrap();
    let guard = Recompute::new().with("", Recomputation::of_blocks(7, [1])).enter();
    let error = net.forward(&x).unwrap_err();
    assert!(matches!(error.root(), Error::BadArgument { argument: "recomputation", .. }), "{error}");
    assert!(error.to_string().contains("7 blocks for the 5 of the model"), "{error}");
    drop(guard);
    net.forward(&x).unwrap();
}

#[test]
fn a_guard_knows_the_paths_that_no_chain_has() {
    let device = dry_device();
    let net = Network::new(&device);
    let x = Tensor::zeros(&device, [6, WIDTH]).unwrap();
    let recompute = Recompute::new()
        .with("block", Recomputation::keep_all(5))
        .with("blocks", Recomputation::of_blocks(5, 0..4))
        .with("blocks.7.inner", Recomputation::keep_all(3));
    let guard = recompute.enter();
    assert_eq!(guard.unused(), ["block", "blocks", "blocks.7.inner"]);
    loss(&net, &x).unwrap();
    assert_eq!(guard.unused(), ["block", "blocks.7.inner"]);
    // The innermost guard counts.
    let inner = Recompute::new().with("stem", Recomputation::keep_all(1)).enter();
    loss(&net, &x).unwrap();
    assert_eq!(inner.unused(), ["stem"]);
}

#[test]
fn recomputations_print_and_return_from_json() {
    let recompute = Recompute::new()
        .with(
            "",
            Recomputation::new(vec![
                Segment::Keep,
                Segment::Again(vec![Segment::Again(vec![Segment::Keep; 2]), Segment::Keep]),
            ]),
        )
        .with("blocks", Recomputation::keep_all(3))
        .with("decoder.blocks", Recomputation::of_blocks(3, [0]));
    assert_eq!(recompute.to_string(), "(model): 1 ((2) 1); decoder.blocks: (1) 2");
    let json = serde_json::to_string(&recompute).unwrap();
    assert_eq!(json, r#"{"":"1 ((2) 1)","blocks":"3","decoder.blocks":"(1) 2"}"#);
    assert_eq!(serde_json::from_str::<Recompute>(&json).unwrap(), recompute);
    assert_eq!(Recompute::new().with("blocks", Recomputation::keep_all(3)).to_string(), "no recomputation");
    let mut numbered = Recompute::new();
    for (block, recomputation) in [(8, "(2)"), (9, "(2)"), (10, "(2)"), (11, "1 (1)"), (13, "1 (1)")] {
        numbered = numbered.with(format!("layers.{block}.mlp"), recomputation.parse().unwrap());
    }
    assert_eq!(numbered.to_string(), "layers.8–10.mlp: (2); layers.11.mlp: 1 (1); layers.13.mlp: 1 (1)");
}

/// The peak of one step with a fresh model.
fn step<M: Module>(
    device: &Device,
    make: impl Fn(&Device) -> M,
    dims: &[usize],
    recompute: &Recompute,
) -> Result<()> {
    let model = make(device);
    let mut sgd = Sgd::new(model.parameters(), 0.1)?;
    let x = Tensor::zeros(device, dims)?;
    let guard = recompute.enter();
    let loss = loss(&model, &x)?;
    // The backward pass uses the recomputations of its forward pass.
    drop(guard);
    sgd.step(loss.backward()?)
}

fn dry() -> DryRunOptions {
    DryRunOptions::new(DeviceProfile::this_machine()).environment(Environment::default())
}

/// The exact peak of a step.
fn peak<M: Module>(make: impl Fn(&Device) -> M, dims: &[usize], recompute: &Recompute) -> u64 {
    dry().run(|device| step(device, &make, dims, recompute)).unwrap().peak.in_use
}

fn observed<M: Module>(make: impl Fn(&Device) -> M, dims: &[usize], level: usize) -> Observed {
    let run = dry().run(|device| {
        let (result, observed) = observe(level, || step(device, &make, dims, &Recompute::new()));
        result.map(|()| observed)
    });
    run.unwrap().result
}

#[test]
fn real_peaks_are_those_of_dry_runs() {
    let dims = [64, WIDTH];
    for text in ["5", "(1) (1) (1) (1) (1)", "((2) (1) 1) 1", "(5)"] {
        let recompute = Recompute::new().with("blocks", text.parse().unwrap());
        let cpu = Runtime::builder().environment(Environment::default()).build().unwrap().cpu().unwrap();
        step(&cpu, Network::new, &dims, &recompute).unwrap();
        let real = cpu.default_allocator().unwrap().stats();
        let dry = dry().run(|device| step(device, Network::new, &dims, &recompute)).unwrap().peak;
        assert_eq!(
            (dry.in_use, dry.requested),
            (real.peak_bytes_in_use, real.peak_bytes_requested),
            "{text}"
        );
    }
}

#[test]
fn recomputation_lowers_the_peak_also_inside_of_blocks() {
    let dims = [4096, WIDTH];
    let of = |recompute: Recompute| peak(Network::new, &dims, &recompute);
    let plain = of(Recompute::new());
    let each = Recompute::new().with("blocks", Recomputation::of_blocks(5, 0..5));
    // The block of 64 hidden columns dominates its own second run, in which its inner chain runs again too.
    let both = each.clone().with("blocks.1.inner", "(1) 2".parse().unwrap());
    let [each, both] = [each, both].map(of);
    assert!(both < each && each < plain, "{both}, {each}, {plain}");
}

#[test]
fn observing_finds_the_chains_of_each_level() {
    let dims = [64, WIDTH];
    let outer = observed(Network::new, &dims, 0);
    assert_eq!(outer.chains.len(), 1);
    let chain = &outer.chains[0];
    assert_eq!((chain.path.as_str(), chain.level, chain.passes, chain.blocks.len()), ("blocks", 0, 1, 5));
    assert!(outer.has_deeper_chains && !outer.has_batch_norm);
    let row = (64 * WIDTH * 4) as i64;
    for (block, hidden) in chain.blocks.iter().zip([16, 64, 8, 32, 24]) {
        assert_eq!(block.output_bytes, row);
        // The output of the norm, its two statistics per row, the sum before gelu, the mask or the scaled values, the
        // input of down, and the output.
        let wide = (64 * hidden * 4) as i64;
        assert!(block.kept_bytes >= 2 * row + 2 * wide, "{block:?}");
        assert!(block.recorded_bytes >= block.kept_bytes && block.backward_bytes > block.kept_bytes);
    }
    let inner = observed(Network::new, &dims, 1);
    let paths: Vec<_> = inner.chains.iter().map(|chain| (chain.path.as_str(), chain.blocks.len())).collect();
    let expected: Vec<String> = (0..5).map(|block| format!("blocks.{block}.inner")).collect();
    assert_eq!(paths, expected.iter().map(|path| (path.as_str(), 3)).collect::<Vec<_>>());
    assert!(!inner.has_deeper_chains);
    assert_eq!(observed(Network::new, &dims, 2), Observed::default());
    assert!(observed(convolutions, &[3, 1, 8, 8], 0).has_batch_norm);
}

#[test]
fn observing_counts_passes_with_a_backward_pass() {
    let device = dry_device();
    let net = Network::new(&device);
    let _parameters = net.parameters();
    let x = Tensor::zeros(&device, [64, WIDTH]).unwrap();
    let (result, observed) = observe(0, || -> Result<()> {
        let mut sum = loss(&net, &x)?.backward()?;
        for _ in 0..2 {
            sum.accumulate(&mut loss(&net, &x)?.backward()?)?;
        }
        no_grad(|| net.forward(&x))?;
        Ok(())
    });
    result.unwrap();
    assert_eq!((observed.chains.len(), observed.chains[0].passes), (1, 3));
}

#[test]
fn chains_inside_of_checkpointed_modules_are_below_the_chain_around_them() {
    let device = dry_device();
    let make = || {
        let stem = Linear::new(&device, WIDTH, WIDTH, &Rng::new(1)).unwrap();
        Sequential::new().with("stem", stem).with("body", Checkpointed::new(perceptron(&device)))
    };
    let net = make();
    let x = Tensor::zeros(&device, [6, WIDTH]).unwrap();
    let paths = |level| {
        let (gradients, observed) = observe(level, || loss(&net, &x)?.backward());
        assert_eq!(gradients.unwrap().len(), net.parameters().len());
        observed.chains.into_iter().map(|chain| (chain.path, chain.passes)).collect::<Vec<_>>()
    };
    assert_eq!(paths(0), [(String::new(), 1)]);
    assert_eq!(paths(1), [("body".to_owned(), 1)]);
}

/// Checks that the modeled peak of each way is that of a dry run, and returns the number of ways.
fn assert_exact<M: Module>(make: impl Fn(&Device) -> M, dims: &[usize], level: usize) -> usize {
    let found = trade_offs(&observed(&make, dims, level).chains);
    for (way, next) in found.iter().zip(&found[1..]) {
        assert!(way.bytes < next.bytes && way.seconds > next.seconds);
    }
    for way in &found {
        assert_eq!(way.bytes, peak(&make, dims, &way.recompute), "{}", way.recompute);
    }
    assert!(found[found.len() - 1].recompute.is_plain());
    found.len()
}

#[test]
fn modeled_peaks_are_exact() {
    let dims = [512, WIDTH];
    let blocks = [0, 1].map(|level| assert_exact(Network::new, &dims, level));
    let sequence = assert_exact(perceptron, &dims, 0);
    let images = [assert_exact(convolutions, &[8, 1, 8, 8], 0), assert_exact(mixed, &[16, 1, 8, 8], 0)];
    assert!([blocks, images].concat().into_iter().chain([sequence]).all(|ways| ways >= 3));
}

#[test]
fn modeled_peaks_include_gradients_of_earlier_passes() {
    let step = |device: &Device, recompute: &Recompute| -> Result<()> {
        let model = Network::new(device);
        let mut sgd = Sgd::new(model.parameters(), 0.1)?;
        let x = Tensor::zeros(device, [512, WIDTH])?;
        let _guard = recompute.enter();
        let mut sum = loss(&model, &x)?.backward()?;
        for _ in 0..2 {
            sum.accumulate(&mut loss(&model, &x)?.backward()?)?;
        }
        sgd.step(sum)
    };
    let run = dry().run(|device| {
        let (result, observed) = observe(0, || step(device, &Recompute::new()));
        result.map(|()| observed)
    });
    let found = trade_offs(&run.unwrap().result.chains);
    assert_eq!(found.iter().map(|way| way.seconds).collect::<Vec<_>>(), [6.0, 3.0, 0.0]);
    for way in found {
        let peak = dry().run(|device| step(device, &way.recompute)).unwrap().peak.in_use;
        assert_eq!(way.bytes, peak, "{}", way.recompute);
    }
}

/// A chain of eleven blocks of different kinds and sizes: modules that save their input, their output, both or neither.
fn mixed(device: &Device) -> Sequential {
    let rng = Rng::new(6);
    let conv = |inputs, outputs| {
        Conv2d::new(device, inputs, outputs, [3, 3], Conv2dOptions::padded(1), &rng).unwrap()
    };
    let linear = |inputs, outputs| Linear::new(device, inputs, outputs, &rng).unwrap();
    Sequential::new()
        .with("conv1", conv(1, 8))
        .with("relu", Relu)
        .with("pool", MaxPool2d::new(2))
        .with("conv2", conv(8, 24))
        .with("gelu", Gelu)
        .with("dropout", Dropout::new(0.2, &rng.fork(1)).unwrap())
        .with("conv3", conv(24, 6))
        .with("relu", Relu)
        .with("pool", AvgPool2d::new(2))
        .with("flat", Flatten)
        .with("fc1", linear(24, 48))
        .with("gelu", Gelu)
        .with("norm", LayerNorm::new(device, 48).unwrap())
        .with("fc2", linear(48, 64))
        .with("relu", Relu)
        .with("fc3", linear(64, 2))
}

#[test]
fn no_set_of_single_blocks_is_faster_within_its_real_peak() {
    let dims = [16, 1, 8, 8];
    let mut chains = observed(mixed, &dims, 0).chains;
    let count = chains[0].blocks.len();
    assert_eq!(count, 11);
    // Each block has a time of its own, so no two sets of blocks take the same.
    let seconds = |block: usize| {
        [50, 7, 90, 21, 40, 5, 1, 30, 11, 33, 3][block] as f64 + f64::powi(0.5, block as i32 + 2)
    };
    for (block, costs) in chains[0].blocks.iter_mut().enumerate() {
        costs.forward_seconds = seconds(block);
    }
    let ways: Vec<(u64, f64)> =
        trade_offs(&chains).iter().map(|way| (peak(mixed, &dims, &way.recompute), way.seconds)).collect();
    for set in 0..1_usize << count {
        let which: Vec<_> = (0..count).filter(|block| set >> block & 1 == 1).collect();
        let time: f64 = which.iter().map(|&block| seconds(block)).sum();
        let recompute = Recompute::new().with("", Recomputation::of_blocks(count, which.iter().copied()));
        let limit = peak(mixed, &dims, &recompute);
        let best = ways.iter().filter(|(peak, _)| *peak <= limit).map(|(_, time)| *time).reduce(f64::min);
        assert!(
            best.is_some_and(|best| best <= time),
            "{which:?} takes {time} within {limit} bytes, {best:?} of {ways:?}"
        );
    }
}
