//! Layers with a state or with statistics, against values of JAX (in double precision) from the same inputs.

use crate::ops_table::{device, dry_device};
use bfc_core::Bytes;
use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::modules::{
    AvgPool2d, BatchNorm, Checkpointed, Conv1d, Conv2d, ConvTranspose2d, Fans, Gru, Init, Linear, Lstm,
    MaxPool2d, Module, Relu, Rnn, Sequential,
};
use highwater_nn::optim::{Adam, Optimizer};
use highwater_tensor::{
    Conv1dOptions, Conv2dOptions, DType, Device, Error, GradCheck, Pool2dOptions, Result, Rng, Runtime,
    Tensor, check_gradients, no_grad,
};

/// scale · sin(0.7 i + phase)
fn wave(device: &Device, shape: &[usize], phase: f64, scale: f64) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..count).map(|i| scale * (0.7 * i as f64 + phase).sin()).collect();
    Tensor::from_slice(device, &values, shape).unwrap().to_dtype(DType::F32).unwrap()
}

fn assert_close(name: &str, computed: &Tensor, expected: &[f32]) {
    let computed = computed.to_vec::<f32>().unwrap();
    assert_eq!(computed.len(), expected.len(), "{name}");
    for (a, b) in computed.iter().zip(expected) {
        assert!((a - b).abs() <= 3e-6 * b.abs().max(1.0), "{name}: {computed:?} is not {expected:?}");
    }
}

/// Sets a layer's parameters to the values of the reference.
fn set_gates(layer: &impl Module, device: &Device) {
    let starts = [(1.0, 1.0), (2.0, 1.0), (3.0, 0.5), (4.0, 0.5)];
    for ((_, parameter), (phase, scale)) in layer.parameters().into_iter().zip(starts) {
        parameter.set(&wave(device, parameter.tensor().dims(), phase, scale)).unwrap();
    }
}

/// Checks the gradients of Σ w·y with respect to x and all parameters.
fn assert_gradients(name: &str, layer: &impl Module, x: &Tensor, y: &Tensor, expected: &[&[f32]]) {
    let weights = wave(x.device(), y.dims(), 0.9, 1.0);
    let gradients = y.mul(&weights).unwrap().sum_all().unwrap().backward().unwrap();
    let leaves = layer.parameters().into_iter().map(|(_, parameter)| parameter.tensor());
    let leaves: Vec<Tensor> = std::iter::once(x.clone()).chain(leaves).collect();
    assert_eq!(leaves.len(), expected.len());
    for (leaf, expected) in leaves.iter().zip(expected) {
        assert_close(name, gradients.get(leaf).unwrap(), expected);
    }
}

#[test]
fn a_gru_has_the_values_and_gradients_of_its_formula() {
    let device = device();
    let layer = Gru::new(&device, 2, 2, &Rng::new(0)).unwrap();
    set_gates(&layer, &device);
    let x = wave(&device, &[2, 3, 2], 0.3, 1.0).requiring_grad().unwrap();
    let (y, last) = layer.run(&x, Some(&wave(&device, &[2, 2], 5.0, 0.5))).unwrap();
    let states = [
        0.145041, 0.063397, 0.023043, -0.08303, -0.47401, -0.142887, -0.273537, 0.468651, 0.169272, 0.552859,
        0.232599, 0.379679,
    ];
    assert_close("states", &y, &states);
    assert_close("last state", &last, &[states[4], states[5], states[10], states[11]]);
    let expected: &[&[f32]] = &[
        &[
            -0.693944, 0.387819, -0.141933, 0.376604, 0.704003, -0.695354, 0.144241, -0.40807, -0.485095,
            0.360606, -0.433762, 0.524308,
        ],
        &[
            0.076925, -0.003103, 0.027655, 0.026509, 1.239653, -0.032719, 0.134057, 0.101885, -0.157432,
            -0.106669, 1.725291, 0.885591,
        ],
        &[
            -0.032442, -0.033494, 0.14115, 0.128392, -0.032551, -0.047076, 0.00299, 0.015363, -0.007386,
            0.070677, 0.025376, 0.114242,
        ],
        &[0.07777, 0.014416, -0.432885, -0.219842, 0.831265, 0.180118],
        &[0.07776963, 0.0144161, -0.4328854, -0.2198418, 0.2025984, -0.0001648677],
    ];
    assert_gradients("gru", &layer, &x, &y, expected);
}

