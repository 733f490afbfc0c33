//! Recurrent layers over each other and in both directions, against values of PyTorch: `reference/make_recurrent.py` wrote them.

use crate::ops_table::device;
use crate::walks::rng_paths;
use highwater_nn::modules::{Gru, Lstm, Module, Nonlinearity, RecurrentOptions, Rnn, Sequential};
use highwater_tensor::{
    DType, Device, Error, GradCheck, Result, Rng, Tensor, check_gradients, checkpoint, no_grad,
};
use serde_json::Value;

const CASES: &str = include_str!("../reference/recurrent.json");

/// 0.5 · sin(0.7 i + phase)
fn wave(device: &Device, shape: &[usize], phase: f64) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..count).map(|i| 0.5 * (0.7 * i as f64 + phase).sin()).collect();
    Tensor::from_slice(device, &values, shape).unwrap()
}

/// Any kind, as one: the results, then what the last steps left.
#[derive(Debug)]
enum Layer {
    Gru(Gru),
    Lstm(Lstm),
    Rnn(Rnn),
}

impl Layer {
    fn new(device: &Device, kind: &str, inputs: usize, hidden: usize, options: RecurrentOptions) -> Self {
        let rng = Rng::new(0);
        let gru = || Gru::with_options(device, inputs, hidden, options, &rng).unwrap();
        let rnn = || Rnn::with_options(device, inputs, hidden, options, &rng).unwrap();
        match kind {
            "GRU" => Self::Gru(gru()),
            "GRU before" => Self::Gru(gru().with_reset_after(false)),
            "LSTM" => Self::Lstm(Lstm::with_options(device, inputs, hidden, options, &rng).unwrap()),
            "RNN tanh" => Self::Rnn(rnn()),
            "RNN relu" => Self::Rnn(rnn().with_nonlinearity(Nonlinearity::Relu)),
            _ => panic!("{kind}"),
        }
    }

    fn module(&self) -> &dyn Module {
        match self {
            Self::Gru(gru) => gru,
            Self::Lstm(lstm) => lstm,
            Self::Rnn(rnn) => rnn,
        }
    }

    /// How many tensors a state is.
    fn states(&self) -> usize {
        match self {
            Self::Gru(_) | Self::Rnn(_) => 1,
            Self::Lstm(_) => 2,
        }
    }

    fn run(&self, x: &Tensor, state: Option<&[Tensor]>) -> Result<Vec<Tensor>> {
        match self {
            Self::Gru(gru) => gru.run(x, state.map(|state| &state[0])).map(|(y, h)| vec![y, h]),
            Self::Rnn(rnn) => rnn.run(x, state.map(|state| &state[0])).map(|(y, h)| vec![y, h]),
            Self::Lstm(lstm) => {
                let state = state.map(|state| (&state[0], &state[1]));
                lstm.run(x, state).map(|(y, h, c)| vec![y, h, c])
            }
        }
    }

    fn paths(&self) -> Vec<String> {
        self.module().parameters().into_iter().map(|(path, _)| path).collect()
    }
}

const KINDS: &[&str] = &["GRU", "LSTM", "GRU before", "RNN tanh", "RNN relu"];

fn options(layers: usize, bidirectional: bool) -> RecurrentOptions {
    RecurrentOptions { layers, bidirectional, dtype: DType::F64, ..RecurrentOptions::default() }
}

fn assert_close(name: &str, computed: &Tensor, expected: &[f64]) {
    let computed = computed.to_vec::<f64>().unwrap();
    assert_eq!(computed.len(), expected.len(), "{name}");
    for (a, b) in computed.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-11, "{name}: {computed:?} is not {expected:?}");
    }
}

#[test]
fn recurrent_layers_equal_those_of_pytorch() {
    let device = device();
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    assert_eq!(cases.len(), 20);
    for case in &cases {
        let number = |index: usize| case[index].as_u64().unwrap() as usize;
        let [layers, directions, inputs, hidden] = [1, 2, 3, 4].map(number);
        let name = format!("{} of {layers} layers in {directions} directions", case[0]);
        let layer =
            Layer::new(&device, case[0].as_str().unwrap(), inputs, hidden, options(layers, directions == 2));
        for (index, (_, parameter)) in layer.module().parameters().into_iter().enumerate() {
            parameter.set(&wave(&device, parameter.tensor().dims(), 1.0 + index as f64)).unwrap();
        }
        let cells = layers * directions;
        let shape = if cells == 1 { vec![2, hidden] } else { vec![cells, 2, hidden] };
        let x = wave(&device, &[2, 3, inputs], 0.3).requiring_grad().unwrap();
        let state = |index: usize| wave(&device, &shape, 5.0 + index as f64).requiring_grad().unwrap();
        let states: Vec<Tensor> = (0..layer.states()).map(state).collect();

        let results = layer.run(&x, Some(&states)).unwrap();
        let weighed = results.iter().enumerate().map(|(index, result)| {
            result.mul(&wave(&device, result.dims(), 0.9 + index as f64)).unwrap().sum_all().unwrap()
        });
        let loss = weighed.reduce(|sum, term| sum.add(&term).unwrap()).unwrap();
        let gradients = loss.backward().unwrap();
        let parameters = layer.module().parameters().into_iter().map(|(_, parameter)| parameter.tensor());
        let leaves: Vec<Tensor> = std::iter::once(x).chain(states).chain(parameters).collect();
        let gradients = leaves.iter().map(|leaf| gradients.get(leaf).unwrap());

        let computed: Vec<&Tensor> = results.iter().chain(gradients).collect();
        let expected = case[5].as_array().unwrap();
        assert_eq!(computed.len(), expected.len(), "{name}");
        for (computed, expected) in computed.into_iter().zip(expected) {
            let expected: Vec<f64> =
                expected.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
            assert_close(&name, computed, &expected);
        }
    }
}

