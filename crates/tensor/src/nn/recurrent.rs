//! Recurrent layers: a state that goes along a sequence.

use super::init::{Fans, Init};
use super::module::Module;
use super::parameter::Parameter;
use crate::device::Place;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::rng::Rng;
use crate::tensor::Tensor;

/// What both kinds are made of: the gates' weights, side by side along the last axis.
#[derive(Debug)]
struct Gates {
    op: &'static str,
    hidden: usize,
    weight_input: Parameter,
    weight_hidden: Parameter,
    bias_input: Parameter,
    bias_hidden: Parameter,
}

impl Gates {
    fn new(
        op: &'static str,
        place: &impl Place,
        [inputs, hidden, gates]: [usize; 3],
        rng: &Rng,
    ) -> Result<Self> {
        if hidden == 0 {
            let (argument, expected) = ("hidden", "above 0");
            return Err(Error::BadArgument { op, argument, expected, got: "0".to_owned() });
        }
        let (bound, wide) = ((hidden as f64).sqrt().recip(), hidden.saturating_mul(gates));
        let (init, fans) = (Init::Uniform { low: -bound, high: bound }, Fans { inputs, outputs: wide });
        Ok(Self {
            op,
            hidden,
            weight_input: init.parameter(place, [inputs, wide], DType::F32, fans, rng)?,
            weight_hidden: init.parameter(place, [hidden, wide], DType::F32, fans, rng)?,
            bias_input: init.parameter(place, [wide], DType::F32, fans, rng)?,
            bias_hidden: init.parameter(place, [wide], DType::F32, fans, rng)?,
        })
    }

    /// What the inputs give to the gates, step by step: `[n, gates · hidden]` each, in one product for all.
    fn of_inputs(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        if x.rank() != 3 {
            let expected = "three axes: batch, position, width";
            return Err(Error::BadRank { op: self.op, expected, shape: *x.shape() });
        }
        let gates = x.matmul(&self.weight_input.tensor())?.add(&self.bias_input.tensor())?;
        let mut steps = Vec::with_capacity(gates.dims()[1]);
        split(&gates, &mut steps)?;
        Ok(steps)
    }

    /// The weights that the state is multiplied with and their bias, taken once for all steps.
    fn of_state(&self) -> (Tensor, Tensor) {
        (self.weight_hidden.tensor(), self.bias_hidden.tensor())
    }

    /// One of the parts that lie side by side.
    fn part(&self, gates: &Tensor, index: usize) -> Result<Tensor> {
        gates.narrow(-1, index * self.hidden, self.hidden)
    }

    /// A state to begin with: the one given, checked, or zeros.
    fn begin(&self, x: &Tensor, state: Option<&Tensor>) -> Result<Tensor> {
        let shape = [x.dims().first().copied().unwrap_or(0), self.hidden];
        match state {
            None => Tensor::zeros_of(x.device(), shape, x.dtype()),
            Some(state) if state.dims() == shape => Ok(state.clone()),
            Some(state) => Err(Error::ShapeMismatch { op: self.op, lhs: *x.shape(), rhs: *state.shape() }),
        }
    }

    /// The states after all steps as a sequence.
    fn join(&self, x: &Tensor, states: &[Tensor]) -> Result<Tensor> {
        if states.is_empty() {
            return Tensor::zeros_of(x.device(), [x.dims()[0], 0, self.hidden], x.dtype());
        }
        Tensor::stack(&states.iter().collect::<Vec<_>>(), 1)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        visitor("weight_input", &self.weight_input);
        visitor("weight_hidden", &self.weight_hidden);
        visitor("bias_input", &self.bias_input);
        visitor("bias_hidden", &self.bias_hidden);
    }
}

/// The places along axis 1, one by one. Halves of halves: a part's gradient is as large as what it was cut from, so cutting
/// each place from the whole would take time that grows with the square of the length.
fn split(x: &Tensor, places: &mut Vec<Tensor>) -> Result<()> {
    match x.dims()[1] {
        0 => Ok(()),
        1 => {
            places.push(x.squeeze(1)?);
            Ok(())
        }
        len => {
            split(&x.narrow(1, 0, len / 2)?, places)?;
            split(&x.narrow(1, len / 2, len - len / 2)?, places)
        }
    }
}

/// A gated recurrent unit (Cho et al. 2014, as PyTorch has it): from sequences `[n, len, inputs]` to the states after each
/// step, `[n, len, hidden]`.
///
/// With input x and state h: r = σ(x·Wr + h·Ur), z = σ(x·Wz + h·Uz), n = tanh(x·Wn + r·(h·Un)), h ← (1 - z)·n + z·h, each
/// product with a bias. W is `weight_input`, of shape `[inputs, 3·hidden]`, with the gates r, z, n side by side; U is
/// `weight_hidden`, of shape `[hidden, 3·hidden]` (PyTorch keeps the transposes of both).
///
/// ```
/// use highwater_tensor::nn::{Gru, Module};
/// use highwater_tensor::{Device, Rng, Tensor};
/// let device = Device::cpu()?;
/// let gru = Gru::new(&device, 4, 8, &Rng::new(0))?;
/// let x = Tensor::ones(&device, [2, 10, 4])?;
/// assert_eq!(gru.forward(&x)?.dims(), [2, 10, 8]);
/// // In two parts, the state handed on.
/// let (_, state) = gru.run(&x.narrow(1, 0, 6)?, None)?;
/// let (_, state) = gru.run(&x.narrow(1, 6, 4)?, Some(&state))?;
/// assert_eq!(state.dims(), [2, 8]);
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Gru {
    gates: Gates,
}

