//! Rotary position embeddings (Su et al. 2021).
//!
//! Pair i of the elements of a head is a point in the plane. At position p it is rotated by the angle p · θ^(-2i / width).
//! Scores of queries and keys then depend only on the distance of their positions. The sines and cosines are computed once,
//! in f64:
//!
//! ```text
//! y = x · cos + swapped(x) · sin      swapped exchanges the elements of each pair; sin is negative for the first of them
//! ```

use std::f64::consts::PI;
use std::fmt;

use bfc_core::Category;
use highwater_tensor::{DType, Error, Place, Result, Tensor};

use super::debug::{layer, when};

const OP: &str = "rotary_embedding";

/// Which elements of a head form a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RotaryPairs {
    /// Elements i and i + width / 2, as in Hugging Face's models.
    #[default]
    HalfSplit,
    /// Elements 2i and 2i + 1, as in the paper, in Meta's Llama and in GGUF files of Llama.
    Interleaved,
}

/// The frequencies of Llama 3.1 for contexts that are longer than those in training (`rope_type` "llama3").
///
/// Waves longer than `original_positions / low_frequency_factor` become `factor` times longer. Waves shorter than
/// `original_positions / high_frequency_factor` stay. Between them, the frequency is interpolated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3Scaling {
    /// The factor of long waves.
    pub factor: f64,
    /// The number of waves in the original context below which a wave is long.
    pub low_frequency_factor: f64,
    /// The number of waves in the original context above which a wave is short.
    pub high_frequency_factor: f64,
    /// The number of positions in training.
    pub original_positions: usize,
}

/// Options of a rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryOptions {
    /// Which elements form a pair.
    pub pairs: RotaryPairs,
    /// The base θ of the frequencies.
    pub theta: f64,
    /// The scaling of the frequencies.
    pub scaling: Option<Llama3Scaling>,
    /// The element type of the tables, `f32` or `f64`. 16-bit floats are rotated in `f32` and rounded once.
    pub dtype: DType,
}

impl Default for RotaryOptions {
    /// Halves of a head as pairs, θ = 10,000, no scaling, tables of `f32`.
    fn default() -> Self {
        Self { pairs: RotaryPairs::HalfSplit, theta: 10_000.0, scaling: None, dtype: DType::F32 }
    }
}

impl RotaryOptions {
    /// Returns the frequency of each pair of a head, in radians per position.
    ///
    /// ```
    /// use highwater::nn::RotaryOptions;
    /// assert_eq!(RotaryOptions::default().frequencies(4), [1.0, 0.01]);
    /// ```
    #[must_use]
    pub fn frequencies(&self, width: usize) -> Vec<f64> {
        let pairs = width / 2;
        (0..pairs).map(|pair| self.scaled(self.theta.powf(-2.0 * pair as f64 / width as f64))).collect()
    }

    fn scaled(&self, frequency: f64) -> f64 {
        let Some(scaling) = self.scaling else { return frequency };
        // The number of waves in the original context.
        let waves = scaling.original_positions as f64 * frequency / (2.0 * PI);
        let (low, high) = (scaling.low_frequency_factor, scaling.high_frequency_factor);
        if waves > high {
            frequency
        } else if waves < low {
            frequency / scaling.factor
        } else {
            let share = if high > low { (waves - low) / (high - low) } else { 1.0 };
            (1.0 - share) * frequency / scaling.factor + share * frequency
        }
    }

    fn check(&self, width: usize) -> Result<()> {
        let bad =
            |argument, expected, got: String| Err(Error::BadArgument { op: OP, argument, expected, got });
        if width == 0 || !width.is_multiple_of(2) {
            return bad("width", "even and not 0", width.to_string());
        }
        if !(self.theta.is_finite() && self.theta > 0.0) {
            return bad("theta", "finite and above 0", self.theta.to_string());
        }
        if !matches!(self.dtype, DType::F32 | DType::F64) {
            return bad("dtype", "f32 or f64", self.dtype.to_string());
        }
        if let Some(scaling) = self.scaling {
            let factors = [scaling.factor, scaling.low_frequency_factor, scaling.high_frequency_factor];
            if !factors.iter().all(|factor| factor.is_finite() && *factor > 0.0) {
                return bad("scaling", "of finite factors above 0", format!("{scaling:?}"));
            }
        }
        Ok(())
    }
}

/// Rotary position embedding: rotates queries and keys by angles that grow with the position.
///
/// One value serves all layers of a model. Clones share the tables, two of shape `[positions, width]`.
///
/// ```
/// use highwater::{Device, Tensor};
/// use highwater::nn::{RotaryEmbedding, RotaryOptions};
/// let device = Device::cpu()?;
/// let rotary = RotaryEmbedding::new(&device, 8, 128, RotaryOptions::default())?;
/// let queries = Tensor::ones(&device, [2, 4, 10, 8])?;
/// let rotated = rotary.rotate(&queries, 0)?;
/// // Position 0 has the angle 0. A later part of a sequence starts at its own position.
/// assert_eq!(rotated.at((0, 0, 0))?.to_vec::<f32>()?, [1.0; 8]);
/// let last = rotary.rotate(&queries.narrow(2, 9, 1)?, 9)?;
/// assert_eq!(last.to_vec::<f32>()?, rotated.narrow(2, 9, 1)?.to_vec::<f32>()?);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone)]
pub struct RotaryEmbedding {
    options: RotaryOptions,
    width: usize,
    positions: usize,
    cos: Tensor,
    sin: Tensor,
}

