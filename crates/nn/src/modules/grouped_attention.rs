//! Grouped-query attention (Ainslie et al. 2023), as in Llama.

use std::fmt;

use highwater_tensor::{AttentionOptions, Error, Place, Result, Rng, Tensor};
use highwater_tracking::ModulePath;

use super::cache::KeyValueCache;
use super::linear::Linear;
use super::module;
use super::module::Module;
use super::rotary::RotaryEmbedding;
use super::transformer::options;

const OP: &str = "grouped_query_attention";

/// Causal self-attention in which each head of keys and values serves several heads of queries: `[n, len, width]` to
/// `[n, len, width]`.
///
/// Keys and values are neither repeated nor, with a [cache](KeyValueCache), computed again. Its parts have the names of
/// Hugging Face's `LlamaAttention`.
///
/// ```
/// use highwater::{DType, Device, Rng, Tensor, no_grad};
/// use highwater::nn::{
///     GroupedQueryAttention, KeyValueCache, KeyValueCacheOptions, Module, RotaryEmbedding, RotaryOptions,
/// };
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// // Four heads of queries, two of keys, of width 8.
/// let rotary = RotaryEmbedding::new(&device, 8, 64, RotaryOptions::default())?;
/// let attention = GroupedQueryAttention::new(&device, 32, [4, 2, 8], &rng)?.with_rotary(rotary);
/// let x = Tensor::randn(&device, [1, 10, 32], &rng)?;
/// let whole = attention.forward(&x)?.to_vec::<f32>()?;
///
/// let options =
///     KeyValueCacheOptions { layers: 1, batch: 1, heads: 2, capacity: 64, width: 8, dtype: DType::F32 };
/// let mut cache = KeyValueCache::new(&device, options)?;
/// no_grad(|| {
///     for at in 0..10 {
///         let y = attention.forward_cached(&x.narrow(1, at, 1)?, &mut cache, 0)?.to_vec::<f32>()?;
///         cache.advance(1)?;
///         assert!(y.iter().zip(&whole[32 * at..]).all(|(y, whole)| (y - whole).abs() < 1e-5));
///     }
///     Ok(())
/// })?;
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct GroupedQueryAttention {
    path: ModulePath,
    heads: usize,
    key_heads: usize,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    #[module(skip)]
    rotary: Option<RotaryEmbedding>,
}

impl GroupedQueryAttention {
    /// Creates a layer without biases for rows of `width` values (`f32`), with these numbers of query heads, of key heads,
    /// and of elements of a head.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the key heads divide the query heads; [`Error::Allocation`] if there is no memory.
    pub fn new(
        place: &impl Place,
        width: usize,
        [heads, key_heads, head_width]: [usize; 3],
        rng: &Rng,
    ) -> Result<Self> {
        check_heads(heads, key_heads)?;
        let linear = |inputs, outputs| -> Result<Linear> {
            Ok(Linear::with_options(place, inputs, outputs, options(), rng)?.without_bias())
        };
        let [queries, keys] = [heads, key_heads].map(|count| count.saturating_mul(head_width));
        let parts =
            [linear(width, queries)?, linear(width, keys)?, linear(width, keys)?, linear(queries, width)?];
        Self::from_layers(parts, heads, key_heads)
    }

    /// Creates the layer from its projections to queries, keys, values and output, for example from those of a file.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless the key heads divide the query heads.
    pub fn from_layers(
        [q_proj, k_proj, v_proj, o_proj]: [Linear; 4],
        heads: usize,
        key_heads: usize,
    ) -> Result<Self> {
        check_heads(heads, key_heads)?;
        let (path, rotary) = (ModulePath::new(), None);
        Ok(Self { path, heads, key_heads, q_proj, k_proj, v_proj, o_proj, rotary })
    }

    /// Rotates queries and keys by their positions. Layers share the tables of clones.
    #[must_use]
    pub fn with_rotary(self, rotary: RotaryEmbedding) -> Self {
        Self { rotary: Some(rotary), ..self }
    }
}

#[module]
impl GroupedQueryAttention {
    /// Computes the attention of new positions `[n, len, width]` to themselves and to the positions of a cache, in which
    /// this layer has the number `layer`.
    ///
    /// The caller [advances](KeyValueCache::advance) the cache after all layers.
    ///
    /// # Errors
    /// As [`Module::forward`] and [`KeyValueCache::append`].
    pub fn forward_cached(&self, x: &Tensor, cache: &mut KeyValueCache, layer: usize) -> Result<Tensor> {
        self.attend(x, Some((cache, layer)))
    }
}

#[module]
impl Module for GroupedQueryAttention {
    /// Computes the attention of all positions.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.attend(x, None)
    }
}

impl GroupedQueryAttention {
    fn attend(&self, x: &Tensor, cache: Option<(&mut KeyValueCache, usize)>) -> Result<Tensor> {
        let &[n, len, _] = x.dims() else {
            let expected = "three axes: batch, position, width";
            return Err(Error::BadRank { op: OP, expected, shape: *x.shape() });
        };
        let by_head = |rows: Tensor, heads: usize| {
            let width = rows.dims().last().copied().unwrap_or(0) / heads;
            rows.reshape([n, len, heads, width])?.permute([0, 2, 1, 3])
        };
        let offset = cache.as_ref().map_or(0, |(cache, _)| cache.len());
        let rotated = |x: Tensor| match &self.rotary {
            Some(rotary) => rotary.rotate(&x, offset),
            None => Ok(x),
        };
        let query = rotated(by_head(self.q_proj.forward(x)?, self.heads)?)?;
        let key = rotated(by_head(self.k_proj.forward(x)?, self.key_heads)?)?;
        let value = by_head(self.v_proj.forward(x)?, self.key_heads)?;
        let causal = AttentionOptions { causal: true, ..AttentionOptions::default() };
        let mixed = match cache {
            None => query.attention(&key, &value, None, causal)?,
            Some((cache, layer)) => {
                let [keys, values] = cache.append(layer, &key, &value)?;
                query.attention(&keys, &values, None, causal)?
            }
        };
        let rows = mixed.permute([0, 2, 1, 3])?.flatten_from(2)?;
        self.o_proj.forward(&rows)
    }
}

fn check_heads(heads: usize, key_heads: usize) -> Result<()> {
    if heads > 0 && key_heads > 0 && heads.is_multiple_of(key_heads) {
        return Ok(());
    }
    let got = format!("{key_heads} for {heads} heads of queries");
    let expected = "a divisor of the number of heads of queries";
    Err(Error::BadArgument { op: OP, argument: "key_heads", expected, got })
}

impl fmt::Debug for GroupedQueryAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = f.debug_struct("GroupedQueryAttention");
        parts.field("heads", &self.heads).field("key_heads", &self.key_heads);
        parts.field("q_proj", &self.q_proj).field("k_proj", &self.k_proj);
        parts.field("v_proj", &self.v_proj).field("o_proj", &self.o_proj);
        if let Some(rotary) = &self.rotary {
            parts.field("rotary", rotary);
        }
        parts.finish()
    }
}