#[test]
fn gradients_agree_with_differences() {
    let device = device();
    for &kind in KINDS {
        let layer = Layer::new(&device, kind, 2, 2, options(2, true));
        let x = wave(&device, &[2, 3, 2], 0.4);
        let check = GradCheck::for_dtype(DType::F64);
        check_gradients(|x| layer.module().forward(&x[0]), &[x], check)
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
}

#[test]
fn paths_tell_layer_and_direction_and_are_as_they_were_for_one() {
    let device = device();
    let paths = |layers, bidirectional| {
        let paths =
            KINDS.iter().map(|&kind| Layer::new(&device, kind, 2, 2, options(layers, bidirectional)).paths());
        let paths: Vec<_> = paths.collect();
        assert!(paths.iter().all(|other| *other == paths[0]), "{paths:?}");
        paths[0].clone()
    };
    let names = ["weight_input", "weight_hidden", "bias_input", "bias_hidden"];
    let below = |prefixes: &[&str]| -> Vec<String> {
        prefixes.iter().flat_map(|prefix| names.map(|name| format!("{prefix}{name}"))).collect()
    };
    assert_eq!(paths(1, false), below(&[""]));
    assert_eq!(paths(2, false), below(&["layers.0.", "layers.1."]));
    assert_eq!(paths(1, true), below(&["layers.0.forward.", "layers.0.backward."]));
    assert_eq!(paths(2, true)[12..], below(&["layers.1.backward."]));
}

#[test]
fn each_cell_is_charged_where_its_parameters_are() {
    let device = device();
    let gru = Gru::with_options(&device, 3, 4, options(2, true), &Rng::new(0)).unwrap();
    let net = Sequential::new().with("encoder", gru);
    device.tracker().start_log(bfc_core::Bytes::mib(1));
    net.forward(&Tensor::ones_of(&device, [2, 5, 3], DType::F64).unwrap()).unwrap();
    let log = device.tracker().take_log();
    let blocks = log.blocks().iter().map(|block| log.owner_path(block.owner));
    let owners: std::collections::BTreeSet<String> = blocks.collect();
    for cell in ["layers.0.forward", "layers.0.backward", "layers.1.forward", "layers.1.backward"] {
        assert!(owners.contains(&format!("encoder.{cell}.gru")), "{cell}: {owners:?}");
    }
}

#[test]
fn the_last_states_go_on_where_the_sequence_was_cut() {
    let device = device();
    for &kind in KINDS {
        let layer = Layer::new(&device, kind, 2, 3, options(3, false));
        let x = wave(&device, &[2, 9, 2], 0.0);
        let whole = layer.run(&x, None).unwrap();
        let first = layer.run(&x.narrow(1, 0, 4).unwrap(), None).unwrap();
        let second = layer.run(&x.narrow(1, 4, 5).unwrap(), Some(&first[1..])).unwrap();
        let joined = Tensor::concat(&[&first[0], &second[0]], 1).unwrap();
        for (parts, whole) in std::iter::once(&joined).chain(&second[1..]).zip(&whole) {
            assert_close(kind, parts, &whole.to_vec::<f64>().unwrap());
        }
    }
}

#[test]
fn the_reverse_direction_equals_a_reversed_sequence() {
    let device = device();
    for &kind in KINDS {
        let both = Layer::new(&device, kind, 2, 3, options(1, true));
        let one = Layer::new(&device, kind, 2, 3, options(1, false));
        let from = both.module().parameters();
        for ((_, to), (_, from)) in one.module().parameters().iter().zip(&from[4..]) {
            to.set(&from.tensor()).unwrap();
        }
        let x = wave(&device, &[2, 5, 2], 0.2);
        let expected = one.module().forward(&x.flip(1).unwrap()).unwrap().flip(1).unwrap();
        let y = both.module().forward(&x).unwrap().narrow(-1, 3, 3).unwrap();
        assert_close(kind, &y, &expected.to_vec::<f64>().unwrap());
    }
}

#[test]
fn recurrent_dropout_applies_between_layers_in_training() {
    let device = device();
    let x = wave(&device, &[2, 4, 3], 0.1);
    for &kind in KINDS {
        let made = |layers, dropout| {
            let options = RecurrentOptions { dropout, ..options(layers, true) };
            Layer::new(&device, kind, 3, 8, options)
        };
        let forward = |layer: &Layer| layer.module().forward(&x).unwrap().to_vec::<f64>().unwrap();
        let rngs = |layer: &Layer| rng_paths(layer.module());
        // Behind the only layer there is none.
        assert_eq!(forward(&made(1, 0.5)), forward(&made(1, 0.0)));
        assert!(rngs(&made(1, 0.5)).is_empty());
        assert!(rngs(&made(2, 0.0)).is_empty());

        let (plain, dropping) = (made(2, 0.0), made(2, 0.5));
        assert_eq!(rngs(&dropping), ["dropout.rng"]);
        assert_eq!(no_grad(|| Ok(forward(&dropping))).unwrap(), forward(&plain));
        let first = forward(&dropping);
        assert_ne!(first, forward(&plain));
        assert_ne!(first, forward(&dropping), "each pass drops others");
        assert_eq!(first, forward(&made(2, 0.5)), "one seed gives one run");
        // The first layer's states are as without: those of the last are its own, and none of them is dropped.
        assert!(kind == "RNN relu" || first.iter().all(|&state| state != 0.0));
        let (of_first, plain) = (dropping.run(&x, None).unwrap(), plain.run(&x, None).unwrap());
        let first_layer = |left: &[Tensor]| left[1].narrow(0, 0, 2).unwrap().to_vec::<f64>().unwrap();
        assert_eq!(first_layer(&of_first), first_layer(&plain));
    }
}

#[test]
fn a_part_that_runs_again_drops_what_it_dropped() {
    let device = device();
    let options = RecurrentOptions { dropout: 0.5, ..options(2, false) };
    let gradient = |again: bool| {
        let gru = Gru::with_options(&device, 3, 8, options, &Rng::new(4)).unwrap();
        let x = wave(&device, &[2, 4, 3], 0.1).requiring_grad().unwrap();
        let y = if again { checkpoint(&x, move |x| gru.forward(x)) } else { gru.forward(&x) };
        let gradients = y.unwrap().sum_all().unwrap().backward().unwrap();
        gradients.get(&x).unwrap().to_vec::<f64>().unwrap()
    };
    assert_close("again", &Tensor::from_slice(&device, &gradient(true), 24).unwrap(), &gradient(false));
}

#[test]
fn what_does_not_fit_is_named() {
    let device = device();
    let make = |options| Gru::with_options(&device, 3, 4, options, &Rng::new(0));
    let error = |options| make(options).unwrap_err().to_string();
    assert_eq!(error(options(0, false)), "gru: layers must be above 0, got 0");
    for p in [-0.1, 1.0, f64::NAN] {
        let error = make(RecurrentOptions { dropout: p, ..options(1, false) }).unwrap_err();
        assert!(matches!(error, Error::BadArgument { argument: "dropout", .. }), "{error}");
    }
    let whole = make(RecurrentOptions { dtype: DType::I64, ..options(1, false) }).unwrap_err();
    assert!(matches!(whole, Error::UnsupportedDType { dtype: DType::I64, .. }), "{whole}");

    let both = make(options(1, true)).unwrap();
    let x = Tensor::ones_of(&device, [2, 5, 3], DType::F64).unwrap();
    for shape in [&[2, 4][..], &[1, 2, 4], &[2, 1, 4], &[2, 2, 3]] {
        let state = Tensor::ones_of(&device, shape, DType::F64).unwrap();
        let error = both.run(&x, Some(&state)).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { op: "gru", .. }), "{error}");
    }
    let wide = both.run(&Tensor::ones_of(&device, [2, 5, 4], DType::F64).unwrap(), None).unwrap_err();
    assert_eq!(
        wide.to_string(),
        "gru: shapes [2, 5, 4] and [3, 12] do not match: the last axis of the input must have as many elements as the weight has rows"
    );
    let narrow = x.to_dtype(DType::F32).unwrap();
    let state = Tensor::ones(&device, [2, 2, 4]).unwrap();
    for (result, message) in [
        (
            both.run(&narrow, None),
            "gru: element types f32 and f64 differ (shapes [2, 5, 3] and [3, 12]); convert one of them with `to_dtype`",
        ),
        (
            both.run(&x, Some(&state)),
            "gru: element types f64 and f32 differ (shapes [2, 5, 3] and [2, 2, 4]); convert one of them with `to_dtype`",
        ),
    ] {
        assert_eq!(result.unwrap_err().to_string(), message);
    }
    for shape in [[2, 0, 3], [0, 4, 3]] {
        let (y, last) = both.run(&Tensor::ones_of(&device, shape, DType::F64).unwrap(), None).unwrap();
        assert_eq!((y.dims(), last.dims()), (&[shape[0], shape[1], 8][..], &[2, shape[0], 4][..]));
    }
}
