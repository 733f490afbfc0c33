//! The GRU whose reset gate acts before the product with the state: several ops for each step.

use highwater_tensor::{Error, Result, Tensor, error::ShapeRule};

use super::gates::Gates;
use super::same_dtype;

const OP: &str = "gru";

/// Returns the state after each step, `[n, len, hidden]`, and the last state. Starts from `initial` or from zeros.
pub(super) fn run(
    gates: &Gates,
    x: &Tensor,
    initial: Option<&Tensor>,
    reverse: bool,
) -> Result<(Tensor, Tensor)> {
    let [weight_input, weight, bias_input, bias] = gates.operands()?;
    let mut steps = project_inputs(x, &weight_input, &bias_input)?;
    let (sequences, hidden) = (x.dims()[0], weight.dims()[0]);
    let zeros = |shape: &[usize]| Tensor::zeros_of(x.device(), shape, x.dtype());
    let mut h = initial.map_or_else(|| zeros(&[sequences, hidden]), |initial| Ok(initial.clone()))?;
    let of_new = (weight.narrow(-1, 2 * hidden, hidden)?, bias.narrow(-1, 2 * hidden, hidden)?);
    let of_gates = (weight.narrow(-1, 0, 2 * hidden)?, bias.narrow(-1, 0, 2 * hidden)?);
    let mut states = Vec::with_capacity(steps.len());
    if reverse {
        steps.reverse();
    }
    for input in steps {
        h = step(&input, &of_gates, &of_new, &h)?;
        states.push(h.clone());
    }
    if reverse {
        states.reverse();
    }
    if states.is_empty() {
        return Ok((zeros(&[sequences, 0, hidden])?, h));
    }
    Ok((Tensor::stack(&states.iter().collect::<Vec<_>>(), 1)?, h))
}

/// h ← (1 - z)·n + z·h with n = tanh(x·Wn + (r·h)·Un)
fn step(
    input: &Tensor,
    (weight, bias): &(Tensor, Tensor),
    (weight_new, bias_new): &(Tensor, Tensor),
    h: &Tensor,
) -> Result<Tensor> {
    let hidden = h.dims()[1];
    let part = |gates: &Tensor, index: usize| gates.narrow(-1, index * hidden, hidden);
    let inside = h.matmul(weight)?.add(bias)?;
    let both = |index| part(input, index)?.add(&part(&inside, index)?)?.sigmoid();
    let (r, z) = (both(0)?, both(1)?);
    let n = part(input, 2)?.add(&r.mul(h)?.matmul(weight_new)?.add(bias_new)?)?.tanh()?;
    n.add(&z.mul(&h.sub(&n)?)?)
}

/// Computes the inputs' contributions to the gates in one product, and returns them step by step: `[n, gates · hidden]`
/// each.
fn project_inputs(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Vec<Tensor>> {
    if x.rank() != 3 {
        let expected = "three axes: batch, position, width";
        return Err(Error::BadRank { op: OP, expected, shape: *x.shape() });
    }
    if x.dims()[2] != weight.dims()[0] {
        return Err(Error::ShapeMismatch {
            op: OP,
            lhs: *x.shape(),
            rhs: *weight.shape(),
            rule: &ShapeRule::Other(
                "the last axis of the input must have as many elements as the weight has rows",
            ),
        });
    }
    same_dtype(OP, x, weight)?;
    let gates = x.matmul(weight)?.add(bias)?;
    let mut steps = Vec::with_capacity(gates.dims()[1]);
    split(&gates, &mut steps)?;
    Ok(steps)
}

/// Splits along axis 1 into single positions by repeated bisection. The gradient of a part is as large as the tensor
/// from which it was cut, so cutting each position from the whole would take quadratic time.
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