#[test]
fn an_lstm_has_the_values_and_gradients_of_its_formula() {
    let device = device();
    let layer = Lstm::new(&device, 2, 2, &Rng::new(0)).unwrap();
    set_gates(&layer, &device);
    let x = wave(&device, &[2, 3, 2], 0.3, 1.0).requiring_grad().unwrap();
    let (h, c) = (wave(&device, &[2, 2], 5.0, 0.5), wave(&device, &[2, 2], 6.0, 0.5));
    let (y, last, cell) = layer.run(&x, Some((&h, &c))).unwrap();
    let states = [
        0.057998, 0.114389, -0.113054, -0.173511, 0.004117, 0.025774, 0.094081, 0.172158, 0.026922, 0.15202,
        -0.097939, -0.169082,
    ];
    assert_close("states", &y, &states);
    assert_close("last state", &last, &[states[4], states[5], states[10], states[11]]);
    assert_close("last cell", &cell, &[0.004982, 0.033424, -0.370364, -0.458236]);
    let bias = [-0.052707, -0.049988, -0.017593, 0.08053, -0.000648, 0.234227, -0.119405, -0.009322];
    let expected: &[&[f32]] = &[
        &[
            -0.184737, -0.123475, 0.079966, 0.1174, 0.036991, 0.009677, 0.072927, -0.069945, -0.12218,
            -0.045415, -0.105018, 0.067674,
        ],
        &[
            0.013426, 0.004853, 0.034897, 0.023746, 0.398061, 0.001255, -0.10547, -0.05954, 0.055974,
            0.103367, 0.008114, 0.01079, 0.572043, 0.216537, -0.085027, -0.00151,
        ],
        &[
            -0.02806, 0.000483, 0.003423, -0.014044, -0.047979, -0.044871, -0.01634, -0.033991, -0.032435,
            0.004688, -0.011313, -0.019304, -0.061917, -0.000953, -0.026879, -0.031304,
        ],
        &bias,
        &bias,
    ];
    assert_gradients("lstm", &layer, &x, &y, expected);
}

/// A layer that resets its state before the product.
fn gru_before(device: &Device, inputs: usize, hidden: usize) -> Gru {
    Gru::new(device, inputs, hidden, &Rng::new(0)).unwrap().with_reset_after(false)
}

#[test]
fn recurrent_layers_accept_any_length_and_check_shapes() {
    let device = device();
    let rng = Rng::new(0);
    let (gru, lstm) = (Gru::new(&device, 3, 4, &rng).unwrap(), Lstm::new(&device, 3, 4, &rng).unwrap());
    let (before, rnn) = (gru_before(&device, 3, 4), Rnn::new(&device, 3, 4, &rng).unwrap());
    for layer in [&gru as &dyn Module, &lstm, &before, &rnn] {
        for shape in [[2, 1, 3], [2, 7, 3], [2, 0, 3], [0, 4, 3]] {
            let y = layer.forward(&Tensor::ones(&device, shape).unwrap()).unwrap();
            assert_eq!(y.dims(), [shape[0], shape[1], 4], "{layer:?}");
        }
        let flat = layer.forward(&Tensor::ones(&device, [2, 3]).unwrap()).unwrap_err();
        assert!(matches!(flat, Error::BadRank { .. }), "{flat}");
        let wide = layer.forward(&Tensor::ones(&device, [2, 5, 4]).unwrap()).unwrap_err();
        assert!(matches!(wide, Error::ShapeMismatch { .. }), "{wide}");
    }
    let x = Tensor::ones(&device, [2, 5, 3]).unwrap();
    let state = Tensor::ones(&device, [1, 4]).unwrap();
    assert!(matches!(gru.run(&x, Some(&state)), Err(Error::ShapeMismatch { op: "gru", .. })));
    assert!(matches!(lstm.run(&x, Some((&state, &state))), Err(Error::ShapeMismatch { op: "lstm", .. })));
    assert!(matches!(Gru::new(&device, 3, 0, &Rng::new(0)), Err(Error::BadArgument { .. })));
}

