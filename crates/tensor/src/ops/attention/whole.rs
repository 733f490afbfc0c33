//! Attention that stores the full matrix of weights.
//!
//! - Heads of keys and values that several query heads share are repeated.
//! - With dropout, attention consists of other ops: `matmul`, the mask, `softmax`, `dropout`, `matmul`. They allocate
//!   and save several matrices of shape `[.., queries, keys]`.
//! - The gradient of a float mask is also such a matrix.

use super::super::create::constant_like;
use super::super::dropout::dropped;
use super::super::random::check;
use super::{AttentionInputs, AttentionOptions, ScaledDotProduct, mixed_operands};
use crate::backend::RandomKey;
use crate::error::Result;
use crate::shape::{DType, Scalar};
use crate::tensor::{Rng, Tensor};

/// The diagonal of `[queries, keys]` up to which causal attention sees keys, as [`Tensor::tril`] counts it.
fn last_diagonal(queries: usize, keys: usize) -> isize {
    isize::try_from(keys).unwrap_or(isize::MAX).saturating_sub_unsigned(queries)
}

/// Repeats the heads of keys or values along an axis, such that each of `heads` query heads has its own copy.
fn for_each_head(part: &Tensor, axis: usize, heads: usize) -> Result<Tensor> {
    let key_heads = part.dims()[axis];
    if key_heads == heads || key_heads == 0 {
        return Ok(part.unchanged());
    }
    part.repeat_interleave(axis as isize, heads / key_heads)
}

/// The score of a hidden key; softmax maps it to weight 0.
const HIDDEN: Scalar = Scalar::Float(f64::NEG_INFINITY);

impl ScaledDotProduct {
    /// Returns the gradient of a float mask: p (g·vᵀ - Σ g y), in f32 for 16-bit floats. Recomputes p from the logarithms of
    /// the sums.
    pub(super) fn mask_gradient(
        &self,
        operands: [&Tensor; 3],
        mask: &Tensor,
        [output, log_sums]: [&Tensor; 2],
        grad: &Tensor,
    ) -> Result<Tensor> {
        let computed = |tensor: &Tensor| tensor.to_dtype(log_sums.dtype());
        let [query, key, value] = operands.map(computed);
        let heads = grad.dims().first().copied().unwrap_or(0);
        let (query, key, value) =
            (query?, for_each_head(&key?, 0, heads)?, for_each_head(&value?, 0, heads)?);
        let (added, output, grad) = (computed(mask)?, computed(output)?, computed(grad)?);
        let scores = query.mul_scalar(self.scale)?.matmul(&key.transpose(-2, -1)?)?.add(&added)?;
        // A query that sees no key has only scores of -∞. They stay -∞.
        let blind = log_sums.eq(&constant_like(log_sums, HIDDEN)?)?;
        let mut weights = scores.sub(&log_sums.masked_fill(&blind, 0)?.unsqueeze(-1)?)?.exp()?;
        if self.causal {
            weights = weights.tril(last_diagonal(query.dims()[1], key.dims()[1]))?;
        }
        let along = grad.mul(&output)?.sum_keepdim(-1)?;
        let through = grad.matmul(&value.transpose(-2, -1)?)?.sub(&along)?;
        weights.mul(&through)
    }
}

impl AttentionInputs<'_> {
    /// Computes attention with dropout on the weights, for p > 0 and a checked mask.
    fn dropping(&self, mask: Option<&Tensor>, p: f64, key: RandomKey) -> Result<Tensor> {
        // As in attention without dropout.
        let [key_of, value_of] = [self.key, self.value].map(|part| match self.leading {
            [.., heads] if self.leading != self.key_leading => {
                for_each_head(part, self.leading.len() - 1, *heads)
            }
            _ => Ok(part.unchanged()),
        });
        let mut scores = self.query.mul_scalar(self.scale)?.matmul(&key_of?.transpose(-2, -1)?)?;
        match mask {
            Some(mask) if mask.dtype() == DType::Bool => {
                scores = mask.where_(&scores, &constant_like(&scores, HIDDEN)?)?;
            }
            Some(mask) => scores = scores.add(mask)?,
            None => {}
        }
        if self.causal {
            // The positions of queries and keys, counted such that the last ones are equal.
            let rows = Tensor::arange(scores.device(), self.keys, self.keys.saturating_add(self.queries))?;
            let columns =
                Tensor::arange(scores.device(), self.queries, self.queries.saturating_add(self.keys))?;
            scores = scores.masked_fill(&columns.gt(&rows.unsqueeze(1)?)?, HIDDEN)?;
        }
        let has_blind = mask.is_some() || self.causal && self.keys < self.queries;
        let weights = if has_blind && self.keys > 0 {
            // A query that sees no key gets weights of 0. A softmax over no keys would give NaN.
            let largest = scores.detach().max_keepdim(-1)?;
            let blind = largest.eq(&constant_like(&largest, HIDDEN)?)?;
            scores.masked_fill(&blind, 0)?.softmax(-1)?.masked_fill(&blind, 0)?
        } else {
            scores.softmax(-1)?
        };
        dropped(&weights, p, key)?.matmul(&value_of?)
    }
}

/// # Attention with dropout
impl Tensor {
    /// Scaled dot-product [`attention`](Self::attention) with dropout on the attention weights, as PyTorch's
    /// `dropout_p`.
    ///
    /// Sets each weight to 0 with probability `p` and divides the others by 1 - p. The op stores the full matrix of
    /// weights, so memory grows with queries times keys. With p = 0 it equals [`attention`](Self::attention) and draws
    /// no random values.
    ///
    /// ```
    /// use highwater::{AttentionOptions, Device, Rng, Tensor};
    /// let x = Tensor::ones(&Device::cpu()?, [1, 50, 4])?;
    /// let y = x.attention_with_dropout(&x, &x, None, AttentionOptions::default(), 0.5, &Rng::new(0))?;
    /// assert_eq!(y.dims(), [1, 50, 4]);
    /// // Each row is a sum of weights that are 0 or 1/25 each.
    /// assert!(y.to_vec::<f32>()?.iter().all(|sum| (sum * 25.0 - (sum * 25.0).round()).abs() < 1e-3));
    /// # Ok::<(), highwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`](crate::Error::BadArgument) unless 0 ≤ p < 1; otherwise see [`attention`](Self::attention).
    pub fn attention_with_dropout(
        &self,
        key: &Self,
        value: &Self,
        mask: Option<&Self>,
        options: AttentionOptions,
        p: f64,
        rng: &Rng,
    ) -> Result<Self> {
        const OP: &str = "attention_with_dropout";
        check(OP, "p", "at least 0 and below 1", p, |p| (0.0..1.0).contains(&p))?;
        let mixed = mixed_operands([self, key, value, mask.unwrap_or(self)])?;
        if let Some([query, key, value, of_mask]) = mixed {
            let mask = mask.and(Some(&of_mask));
            return query.attention_with_dropout(&key, &value, mask, options, p, rng);
        }
        let between = AttentionInputs::new(OP, [self, key, value], options)?;
        let spread = mask.map(|mask| between.mask(mask)).transpose()?;
        if p == 0.0 {
            return between.tiled(mask);
        }
        rng.with_keys(|[key]| between.dropping(spread.as_ref(), p, key))
    }
}