impl RotaryEmbedding {
    /// Creates the tables for heads of `width` elements and the positions below `positions`.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for an odd width or invalid options; [`Error::Allocation`] if there is no memory.
    pub fn new(place: &impl Place, width: usize, positions: usize, options: RotaryOptions) -> Result<Self> {
        options.check(width)?;
        Self::with_frequencies(place, &options.frequencies(width), positions, options)
    }

    /// Creates the tables for given frequencies, in radians per position: one for each pair of a head. The options' θ and
    /// scaling are not used.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without frequencies, or for one that is not finite; otherwise see [`new`](Self::new).
    pub fn with_frequencies(
        place: &impl Place,
        frequencies: &[f64],
        positions: usize,
        options: RotaryOptions,
    ) -> Result<Self> {
        let width = frequencies.len().saturating_mul(2);
        options.check(width)?;
        if let Some(frequency) = frequencies.iter().find(|frequency| !frequency.is_finite()) {
            let (argument, got) = ("frequencies", frequency.to_string());
            return Err(Error::BadArgument { op: OP, argument, expected: "finite", got });
        }
        let pair_of = |element: usize| match options.pairs {
            RotaryPairs::HalfSplit => (element % (width / 2), element < width / 2),
            RotaryPairs::Interleaved => (element / 2, element.is_multiple_of(2)),
        };
        let table = |value: fn(f64, bool) -> f64| -> Result<Tensor> {
            let values = (0..positions).flat_map(|position| {
                (0..width).map(move |element| {
                    let (pair, is_first) = pair_of(element);
                    value(position as f64 * frequencies[pair], is_first)
                })
            });
            let table = match options.dtype {
                DType::F64 => Tensor::from_slice(place, &values.collect::<Vec<f64>>(), [positions, width])?,
                _ => {
                    let values: Vec<f32> = values.map(|value| value as f32).collect();
                    Tensor::from_slice(place, &values, [positions, width])?
                }
            };
            Ok(table.with_category(Category::Parameter))
        };
        let cos = table(|angle, _| angle.cos())?;
        let sin = table(|angle, is_first| if is_first { -angle.sin() } else { angle.sin() })?;
        Ok(Self { options, width, positions, cos, sin })
    }

    /// Returns the number of positions.
    #[must_use]
    pub const fn positions(&self) -> usize {
        self.positions
    }

    /// Rotates `x` of shape `[.., len, width]`, of which row i has the position `offset + i`. The offset is the number of
    /// positions that a [cache](super::KeyValueCache) holds.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for another width, and if the positions exceed the tables; [`Error::Allocation`] if there is
    /// no memory.
    pub fn rotate(&self, x: &Tensor, offset: usize) -> Result<Tensor> {
        let [leading @ .., len, width] = x.dims() else {
            return Err(Error::BadRank { op: OP, expected: "at least two axes", shape: *x.shape() });
        };
        if *width != self.width {
            let got = format!("shape {} for a width of {}", x.shape(), self.width);
            let expected = "of the embedding's width";
            return Err(Error::BadArgument { op: OP, argument: "x", expected, got });
        }
        if offset.checked_add(*len).is_none_or(|end| end > self.positions) {
            let got = format!("{len} positions from {offset} on of {}", self.positions);
            return Err(Error::BadArgument { op: OP, argument: "x", expected: "within the positions", got });
        }
        let (cos, sin) = (self.cos.narrow(0, offset, *len)?, self.sin.narrow(0, offset, *len)?);
        let half = width / 2;
        let (cut, pair_axis) = match self.options.pairs {
            RotaryPairs::HalfSplit => ([2, half], -2),
            RotaryPairs::Interleaved => ([half, 2], -1),
        };
        let pairs = x.reshape([leading, &[*len], &cut].concat())?;
        let swapped = pairs.flip(pair_axis)?.reshape(x.shape())?;
        let rotated = (x.mul(&cos)? + (swapped * &sin)?)?;
        if rotated.dtype() == x.dtype() || self.options.dtype == DType::F64 {
            Ok(rotated)
        } else {
            rotated.to_dtype(x.dtype())
        }
    }
}

impl fmt::Debug for RotaryEmbedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RotaryOptions { pairs, theta, scaling, dtype } = self.options;
        let parts = [
            Some(self.width.to_string()),
            Some(format!("positions {}", self.positions)),
            Some(format!("theta {theta:?}")),
            when(pairs == RotaryPairs::Interleaved, "interleaved"),
            scaling.map(|scaling| format!("{scaling:?}")),
            when(dtype != DType::F32, dtype.to_string()),
        ];
        layer(f, "RotaryEmbedding", parts)
    }
}
