//! The cache of keys and values of a transformer that generates text.

use std::fmt;

use bfc_core::Category;
use highwater_tensor::{
    DType, Device, Error, IntoShape, OpContext, Place, Result, Shape, Tensor, error::ShapeRule,
};

const OP: &str = "key_value_cache";

/// The sizes of a [`KeyValueCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueCacheOptions {
    /// The number of layers.
    pub layers: usize,
    /// The number of sequences.
    pub batch: usize,
    /// The number of heads of keys and values.
    pub heads: usize,
    /// The largest number of positions.
    pub capacity: usize,
    /// The number of elements of a head.
    pub width: usize,
    /// The element type.
    pub dtype: DType,
}

impl KeyValueCacheOptions {
    /// Returns the number of bytes of the cache; `None` if it overflows.
    ///
    /// ```
    /// use highwater::DType;
    /// use highwater::nn::KeyValueCacheOptions;
    /// // Llama 3.1 8B with 8,192 positions.
    /// let options = KeyValueCacheOptions {
    ///     layers: 32,
    ///     batch: 1,
    ///     heads: 8,
    ///     capacity: 8192,
    ///     width: 128,
    ///     dtype: DType::BF16,
    /// };
    /// assert_eq!(options.bytes(), Some(1 << 30));
    /// ```
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        let sizes = [self.layers, self.batch, self.heads, self.capacity, self.width, self.dtype.size()];
        sizes.into_iter().try_fold(2_usize, usize::checked_mul)
    }
}

/// The keys and values of all earlier positions, for each layer of a transformer. A step that generates a token then
/// computes one position.
///
/// ```text
/// keys of a layer:   [batch, heads, capacity, width]
///                                   |<- len ->|<- new ->|      |    append writes the new positions in place
/// ```
///
/// Its memory has a fixed size and a category of its own, `cache`. Each layer [appends](Self::append) its keys and values,
/// and gets views of all positions. [`advance`](Self::advance) then makes the new positions part of the cache. After an
/// error in between, the cache has its previous positions.
///
/// The views must be dropped before the next [`append`](Self::append), because shared buffers are immutable. Use the cache
/// within [`no_grad`](highwater_tensor::no_grad): a recorded op would keep views for its backward pass.
///
/// ```
/// use highwater::{DType, Device, Tensor};
/// use highwater::nn::{KeyValueCache, KeyValueCacheOptions};
/// let device = Device::cpu()?;
/// let options =
///     KeyValueCacheOptions { layers: 1, batch: 1, heads: 2, capacity: 8, width: 4, dtype: DType::F32 };
/// let mut cache = KeyValueCache::new(&device, options)?;
/// for len in [5, 1] {
///     let new = Tensor::ones(&device, [1, 2, len, 4])?;
///     let [keys, values] = cache.append(0, &new, &new)?;
///     assert_eq!((keys.dims(), values.dims()), (&[1, 2, cache.len() + len, 4][..], keys.dims()));
///     cache.advance(len)?;
/// }
/// assert_eq!((cache.len(), cache.remaining()), (6, 2));
/// # Ok::<(), highwater::Error>(())
/// ```
pub struct KeyValueCache {
    options: KeyValueCacheOptions,
    device: Device,
    /// The keys and values of each layer.
    layers: Vec<[Tensor; 2]>,
    len: usize,
}

impl KeyValueCache {
    /// Allocates an empty cache.
    ///
    /// # Errors
    /// [`Error::Allocation`] if there is no memory, [`Error::TooManyElements`] if the number of bytes overflows,
    /// [`Error::UnsupportedDType`] unless the element type is a float.
    pub fn new(place: &impl Place, options: KeyValueCacheOptions) -> Result<Self> {
        let KeyValueCacheOptions { layers, batch, heads, capacity, width, dtype } = options;
        if !dtype.is_float() {
            return Err(Error::UnsupportedDType { op: OP, dtype });
        }
        let shape = [batch, heads, capacity, width].into_shape().map_err(|error| error.in_op(OP))?;
        if options.bytes().is_none() {
            return Err(Error::TooManyElements { op: OP, shape, dtype });
        }
        let device = place.device();
        let ctx = OpContext::create(OP, device, place.memory()?, Category::Cache);
        let buffer = || -> Result<Tensor> { Ok(ctx.output(&shape, dtype)?.finish()) };
        let layers = (0..layers).map(|_| Ok([buffer()?, buffer()?])).collect::<Result<_>>()?;
        Ok(Self { options, device: device.clone(), layers, len: 0 })
    }

