//! Normalization: layer norm, RMS norm, group norm and instance norm.
//!
//! | op | y | parameters |
//! |---|---|---|
//! | `layer_norm` | (x - μ) / √(σ² + ε) · w + b over the last axis | w, b of its size, or neither |
//! | `rms_norm` | x / √(mean(x²) + ε) · w over the last axis | w of its size, or none |
//! | `group_norm` | as `layer_norm`, over the channels of a group and all further axes | w, b of the size of axis 1 |
//! | `instance_norm` | as `group_norm`, with one channel per group | the same |
//!
//! The gradients, with x̂ = (x - μ) / √(σ² + ε) and h = w ∂L/∂y:
//!
//! - ∂L/∂x = (h - mean(h) - x̂ mean(h x̂)) / √(σ² + ε), where `rms_norm` has no mean(h)
//! - ∂L/∂w = Σ x̂ ∂L/∂y
//! - ∂L/∂b = Σ ∂L/∂y
//!
//! See Ba, Kiros and Hinton 2016; Zhang and Sennrich 2019; Wu and He 2018; Ulyanov et al. 2016.
//!
//! Saves x and two values per row, in f32 for 16-bit floats. One pass computes the gradients of w and b.

use super::random::check;
use super::{if_needed, mixed_operands, same_dtype, supported};
use crate::autograd::apply;
use crate::backend::kernels;
use crate::error::{Error, Result, ShapeRule};
use crate::layout::Layout;
use crate::op::Saved;
use crate::op::{Buffer, Op, OpContext};
use crate::shape::{DType, Shape};
use crate::storage::View;
use crate::tensor::Tensor;

/// The elements that are normalized together.
#[derive(Clone, Copy, Debug)]
enum Row {
    /// The last axis.
    LastAxis,
    /// The last two of the axes batch, group, channel within the group, position.
    Group,
}

/// The op. After x its inputs are the optional parameters.
#[derive(Debug)]
struct LayerNorm {
    op: &'static str,
    row: Row,
    centered: bool,
    epsilon: f64,
}

impl LayerNorm {
    /// Returns the length of a row, and the shape of each parameter.
    fn of_rows(&self, x: &Tensor) -> Result<(usize, Shape)> {
        match (self.row, x.dims()) {
            (Row::LastAxis, &[.., width]) => Ok((width, Shape::new(&[width])?)),
            (Row::Group, &[_, groups, channels, places]) => {
                Ok((channels.saturating_mul(places), Shape::new(&[groups, channels, 1])?))
            }
            _ => Err(Error::BadRank { op: self.op, expected: "at least one axis", shape: *x.shape() }),
        }
    }

    /// Returns the counts for the parameters' gradients: rows, parameters, and positions per parameter.
    fn sizes(&self, x: &Tensor, parameters: usize) -> [usize; 3] {
        let places = match (self.row, x.dims()) {
            (Row::Group, &[.., places]) => places,
            _ => 1,
        };
        let of_row = parameters.saturating_mul(places);
        [x.elements().checked_div(of_row).unwrap_or(0), parameters, places]
    }

