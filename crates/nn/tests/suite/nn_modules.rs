//! Modules: their values, their parameters' paths, and the scopes they run in.

use crate::ops_table::{device, runtime};
use bfc_core::{Bytes, Category};
use highwater_nn::modules::{
    BatchNorm, Conv1d, Conv2d, ConvTranspose2d, Dropout, Elu, Fans, GlobalAvgPool2d, GroupNorm, Init,
    InstanceNorm, LayerNorm, LeakyRelu, Linear, LinearOptions, LogSoftmax, Module, MultiHeadAttention, PRelu,
    Parameter, PixelShuffle, Relu, RmsNorm, Sequential, Softmax, Tanh, TransformerBlock, Upsample,
};
use highwater_tensor::{
    Conv1dOptions, Conv2dOptions, DType, Device, Error, GradCheck, Gradients, Interpolation, Result, Rng,
    Runtime, Tensor, check_gradients, no_grad,
};
use highwater_tracking::{Report, module};

fn tensor(device: &Device, values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(device, values, shape).unwrap()
}

#[test]
fn a_linear_layer_is_a_product_and_a_sum() {
    let device = device();
    let weight = Parameter::new(tensor(&device, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])).unwrap();
    let bias = Parameter::new(tensor(&device, &[0.5, 0.0, -0.5], &[3])).unwrap();
    let x = tensor(&device, &[1.0, 0.0, 1.0, 1.0], &[2, 2]);
    let layer = Linear::from_parameters(weight.clone(), Some(bias)).unwrap();
    assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), [1.5, 2.0, 2.5, 5.5, 7.0, 8.5]);
    let plain = Linear::from_parameters(weight, None).unwrap();
    assert_eq!(plain.forward(&x).unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 5.0, 7.0, 9.0]);
}

#[test]
fn a_linear_layer_takes_any_number_of_leading_axes() {
    let device = device();
    let layer = Linear::new(&device, 4, 2, &Rng::new(0)).unwrap();
    for shape in [&[3, 5, 4][..], &[0, 4]] {
        let y = layer.forward(&Tensor::zeros(&device, shape).unwrap()).unwrap();
        assert_eq!(y.dims().last(), Some(&2));
        assert_eq!(y.dims()[..shape.len() - 1], shape[..shape.len() - 1]);
    }
}

#[test]
fn the_gradients_of_a_linear_layer_are_those_of_the_formula() {
    let device = device();
    let values = |count: usize| (0..count).map(|i| (i as f64 * 0.7).sin()).collect::<Vec<_>>();
    let inputs = [(vec![5, 3], 15), (vec![3, 2], 6), (vec![2], 2)]
        .map(|(shape, count)| Tensor::from_slice(&device, &values(count), shape).unwrap());
    let function = |inputs: &[Tensor]| inputs[0].matmul(&inputs[1])?.add(&inputs[2]);
    check_gradients(function, &inputs, GradCheck::for_dtype(DType::F64)).unwrap();
    let [x, weight, bias] = inputs;
    let leaf = |tensor: &Tensor| Parameter::new(tensor.clone()).unwrap();
    let layer = Linear::from_parameters(leaf(&weight), Some(leaf(&bias))).unwrap();
    let gradients = layer.forward(&x).unwrap().sum_all().unwrap().backward().unwrap();
    let of_bias = gradients.get(&layer.bias().unwrap().tensor()).unwrap();
    assert_eq!(of_bias.to_vec::<f64>().unwrap(), [5.0, 5.0]);
}

#[test]
fn a_shape_error_of_a_layer_names_the_op_and_both_shapes() {
    let device = device();
    let layer = Linear::new(&device, 4, 2, &Rng::new(0)).unwrap();
    let error = layer.forward(&Tensor::zeros(&device, [3, 5]).unwrap()).unwrap_err().to_string();
    assert!(error.contains("linear") && error.contains("[3, 5]") && error.contains("[4, 2]"), "{error}");
}

#[test]
fn parameters_that_make_no_linear_layer_are_refused() {
    let device = device();
    let parameter = |shape: &[usize]| Parameter::new(Tensor::zeros(&device, shape).unwrap()).unwrap();
    let make = |weight: &[usize], bias: &[usize]| {
        Linear::from_parameters(parameter(weight), Some(parameter(bias))).unwrap_err()
    };
    assert!(matches!(make(&[2], &[2]), Error::BadRank { op: "linear", .. }));
    assert!(matches!(make(&[2, 3], &[3, 1]), Error::BadRank { op: "linear", .. }));
    assert!(matches!(make(&[2, 3], &[2]), Error::ShapeMismatch { op: "linear", .. }));
}

