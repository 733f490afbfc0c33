//! Recurrent layers against the same computation by single ops, over sizes around whole blocks and groups.

use crate::ops_table::{Numbers, device, device_of};
use highwater_tensor::{DType, Device, Error, RecurrentCell, RecurrentWeights, Result, Runtime, Tensor};

const CELLS: [RecurrentCell; 4] =
    [RecurrentCell::Lstm, RecurrentCell::Gru, RecurrentCell::Tanh, RecurrentCell::Relu];

/// Sequences, steps, elements of an input and of a state.
const SIZES: &[[usize; 4]] =
    &[[1, 1, 1, 1], [7, 3, 2, 5], [17, 2, 3, 16], [33, 4, 5, 33], [40, 3, 4, 20], [2, 5, 17, 48]];

/// A layer and its inputs: the sequences, W, U, both biases, and the initial state and cell.
struct Layer {
    cell: RecurrentCell,
    reverse: bool,
    x: Vec<Tensor>,
}

/// Returns random values between -1 and 1 that require a gradient, as a part of a larger tensor.
fn random(device: &Device, numbers: &mut Numbers, dims: &[usize], dtype: DType) -> Tensor {
    let mut around = dims.to_vec();
    around.reverse();
    around.iter_mut().for_each(|size| *size += 2);
    let values: Vec<f64> = (0..around.iter().product()).map(|_| numbers.unit() * 2.0 - 1.0).collect();
    let tensor = Tensor::from_slice(device, &values, &around[..]).unwrap().to_dtype(dtype).unwrap();
    let axes: Vec<isize> = (0..dims.len() as isize).rev().collect();
    let part = |x: Tensor, axis: usize| x.narrow(axis as isize, 1, dims[axis]).unwrap();
    (0..dims.len()).fold(tensor.permute(&axes).unwrap(), part).requiring_grad().unwrap()
}

impl Layer {
    fn new(
        device: &Device,
        (cell, reverse, starts): (RecurrentCell, bool, bool),
        [n, len, inputs, hidden]: [usize; 4],
        dtype: DType,
    ) -> Self {
        let mut numbers = Numbers::new(7);
        let width = hidden * cell.gates();
        let states = if starts { cell.states() } else { 0 };
        let mut random = |dims: &[usize]| random(device, &mut numbers, dims, dtype);
        let mut x = vec![random(&[n, len, inputs]), random(&[inputs, width]), random(&[hidden, width])];
        x.extend([random(&[width]), random(&[width])]);
        x.extend((0..states).map(|_| random(&[n, hidden])));
        Self { cell, reverse, x }
    }

    fn weights(&self) -> RecurrentWeights<'_> {
        let [_, input, hidden, input_bias, hidden_bias, ..] = &self.x[..] else { unreachable!() };
        RecurrentWeights { input, hidden, input_bias, hidden_bias }
    }

    /// Returns the states, and the last cell of an LSTM.
    fn run(&self) -> Result<Vec<Tensor>> {
        let initial: Vec<&Tensor> = self.x[5..].iter().collect();
        if self.cell != RecurrentCell::Lstm {
            return Ok(vec![self.x[0].recurrent(self.cell, self.weights(), &initial, self.reverse)?]);
        }
        let given = initial.first().copied().zip(initial.get(1).copied());
        let (states, cell) = self.x[0].lstm(self.weights(), given, self.reverse)?;
        Ok(vec![states, cell])
    }

    /// The same by single ops.
    fn run_composed(&self) -> Result<Vec<Tensor>> {
        let [x, input, weight, input_bias, bias, initial @ ..] = &self.x[..] else { unreachable!() };
        let (len, hidden) = (x.dims()[1], weight.dims()[0]);
        let zeros = Tensor::zeros_of(x.device(), [x.dims()[0], hidden], x.dtype())?;
        let mut h = initial.first().unwrap_or(&zeros).clone();
        let mut c = initial.get(1).unwrap_or(&zeros).clone();
        let mut states = vec![zeros; len];
        for step in 0..len {
            let at = if self.reverse { len - 1 - step } else { step };
            let of_input = x.select(1, at as isize)?.contiguous()?.matmul(input)?.add(input_bias)?;
            let of_state = h.matmul(weight)?.add(bias)?;
            let part = |gates: &Tensor, gate: usize| gates.narrow(-1, gate * hidden, hidden);
            let both = |gate: usize| part(&of_input, gate)?.add(&part(&of_state, gate)?);
            match self.cell {
                RecurrentCell::Lstm => {
                    let (i, f, g, o) =
                        (both(0)?.sigmoid()?, both(1)?.sigmoid()?, both(2)?.tanh()?, both(3)?.sigmoid()?);
                    c = f.mul(&c)?.add(&i.mul(&g)?)?;
                    h = o.mul(&c.tanh()?)?;
                }
                RecurrentCell::Gru => {
                    let (r, z) = (both(0)?.sigmoid()?, both(1)?.sigmoid()?);
                    let n = part(&of_input, 2)?.add(&r.mul(&part(&of_state, 2)?)?)?.tanh()?;
                    h = n.add(&z.mul(&h.sub(&n)?)?)?;
                }
                RecurrentCell::Tanh => h = both(0)?.tanh()?,
                _ => h = both(0)?.relu()?,
            }
            states[at] = h.clone();
        }
        let states = Tensor::stack(&states.iter().collect::<Vec<_>>(), 1)?;
        Ok(if self.cell == RecurrentCell::Lstm { vec![states, c] } else { vec![states] })
    }

    /// Returns the results, and the gradients of all inputs.
    fn with_gradients(&self, results: &[Tensor]) -> Vec<Tensor> {
        let mut loss = results[0].square().unwrap().sum_all().unwrap();
        if let Some(cell) = results.get(1) {
            loss = loss.add(&cell.mul_scalar(0.7).unwrap().sum_all().unwrap()).unwrap();
        }
        let gradients = loss.backward().unwrap();
        results.iter().cloned().chain(self.x.iter().map(|x| gradients.get(x).unwrap().clone())).collect()
    }
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// The largest difference between elements, relative to the largest element.
fn difference(left: &Tensor, right: &Tensor) -> f64 {
    assert_eq!(left.dims(), right.dims());
    let (left, right) = (values(left), values(right));
    let largest = right.iter().fold(1e-30, |largest: f64, x| largest.max(x.abs()));
    left.iter().zip(&right).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f64::max)
}