    /// Returns Σ x̂ ∂L/∂y and Σ ∂L/∂y over the rows; the latter only if a bias requires it.
    fn sums(
        &self,
        ctx: &OpContext<'_>,
        (of, x, grad): (kernels::Normalized<'_>, &Tensor, &Tensor),
        saved: &Saved,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (shape, dtype) = (saved.input_shape(1), x.dtype().computed_as());
        let with_bias = saved.inputs() > 2 && saved.needs_grad(2);
        let mut weight = ctx.gradient(1, &shape, dtype)?;
        let mut bias = with_bias.then(|| ctx.gradient(2, &shape, dtype)).transpose()?;
        let sizes = self.sizes(x, shape.elements());
        let sums = 1 + usize::from(with_bias);
        let mut workspace = ctx.workspace(kernels::NormalizeRowsSumsWorkspace { sizes, sums, dtype })?;
        ctx.compute(kernels::NormalizeRowsSums {
            of,
            grad: grad.view(),
            places: sizes[2],
            workspace: workspace.as_mut().map(Buffer::view_mut),
            weight: weight.view_mut(),
            bias: bias.as_mut().map(Buffer::view_mut),
        })?;
        let finish = |sum: Buffer, input: usize| sum.finish().to_dtype(saved.gradient_dtype(input));
        Ok((finish(weight, 1)?, bias.map(|bias| finish(bias, 2)).transpose()?))
    }

    /// Returns the layout that repeats a parameter for every row of `x`.
    fn spread(&self, parameter: Option<&Tensor>, x: &Tensor) -> Result<Option<Layout>> {
        Ok(parameter.map(|parameter| parameter.layout().broadcast_to(self.op, x.shape())).transpose()?)
    }
}

/// Returns a view of a parameter with this layout.
fn seen<'a>(parameter: Option<&'a Tensor>, layout: Option<&'a Layout>) -> Option<View<'a>> {
    Some(parameter?.view().with_layout(layout?))
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        self.op
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        supported(self.op, x.dtype(), DType::is_float)?;
        check(self.op, "epsilon", "finite and not negative", self.epsilon, |epsilon| {
            epsilon.is_finite() && epsilon >= 0.0
        })?;
        let (width, of_parameters) = self.of_rows(x)?;
        for parameter in &inputs[1..] {
            same_dtype(self.op, x, parameter)?;
            if *parameter.shape() != of_parameters {
                return Err(Error::ShapeMismatch {
                    op: self.op,
                    lhs: *x.shape(),
                    rhs: *parameter.shape(),
                    rule: &ShapeRule::Other("a parameter must have one element per element of a row"),
                });
            }
        }
        let rows = x.elements().checked_div(width).unwrap_or(0);
        let mut out = ctx.output(x.shape(), x.dtype())?;
        let mut statistics = ctx.temp_saved(&Shape::new(&[rows, 2])?, x.dtype().computed_as())?;
        let (weight, bias) = (inputs.get(1).copied(), inputs.get(2).copied());
        let spread = [self.spread(weight, x)?, self.spread(bias, x)?];
        ctx.compute(kernels::NormalizeRows {
            centered: self.centered,
            epsilon: self.epsilon,
            input: x.view(),
            weight: seen(weight, spread[0].as_ref()),
            bias: seen(bias, spread[1].as_ref()),
            out: out.view_mut(),
            statistics: statistics.view_mut(),
        })?;
        ctx.save(x);
        ctx.save(&statistics.finish());
        if let Some(weight) = inputs.get(1) {
            ctx.save(weight);
        }
        Ok(out.finish())
    }

    fn backward(&self, ctx: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let (x, statistics) = (saved.tensor(0)?, saved.tensor(1)?);
        let weight = if saved.inputs() > 1 { Some(saved.tensor(2)?) } else { None };
        let spread = self.spread(weight, x)?;
        let of = kernels::Normalized {
            centered: self.centered,
            input: x.view(),
            weight: seen(weight, spread.as_ref()),
            statistics: statistics.view(),
        };
        let mut gradients = vec![if_needed(saved, 0, || {
            let mut out = ctx.gradient(0, x.shape(), x.dtype())?;
            ctx.compute(kernels::NormalizeRowsGrad { of, grad: grad.view(), out: out.view_mut() })?;
            Ok(out.finish())
        })?];
        let of_parameters = if saved.inputs() > 1 && saved.needs_grad(1) {
            let (weight, bias) = self.sums(ctx, (of, x, &grad), saved)?;
            [Some(weight), bias]
        } else if saved.inputs() > 2 {
            [None, if_needed(saved, 2, || grad.sum_to(saved.input_shape(2)))?]
        } else {
            [None, None]
        };
        gradients.extend(of_parameters.into_iter().take(saved.inputs() - 1));
        Ok(gradients)
    }
}

/// Checks that the groups divide the channels evenly.
fn check_groups(op: &'static str, groups: usize, channels: usize) -> Result<()> {
    if groups > 0 && channels.is_multiple_of(groups) {
        return Ok(());
    }
    let (argument, expected) = ("groups", "a divisor of the number of channels");
    Err(Error::BadArgument { op, argument, expected, got: format!("{groups} for {channels} channels") })
}

/// # Normalization
impl Tensor {
    /// Layer normalization over the last axis: (x - μ) / √(σ² + `epsilon`) · w + b.
    ///
    /// `affine` holds w and b, each of the size of the last axis.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 3.0, 10.0, 30.0], [2, 2])?;
    /// let y = x.layer_norm(None, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] for a scalar, [`Error::ShapeMismatch`] for parameters of another size,
    /// [`Error::DTypeMismatch`], [`Error::UnsupportedDType`] unless the elements are floats, [`Error::BadArgument`] unless
    /// `epsilon` is finite and not negative, [`Error::Allocation`] if there is no memory.
    #[doc(alias("layernorm"))]
    pub fn layer_norm(&self, affine: Option<(&Self, &Self)>, epsilon: f64) -> Result<Self> {
        let op = LayerNorm { op: "layer_norm", row: Row::LastAxis, centered: true, epsilon };
        match affine {
            Some((weight, bias)) => match mixed_operands([self, weight, bias])? {
                Some([x, weight, bias]) => apply(op, &[&x, &weight, &bias]),
                None => apply(op, &[self, weight, bias]),
            },
            None => apply(op, &[self]),
        }
    }

