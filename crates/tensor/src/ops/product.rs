//! Products along axes.
//!
//! y = Π x, 1 for no elements. ∂L/∂x is ∂L/∂y times the product of the other elements, also where elements are 0.
//! Element types are those of `sum`. Saves x; backward allocates a few temporaries of its size.

use super::axes::Axes;
use super::create::constant_like;
use super::reduce::{Target, fold_wide};
use crate::autograd::apply;
use crate::backend::Reduce;
use crate::error::Result;
use crate::op::Saved;
use crate::op::{Op, OpContext};
use crate::tensor::Tensor;

#[derive(Debug)]
struct Prod(Target);

impl Op for Prod {
    fn name(&self) -> &'static str {
        "prod"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let product = fold_wide(ctx, Reduce::Prod, x, &self.0.axes)?;
        ctx.save(x);
        self.0.finish(product, x.shape())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        // The product of all nonzero elements, divided by the element if that is nonzero, is the product of the others.
        // If another element is 0, the gradient is 0.
        let x = &saved.tensor(0)?.upcast()?;
        let (zero, one) = (constant_like(x, 0)?, constant_like(x, 1)?);
        let is_zero = x.eq(&zero)?;
        let factors = is_zero.where_(&one, x)?;
        let others = factors.prod_over(self.0.kept())?.div(&factors)?;
        let zeros = is_zero.to_dtype(x.dtype())?;
        let zeros_among_others = zeros.sum_over(self.0.kept())?.sub(&zeros)?;
        let slope = zeros_among_others.eq(&zero)?.where_(&others, &zero)?;
        let gradient = slope.mul(&self.0.restore(&grad)?.upcast()?)?;
        Ok(vec![Some(gradient.to_dtype(saved.input_dtype(0))?)])
    }
}

/// # Products of elements
impl Tensor {
    fn prod_over(&self, target: Target) -> Result<Self> {
        apply(Prod(target), &[self])
    }

    /// Product of the elements along axes, which vanish; 1 for no elements. Integers are multiplied as i64, which
    /// wraps.
    ///
    /// ```
    /// use highwater::{Device, Tensor};
    /// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// assert_eq!(x.prod(0)?.to_vec::<f32>()?, [3.0, 8.0]);
    /// assert_eq!(x.prod_all()?.item::<f32>()?, 24.0);
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::sum`].
    pub fn prod(&self, axes: impl Axes) -> Result<Self> {
        self.prod_over(self.target("prod", &axes, false)?)
    }

    /// Product of the elements along axes, which stay with size 1.
    ///
    /// # Errors
    /// See [`Tensor::sum`].
    pub fn prod_keepdim(&self, axes: impl Axes) -> Result<Self> {
        self.prod_over(self.target("prod", &axes, true)?)
    }

    /// Product of all elements.
    ///
    /// # Errors
    /// See [`Tensor::sum`].
    pub fn prod_all(&self) -> Result<Self> {
        self.prod_over(self.all_axes())
    }
}
