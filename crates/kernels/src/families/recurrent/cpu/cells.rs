//! One step of a recurrent cell for one sequence, forward and backward.
//!
//! The slices are separate arguments, so that the compiler knows that outputs do not alias inputs.

use crate::cpu::number::Float;
use crate::cpu::simd::Loop;
use crate::families::RecurrentCell;
use crate::families::map::cpu::logistic;

/// Splits gates into single ones.
#[inline(always)]
fn split<T, const N: usize>(gates: &[T], hidden: usize) -> [&[T]; N] {
    std::array::from_fn(|gate| &gates[gate * hidden..][..hidden])
}

/// Splits gates into single ones.
#[inline(always)]
fn split_mut<T, const N: usize>(mut gates: &mut [T], hidden: usize) -> [&mut [T]; N] {
    std::array::from_fn(|_| gates.split_off_mut(..hidden).unwrap_or_default())
}

/// A step forward.
pub(super) struct Step<'a, T> {
    pub(super) cell: RecurrentCell,
    /// The product of the previous state and the weight.
    pub(super) product: &'a [T],
    /// The bias of the product.
    pub(super) bias: &'a [T],
    /// The inputs' shares of the gates, which their values replace.
    pub(super) gates: &'a mut [T],
    /// The previous cell of an LSTM, the previous state of a GRU. The new one replaces it.
    pub(super) carry: &'a mut [T],
    /// Receives the new cell of an LSTM, the state's share of a GRU's gate n.
    pub(super) extra: &'a mut [T],
    /// The new state.
    pub(super) out: &'a mut [T],
}

impl<T: Float> Loop for Step<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { cell, product, bias, gates, carry, extra, out } = self;
        let hidden = out.len();
        match cell {
            RecurrentCell::Lstm => {
                add_shares(gates, product, bias);
                let [i, f, g, o] = split_mut(gates, hidden);
                lstm(i, f, g, o, carry, extra, out);
            }
            RecurrentCell::Gru => {
                let [r, z, n] = split_mut(gates, hidden);
                let (product, bias) = (split(product, hidden), split(bias, hidden));
                gru(r, z, n, product, bias, carry, extra, out);
            }
            RecurrentCell::Tanh => {
                add_shares(gates, product, bias);
                each(gates, out, T::tanh);
            }
            RecurrentCell::Relu => {
                add_shares(gates, product, bias);
                each(gates, out, T::rectified);
            }
        }
    }
}

/// `gates += product + bias`
#[inline(always)]
fn add_shares<T: Float>(gates: &mut [T], product: &[T], bias: &[T]) {
    for ((gate, &product), &bias) in gates.iter_mut().zip(product).zip(bias) {
        *gate += product + bias;
    }
}

#[inline(always)]
fn each<T: Float>(gates: &mut [T], out: &mut [T], f: impl Fn(T) -> T) {
    for (gate, out) in gates.iter_mut().zip(out) {
        *gate = f(*gate);
        *out = *gate;
    }
}

#[inline(always)]
fn lstm<T: Float>(
    i: &mut [T],
    f: &mut [T],
    g: &mut [T],
    o: &mut [T],
    cell: &mut [T],
    cells: &mut [T],
    out: &mut [T],
) {
    let len = out.len();
    let (i, f, g, o) = (&mut i[..len], &mut f[..len], &mut g[..len], &mut o[..len]);
    let (cell, cells) = (&mut cell[..len], &mut cells[..len]);
    for at in 0..len {
        let (input, forget, new, output) = (logistic(i[at]), logistic(f[at]), g[at].tanh(), logistic(o[at]));
        let value = forget * cell[at] + input * new;
        (i[at], f[at], g[at], o[at]) = (input, forget, new, output);
        (cell[at], cells[at]) = (value, value);
        out[at] = output * value.tanh();
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "separate slices do not alias")]
fn gru<T: Float>(
    r: &mut [T],
    z: &mut [T],
    n: &mut [T],
    product: [&[T]; 3],
    bias: [&[T]; 3],
    state: &mut [T],
    inner: &mut [T],
    out: &mut [T],
) {
    let len = out.len();
    let (r, z, n) = (&mut r[..len], &mut z[..len], &mut n[..len]);
    let ([ur, uz, un], [br, bz, bn]) = (product.map(|part| &part[..len]), bias.map(|part| &part[..len]));
    let (state, inner) = (&mut state[..len], &mut inner[..len]);
    for at in 0..len {
        let (reset, update) = (logistic(r[at] + (ur[at] + br[at])), logistic(z[at] + (uz[at] + bz[at])));
        let share = un[at] + bn[at];
        let new = (n[at] + reset * share).tanh();
        let value = new + update * (state[at] - new);
        (r[at], z[at], n[at], inner[at]) = (reset, update, new, share);
        (state[at], out[at]) = (value, value);
    }
}