    /// RMS normalization over the last axis: x / √(mean(x²) + `epsilon`) · w. `weight` has the size of that axis.
    ///
    /// # Errors
    /// See [`Tensor::layer_norm`].
    #[doc(alias("rmsnorm"))]
    pub fn rms_norm(&self, weight: Option<&Self>, epsilon: f64) -> Result<Self> {
        let op = LayerNorm { op: "rms_norm", row: Row::LastAxis, centered: false, epsilon };
        match weight {
            Some(weight) => match mixed_operands([self, weight])? {
                Some([x, weight]) => apply(op, &[&x, &weight]),
                None => apply(op, &[self, weight]),
            },
            None => apply(op, &[self]),
        }
    }

    /// Group normalization of x `[n, channels, ..]`: (x - μ) / √(σ² + `epsilon`) · w + b, with μ and σ² over the
    /// channels of a group and all further axes.
    ///
    /// `affine` holds w and b, each of shape `[channels]`.
    ///
    /// # Errors
    /// [`Error::BadRank`] below two axes, [`Error::BadArgument`] unless the groups divide the channels; else as
    /// [`Tensor::layer_norm`].
    pub fn group_norm(&self, groups: usize, affine: Option<(&Self, &Self)>, epsilon: f64) -> Result<Self> {
        let op = "group_norm";
        check_groups(op, groups, self.channels(op)?)?;
        self.normalized_groups(op, groups, affine, epsilon)
    }

    /// Instance normalization of x `[n, channels, ..]`: (x - μ) / √(σ² + `epsilon`) · w + b, with μ and σ² over all axes
    /// after the channels. This is [`Tensor::group_norm`] with one channel per group.
    ///
    /// `affine` holds w and b, each of shape `[channels]`.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 3.0, 10.0, 30.0], [1, 2, 2])?;
    /// assert_eq!(x.instance_norm(None, 0.0)?.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] below two axes; else as [`Tensor::layer_norm`].
    pub fn instance_norm(&self, affine: Option<(&Self, &Self)>, epsilon: f64) -> Result<Self> {
        let op = "instance_norm";
        self.normalized_groups(op, self.channels(op)?.max(1), affine, epsilon)
    }

    /// Returns the number of channels, which are the second axis.
    fn channels(&self, op: &'static str) -> Result<usize> {
        match *self.dims() {
            [_, channels, ..] => Ok(channels),
            _ => Err(Error::BadRank { op, expected: "at least two axes", shape: *self.shape() }),
        }
    }

    /// Normalizes groups of channels. The groups divide the channels.
    fn normalized_groups(
        &self,
        op: &'static str,
        groups: usize,
        affine: Option<(&Self, &Self)>,
        epsilon: f64,
    ) -> Result<Self> {
        if let Some((weight, bias)) = affine
            && let Some([x, weight, bias]) = mixed_operands([self, weight, bias])?
        {
            return x.normalized_groups(op, groups, Some((&weight, &bias)), epsilon);
        }
        let (n, channels) = (self.dims()[0], self.channels(op)?);
        let places = self.elements().checked_div(n.saturating_mul(channels)).unwrap_or(0);
        let of_group = channels / groups;
        let x = self.reshape([n, groups, of_group, places])?;
        let norm = LayerNorm { op, row: Row::Group, centered: true, epsilon };
        // Each channel has one element of w and b.
        let spread = |part: &Self| {
            if part.dims() == [channels] {
                part.reshape([groups, of_group, 1])
            } else {
                Err(Error::ShapeMismatch {
                    op,
                    lhs: *self.shape(),
                    rhs: *part.shape(),
                    rule: &ShapeRule::Other("a parameter must have one element per channel"),
                })
            }
        };
        let normed = match affine {
            Some((weight, bias)) => apply(norm, &[&x, &spread(weight)?, &spread(bias)?])?,
            None => apply(norm, &[&x])?,
        };
        normed.reshape(self.shape())
    }
}