#[test]
fn dropout_in_training_keeps_the_mean() {
    let device = device();
    let x = Tensor::ones(&device, [10_000]).unwrap();
    let dropout = Dropout::new(0.25, &Rng::new(3)).unwrap();
    let dropped = dropout.forward(&x).unwrap().to_vec::<f32>().unwrap();
    let zeros = dropped.iter().filter(|&&value| value == 0.0).count();
    // Six standard deviations of a binomial count with mean 2500.
    assert!((2240..2760).contains(&zeros), "{zeros}");
    assert!(dropped.iter().all(|&value| value == 0.0 || (value - 4.0 / 3.0).abs() < 1e-6));
    assert!(no_grad(|| dropout.forward(&x)).unwrap().shares_buffer_with(&x));
}

#[test]
fn dropout_restarts_its_sequence_with_its_seed() {
    let x = Tensor::ones(&device(), [100]).unwrap();
    let twice = || {
        let dropout = Dropout::new(0.5, &Rng::new(3)).unwrap();
        [(); 2].map(|()| dropout.forward(&x).unwrap().to_vec::<f32>().unwrap())
    };
    assert_eq!(twice(), twice());
    assert_ne!(twice()[0], twice()[1]);
}

#[test]
fn layers_share_the_sequence_of_their_generator() {
    let (device, rng) = (device(), Rng::new(3));
    let x = Tensor::ones(&device, [100]).unwrap();
    let values = |dropout: &Dropout| dropout.forward(&x).unwrap().to_vec::<f32>().unwrap();
    let (first, second) = (Dropout::new(0.5, &rng).unwrap(), Dropout::new(0.5, &rng).unwrap());
    let independent = Dropout::new(0.5, &rng.fork(0)).unwrap();
    let alone = values(&Dropout::new(0.5, &Rng::new(3).fork(0)).unwrap());
    assert_ne!(values(&first), values(&second), "both advance one sequence");
    assert_eq!(rng.state().sequence, 2);
    assert_eq!(values(&independent), alone, "the others do not advance a fork");
    assert_eq!(rng.state().sequence, 2);
}

#[test]
fn activations_with_options_are_those_of_tensors() {
    let device = device();
    let x = tensor(&device, &[-2.0, -0.5, 0.0, 3.0], &[2, 2]).requiring_grad().unwrap();
    let same = |module: &dyn Module, expected: Result<Tensor>| {
        let values = |y: Tensor| y.to_vec::<f32>().unwrap();
        assert_eq!(values(module.forward(&x).unwrap()), values(expected.unwrap()), "{module:?}");
    };
    same(&LeakyRelu::default(), x.leaky_relu(0.01));
    same(&LeakyRelu::new(0.2), x.leaky_relu(0.2));
    same(&Elu::default(), x.elu(1.0));
    same(&Elu::new(0.5), x.elu(0.5));
    same(&Softmax::new(0), x.softmax(0));
    same(&LogSoftmax::new(-1), x.log_softmax(-1));
    let prelu = PRelu::per_channel(&device, 2).unwrap();
    same(&prelu, x.leaky_relu(0.25));
    let loss = prelu.forward(&x).unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    assert_eq!(gradients.get(&prelu.weight().tensor()).unwrap().to_vec::<f32>().unwrap(), [-2.0, -0.5]);
}

#[test]
fn dropout_of_everything_or_less_than_nothing_is_refused() {
    let x = Tensor::ones(&device(), [3]).unwrap();
    for p in [1.0, 1.5, -0.1, f64::NAN] {
        let refused = Dropout::new(p, &Rng::new(0));
        assert!(matches!(refused, Err(Error::BadArgument { op: "dropout", argument: "p", .. })));
    }
    assert!(Dropout::new(0.0, &Rng::new(0)).unwrap().forward(&x).unwrap().shares_buffer_with(&x));
}

#[test]
fn a_sequential_applies_its_modules_in_order() {
    let device = device();
    let x = tensor(&device, &[-1.0, 2.0], &[2]);
    assert!(Sequential::new().forward(&x).unwrap().shares_buffer_with(&x));
    let net = Sequential::new().with("relu", Relu).with("tanh", Tanh);
    assert_eq!(net.forward(&x).unwrap().to_vec::<f32>().unwrap(), [0.0, 2f32.tanh()]);
    assert_eq!((net.len(), net.is_empty()), (2, false));
}

