//! The gradient of every differentiable op against differences.

use crate::ops_table::{cases, device, inputs, runtime};
use highwater_tensor::{
    DType, Error, GradCheck, GradCheckError, Op, OpContext, Result, Saved, Tensor, apply, check_gradients,
};

fn check_all(dtype: DType) {
    let device = device();
    for case in cases() {
        let inputs = inputs(&case, &device, dtype);
        if let Err(error) = check_gradients(|x| case.apply(x), &inputs, GradCheck::for_dtype(dtype)) {
            panic!("{} in {dtype}: {error}", case.name);
        }
    }
}

#[test]
fn gradients_agree_with_differences_in_double_precision() {
    check_all(DType::F64);
}

#[test]
fn gradients_agree_with_differences_in_single_precision() {
    check_all(DType::F32);
}

/// y = 3x with the gradient of 2x.
#[derive(Debug)]
struct Wrong;

impl Op for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn forward(&self, _: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        inputs[0].mul_scalar(3.0)
    }

    fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad.mul_scalar(2.0)?)])
    }
}

#[test]
fn a_wrong_gradient_is_found() {
    let device = device();
    for dtype in [DType::F32, DType::F64] {
        let x = Tensor::ones_of(&device, 2, dtype).unwrap();
        let checked = check_gradients(|x| apply(Wrong, &[&x[0]]), &[x], GradCheck::for_dtype(dtype));
        assert!(matches!(checked, Err(GradCheckError::Differs { input: 0, element: 0, .. })), "{checked:?}");
    }
}

/// y = x, with gradients as `backward` makes them of the right one.
#[derive(Debug)]
struct Odd {
    backward: fn(&Tensor) -> Result<Vec<Option<Tensor>>>,
}

impl Op for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn forward(&self, _: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        inputs[0].mul_scalar(1.0)
    }

    fn backward(&self, _: &OpContext<'_>, _: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        (self.backward)(&grad)
    }
}

#[test]
fn a_gradient_that_is_not_like_its_input_is_an_error() {
    let device = device();
    let error = |backward| {
        let x = Tensor::ones(&device, 4).unwrap().requiring_grad().unwrap();
        // Another gradient of x is there already, to which the odd one would be added.
        let loss = apply(Odd { backward }, &[&x]).unwrap().add(&x).unwrap().sum_all().unwrap();
        loss.backward().unwrap_err()
    };
    assert!(matches!(error(|grad| Ok(vec![Some(grad.sum_all()?)])), Error::ShapeMismatch { op: "odd", .. }));
    let other_type = error(|grad| Ok(vec![Some(grad.to_dtype(DType::F64)?)]));
    assert!(matches!(other_type, Error::DTypeMismatch { op: "odd", lhs: DType::F64, rhs: DType::F32, .. }));
    let elsewhere = error(|grad| Ok(vec![Some(grad.to_device(&runtime().cpu()?)?)]));
    assert!(matches!(elsewhere, Error::DeviceMismatch { op: "odd", .. }));
    assert_eq!(
        error(|_| Ok(vec![])).to_string(),
        "odd: gradients must be one entry per input, got 0 for 1 inputs"
    );
}

/// The first two elements of a vector.
#[derive(Debug)]
struct Head {
    total: Total,
}

/// The treatment of an existing gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Total {
    Adds,
    Leaves,
    Loses,
}

impl Op for Head {
    fn name(&self) -> &'static str {
        "head"
    }

    fn forward(&self, _: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        inputs[0].slice(0, ..2)?.contiguous()
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let of_input = Tensor::concat(&[&grad, &grad.zeros_like()?], 0)?;
        let total = if self.total == Total::Leaves { None } else { saved.take_total() };
        if self.total == Total::Loses && total.is_some() {
            return Ok(vec![None]);
        }
        Ok(vec![Some(total.map_or(Ok(of_input.clone()), |total| total + &of_input)?)])
    }

    fn adds_to_gradient(&self) -> bool {
        true
    }
}

#[test]
fn an_op_may_add_to_the_gradient_or_leave_it() {
    for total in [Total::Adds, Total::Leaves] {
        let x = Tensor::ones(&device(), 4).unwrap().requiring_grad().unwrap();
        // Both for a leaf and for the output of another op.
        for input in [x.clone(), x.mul_scalar(1.0).unwrap()] {
            let [first, second] = [2.0, 3.0].map(|factor| {
                apply(Head { total }, &[&input]).unwrap().mul_scalar(factor).unwrap().sum_all().unwrap()
            });
            let loss = first.add(&second).unwrap().add(&input.sum_all().unwrap()).unwrap();
            let gradient = loss.backward().unwrap().get(&x).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(gradient, [6.0, 6.0, 1.0, 1.0], "{total:?}");
        }
    }
}

#[test]
fn an_op_that_takes_a_gradient_must_return_it() {
    let x = Tensor::ones(&device(), 4).unwrap().requiring_grad().unwrap();
    let head = apply(Head { total: Total::Loses }, &[&x]).unwrap().sum_all().unwrap();
    // The backward pass starts with the sum, which came last.
    let loss = head.add(&x.sum_all().unwrap()).unwrap();
    assert_eq!(
        loss.backward().unwrap_err().to_string(),
        "head: gradients must be the sum with the gradient that `take_total` returned, got none"
    );
}

/// Several ops whose results join and part again.
#[test]
fn gradients_of_a_network_agree_with_differences() {
    let device = device();
    let network = |x: &[Tensor]| {
        let hidden = x[0].matmul(&x[1])?.add(&x[2])?.tanh()?;
        let gated = hidden.mul(&hidden.sigmoid()?)?;
        let normed = gated.sub(&gated.mean_keepdim(1)?)?;
        normed.matmul(&x[1].t()?)?.log_softmax(1)?.slice(1, ..2)
    };
    let make = |shape: &[usize], seed| {
        let rng = highwater_tensor::Rng::new(seed);
        Tensor::normal_of(&device, shape, 0.0, 0.7, &rng, DType::F64).unwrap()
    };
    let inputs = [make(&[4, 3], 1), make(&[3, 5], 2), make(&[5], 3)];
    check_gradients(network, &inputs, GradCheck::for_dtype(DType::F64)).unwrap();
}
