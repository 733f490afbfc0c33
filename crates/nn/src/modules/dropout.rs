//! Inverted dropout (Srivastava et al. 2014).

use std::fmt;

use highwater_tensor::{Error, Result, Rng, Tensor, is_training};
use highwater_tracking::ModulePath;

use super::debug::layer;
use super::module::Module;
use super::{in_path, unchanged};

/// Dropout layer: sets each element to zero with probability `p` and divides the others by `1 - p`, which preserves the
/// mean.
///
/// It acts only [in training](highwater_tensor::is_training), and has no switch of its own. Train a model outside of
/// [`no_grad`](highwater_tensor::no_grad), and use it inside. To compute gradients without dropout, use
/// [`evaluating`](highwater_tensor::evaluating).
///
/// ```
/// use highwater::{Device, Rng, Tensor, no_grad};
/// use highwater::nn::{Dropout, Module};
/// let dropout = Dropout::new(0.5, &Rng::new(0))?;
/// let x = Tensor::ones(&Device::cpu()?, [100])?;
/// assert!(dropout.forward(&x)?.to_vec::<f32>()?.contains(&0.0));
/// assert_eq!(no_grad(|| dropout.forward(&x))?.to_vec::<f32>()?, [1.0; 100]);
/// # Ok::<(), highwater::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Dropout {
    path: ModulePath,
    p: f64,
    rng: Rng,
}

impl Dropout {
    /// Creates a dropout layer with probability `p`. It draws from a clone of `rng`, which shares its sequence.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 ≤ p < 1.
    pub fn new(p: f64, rng: &Rng) -> Result<Self> {
        if (0.0..1.0).contains(&p) {
            return Ok(Self { path: ModulePath::new(), p, rng: rng.clone() });
        }
        let (argument, expected) = ("p", "at least 0 and below 1");
        Err(Error::BadArgument { op: "dropout", argument, expected, got: p.to_string() })
    }

    /// Returns the probability and the generator; `None` if the layer currently drops nothing.
    pub(super) fn acting(&self) -> Option<(f64, &Rng)> {
        (is_training() && self.p > 0.0).then_some((self.p, &self.rng))
    }
}

impl Module for Dropout {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_path(&self.path, || match self.acting() {
            Some((p, rng)) => x.dropout(p, rng),
            None => Ok(unchanged(x)),
        })
    }
}

impl fmt::Debug for Dropout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        layer(f, "Dropout", [Some(self.p.to_string())])
    }
}

impl Dropout {
    /// The part of a layer's `Debug` form for its dropout.
    pub(super) fn debug_part(&self) -> String {
        format!("dropout {}", self.p)
    }
}