#[test]
fn a_sequence_in_parts_with_the_state_handed_on_is_the_sequence() {
    let device = device();
    let gru = Gru::new(&device, 2, 3, &Rng::new(1)).unwrap();
    let x = wave(&device, &[2, 9, 2], 0.0, 1.0);
    let (whole, _) = gru.run(&x, None).unwrap();
    let (first, state) = gru.run(&x.narrow(1, 0, 4).unwrap(), None).unwrap();
    let (second, _) = gru.run(&x.narrow(1, 4, 5).unwrap(), Some(&state)).unwrap();
    let joined = Tensor::concat(&[&first, &second], 1).unwrap();
    assert_close("parts", &joined, &whole.to_vec::<f32>().unwrap());
}

#[test]
fn groups_must_divide_the_channels_of_a_convolution() {
    let (device, rng) = (device(), Rng::new(0));
    for (groups, inputs, outputs) in [(0, 2, 2), (2, 3, 4), (2, 4, 3)] {
        let options = Conv2dOptions { groups, ..Conv2dOptions::default() };
        let sequences = Conv1dOptions { groups, ..Conv1dOptions::default() };
        let refused = [
            Conv2d::new(&device, inputs, outputs, [1, 1], options, &rng).unwrap_err(),
            Conv1d::new(&device, inputs, outputs, 1, sequences, &rng).unwrap_err(),
            ConvTranspose2d::new(&device, inputs, outputs, [1, 1], options, &rng).unwrap_err(),
        ];
        for (error, op) in refused.iter().zip(["conv2d", "conv1d", "conv_transpose2d"]) {
            let expected = format!(
                "{op}: groups must be a divisor of the numbers of channels, \
                 got {groups} for {inputs} and {outputs} channels"
            );
            assert_eq!(error.to_string(), expected);
        }
    }
}

#[test]
fn layers_refuse_impossible_options() {
    let (device, rng) = (device(), Rng::new(0));
    let plain = Conv2dOptions::default();
    let made = |size: usize, options| {
        [
            Conv2d::new(&device, 2, 2, [3, size], options, &rng).map(drop),
            ConvTranspose2d::new(&device, 2, 2, [3, size], options, &rng).map(drop),
        ]
    };
    let told = |results: [Result<()>; 2], words: [&str; 2]| {
        for ((result, words), op) in results.iter().zip(words).zip(["conv2d", "conv_transpose2d"]) {
            assert_eq!(result.as_ref().unwrap_err().to_string(), format!("{op}: {words}"));
        }
    };
    let pair = "at least 1, got [1, 0]";
    told(made(3, Conv2dOptions { stride: [1, 0], ..plain }), [&format!("stride must be {pair}"); 2]);
    told(made(3, Conv2dOptions { dilation: [1, 0], ..plain }), [&format!("dilation must be {pair}"); 2]);
    told(made(0, plain), ["size must be at least 1, got [3, 0]"; 2]);
    let none = "output_padding must be none, as the convolution is not transposed, got [0, 1]";
    let less =
        "output_padding must be less than the stride or the dilation, got [0, 1] for [1, 1] and [1, 1]";
    told(made(3, Conv2dOptions { output_padding: [0, 1], ..plain }), [none, less]);

    let sequences = Conv1dOptions::default();
    for (size, options, words) in [
        (3, Conv1dOptions { stride: 0, ..sequences }, "stride must be at least 1, got 0"),
        (3, Conv1dOptions { dilation: 0, ..sequences }, "dilation must be at least 1, got 0"),
        (0, sequences, "size must be at least 1, got [0]"),
    ] {
        let error = Conv1d::new(&device, 2, 2, size, options, &rng).unwrap_err();
        assert_eq!(error.to_string(), format!("conv1d: {words}"));
    }

    let square = Pool2dOptions::square(2);
    for (options, got) in [
        (Pool2dOptions::square(0), "size 0, stride 0, padding 0"),
        (Pool2dOptions { size: [2, 0], ..square }, "size 0, stride 2, padding 0"),
        (Pool2dOptions { stride: [0, 2], ..square }, "size 2, stride 0, padding 0"),
        (Pool2dOptions { padding: [2, 0], ..square }, "size 2, stride 2, padding 2"),
    ] {
        let words =
            "options must be sizes and strides of at least 1, and padding of at most half the size, got";
        let x = Tensor::ones(&device, [1, 1, 4, 4]).unwrap();
        let [max, avg] = [MaxPool2d::new(options).forward(&x), AvgPool2d::new(options).forward(&x)];
        assert_eq!(max.unwrap_err().to_string(), format!("max_pool2d: {words} {got}"));
        assert_eq!(avg.unwrap_err().to_string(), format!("avg_pool2d: {words} {got}"));
    }
}