/// A step backward.
pub(super) struct StepGrad<'a, T> {
    pub(super) cell: RecurrentCell,
    /// The gradient of the state as an output.
    pub(super) grad: &'a [T],
    /// The gradient of the state by the next step's product.
    pub(super) product: &'a [T],
    /// The previous cell of an LSTM, the previous state of a GRU.
    pub(super) before: &'a [T],
    /// The cell of an LSTM, as a copy of `extra`; otherwise empty.
    pub(super) after: &'a [T],
    /// The values of the gates, which the gradients of the inputs' shares replace.
    pub(super) gates: &'a mut [T],
    /// The state's share of a GRU's gate n, which its gradient replaces; otherwise empty.
    pub(super) extra: &'a mut [T],
    /// The next step's gradient of the cell of an LSTM, or its direct gradient of the state of a GRU. This step's
    /// replaces it.
    pub(super) carry: &'a mut [T],
}

impl<T: Float> Loop for StepGrad<'_, T> {
    type Element = T;
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { cell, grad, product, before, after, gates, extra, carry } = self;
        let hidden = grad.len();
        match cell {
            RecurrentCell::Lstm => {
                let [i, f, g, o] = split_mut(gates, hidden);
                lstm_grad(i, f, g, o, [grad, product, before, after], carry);
            }
            RecurrentCell::Gru => {
                let [r, z, n] = split_mut(gates, hidden);
                gru_grad(r, z, n, [grad, product, before], extra, carry);
            }
            RecurrentCell::Tanh => each_grad(gates, grad, product, |y, g| g * (T::ONE - y * y)),
            RecurrentCell::Relu => {
                each_grad(gates, grad, product, |y, g| if y <= T::ZERO { T::ZERO } else { g });
            }
        }
    }
}

#[inline(always)]
fn each_grad<T: Float>(gates: &mut [T], grad: &[T], product: &[T], f: impl Fn(T, T) -> T) {
    for ((gate, &grad), &product) in gates.iter_mut().zip(grad).zip(product) {
        *gate = f(*gate, grad + product);
    }
}

/// The derivative of the logistic function, by its value.
#[inline(always)]
fn logistic_slope<T: Float>(y: T) -> T {
    y * (T::ONE - y)
}

/// The derivative of the hyperbolic tangent, by its value.
#[inline(always)]
fn tanh_slope<T: Float>(y: T) -> T {
    T::ONE - y * y
}

#[inline(always)]
fn lstm_grad<T: Float>(
    i: &mut [T],
    f: &mut [T],
    g: &mut [T],
    o: &mut [T],
    inputs: [&[T]; 4],
    carry: &mut [T],
) {
    let len = carry.len();
    let (i, f, g, o) = (&mut i[..len], &mut f[..len], &mut g[..len], &mut o[..len]);
    let [grad, product, before, after] = inputs.map(|input| &input[..len]);
    for at in 0..len {
        let (input, forget, new, output) = (i[at], f[at], g[at], o[at]);
        let (state_grad, squashed) = (grad[at] + product[at], after[at].tanh());
        let cell_grad = carry[at] + state_grad * output * tanh_slope(squashed);
        i[at] = cell_grad * new * logistic_slope(input);
        f[at] = cell_grad * before[at] * logistic_slope(forget);
        g[at] = cell_grad * input * tanh_slope(new);
        o[at] = state_grad * squashed * logistic_slope(output);
        carry[at] = cell_grad * forget;
    }
}

#[inline(always)]
fn gru_grad<T: Float>(
    r: &mut [T],
    z: &mut [T],
    n: &mut [T],
    inputs: [&[T]; 3],
    inner: &mut [T],
    carry: &mut [T],
) {
    let len = carry.len();
    let (r, z, n, inner) = (&mut r[..len], &mut z[..len], &mut n[..len], &mut inner[..len]);
    let [grad, product, before] = inputs.map(|input| &input[..len]);
    for at in 0..len {
        let (reset, update, new) = (r[at], z[at], n[at]);
        let state_grad = grad[at] + product[at] + carry[at];
        let new_grad = state_grad * (T::ONE - update) * tanh_slope(new);
        r[at] = new_grad * inner[at] * logistic_slope(reset);
        z[at] = state_grad * (before[at] - new) * logistic_slope(update);
        n[at] = new_grad;
        inner[at] = new_grad * reset;
        carry[at] = state_grad * update;
    }
}