#[test]
fn names_that_are_taken_or_empty_get_a_number() {
    let device = device();
    let layer = || {
        Linear::with_options(&device, 1, 1, LinearOptions { bias: None, ..Default::default() }, &Rng::new(0))
    };
    let net = ["fc", "fc2", "fc", "", ".", "a..b"]
        .into_iter()
        .fold(Sequential::new(), |net, name| net.with(name, layer().unwrap()));
    let paths: Vec<_> = net.parameters().into_iter().map(|(path, _)| path).collect();
    assert_eq!(
        paths,
        ["fc.weight", "fc2.weight", "fc3.weight", "layer.weight", "layer2.weight", "a.b.weight"]
    );
}

#[test]
fn paths_of_parameters_are_the_scopes_their_layers_run_in() {
    let runtime = runtime();
    let device = runtime.cpu().unwrap();
    let rng = Rng::new(0);
    let block = Sequential::new()
        .with("fc", Linear::new(&device, 3, 3, &rng).unwrap())
        .with("relu", Relu)
        .with("tanh", Tanh);
    let net = Sequential::new().with("block", block).with("head", Linear::new(&device, 3, 2, &rng).unwrap());
    runtime.tracker().reset();
    net.forward(&Tensor::ones(&device, [1, 3]).unwrap()).unwrap();
    let scope_of = |op: &str| {
        let totals = runtime.tracker().op_totals();
        let rows = totals.iter().filter(|row| row.op == op && row.totals.calls > 0);
        rows.map(|row| row.module.path()).collect::<Vec<_>>()
    };
    assert_eq!(scope_of("linear_relu"), ["block.fc"]);
    assert_eq!(scope_of("tanh"), ["block.tanh"]);
    assert_eq!(scope_of("linear"), ["head"]);
    let paths: Vec<_> = net.parameters().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["block.fc.weight", "block.fc.bias", "head.weight", "head.bias"]);
}

#[test]
fn a_parameter_used_twice_counts_once() {
    let device = device();
    let weight = Parameter::new(Tensor::zeros(&device, [4, 4]).unwrap()).unwrap();
    let tied = || Linear::from_parameters(weight.clone(), None).unwrap();
    let net = Sequential::new().with("a", tied()).with("b", tied());
    assert_eq!(net.parameters().len(), 2);
    assert_eq!(net.parameter_count(), 16);
}

#[test]
fn parameters_are_parameters_in_the_accounts() {
    let runtime = runtime();
    let device = runtime.cpu().unwrap();
    let layer = Linear::new(&device, 64, 128, &Rng::new(0)).unwrap();
    let ledger = device.default_allocator().unwrap().ledger();
    assert_eq!(ledger.category(Category::Parameter), (64 * 128 + 128) * 4);
    assert_eq!(ledger.total(), ledger.category(Category::Parameter));
    let totals = runtime.tracker().op_totals();
    assert!(totals.iter().all(|row| row.totals.persistent_bytes == row.totals.total_bytes()));
    drop(layer);
    assert_eq!(device.default_allocator().unwrap().stats().bytes_in_use, 0);
}

#[test]
fn parameters_are_held_in_the_scope_of_their_path() {
    let runtime = runtime();
    let device = runtime.cpu().unwrap();
    let rng = Rng::new(0);
    let block = Sequential::new().with("fc", Linear::new(&device, 64, 64, &rng).unwrap());
    let net = {
        let _scope = module("net");
        let head = Linear::new(&device, 64, 1, &rng).unwrap();
        let net = Sequential::new().with("block", block).with("head", head);
        assert_eq!(net.parameters().len(), 4);
        net
    };
    let pool = device.default_allocator().unwrap().clone();
    let report = Report::new(runtime.tracker(), &[pool]);
    let live: Vec<_> = report.scopes.iter().map(|row| (row.scope.as_str(), row.live_bytes)).collect();
    assert_eq!(
        live,
        [("", 17_152), ("net", 17_152), ("net.block", 16_640), ("net.block.fc", 16_640), ("net.head", 512)]
    );
    assert_eq!((report.ops.len(), report.ops[0].op.as_str(), report.ops[0].calls), (1, "init", 4));
    assert_eq!(report.unowned_bytes, 0);
    drop(net);
}

