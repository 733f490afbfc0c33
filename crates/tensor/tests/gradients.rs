//! The gradient of every differentiable op against differences.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod ops_table;

use highwater_tensor::{
    DType, GradCheck, GradCheckError, Op, OpContext, Result, Saved, Tensor, apply, check_gradients,
};
use ops_table::{CASES, inputs, runtime};

fn check_all(dtype: DType) {
    let device = runtime().cpu().unwrap();
    for case in CASES {
        let inputs = inputs(case, &device, dtype);
        if let Err(error) = check_gradients(case.function, &inputs, GradCheck::for_dtype(dtype)) {
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

    fn backward(&self, _: &OpContext<'_>, _: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(grad.mul_scalar(2.0)?)])
    }
}

#[test]
fn a_wrong_gradient_is_found() {
    let device = runtime().cpu().unwrap();
    for dtype in [DType::F32, DType::F64] {
        let x = Tensor::ones_of(&device, 2, dtype).unwrap();
        let checked = check_gradients(|x| apply(Wrong, &[&x[0]]), &[x], GradCheck::for_dtype(dtype));
        assert!(matches!(checked, Err(GradCheckError::Differs { input: 0, element: 0, .. })), "{checked:?}");
    }
}

/// A composite: what flows through several ops, joins and parts again.
#[test]
fn gradients_of_a_network_agree_with_differences() {
    let device = runtime().cpu().unwrap();
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