/// Returns a layer with the values of the reference.
fn batch_norm(device: &Device) -> BatchNorm {
    let norm = BatchNorm::new(device, 2).unwrap();
    let starts = [[1.5f32, -0.5], [0.25, 1.0]];
    for ((_, parameter), values) in norm.parameters().into_iter().zip(starts) {
        parameter.set(&Tensor::from_slice(device, &values, 2).unwrap()).unwrap();
    }
    norm
}

#[test]
fn batch_norm_has_the_values_and_gradients_of_its_formula() {
    let device = device();
    let norm = batch_norm(&device);
    let x = wave(&device, &[3, 2, 2], 0.3, 2.0).requiring_grad().unwrap();
    let y = norm.forward(&x).unwrap();
    let expected = [
        0.914768, 2.631099, 0.582408, 0.766481, 0.116446, -1.9378, 1.728752, 1.673987, -1.189647, 0.965134,
        0.664622, 0.58375,
    ];
    assert_close("batch", &y, &expected);
    let [mean, variance] = norm.running();
    assert_close("running mean", &mean, &[0.016813, 0.054865]);
    assert_close("running variance", &variance, &[1.009276, 1.254101]);
    let used = no_grad(|| norm.forward(&x)).unwrap();
    let expected = [
        1.10737, 2.737671, 0.138979, 0.421334, 0.349064, -1.602213, 1.897391, 1.813386, -0.891561, 1.155212,
        0.26509, 0.141039,
    ];
    assert_close("used", &used, &expected);
    let expected: &[&[f32]] = &[
        &[
            0.476921, -0.244598, 0.002473, 0.10798, -1.0935, -0.486055, 0.050143, -0.063136, 0.885204,
            0.462027, -0.102711, 0.005251,
        ],
        &[3.540915, 3.945791],
        &[1.31025, 1.229747],
    ];
    assert_gradients("batch norm", &norm, &x, &y, expected);
    // Inference does not change the running means.
    assert_close("running mean", &norm.running()[0], &[0.016813, 0.054865]);
}

#[test]
fn batch_norm_is_the_same_for_rows_and_for_images() {
    let device = device();
    let rows = wave(&device, &[12, 2], 0.1, 1.0);
    let images = rows.reshape([2, 3, 2, 2]).unwrap().permute([0, 3, 1, 2]).unwrap();
    let (of_rows, of_images) = (batch_norm(&device), batch_norm(&device));
    let expected = of_rows.forward(&rows).unwrap().to_vec::<f32>().unwrap();
    let found = of_images.forward(&images).unwrap().permute([0, 2, 3, 1]).unwrap();
    assert_close("images", &found, &expected);
    assert_close("mean", &of_images.running()[0], &of_rows.running()[0].to_vec::<f32>().unwrap());
}