#[test]
fn a_layer_too_large_for_the_pool_is_an_error_with_a_report() {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let error = Linear::new(&device, 1024, 1024, &Rng::new(0)).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_eq!(device.default_allocator().unwrap().stats().bytes_in_use, 0);
}

#[test]
fn initial_values_have_the_variance_of_their_scheme() {
    let (device, rng, fans) = (device(), Rng::new(1), Fans { inputs: 200, outputs: 300 });
    let cases = [
        (Init::XavierUniform, 2.0_f64 / 500.0),
        (Init::XavierNormal, 2.0 / 500.0),
        (Init::KaimingUniform, 2.0 / 200.0),
        (Init::KaimingNormal, 2.0 / 200.0),
        (Init::Uniform { low: -3.0, high: 3.0 }, 3.0),
        (Init::Normal { mean: 0.0, std: 2.0 }, 4.0),
    ];
    for (init, variance) in cases {
        let parameter = init.parameter(&device, [200, 300], DType::F64, fans, &rng).unwrap();
        let values = parameter.tensor().to_vec::<f64>().unwrap();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let measured = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        // Over five standard deviations of both estimates, from 60,000 values.
        assert!(mean.abs() < 0.025 * variance.sqrt(), "{init:?}: mean {mean}");
        assert!((measured / variance - 1.0).abs() < 0.03, "{init:?}: variance {measured}, not {variance}");
        if matches!(init, Init::XavierUniform | Init::KaimingUniform | Init::Uniform { .. }) {
            let bound = (3.0 * variance).sqrt() * (1.0 + 1e-9);
            assert!(values.iter().all(|value| value.abs() <= bound), "{init:?}");
        }
    }
    let constant = Init::Constant(0.5).parameter(&device, [3], DType::F32, fans, &rng).unwrap();
    assert_eq!(constant.tensor().to_vec::<f32>().unwrap(), [0.5; 3]);
}

#[test]
fn initial_values_that_are_none_are_refused_by_name() {
    let device = device();
    let make = |init: Init, dtype| {
        init.parameter(&device, [3], dtype, Fans { inputs: 1, outputs: 1 }, &Rng::new(0)).unwrap_err()
    };
    let cases = [
        (Init::Constant(f64::NAN), "value"),
        (Init::Uniform { low: f64::NEG_INFINITY, high: 0.0 }, "low"),
        (Init::Uniform { low: 1.0, high: 1.0 }, "high"),
        (Init::Normal { mean: f64::NAN, std: 1.0 }, "mean"),
        (Init::Normal { mean: 0.0, std: -1.0 }, "std"),
    ];
    for (init, name) in cases {
        assert!(
            matches!(make(init, DType::F32), Error::BadArgument { op: "init", argument, .. } if argument == name)
        );
    }
    assert!(matches!(make(Init::Zeros, DType::I64), Error::UnsupportedDType { op: "init", .. }));
}

#[test]
fn a_model_that_is_converted_to_integers_says_so() {
    let layer = Linear::new(&device(), 2, 2, &Rng::new(0)).unwrap();
    let converted = layer.convert(DType::I64).unwrap_err();
    assert!(matches!(converted, Error::UnsupportedDType { op: "convert", dtype: DType::I64 }), "{converted}");
}

#[test]
fn one_seed_gives_one_layer() {
    let device = device();
    let weights = |seed| {
        let layer = Linear::new(&device, 5, 7, &Rng::new(seed)).unwrap();
        layer.weight().tensor().to_vec::<f32>().unwrap()
    };
    assert_eq!(weights(4), weights(4));
    assert_ne!(weights(4), weights(5));
}

#[test]
fn an_ambiguous_dotted_name_gets_a_number() {
    let (device, rng) = (device(), Rng::new(0));
    let linear = || Linear::new(&device, 2, 2, &rng).unwrap();
    let inner = || Sequential::new().with("fc", linear());
    for net in [
        Sequential::new().with("block", inner()).with("block.fc", linear()),
        Sequential::new().with("block.fc", linear()).with("block", inner()),
    ] {
        let mut paths: Vec<_> = net.parameters().into_iter().map(|(path, _)| path).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 4, "{paths:?}");
    }
    let net = Sequential::new().with("block", inner()).with("block.out", linear());
    assert_eq!(net.parameters()[2].0, "block.out.weight");
}

