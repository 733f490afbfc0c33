//! Padded batches of tokens.

use highwater_tensor::{Device, Result as TensorResult, Tensor, no_grad};

use super::error::TextError;
use crate::bert::Bert;

/// Token sequences of several texts, padded on the right to one length: the inputs of a model like BERT.
///
/// All fields have the shape `[rows, columns]`, row by row, for [`Tensor::from_slice`](highwater_tensor::Tensor::from_slice).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBatch {
    rows: usize,
    columns: usize,
    ids: Vec<u32>,
    type_ids: Vec<u32>,
    mask: Vec<bool>,
}

impl TokenBatch {
    /// Pads rows of (token ids, type ids) with a (token id, type id).
    pub(super) fn padded(rows: &[(&[u32], &[u32])], (pad, pad_type): (u32, u32)) -> Result<Self, TextError> {
        let columns = rows.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
        let size = rows.len().saturating_mul(columns);
        let no_memory = |_| TextError::TooLarge {
            what: "tokens of a batch",
            found: size,
            limit: isize::MAX as usize / 4,
        };
        let (mut ids, mut type_ids, mut mask) = (Vec::new(), Vec::new(), Vec::new());
        ids.try_reserve_exact(size).map_err(no_memory)?;
        type_ids.try_reserve_exact(size).map_err(no_memory)?;
        mask.try_reserve_exact(size).map_err(no_memory)?;
        for (row, (tokens, types)) in rows.iter().enumerate() {
            let end = (row + 1) * columns;
            mask.resize(row * columns + tokens.len(), true);
            mask.resize(end, false);
            ids.extend_from_slice(tokens);
            ids.resize(end, pad);
            type_ids.extend(types.iter().take(tokens.len()));
            type_ids.resize(end, pad_type);
        }
        Ok(Self { rows: rows.len(), columns, ids, type_ids, mask })
    }

    /// Returns the number of texts.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of tokens of the longest text, 0 without texts.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the token ids.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns the type ids: 0 for the first text of a pair, 1 for the second. Here all texts are single.
    #[must_use]
    pub fn type_ids(&self) -> &[u32] {
        &self.type_ids
    }

    /// Returns the attention mask: true for tokens, false for padding.
    #[must_use]
    pub fn mask(&self) -> &[bool] {
        &self.mask
    }

    /// Copies the token ids and the mask to a device.
    ///
    /// # Errors
    /// [`Error::Allocation`](highwater_tensor::Error::Allocation) if there is no memory.
    pub fn to_device(&self, device: &Device) -> TensorResult<[Tensor; 2]> {
        let shape = [self.rows, self.columns];
        Ok([Tensor::from_slice(device, &self.ids, shape)?, Tensor::from_slice(device, &self.mask, shape)?])
    }
}

impl Bert {
    /// Computes the embedding of each text of a batch, `[rows, width]`, without recording a graph. See
    /// [`sentence_embeddings`](Self::sentence_embeddings).
    ///
    /// ```no_run
    /// use highwater::Device;
    /// use highwater::models::{SpecialTokens, Tokenizer, load_bert};
    /// let model = load_bert("all-MiniLM-L6-v2", &Device::cpu()?)?;
    /// let tokenizer = Tokenizer::from_file("all-MiniLM-L6-v2/tokenizer.json")?;
    /// let sentences = ["A man is playing a guitar.", "Someone plays an instrument."];
    /// let batch = tokenizer.encode_batch(&sentences, SpecialTokens::Include, Some(256))?;
    /// let embeddings = model.embed(&batch)?;
    /// let cosine = embeddings.at(0)?.mul(&embeddings.at(1)?)?.sum_all()?.item::<f32>()?;
    /// assert!(cosine > 0.6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`forward_masked`](Self::forward_masked).
    pub fn embed(&self, batch: &TokenBatch) -> TensorResult<Tensor> {
        let [tokens, mask] = batch.to_device(&self.device())?;
        no_grad(|| self.sentence_embeddings(&tokens, &mask))
    }
}
