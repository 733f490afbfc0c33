//! The options of adapters.

use super::error::LoraError;

/// Options of [`lora`](super::lora()): the size of adapters and the layers that get one.
///
/// ```
/// use highwater::nn::Lora;
/// let options = Lora { rank: 16, alpha: 32.0, ..Lora::default() }.with_targets(["self_attn.*", "mlp.down_proj"]);
/// assert_eq!(options.scale(), 2.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// The rank of the update: the number of rows of A.
    pub rank: usize,
    /// The update is multiplied by alpha / rank.
    pub alpha: f64,
    /// The probability with which elements of the adapter's input are dropped in training.
    pub dropout: f64,
    /// Patterns of the paths of linear layers.
    ///
    /// - A pattern matches paths that end with its names: `q_proj` and `self_attn.q_proj` both match
    ///   `model.layers.0.self_attn.q_proj`.
    /// - `*` stands for one name: `layers.0.self_attn.*`.
    /// - `all-linear` selects all linear layers but the output layer, as PEFT does. Output layers are those with the name
    ///   `lm_head`, `embed_out`, `score` or `classifier`.
    ///
    /// Each pattern must match at least one layer.
    pub targets: Vec<String>,
    /// Whether the update is multiplied by alpha / √rank instead (rsLoRA, Kalajdzievski 2023), which keeps its size for
    /// large ranks.
    pub rslora: bool,
    /// The name of the model, for example on the Hugging Face Hub. [`Adapters::save`](super::Adapters::save) writes it, and
    /// [`Adapters::load`](super::Adapters::load) fails for adapters of another model.
    pub base_model: Option<String>,
}

impl Default for Lora {
    /// Rank 8, alpha 16 and no dropout for the layers `q_proj` and `v_proj`, which PEFT selects in Llama.
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 16.0,
            dropout: 0.0,
            targets: vec!["q_proj".to_owned(), "v_proj".to_owned()],
            rslora: false,
            base_model: None,
        }
    }
}

impl Lora {
    /// Sets the patterns of [`targets`](Self::targets).
    #[must_use]
    pub fn with_targets<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        Self { targets: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    /// Returns the factor of the update: alpha / rank, or alpha / √rank with [`rslora`](Self::rslora).
    #[must_use]
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// # Errors
    /// [`LoraError::BadOption`] for a value out of range.
    pub(super) fn check(&self) -> Result<(), LoraError> {
        let bad = |option, expected, got: String| Err(LoraError::BadOption { option, expected, got });
        if self.rank == 0 {
            return bad("rank", "at least 1", self.rank.to_string());
        }
        if !self.alpha.is_finite() {
            return bad("alpha", "finite", self.alpha.to_string());
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return bad("dropout", "at least 0 and below 1", self.dropout.to_string());
        }
        Ok(())
    }
}