#[test]
fn a_convolutional_layer_adds_its_bias_to_each_channel() {
    let device = device();
    let layer = Conv2d::new(&device, 2, 3, [2, 2], Conv2dOptions::default(), &Rng::new(1)).unwrap();
    layer.bias().unwrap().set(&Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], 3).unwrap()).unwrap();
    let x = Tensor::normal(&device, [1, 2, 3, 3], 0.0, 1.0, &Rng::new(2)).unwrap();
    let without = x.conv2d(&layer.weight().tensor(), Conv2dOptions::default()).unwrap();
    let added = layer.forward(&x).unwrap().sub(&without).unwrap().to_vec::<f32>().unwrap();
    for (place, added) in added.into_iter().enumerate() {
        assert!((added - (place / 4 + 1) as f32).abs() < 1e-5, "{added} at {place}");
    }
}

#[test]
fn layers_without_biases_have_weights_alone_and_add_nothing() {
    let (device, rng) = (device(), Rng::new(1));
    let paths = |module: &dyn Module| -> Vec<String> {
        module.parameters().into_iter().map(|(path, _)| path).collect()
    };
    let options = Conv2dOptions::default();
    let layer = Conv2d::new(&device, 2, 3, [2, 2], options, &rng).unwrap().without_bias();
    let x = Tensor::normal(&device, [1, 2, 3, 3], 0.0, 1.0, &Rng::new(2)).unwrap();
    let product = x.conv2d(&layer.weight().tensor(), options).unwrap();
    assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), product.to_vec::<f32>().unwrap());
    assert!(layer.bias().is_none());
    assert_eq!(paths(&layer), ["weight"]);
    let sequence = Conv1d::new(&device, 2, 3, 2, Conv1dOptions::default(), &rng).unwrap();
    assert_eq!(paths(&sequence.without_bias()), ["weight"]);
    assert_eq!(paths(&Linear::new(&device, 2, 3, &rng).unwrap().without_bias()), ["weight"]);
    let transposed = ConvTranspose2d::new(&device, 2, 3, [2, 2], options, &rng).unwrap().without_bias();
    assert_eq!(paths(&transposed), ["weight"]);
    let attention = MultiHeadAttention::new(&device, 4, 2, &rng).unwrap().causal().without_bias();
    assert_eq!(paths(&attention), ["project.weight", "output.weight"]);
    let block = TransformerBlock::new(&device, 4, 2, &rng).unwrap().causal().without_bias();
    let biases: Vec<String> = paths(&block).into_iter().filter(|path| path.ends_with("bias")).collect();
    assert_eq!(biases, ["norm1.bias", "norm2.bias"]);
    assert_eq!(block.forward(&Tensor::ones(&device, [1, 3, 4]).unwrap()).unwrap().dims(), [1, 3, 4]);
}

#[test]
fn norms_add_the_epsilon_that_was_set_to_variances() {
    let device = device();
    // Of variance 1 and mean square 1.
    let x = Tensor::from_slice(&device, &[-1.0f32, 1.0, -1.0, 1.0], [1, 4]).unwrap();
    let (columns, image) = (x.reshape([4, 1]).unwrap(), x.reshape([1, 1, 4]).unwrap());
    let with = |epsilon: f64| -> Vec<(Box<dyn Module>, &Tensor)> {
        vec![
            (Box::new(LayerNorm::new(&device, 4).unwrap().with_epsilon(epsilon)), &x),
            (Box::new(RmsNorm::new(&device, 4).unwrap().with_epsilon(epsilon)), &x),
            (Box::new(GroupNorm::new(&device, 1, 4).unwrap().with_epsilon(epsilon)), &x),
            (Box::new(BatchNorm::new(&device, 1).unwrap().with_epsilon(epsilon)), &columns),
            (Box::new(InstanceNorm::new(1).with_epsilon(epsilon)), &image),
        ]
    };
    for (epsilon, expected) in [(3.0, 0.5f32), (0.0, 1.0)] {
        for (norm, x) in with(epsilon) {
            let largest = norm.forward(x).unwrap().max_all().unwrap().item::<f32>().unwrap();
            assert!((largest - expected).abs() < 1e-6, "{norm:?}: {largest}");
        }
    }
    // The running variance begins at 1.
    let norm = BatchNorm::new(&device, 1).unwrap().with_epsilon(3.0);
    let used = no_grad(|| norm.forward(&columns)).unwrap().max_all().unwrap().item::<f32>().unwrap();
    assert!((used - 0.5).abs() < 1e-6, "{used}");
    for refused in [-1e-5, f64::NAN, f64::INFINITY] {
        for (norm, x) in with(refused) {
            let error = norm.forward(x).unwrap_err();
            assert!(matches!(error, Error::BadArgument { argument: "epsilon", .. }), "{norm:?}: {error}");
        }
    }
    let block = TransformerBlock::new(&device, 4, 2, &Rng::new(0)).unwrap().with_epsilon(1e-12);
    assert_eq!(format!("{block:?}").matches("epsilon 1e-12").count(), 2);
}