impl Gru {
    /// A layer in `f32`. All parameters start uniform in ±1/√hidden.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a state of no numbers, [`Error::Allocation`] if there is no memory.
    pub fn new(place: &impl Place, inputs: usize, hidden: usize, rng: &Rng) -> Result<Self> {
        Ok(Self { gates: Gates::new("gru", place, [inputs, hidden, 3], rng)? })
    }

    /// The states after each step, and the last one, from a state `[n, hidden]` or from zeros.
    ///
    /// # Errors
    /// [`Error::BadRank`] unless `x` has three axes, [`Error::ShapeMismatch`] if its width or the state does not fit,
    /// [`Error::Allocation`] if there is no memory.
    pub fn run(&self, x: &Tensor, state: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let (gates, mut states) = (&self.gates, Vec::new());
        let steps = gates.of_inputs(x)?;
        let mut h = gates.begin(x, state)?;
        let (weight, bias) = gates.of_state();
        for step in steps {
            let inside = h.matmul(&weight)?.add(&bias)?;
            let both = |index| gates.part(&step, index)?.add(&gates.part(&inside, index)?)?.sigmoid();
            let (r, z) = (both(0)?, both(1)?);
            let n = gates.part(&step, 2)?.add(&r.mul(&gates.part(&inside, 2)?)?)?.tanh()?;
            // (1 - z)·n + z·h
            h = n.add(&z.mul(&h.sub(&n)?)?)?;
            states.push(h.clone());
        }
        Ok((gates.join(x, &states)?, h))
    }
}

impl Module for Gru {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.run(x, None)?.0)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        self.gates.visit(visitor);
    }
}

/// Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000): from sequences
/// `[n, len, inputs]` to the states after each step, `[n, len, hidden]`.
///
/// With input x, state h and cell c: (i, f, g, o) = x·W + h·U + biases; c ← σ(f)·c + σ(i)·tanh(g), h ← σ(o)·tanh(c). W is
/// `weight_input`, of shape `[inputs, 4·hidden]`, with the gates side by side in this order; U is `weight_hidden`, of
/// shape `[hidden, 4·hidden]` (PyTorch keeps the transposes of both).
///
/// ```
/// use highwater_tensor::nn::{Lstm, Module};
/// use highwater_tensor::{Device, Rng, Tensor};
/// let device = Device::cpu()?;
/// let lstm = Lstm::new(&device, 4, 8, &Rng::new(0))?;
/// let x = Tensor::ones(&device, [2, 10, 4])?;
/// assert_eq!(lstm.forward(&x)?.dims(), [2, 10, 8]);
/// let (_, state, cell) = lstm.run(&x, None)?;
/// assert_eq!((state.dims(), cell.dims()), (&[2, 8][..], &[2, 8][..]));
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Lstm {
    gates: Gates,
}

impl Lstm {
    /// A layer in `f32`. All parameters start uniform in ±1/√hidden.
    ///
    /// # Errors
    /// As [`Gru::new`].
    pub fn new(place: &impl Place, inputs: usize, hidden: usize, rng: &Rng) -> Result<Self> {
        Ok(Self { gates: Gates::new("lstm", place, [inputs, hidden, 4], rng)? })
    }

    /// The states after each step, the last one, and the last cell, from a state and a cell `[n, hidden]` or from zeros.
    ///
    /// # Errors
    /// As [`Gru::run`].
    pub fn run(&self, x: &Tensor, state: Option<(&Tensor, &Tensor)>) -> Result<(Tensor, Tensor, Tensor)> {
        let (gates, mut states) = (&self.gates, Vec::new());
        let steps = gates.of_inputs(x)?;
        let mut h = gates.begin(x, state.map(|(h, _)| h))?;
        let mut c = gates.begin(x, state.map(|(_, c)| c))?;
        let (weight, bias) = gates.of_state();
        for step in steps {
            let all = step.add(&h.matmul(&weight)?)?.add(&bias)?;
            let [i, f, o] = [0, 1, 3].map(|index| gates.part(&all, index)?.sigmoid());
            let g = gates.part(&all, 2)?.tanh()?;
            c = f?.mul(&c)?.add(&i?.mul(&g)?)?;
            h = o?.mul(&c.tanh()?)?;
            states.push(h.clone());
        }
        Ok((gates.join(x, &states)?, h, c))
    }
}

impl Module for Lstm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.run(x, None)?.0)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        self.gates.visit(visitor);
    }
}
