//! Defines a custom op, y = x · sigmoid(x), known as SiLU, with its gradient.
//!
//! cargo run --example custom_op -- --help

use std::process::ExitCode;

use clap::Parser;
use highwater::train::{Options, Run};
use highwater::{
    DType, Device, Error, GradCheck, Op, OpContext, Result, Rng, Saved, Tensor, apply, check_gradients,
};
use serde_json::json;

/// An op is a value. Fields would hold its parameters.
#[derive(Debug)]
struct Silu;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// out[i] = f(inputs[i]), computed on the host for every device. A dry device computes nothing.
fn map(ctx: &OpContext<'_>, inputs: &[&Tensor], f: impl Fn(&[f64]) -> f64) -> Result<Tensor> {
    // The context accounts for every allocated byte.
    let mut out = ctx.output(inputs[0].shape(), DType::F64)?;
    if !ctx.backend().is_dry() {
        let inputs = inputs.iter().map(|input| input.to_vec()).collect::<Result<Vec<Vec<f64>>>>()?;
        let value = |index: usize| f(&inputs.iter().map(|input| input[index]).collect::<Vec<_>>());
        let values: Vec<u8> = (0..inputs[0].len()).flat_map(|index| value(index).to_ne_bytes()).collect();
        ctx.upload(&values, out.view_mut())?;
    }
    Ok(out.finish())
}

impl Op for Silu {
    fn name(&self) -> &'static str {
        "silu"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        if inputs[0].dtype() != DType::F64 {
            return Err(Error::UnsupportedDType { op: self.name(), dtype: inputs[0].dtype() });
        }
        // Saves the tensors that backward reads; they are freed after backward.
        ctx.save(inputs[0]);
        map(ctx, inputs, |x| x[0] * sigmoid(x[0]))
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let slope = |x: f64| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
        let gradient = map(ctx, &[saved.tensor(0)?, &grad], |values| slope(values[0]) * values[1])?;
        Ok(vec![Some(gradient)])
    }
}

/// Use a custom op.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    Args::parse().options.run("custom_op", compute)
}

fn compute(run: &Run) -> anyhow::Result<()> {
    // Checks the gradient by finite differences. That needs values, so it runs on a CPU device of its own.
    let rng = Rng::new(run.seed());
    let few = Tensor::normal_of(&Device::cpu()?, [20], 0.0, 2.0, &rng, DType::F64)?;
    check_gradients(|inputs| apply(Silu, &[&inputs[0]]), &[few], GradCheck::for_dtype(DType::F64))?;

    // From here on it behaves like a built-in op: recorded, accounted for, named in the report.
    let x = Tensor::normal_of(run.device(), [1000], 0.0, 2.0, &rng, DType::F64)?.requiring_grad()?;
    let sum = apply(Silu, &[&x])?.sum_all()?;
    let gradients = sum.backward()?;
    let gradient = gradients.get(&x).ok_or(Error::NoGraph)?;
    let sum = if run.device().is_dry() { None } else { Some(sum.item::<f64>()?) };
    let summary = format!("the gradient of silu agrees with differences: {gradient:.3}");
    Ok(run.finish(&summary, json!({ "sum": sum }))?)
}