#[test]
fn biases_and_residuals_are_added_where_the_layers_results_lie() {
    let (device, rng) = (device(), Rng::new(0));
    let options = Conv2dOptions::default();
    let layer = Conv2d::new(&device, 2, 3, [1, 1], options, &rng).unwrap();
    let x = Tensor::normal(&device, [1, 2, 20, 20], 0.0, 1.0, &rng).unwrap();
    let memory = device.default_allocator().unwrap();
    memory.clear_stats();
    let before = memory.stats().bytes_in_use;
    let y = layer.forward(&x).unwrap();
    let size = (y.elements() * 4) as u64;
    assert!(memory.stats().peak_bytes_in_use - before < 2 * size);
    // Also with gradients, which are those of an addition apart.
    let gradients = y.square().unwrap().sum_all().unwrap().backward().unwrap();
    let apart = x.conv2d(&layer.weight().tensor(), options).unwrap();
    let bias = layer.bias().unwrap().tensor();
    let apart = apart.add(&bias.reshape([3, 1, 1]).unwrap()).unwrap();
    let expected = apart.square().unwrap().sum_all().unwrap().backward().unwrap();
    for parameter in [layer.weight(), layer.bias().unwrap()] {
        let of = |gradients: &Gradients| gradients.get(&parameter.tensor()).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(of(&gradients), of(&expected));
    }
}

#[test]
fn layers_of_images_equal_their_ops() {
    let device = device();
    let x = Tensor::normal(&device, [2, 4, 3, 5], 0.0, 1.0, &Rng::new(1)).unwrap();
    let same = |module: &dyn Module, expected: Result<Tensor>| {
        let (y, expected) = (module.forward(&x).unwrap(), expected.unwrap());
        assert_eq!(y.dims(), expected.dims(), "{module:?}");
        // A mean and an average pool may add in another order.
        let (y, expected) = (y.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
        assert!(y.iter().zip(&expected).all(|(y, expected)| (y - expected).abs() < 1e-6), "{module:?}");
    };
    let bilinear = Interpolation::Bilinear { align_corners: true };
    same(&Upsample::new([6, 6], bilinear), x.interpolate([6, 6], bilinear));
    same(&Upsample::new(2.0, Interpolation::Nearest), x.interpolate(2.0, Interpolation::Nearest));
    same(&PixelShuffle::new(2), x.pixel_shuffle(2));
    same(&GlobalAvgPool2d::default(), x.adaptive_avg_pool2d([1, 1]).and_then(|means| means.flatten_from(1)));
    assert!(matches!(GlobalAvgPool2d::default().forward(&x.at(0).unwrap()), Err(Error::BadRank { .. })));
    same(&InstanceNorm::new(4), x.group_norm(4, None, 1e-5));

    let affine = InstanceNorm::new(4).with_affine(&device).unwrap();
    let parameters = affine.parameters();
    assert_eq!([&parameters[0].0, &parameters[1].0], ["weight", "bias"]);
    let (weight, bias) = (tensor(&device, &[1.0, 2.0, 3.0, 4.0], &[4]), tensor(&device, &[5.0; 4], &[4]));
    parameters[0].1.set(&weight).unwrap();
    parameters[1].1.set(&bias).unwrap();
    same(&affine, x.group_norm(4, Some((&weight, &bias)), 1e-5));
    for norm in [InstanceNorm::new(3), InstanceNorm::new(3).with_affine(&device).unwrap()] {
        let expected = "instance_norm: x must be of the layer's number of channels, \
                        got shape [2, 4, 3, 5] for 3 channels";
        assert_eq!(norm.forward(&x).unwrap_err().to_string(), expected);
    }
}