#[test]
fn batch_norm_refuses_what_it_cannot_learn_from_and_stays() {
    let device = device();
    let norm = BatchNorm::new(&device, 2).unwrap();
    let refused = |shape: &[usize]| norm.forward(&Tensor::ones(&device, shape).unwrap()).unwrap_err();
    assert!(matches!(refused(&[2]), Error::BadRank { op: "batch_norm", .. }));
    assert!(matches!(refused(&[4, 3]), Error::ShapeMismatch { op: "batch_norm", .. }));
    assert!(refused(&[1, 2]).to_string().contains("two values per channel"));
    assert!(matches!(refused(&[0, 2]), Error::BadArgument { .. }));
    // Integers would round the results.
    let whole = Tensor::ones_of(&device, [4, 2], DType::I64).unwrap();
    for result in [norm.forward(&whole), no_grad(|| norm.forward(&whole))] {
        assert_eq!(result.unwrap_err(), Error::UnsupportedDType { op: "batch_norm", dtype: DType::I64 });
    }
    assert_eq!(norm.running()[1].to_vec::<f32>().unwrap(), [1.0, 1.0]);
    let error = norm.with_momentum(1.5).forward(&Tensor::ones(&device, [4, 2]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "batch_norm: momentum must be between 0 and 1, got 1.5");
}

#[test]
fn batch_norm_of_halves_is_computed_in_f32_and_stays_of_halves() {
    let device = device();
    for dtype in [DType::F16, DType::BF16] {
        let net = Sequential::new()
            .with("norm", BatchNorm::new(&device, 1).unwrap())
            .with("fc", Linear::new(&device, 1, 2, &Rng::new(0)).unwrap());
        net.convert(dtype).unwrap();
        let norm = BatchNorm::new(&device, 1).unwrap();
        norm.convert(dtype).unwrap();
        // The values differ from the mean by 300, and the square of 300 exceeds f16.
        let x = Tensor::from_slice(&device, &[0.0f32, 600.0, 0.0, 600.0], [4, 1]).unwrap();
        let x = x.to_dtype(dtype).unwrap().requiring_grad().unwrap();
        let y = norm.forward(&x).unwrap();
        assert_eq!(y.dtype(), dtype);
        assert_close("batch", &y.to_dtype(DType::F32).unwrap(), &[-1.0, 1.0, -1.0, 1.0]);
        let [mean, variance] = norm.running();
        assert_close("running mean", &mean, &[30.0]);
        assert_close("running variance", &variance, &[0.9 + 12_000.0]);
        assert_eq!(y.sum_all().unwrap().backward().unwrap().get(&x).unwrap().dtype(), dtype);
        assert_eq!(net.forward(&x).unwrap().dtype(), dtype);
        assert_eq!(no_grad(|| net.forward(&x)).unwrap().dtype(), dtype);
    }
}

#[test]
fn batch_norm_learns_from_f64() {
    let device = device();
    let norm = BatchNorm::new(&device, 1).unwrap();
    norm.convert(DType::F64).unwrap();
    let x = Tensor::from_slice(&device, &[1.0f64, 3.0], [2, 1]).unwrap();
    assert_eq!(norm.forward(&x).unwrap().dtype(), DType::F64);
    assert_close("running mean", &norm.running()[0], &[0.2]);
    assert_eq!(no_grad(|| norm.forward(&x)).unwrap().dtype(), DType::F64);
}

#[test]
fn batch_norm_without_memory_changes_no_running_means() {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let norm = BatchNorm::new(&device, 2).unwrap();
    let x = wave(&device, &[3, 2], 0.3, 2.0);
    let running = || norm.running().map(|mean| mean.to_vec::<f32>().unwrap());
    let before = running();
    // A clone shares the variance, so the update has to copy it.
    let held = norm.running()[1].clone();
    let mut hogs = Vec::new();
    for bytes in [1 << 16, 1 << 12, 1 << 8] {
        while let Ok(hog) = Tensor::zeros_of(&device, bytes, DType::U8) {
            hogs.push(hog);
        }
    }
    let mut failures = 0;
    while let Err(error) = norm.forward(&x) {
        assert!(error.out_of_memory().is_some(), "{error}");
        assert_eq!(running(), before, "after {failures} failures");
        failures += 1;
        hogs.pop().unwrap();
    }
    assert!(failures > 5, "{failures}");
    assert_ne!(running(), before);
    assert_eq!(held.to_vec::<f32>().unwrap(), [1.0; 2]);
}

#[test]
fn initial_values_that_find_no_memory_draw_no_key() {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let (rng, fans) = (Rng::new(5), Fans { inputs: 1, outputs: 1 });
    let init = Init::Uniform { low: 0.0, high: 1.0 };
    let error = init.parameter(&device, 1 << 20, DType::F16, fans, &rng).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_eq!(rng.state(), Rng::new(5).state());
    init.parameter(&device, 100, DType::F16, fans, &Rng::new(5)).unwrap();
}

fn network(device: &Device, checkpointed: bool) -> Sequential {
    let rng = Rng::new(2);
    let options = Conv2dOptions { padding: [1, 1].into(), ..Conv2dOptions::default() };
    let inner = Sequential::new()
        .with("conv", Conv2d::new(device, 1, 3, [3, 3], options, &rng).unwrap())
        .with("norm", BatchNorm::new(device, 3).unwrap())
        .with("relu", Relu);
    if checkpointed {
        Sequential::new().with("inner", Checkpointed::new(inner))
    } else {
        Sequential::new().with("inner", inner)
    }
}

fn train(net: &Sequential, adam: &mut Adam, steps: std::ops::Range<u64>) {
    let device = net.parameters()[0].1.tensor().device().clone();
    for step in steps {
        let x = Tensor::normal(&device, [4, 1, 5, 5], 0.0, 1.0, &Rng::new(step)).unwrap();
        let loss = net.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
        adam.step(loss.backward().unwrap()).unwrap();
    }
}

fn state(net: &Sequential) -> Vec<(String, Vec<f32>)> {
    let all = net.parameters().into_iter().chain(net.buffers());
    all.map(|(path, parameter)| (path, parameter.tensor().to_vec().unwrap())).collect()
}

#[test]
fn running_means_move_once_in_a_checkpointed_part() {
    let run = |checkpointed| {
        let net = network(&device(), checkpointed);
        let mut adam = Adam::new(net.parameters(), 0.01).unwrap();
        train(&net, &mut adam, 0..3);
        state(&net)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn running_means_are_saved_and_restored_exactly() {
    let (device, folder) = (device(), tempfile::tempdir().unwrap());
    let path = folder.path().join("run.safetensors");
    let whole = network(&device, false);
    let mut adam = Adam::new(whole.parameters(), 0.01).unwrap();
    train(&whole, &mut adam, 0..3);
    Checkpoint::of(&whole).unwrap().with_optimizer(&adam).unwrap().save(&path).unwrap();
    train(&whole, &mut adam, 3..6);

    let resumed = network(&device, false);
    let mut adam = Adam::new(resumed.parameters(), 0.01).unwrap();
    let checkpoint = Checkpoint::load(&path).unwrap();
    assert!(checkpoint.parameters().contains_key("inner.norm.running_var"));
    checkpoint.restore_all(&resumed, &mut adam).unwrap();
    train(&resumed, &mut adam, 3..6);
    assert_eq!(state(&resumed), state(&whole));

    let without =
        checkpoint.renamed(|name| (!name.contains("running_mean")).then(|| name.to_owned())).unwrap();
    let Err(Error::Mismatch(mismatch)) = without.restore(&resumed) else { panic!("a mean is missing") };
    assert_eq!(mismatch.missing, ["inner.norm.running_mean"]);
}

#[test]
fn convolution_modules_equal_their_ops_with_a_bias() {
    let device = device();
    let options = Conv2dOptions { stride: [2, 2], padding: [1, 1].into(), ..Conv2dOptions::default() };
    let of_sequences = Conv1dOptions { stride: 2, ..Conv1dOptions::padded(1) };
    let sequence = Conv1d::new(&device, 2, 3, 3, of_sequences, &Rng::new(0)).unwrap();
    let larger = ConvTranspose2d::new(&device, 2, 3, [3, 3], options, &Rng::new(0)).unwrap();
    let bias = wave(&device, &[3], 1.0, 1.0);
    let check = |layer: &dyn Module, x: Tensor, y: &dyn Fn(&Tensor, &Tensor) -> Tensor, places| {
        let parameters = layer.parameters();
        parameters[1].1.set(&bias).unwrap();
        let plain = y(&x, &parameters[0].1.tensor());
        let bias = bias.reshape([&[3][..], &vec![1; places]].concat()).unwrap();
        let expected = plain.add(&bias).unwrap().to_vec::<f32>().unwrap();
        assert_close("conv", &layer.forward(&x).unwrap(), &expected);
    };
    let sequences = wave(&device, &[2, 2, 7], 0.0, 1.0);
    check(&sequence, sequences, &|x, w| x.conv1d(w, of_sequences).unwrap(), 1);
    let images = wave(&device, &[2, 2, 4, 4], 0.0, 1.0);
    check(&larger, images, &|x, w| x.conv_transpose2d(w, options).unwrap(), 2);
}

#[test]
fn gradients_by_inputs_agree_with_differences() {
    let device = device();
    let (rng, options) = (Rng::new(3), Conv2dOptions::default());
    let layers: [(&[usize], Box<dyn Module>); 7] = [
        (&[2, 3, 2], Box::new(Gru::new(&device, 2, 3, &rng).unwrap())),
        (&[2, 3, 2], Box::new(Lstm::new(&device, 2, 3, &rng).unwrap())),
        (&[2, 3, 2], Box::new(gru_before(&device, 2, 3))),
        (&[2, 3, 2], Box::new(Rnn::new(&device, 2, 3, &rng).unwrap())),
        (&[3, 2, 2], Box::new(batch_norm(&device))),
        (&[1, 2, 5], Box::new(Conv1d::new(&device, 2, 3, 3, Conv1dOptions::default(), &rng).unwrap())),
        (&[1, 2, 2, 2], Box::new(ConvTranspose2d::new(&device, 2, 2, [2, 2], options, &rng).unwrap())),
    ];
    for (shape, layer) in layers {
        let x = wave(&device, shape, 0.4, 1.0);
        let checked = check_gradients(|x| layer.forward(&x[0]), &[x], GradCheck::for_dtype(DType::F32));
        checked.unwrap_or_else(|error| panic!("{layer:?}: {error}"));
    }
}

#[test]
fn a_dry_run_makes_the_requests_of_the_real_one() {
    let program = |device: &Device| {
        let rng = Rng::new(1);
        let init = Init::Normal { mean: 0.0, std: 1.0 };
        init.parameter(device, [100], DType::F32, Fans { inputs: 1, outputs: 1 }, &rng).unwrap();
        let net = network(device, true);
        let mut adam = Adam::new(net.parameters(), 0.01).unwrap();
        train(&net, &mut adam, 0..2);
        let gru = Gru::new(device, 3, 4, &rng).unwrap();
        let y = gru.forward(&Tensor::ones(device, [2, 5, 3]).unwrap()).unwrap();
        drop(y.sum_all().unwrap().backward().unwrap());
        let stats = device.default_allocator().unwrap().stats();
        (stats.num_allocs, stats.peak_bytes_in_use, stats.bytes_requested)
    };
    assert_eq!(program(&dry_device()), program(&device()));
}
