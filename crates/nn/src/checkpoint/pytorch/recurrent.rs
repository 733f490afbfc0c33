//! Conversion of PyTorch's recurrent layers: names and matrices.

use std::collections::BTreeMap;

use highwater_tensor::{IntoShape, Result};

use crate::checkpoint::Checkpoint;
use crate::io::{Array, Arrays};
use crate::modules::RecurrentOptions;

/// PyTorch's parameter names of a layer in one direction, and the names in this crate.
const PARTS: [(&str, &str); 4] = [
    ("weight_ih", "weight_input"),
    ("weight_hh", "weight_hidden"),
    ("bias_ih", "bias_input"),
    ("bias_hh", "bias_hidden"),
];

/// A parsed PyTorch name: `encoder.weight_ih_l1_reverse`.
struct Name<'a> {
    /// The path of the module: empty, or up to and including a dot.
    module: &'a str,
    /// The name in this crate.
    part: &'static str,
    layer: usize,
    backward: bool,
}

impl<'a> Name<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let (module, last) = name.split_at(name.rfind('.').map_or(0, |dot| dot + 1));
        let forward = last.strip_suffix("_reverse");
        let (part, number) = forward.unwrap_or(last).rsplit_once("_l")?;
        let (_, part) = *PARTS.iter().find(|(theirs, _)| *theirs == part)?;
        // Accepts the number as PyTorch writes it: without a sign and without leading zeros.
        let layer = number.parse().ok().filter(|layer: &usize| layer.to_string() == number)?;
        Some(Self { module, part, layer, backward: forward.is_some() })
    }

    fn is_weight(&self) -> bool {
        self.part.starts_with("weight")
    }
}

/// The structure of a module, derived from its names.
#[derive(Default)]
struct Found {
    options: RecurrentOptions,
    has_bias: bool,
}

impl Checkpoint {
    /// Converts the parameters of PyTorch's `nn.GRU`, `nn.LSTM` and `nn.RNN` to those of [`Gru`](crate::modules::Gru),
    /// [`Lstm`](crate::modules::Lstm) and [`Rnn`](crate::modules::Rnn), which then compute the same results.
    ///
    /// Supports any number of layers, in one direction or both. `encoder.weight_ih_l0` becomes `encoder.weight_input`,
    /// or `encoder.layers.0.forward.weight_input` with several layers or directions. Weights are transposed; the order
    /// of the gates is the same. Biases that `bias=False` omits become zeros. All other parameters stay unchanged.
    ///
    /// The batch is the first axis, as with `batch_first=True`. Projections (`proj_size`) are not supported:
    /// [`restore`](Self::restore) reports their weights as unexpected.
    ///
    /// ```
    /// use highwater::{Device, Rng};
    /// use highwater::io::Checkpoint;
    /// use highwater::nn::{Gru, RecurrentOptions};
    /// # use highwater::nn::Module;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("gru.safetensors");
    /// # let options = RecurrentOptions { layers: 2, bidirectional: true, ..Default::default() };
    /// # let theirs = |name: &str| {
    /// #     let [layer, direction, part] = name.strip_prefix("layers.")?.split('.').collect::<Vec<_>>()[..] else { return None };
    /// #     let part = part.replace("input", "ih").replace("hidden", "hh");
    /// #     Some(format!("{part}_l{layer}{}", if direction == "backward" { "_reverse" } else { "" }))
    /// # };
    /// # let is_matrix = |_: &str, array: &highwater::io::Array| array.shape().rank() == 2;
    /// # let made = Gru::with_options(&Device::cpu()?, 4, 8, options, &Rng::new(1))?;
    /// # Checkpoint::of(&made)?.transposed(is_matrix)?.renamed(theirs)?.save(&path)?;
    /// // nn.GRU(4, 8, num_layers=2, bidirectional=True, batch_first=True)
    /// let options = RecurrentOptions { layers: 2, bidirectional: true, ..Default::default() };
    /// let gru = Gru::with_options(&Device::cpu()?, 4, 8, options, &Rng::new(0))?;
    /// let checkpoint = Checkpoint::load(&path)?;
    /// checkpoint.recurrent_from_pytorch()?.restore(&gru)?;
    /// # for ((_, a), (_, b)) in made.parameters().iter().zip(gru.parameters()) {
    /// #     assert_eq!(a.tensor().to_vec::<f32>()?, b.tensor().to_vec::<f32>()?);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`](highwater_tensor::Error::BadRank) for a recurrent weight that is no matrix,
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) if a new name already exists,
    /// [`Error::NoHostMemory`](highwater_tensor::Error::NoHostMemory) if host memory runs out.
    pub fn recurrent_from_pytorch(self) -> Result<Self> {
        let mut modules = BTreeMap::<String, Found>::new();
        for name in self.parameters.keys().filter_map(|name| Name::parse(name)) {
            let found = modules.entry(name.module.to_owned()).or_default();
            found.options.layers = found.options.layers.max(name.layer.saturating_add(1));
            found.options.bidirectional |= name.backward;
            found.has_bias |= !name.is_weight();
        }
        let is_weight = |name: &str, _: &Array| Name::parse(name).is_some_and(|name| name.is_weight());
        let path = |name: &str| {
            let Some(Name { module, part, layer, backward }) = Name::parse(name) else {
                return name.to_owned();
            };
            let cell = modules[module].options.path(layer, backward);
            format!("{module}{cell}{}{part}", if cell.is_empty() { "" } else { "." })
        };
        self.with_biases(&modules)?.transposed(is_weight)?.renamed(|name| Some(path(name)))
    }

    /// Adds biases of zeros to modules without biases, one element per row of a weight. Skips weights without elements,
    /// which could claim any number of rows.
    fn with_biases(mut self, modules: &BTreeMap<String, Found>) -> Result<Self> {
        let mut biases = Arrays::new();
        for (name, weight) in &self.parameters {
            if let Some(Name { module, .. }) = Name::parse(name).filter(|name| !modules[name.module].has_bias)
                && weight.shape().elements() > 0
                && let Some(&rows) = weight.shape().dims().first()
            {
                let bias = format!("{module}{}", name[module.len()..].replacen("weight", "bias", 1));
                biases.insert(bias, Array::zeros("load", weight.dtype(), [rows].into_shape()?)?);
            }
        }
        self.parameters.append(&mut biases);
        Ok(self)
    }
}