#[test]
fn recurrent_ops_equal_their_composition_of_single_ops() {
    let device = device();
    for &sizes in SIZES {
        for (number, cell) in CELLS.into_iter().enumerate() {
            for (reverse, starts) in [(false, true), (true, false)] {
                for (dtype, most) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
                    // An emulator takes longer.
                    if device.id().to_string().starts_with("cuda") && dtype == DType::F32 && number > 1 {
                        continue;
                    }
                    let layer = Layer::new(&device, (cell, reverse, starts), sizes, dtype);
                    let fused = layer.with_gradients(&layer.run().unwrap());
                    let composed = layer.with_gradients(&layer.run_composed().unwrap());
                    for (place, (fused, composed)) in fused.iter().zip(&composed).enumerate() {
                        let apart = difference(fused, composed);
                        assert!(apart < most, "{place} of {cell:?} of {sizes:?} in {dtype}: {apart}");
                    }
                }
            }
        }
    }
}

#[test]
fn recurrent_ops_compute_with_half_precision_tensors() {
    let device = device();
    for cell in CELLS {
        let layer = |dtype| Layer::new(&device, (cell, false, true), [3, 4, 5, 6], dtype);
        let run = |layer: Layer| layer.with_gradients(&layer.run().unwrap());
        let exact = run(layer(DType::F32));
        for (dtype, most) in [(DType::BF16, 0.05), (DType::F16, 0.01)] {
            for (half, exact) in run(layer(dtype)).iter().zip(&exact) {
                assert_eq!(half.dtype(), dtype);
                assert!(difference(half, exact) < most, "{cell:?} in {dtype}");
            }
        }
    }
}

#[test]
fn recurrent_ops_do_not_depend_on_the_thread_count() {
    for cell in CELLS {
        let run = |threads| {
            let device = device_of(Runtime::builder().threads(threads));
            let layer = Layer::new(&device, (cell, false, true), [50, 3, 4, 24], DType::F32);
            let results = layer.with_gradients(&layer.run().unwrap());
            results.iter().map(|result| result.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(3), "{cell:?}");
    }
}

#[test]
fn recurrent_ops_allocate_the_same_number_of_blocks_for_any_length() {
    let device = device();
    for cell in CELLS {
        let allocations = |len: usize| {
            // Large enough for products and sums that need a workspace at both lengths.
            let layer = Layer::new(&device, (cell, false, true), [16, len, 32, 32], DType::F32);
            let pool = device.default_allocator().unwrap();
            let before = pool.stats().num_allocs;
            drop(layer.with_gradients(&layer.run().unwrap()));
            pool.stats().num_allocs - before
        };
        assert_eq!(allocations(400), allocations(900), "{cell:?}");
    }
}

#[test]
fn operands_of_recurrent_ops_that_do_not_fit_are_errors() {
    let device = device();
    let layer = Layer::new(&device, (RecurrentCell::Gru, false, true), [2, 3, 4, 5], DType::F64);
    let run = |place: usize, other: &Tensor| {
        let mut x = layer.x.clone();
        x[place] = other.clone();
        let Layer { cell, reverse, .. } = layer;
        Layer { cell, reverse, x }.run().unwrap_err()
    };
    for (place, tensor) in layer.x.iter().enumerate() {
        let mut dims = tensor.dims().to_vec();
        *dims.last_mut().unwrap() += 1;
        let wide = run(place, &Tensor::zeros_of(&device, &dims[..], DType::F64).unwrap());
        assert!(matches!(wide, Error::ShapeMismatch { op: "gru", .. }), "{place}: {wide}");
        let other = run(place, &tensor.to_dtype(DType::F32).unwrap());
        assert!(matches!(other, Error::DTypeMismatch { op: "gru", .. }), "{place}: {other}");
        if place < 3 {
            let flat = run(place, &tensor.reshape([tensor.elements()]).unwrap());
            assert!(matches!(flat, Error::BadRank { op: "gru", .. }), "{place}: {flat}");
        }
    }
    let state = &layer.x[5];
    let initial = [state, state];
    let error = layer.x[0].recurrent(layer.cell, layer.weights(), &initial, false).unwrap_err();
    assert_eq!(error.to_string(), "gru: initial must be none, or a state, got 2");
    let whole = layer.x[0].to_dtype(DType::I64).unwrap();
    let error = whole.recurrent(layer.cell, layer.weights(), &[], false).unwrap_err();
    assert!(matches!(error, Error::UnsupportedDType { op: "gru", dtype: DType::I64 }), "{error}");
}

#[test]
fn sequences_without_steps_or_rows_are_empty() {
    let device = device();
    for [n, len] in [[2, 0], [0, 3]] {
        for cell in CELLS {
            let layer = Layer::new(&device, (cell, true, true), [n, len, 4, 5], DType::F64);
            let results = layer.run().unwrap();
            assert_eq!(results[0].dims(), [n, len, 5], "{cell:?}");
            if let Some(cell) = results.get(1) {
                assert_eq!(values(cell), if len == 0 { values(&layer.x[6]) } else { Vec::new() });
            }
        }
    }
}
