//! An op written outside the workspace: y = x · sigmoid(x), known as SiLU, with its gradient.
//!
//! cargo run --example custom_op

use highwater::{
    DType, Device, Error, GradCheck, Op, OpContext, Result, Rng, Saved, Tensor, apply, check_gradients,
    memory_report,
};

/// An op is a value: its fields, if it had any, would be its settings.
#[derive(Debug)]
struct Silu;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// out[i] = f(inputs[i]), on the host. On a dry device there is nothing to compute with, and nothing to do.
fn map(ctx: &OpContext<'_>, inputs: &[&Tensor], f: impl Fn(&[f64]) -> f64) -> Result<Tensor> {
    // Every byte is taken through the context: that is how it gets into the accounts.
    let mut out = ctx.output(inputs[0].shape(), DType::F64)?;
    let inputs = inputs.iter().map(|input| input.contiguous()).collect::<Result<Vec<_>>>()?;
    let views: Option<Vec<&[f64]>> = inputs.iter().map(|input| input.view().host_contiguous()).collect();
    if let (Some(out), Some(views)) = (out.host_mut::<f64>(), views) {
        for (index, value) in out.iter_mut().enumerate() {
            *value = f(&views.iter().map(|view| view[index]).collect::<Vec<_>>());
        }
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
        // What backward reads is saved here, and freed when backward has passed.
        ctx.save(inputs[0]);
        map(ctx, inputs, |x| x[0] * sigmoid(x[0]))
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &Saved, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let slope = |x: f64| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
        let gradient = map(ctx, &[saved.tensor(0)?, grad], |values| slope(values[0]) * values[1])?;
        Ok(vec![Some(gradient)])
    }
}

fn main() -> anyhow::Result<()> {
    let device = Device::best()?;
    let x = Tensor::normal_of(&device, [1000], 0.0, 2.0, &Rng::new(0), DType::F64)?;

    // Is the gradient right? The check moves each element up and down and compares.
    let few = x.slice(0, 0..20)?;
    check_gradients(|inputs| apply(Silu, &[&inputs[0]]), &[few], GradCheck::for_dtype(DType::F64))?;
    println!("the gradient of silu agrees with differences\n");

    // From here on it is an op like any other: recorded, accounted for, named in the report.
    device.tracker().reset();
    let x = x.requiring_grad()?;
    let gradients = apply(Silu, &[&x])?.sum_all()?.backward()?;
    println!("gradient: {:.3}\n", gradients.get(&x).ok_or(Error::NoGraph)?);
    println!("{}", memory_report(&device)?);
    Ok(())
}
