//! PyTorch's files, loaded into Highwater's networks.

use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::io::Array;
use highwater_nn::modules::{
    AvgPool2d, BatchNorm, Conv2d, ConvTranspose2d, Elu, Embedding, Flatten, GlobalAvgPool2d, Gru, Hardswish,
    InstanceNorm, Linear, Lstm, MaxPool2d, Mish, Module, Nonlinearity, PRelu, PixelShuffle, RecurrentOptions,
    Relu, Rnn, Sequential, Softmax, Upsample, module,
};
use highwater_tensor::{
    Conv2dOptions, Device, Error, Interpolation, Pool2dOptions, Result, Rng, Runtime, Tensor, no_grad,
};
use serde_json::Value;

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// An array of a state dictionary: its name, its shape, and its values.
type Entry<'a> = (&'a str, &'a [usize], Vec<f32>);

/// Values that are all different, small, and exact in f32.
fn numbers(count: usize, from: i32) -> Vec<f32> {
    (from..).take(count).map(|i| (i % 17 - 8) as f32 / 8.0).collect()
}

/// Returns the bytes of `safetensors.torch.save_file(dict, path, metadata={"format": "pt"})`. The JSON header
/// is padded with spaces to whole words. The values follow; arrays of 8-byte elements come first.
fn file(entries: &[Entry<'_>], counters: &[&str]) -> Vec<u8> {
    let (mut header, mut data) = (r#"{"__metadata__":{"format":"pt"}"#.to_owned(), Vec::new());
    let mut add = |name: &str, dtype: &str, shape: &[usize], bytes: &[u8]| {
        let (from, to) = (data.len(), data.len() + bytes.len());
        header +=
            &format!(r#","{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{from},{to}]}}"#);
        data.extend_from_slice(bytes);
    };
    counters.iter().for_each(|name| add(name, "I64", &[], &7_i64.to_le_bytes()));
    for (name, shape, values) in entries {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        add(name, "F32", shape, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    }
    header += "}";
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn load(entries: &[Entry<'_>], counters: &[&str]) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, file(entries, counters)).unwrap();
    Checkpoint::load(&path).unwrap()
}

/// Computes `nn.Linear` for one row: W·x + b, with W in the layout of the file.
fn linear(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let row = |(row, bias): (&[f32], &f32)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() + bias;
    weight.chunks(x.len()).zip(bias).map(row).collect()
}

fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{found} instead of {expected}");
    }
}

fn is_matrix(_name: &str, array: &Array) -> bool {
    array.shape().rank() == 2
}

#[test]
fn a_multilayer_perceptron_computes_what_it_computed() {
    let device = device();
    // nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)): a square weight fits either way, so only
    // its values show a wrong layout.
    let [w0, b0, w2, b2] = [numbers(9, 0), numbers(3, 9), numbers(6, 20), numbers(2, 4)];
    let entries: &[Entry<'_>] = &[
        ("0.bias", &[3], b0.clone()),
        ("0.weight", &[3, 3], w0.clone()),
        ("2.bias", &[2], b2.clone()),
        ("2.weight", &[2, 3], w2.clone()),
    ];
    let checkpoint = load(entries, &[]);
    let checkpoint =
        checkpoint.renamed(|name| Some(format!("fc{name}"))).unwrap().transposed(is_matrix).unwrap();
    let rng = Rng::new(0);
    let net = Sequential::new()
        .with("fc0", Linear::new(&device, 3, 3, &rng).unwrap())
        .with("relu", Relu)
        .with("fc2", Linear::new(&device, 3, 2, &rng).unwrap());
    checkpoint.restore(&net).unwrap();

    let x = [0.5f32, -1.0, 2.0];
    let y = net.forward(&Tensor::from_slice(&device, &x, [1, 3]).unwrap()).unwrap();
    let hidden: Vec<f32> = linear(&x, &w0, &b0).iter().map(|h| h.max(0.0)).collect();
    assert_near(&y.to_vec::<f32>().unwrap(), &linear(&hidden, &w2, &b2));
    // The file that Highwater writes for PyTorch equals the file that it read.
    let back = Checkpoint::of(&net).unwrap().transposed(is_matrix).unwrap();
    assert_eq!(back.parameters()["fc2.weight"].bytes(), bytemuck::cast_slice::<f32, u8>(&w2));
    assert_eq!(back.parameters()["fc2.weight"].shape().dims(), [2, 3]);
}

#[test]
fn a_convolutional_network_computes_what_it_computed() {
    let device = device();
    // nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)) on images of 3 by 3.
    let [kernel, kernel_bias, w, b] = [numbers(8, 3), numbers(2, 0), numbers(24, 5), numbers(3, 1)];
    let (gain, shift, mean, var) = ([1.5f32, -0.5], [0.25f32, 1.0], [0.5f32, -0.25], [2.0f32, 0.5]);
    let entries: &[Entry<'_>] = &[
        ("0.bias", &[2], kernel_bias.clone()),
        ("0.weight", &[2, 1, 2, 2], kernel.clone()),
        ("1.bias", &[2], shift.to_vec()),
        ("1.running_mean", &[2], mean.to_vec()),
        ("1.running_var", &[2], var.to_vec()),
        ("1.weight", &[2], gain.to_vec()),
        ("3.bias", &[3], b.clone()),
        ("3.weight", &[3, 8], w.clone()),
    ];
    let checkpoint = load(entries, &["1.num_batches_tracked"]);
    let rename = |name: &str| (!name.ends_with("num_batches_tracked")).then(|| format!("layer{name}"));
    let checkpoint = checkpoint.renamed(rename).unwrap().transposed(is_matrix).unwrap();
    let rng = Rng::new(0);
    let net = Sequential::new()
        .with("layer0", Conv2d::new(&device, 1, 2, [2, 2], Conv2dOptions::default(), &rng).unwrap())
        .with("layer1", BatchNorm::new(&device, 2).unwrap())
        .with("layer2", Flatten)
        .with("layer3", Linear::new(&device, 8, 3, &rng).unwrap());
    checkpoint.restore(&net).unwrap();

    let image = numbers(9, 2);
    let x = Tensor::from_slice(&device, &image, [1, 1, 3, 3]).unwrap();
    let y = no_grad(|| net.forward(&x)).unwrap();
    let mut features = Vec::new();
    for channel in 0..2 {
        for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let taps = [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().zip(&kernel[channel * 4..]);
            let sum: f32 =
                taps.map(|((down, right), tap)| tap * image[(row + down) * 3 + column + right]).sum();
            let normed = (sum + kernel_bias[channel] - mean[channel]) / (var[channel] + 1e-5).sqrt();
            features.push(normed * gain[channel] + shift[channel]);
        }
    }
    assert_near(&y.to_vec::<f32>().unwrap(), &linear(&features, &w, &b));
}

#[test]
fn what_is_no_matrix_is_not_transposed() {
    let checkpoint = load(&[("bias", &[2], vec![1.0, 2.0])], &[]);
    let error = checkpoint.clone().transposed(|_, _| true).unwrap_err();
    assert!(matches!(error, Error::BadRank { op: "transposed", .. }), "{error}");
    assert_eq!(checkpoint.clone().transposed(|_, _| false).unwrap(), checkpoint);
}

#[test]
fn matrices_of_every_type_are_transposed() {
    let check = |array: Array, expected: Array| {
        assert_eq!(array.transposed().unwrap(), expected);
        assert_eq!(expected.transposed().unwrap(), array);
    };
    macro_rules! of {
        ($($number:ty)*) => {$(
            let numbers = |values: [u8; 6]| values.map(<$number>::from);
            check(
                Array::from_slice(&numbers([1, 2, 3, 4, 5, 6]), [2, 3]).unwrap(),
                Array::from_slice(&numbers([1, 4, 2, 5, 3, 6]), [3, 2]).unwrap(),
            );
        )*};
    }
    of!(u8 half::f16 i32 f32 i64 f64);
    check(Array::from_slice::<f32>(&[], [0, 3]).unwrap(), Array::from_slice::<f32>(&[], [3, 0]).unwrap());
}

/// The state dictionary of `nn.GRU` (three gates) or `nn.LSTM` (four), in PyTorch's order; the n-th parameter is `numbers(_, 5 n)`.
fn recurrent(
    module: &str,
    [gates, inputs, hidden]: [usize; 3],
    options: RecurrentOptions,
    bias: bool,
) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let (rows, directions) = (gates * hidden, if options.bidirectional { 2 } else { 1 });
    let mut entries = Vec::new();
    for layer in 0..options.layers {
        let inputs = if layer == 0 { inputs } else { directions * hidden };
        for end in ["", "_reverse"].into_iter().take(directions) {
            let parts = [("weight_ih", vec![rows, inputs]), ("weight_hh", vec![rows, hidden])];
            let biases = ["bias_ih", "bias_hh"].map(|part| (part, vec![rows]));
            for (part, shape) in parts.into_iter().chain(biases.into_iter().filter(|_| bias)) {
                let values = numbers(shape.iter().product(), 5 * entries.len() as i32);
                entries.push((format!("{module}{part}_l{layer}{end}"), shape, values));
            }
        }
    }
    entries
}

fn borrowed(entries: &[(String, Vec<usize>, Vec<f32>)]) -> Vec<Entry<'_>> {
    entries.iter().map(|(name, shape, values)| (&name[..], &shape[..], values.clone())).collect()
}

// PyTorch 2.15 computed the expected values of the next two tests.
// The parameters and the input have the values below, with P = list(m.parameters()):
//     m = nn.GRU(inputs, hidden, layers, bias=..., batch_first=True, bidirectional=...)
//     # or nn.LSTM, nn.RNN(nonlinearity="relu")
//     P[n].data = ((torch.arange(P[n].numel()) + 5 * n) % 17 - 8).reshape(P[n].shape) / 8
//     x = ((torch.arange(length * inputs) + 3) % 17 - 8).reshape(1, length, inputs) / 8
//     y, state = m(x)

#[test]
fn imported_bidirectional_layers_equal_those_of_pytorch() {
    let device = device();
    let options = RecurrentOptions { layers: 2, bidirectional: true, ..RecurrentOptions::default() };
    let read = |gates| load(&borrowed(&recurrent("", [gates, 3, 2], options, true)), &[]);
    let x = Tensor::from_slice(&device, &numbers(9, 3), [1, 3, 3]).unwrap();

    let gru = Gru::with_options(&device, 3, 2, options, &Rng::new(0)).unwrap();
    read(3).recurrent_from_pytorch().unwrap().restore(&gru).unwrap();
    let (y, h) = gru.run(&x, None).unwrap();
    let expected = [
        -0.287715, -0.316363, -0.239062, -0.508795, -0.079852, -0.449737, -0.226321, -0.456644, -0.326069,
        -0.542227, -0.163859, -0.247856,
    ];
    assert_near(&y.to_vec::<f32>().unwrap(), &expected);
    let expected = [0.115272, -0.227126, -0.852379, 0.304053, -0.326069, -0.542227, -0.239062, -0.508795];
    assert_near(&h.to_vec::<f32>().unwrap(), &expected);

    let lstm = Lstm::with_options(&device, 3, 2, options, &Rng::new(0)).unwrap();
    read(4).recurrent_from_pytorch().unwrap().restore(&lstm).unwrap();
    let (y, h, c) = lstm.run(&x, None).unwrap();
    let expected = [
        -0.070721, -0.058713, 0.00619, -0.052233, -0.061443, -0.081442, 0.001167, -0.035246, -0.111543,
        -0.068783, 0.006556, 0.011461,
    ];
    assert_near(&y.to_vec::<f32>().unwrap(), &expected);
    let expected = [-0.11997, -0.112618, -0.337332, -0.000416, -0.111543, -0.068783, 0.00619, -0.052233];
    assert_near(&h.to_vec::<f32>().unwrap(), &expected);
    let expected = [-0.18806, -0.511343, -0.865791, -0.001086, -0.299429, -0.111673, 0.009827, -0.065966];
    assert_near(&c.to_vec::<f32>().unwrap(), &expected);

    // The same model with nonlinearity="relu".
    let rnn = || Rnn::with_options(&device, 3, 2, options, &Rng::new(0)).unwrap();
    let (tanh, relu) = (rnn(), rnn().with_nonlinearity(Nonlinearity::Relu));
    let expected_tanh = [
        0.152875, -0.390999, -0.650532, 0.208842, 0.063986, -0.810418, -0.92555, 0.180464, 0.015926,
        -0.961761, -0.726014, -0.53236,
    ];
    let expected_relu =
        [0.0, 0.476318, 0.453102, 3.081116, 0.582397, 0.0, 0.0, 0.175476, 0.546951, 0.0, 0.0, 0.253723];
    for (rnn, expected) in [(tanh, expected_tanh), (relu, expected_relu)] {
        read(1).recurrent_from_pytorch().unwrap().restore(&rnn).unwrap();
        assert_near(&rnn.run(&x, None).unwrap().0.to_vec::<f32>().unwrap(), &expected);
    }
}

#[test]
fn an_imported_recurrent_layer_without_biases_has_zeros() {
    let device = device();
    // One layer with biases and two without.
    for (layers, bias, expected) in [
        (1, true, [0.006579, -0.014675, 0.045486, 0.068554, 0.155976, 0.248383]),
        (2, false, [0.06998, 0.04137, 0.145469, 0.09156, 0.172427, 0.122087]),
    ] {
        let options = RecurrentOptions { layers, ..RecurrentOptions::default() };
        let mut entries = recurrent("encoder.rnn.", [3, 2, 2], options, bias);
        let (w, b) = (numbers(4, 2), numbers(2, 7));
        entries.push(("head.weight".to_owned(), vec![2, 2], w.clone()));
        entries.push(("head.bias".to_owned(), vec![2], b.clone()));
        let checkpoint = load(&borrowed(&entries), &[]).recurrent_from_pytorch().unwrap();
        // The import does not change the square weight of another layer.
        let checkpoint = checkpoint.transposed(|name, _| name == "head.weight").unwrap();
        let rng = Rng::new(0);
        let net = Sequential::new()
            .with(
                "encoder",
                Sequential::new().with("rnn", Gru::with_options(&device, 2, 2, options, &rng).unwrap()),
            )
            .with("head", Linear::new(&device, 2, 2, &rng).unwrap());
        checkpoint.restore(&net).unwrap();

        let x = Tensor::from_slice(&device, &numbers(6, 3), [1, 3, 2]).unwrap();
        let y = net.forward(&x).unwrap().to_vec::<f32>().unwrap();
        let expected: Vec<f32> = expected.chunks(2).flat_map(|state| linear(state, &w, &b)).collect();
        assert_near(&y, &expected);
    }
}

#[test]
fn names_that_are_no_recurrent_layers_keep_their_contents() {
    let names =
        ["weight_ih", "weight_ih_l01", "weight_ih_l+1", "weight_hr_l0", "x.my_weight_ih_l0", "bias_ih_l"];
    let entries: Vec<Entry<'_>> = names.iter().map(|name| (*name, &[2, 1][..], vec![1.0, 2.0])).collect();
    let checkpoint = load(&entries, &[]);
    assert_eq!(checkpoint.clone().recurrent_from_pytorch().unwrap(), checkpoint);
}

#[test]
fn recurrent_layers_that_contradict_themselves_are_refused() {
    let refused = |entries: &[Entry<'_>]| load(entries, &[]).recurrent_from_pytorch().unwrap_err();
    let flat = refused(&[("weight_hh_l0", &[2], vec![1.0, 2.0])]);
    assert!(matches!(flat, Error::BadRank { op: "transposed", .. }), "{flat}");
    let twice = refused(&[("a.weight_hh_l0", &[1, 1], vec![1.0]), ("a.weight_hidden", &[1, 1], vec![2.0])]);
    assert!(twice.to_string().contains("a.weight_hidden twice"), "{twice}");
    // The reader allocates no memory for the biases of missing rows.
    let none: Entry<'_> = ("weight_hh_l0", &[1 << 44, 0], vec![]);
    let checkpoint = load(&[none], &[]).recurrent_from_pytorch().unwrap();
    assert_eq!(checkpoint.parameters().keys().collect::<Vec<_>>(), ["weight_hidden"]);
}

/// Loads the weights of `reference/make_networks.py` into a module. Compares its outputs with PyTorch's.
fn assert_as_in_pytorch(name: &str, net: &impl Module, input: impl Fn(&[f64]) -> Tensor) {
    let path = |file: &str| format!("{}/tests/reference/{file}", env!("CARGO_MANIFEST_DIR"));
    let cases: Value = serde_json::from_slice(&std::fs::read(path("networks.json")).unwrap()).unwrap();
    let numbers = |part: &str| -> Vec<f64> {
        cases[name][part].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let checkpoint = Checkpoint::load(path(&format!("{name}.pt"))).unwrap();
    checkpoint.converted_from_pytorch(net).unwrap().restore(net).unwrap();
    let y = no_grad(|| net.forward(&input(&numbers("x")))).unwrap().to_vec::<f32>().unwrap();
    let expected: Vec<f32> = numbers("y").into_iter().map(|value| value as f32).collect();
    assert_near(&y, &expected);
}

#[derive(Debug, Module)]
struct Convolutional {
    features: Sequential,
    head: Linear,
}

#[module]
impl Module for Convolutional {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Softmax::new(-1).forward(&self.head.forward(&self.features.forward(x)?)?)
    }
}

/// The parts of the sequence have other names than in PyTorch, where they have the numbers up to 11.
#[test]
fn a_network_of_pytorch_is_loaded_by_the_order_of_its_layers() {
    let (device, rng) = (device(), Rng::new(0));
    let conv = |inputs, outputs, size| {
        Conv2d::new(&device, inputs, outputs, [size, size], Conv2dOptions::same(), &rng).unwrap()
    };
    let linear = |outputs| Linear::new(&device, 36, outputs, &rng).unwrap();
    let pool = Pool2dOptions {
        stride: [2, 2],
        padding: [1, 1],
        ceil_mode: true,
        count_include_pad: false,
        ..Pool2dOptions::square(3)
    };
    let features = Sequential::new()
        .with("conv1", conv(1, 3, 3))
        .with("norm1", BatchNorm::new(&device, 3).unwrap())
        .with("prelu", PRelu::per_channel(&device, 3).unwrap())
        .with("pool1", AvgPool2d::new(pool))
        .with("conv2", conv(3, 4, 2))
        .with("norm2", BatchNorm::new(&device, 4).unwrap())
        .with("mish", Mish)
        .with("pool2", MaxPool2d::new(Pool2dOptions { ceil_mode: true, ..Pool2dOptions::square(2) }))
        .with("flatten", Flatten)
        .with("fc1", linear(36))
        .with("hardswish", Hardswish)
        .with("fc2", linear(36))
        .with("elu", Elu::default());
    let net = Convolutional { features, head: linear(5) };
    assert_as_in_pytorch("convolutional", &net, |x| {
        let x: Vec<f32> = x.iter().map(|&x| x as f32).collect();
        Tensor::from_slice(&device, &x, [4, 1, 9, 10]).unwrap()
    });
}

#[derive(Debug, Module)]
struct Recurrent {
    table: Embedding,
    encoder: Gru,
    head: Linear,
}

#[module]
impl Module for Recurrent {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.encoder.forward(&self.table.forward(x)?)?)
    }
}

/// A square embedding keeps its layout, a square linear layer does not.
#[test]
fn a_recurrent_network_of_pytorch_is_loaded_by_its_names() {
    let (device, rng) = (device(), Rng::new(0));
    let options = RecurrentOptions { layers: 2, ..RecurrentOptions::default() };
    let net = Recurrent {
        table: Embedding::new(&device, 8, 8, &rng).unwrap(),
        encoder: Gru::with_options(&device, 8, 6, options, &rng).unwrap(),
        head: Linear::new(&device, 6, 6, &rng).unwrap(),
    };
    assert_as_in_pytorch("recurrent", &net, |x| {
        let tokens: Vec<i64> = x.iter().map(|&x| x as i64).collect();
        Tensor::from_slice(&device, &tokens, [2, 5]).unwrap()
    });
}

/// Here one layer computes the means and flattens them, so that the numbers of later layers differ.
#[test]
fn a_network_that_resizes_images_is_that_of_pytorch() {
    let (device, rng) = (device(), Rng::new(0));
    let twice = Conv2dOptions { stride: [2, 2], ..Conv2dOptions::default() };
    let conv = Conv2d::new(&device, 2, 8, [3, 3], Conv2dOptions::padded(1), &rng).unwrap();
    let bilinear = Interpolation::Bilinear { align_corners: false };
    let net = Sequential::new()
        .with("conv", conv.without_bias())
        .with("norm", InstanceNorm::new(8).with_affine(&device).unwrap())
        .with("relu", Relu)
        .with("shuffle", PixelShuffle::new(2))
        .with("norm", InstanceNorm::new(2))
        .with("upsample", Upsample::new(1.5, bilinear))
        .with("transposed", ConvTranspose2d::new(&device, 2, 4, [2, 2], twice, &rng).unwrap())
        .with("nearest", Upsample::new([6, 5], Interpolation::Nearest))
        .with("means", GlobalAvgPool2d)
        .with("fc", Linear::new(&device, 4, 3, &rng).unwrap().without_bias());
    assert_as_in_pytorch("resizing", &net, |x| {
        let x: Vec<f32> = x.iter().map(|&x| x as f32).collect();
        Tensor::from_slice(&device, &x, [2, 2, 3, 4]).unwrap()
    });
}

#[test]
fn names_that_match_no_part_are_reported_by_restore() {
    let (device, rng) = (device(), Rng::new(0));
    let net = Sequential::new().with("fc", Linear::new(&device, 2, 2, &rng).unwrap()).with("relu", Relu);
    let weights = |name: &'static str| -> Entry<'static> { (name, &[2, 2], numbers(4, 0)) };
    let converted = |entries: &[Entry<'_>]| load(entries, &[]).converted_from_pytorch(&net).unwrap();
    for entries in [
        vec![weights("0.weight"), weights("2.weight")],
        vec![weights("first.weight")],
        vec![weights("0.inside.weight")],
        vec![weights("weight")],
    ] {
        let error = converted(&entries).restore(&net).unwrap_err().to_string();
        assert!(
            error.contains("missing: fc.bias, fc.weight") || error.contains("missing: fc.weight"),
            "{error}"
        );
        assert!(error.contains("unexpected: "), "{error}");
    }
    // A module that is a linear layer itself, and a boxed one.
    let layer = Linear::new(&device, 3, 2, &rng).unwrap();
    let entries: &[Entry<'_>] = &[("weight", &[2, 3], numbers(6, 1)), ("bias", &[2], numbers(2, 0))];
    load(entries, &[]).converted_from_pytorch(&layer).unwrap().restore(&layer).unwrap();
    let boxed: Box<dyn Module> = Box::new(layer);
    load(entries, &[]).converted_from_pytorch(&*boxed).unwrap().restore(&*boxed).unwrap();
    load(entries, &[]).converted_from_pytorch(&boxed).unwrap().restore(&boxed).unwrap();
}