    /// Returns the sizes.
    #[must_use]
    pub const fn options(&self) -> &KeyValueCacheOptions {
        &self.options
    }

    /// Returns the device of the memory.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the number of positions in the cache: the position of the next token.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the cache has no positions.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of positions that can still be added.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.options.capacity - self.len
    }

    /// Writes the keys and values of new positions, of shape `[batch, heads, new, width]`, and returns views of those of
    /// all positions, `[batch, heads, len + new, width]`. The length stays until [`advance`](Self::advance).
    ///
    /// # Errors
    /// [`Error::CacheFull`] if the positions exceed the capacity; [`Error::BadArgument`] for a layer that does not exist,
    /// and if views of the cache still exist; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] and
    /// [`Error::DeviceMismatch`] for other keys and values. The cache has its previous positions then.
    pub fn append(&mut self, layer: usize, keys: &Tensor, values: &Tensor) -> Result<[Tensor; 2]> {
        let KeyValueCacheOptions { layers, batch, heads, width, .. } = self.options;
        let Some(own) = self.layers.get_mut(layer) else {
            let expected = "below the number of layers";
            let got = format!("{layer} of {layers}");
            return Err(Error::BadArgument { op: OP, argument: "layer", expected, got });
        };
        let new = keys.dims().get(2).copied().unwrap_or(0);
        for (own, given) in own.iter().zip([keys, values]) {
            if given.dims() != [batch, heads, new, width] {
                let rule = &ShapeRule::Other("new positions must be [batch, heads, new, width]");
                return Err(Error::ShapeMismatch { op: OP, lhs: *own.shape(), rhs: *given.shape(), rule });
            }
            if given.dtype() != own.dtype() {
                let (lhs, rhs) = (own.dtype(), given.dtype());
                let (lhs_shape, rhs_shape): (Shape, Shape) = (*own.shape(), *given.shape());
                return Err(Error::DTypeMismatch { op: OP, lhs, rhs, lhs_shape, rhs_shape });
            }
        }
        let end = end_of(self.len, new, self.options.capacity)?;
        let mut views = Vec::with_capacity(2);
        for (own, given) in own.iter_mut().zip([keys, values]) {
            own.write_slice(2, self.len, given)?;
            views.push(own.narrow(2, 0, end)?);
        }
        let [keys, values] = [views.swap_remove(0), views.swap_remove(0)];
        Ok([keys, values])
    }

    /// Makes `new` positions, which each layer has [appended](Self::append), part of the cache.
    ///
    /// # Errors
    /// [`Error::CacheFull`] if they exceed the capacity.
    pub fn advance(&mut self, new: usize) -> Result<()> {
        self.len = end_of(self.len, new, self.options.capacity)?;
        Ok(())
    }

    /// Removes all positions from `len` on, for example to continue another text after the same beginning. A longer `len`
    /// changes nothing. Frees no memory.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Checks that `new` further positions fit.
    ///
    /// # Errors
    /// [`Error::CacheFull`] if they exceed the capacity.
    pub fn check_room(&self, new: usize) -> Result<()> {
        end_of(self.len, new, self.options.capacity).map(drop)
    }
}

/// The length after `new` further positions.
fn end_of(len: usize, new: usize, capacity: usize) -> Result<usize> {
    match len.checked_add(new) {
        Some(end) if end <= capacity => Ok(end),
        _ => Err(Error::CacheFull { len, new, capacity }),
    }
}

impl fmt::Debug for KeyValueCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValueCache").field("options", &self.options).field("len", &self.len).finish()
    }
}
