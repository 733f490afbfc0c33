//! Conversion of PyTorch's state dicts to the names and axes of a module.
//!
//! ```text
//! recurrent layers: names and matrices -> names of modules, level by level -> transposes of linear layers
//! ```

mod recurrent;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use highwater_tensor::Result;

use super::{Checkpoint, expected};
use crate::io::Arrays;
use crate::modules::{Module, PartRef};

/// PyTorch's counter of the batches of a norm, which Highwater does not need.
const BATCHES: &str = "num_batches_tracked";

impl Checkpoint {
    /// Converts a PyTorch state dict to the names and axes of a module with the same layers.
    ///
    /// - Names: parts with equal names match. The numbers of an `nn.Sequential` match the other parts in their order, so
    ///   `0.weight` and `2.weight` become `hidden.weight` and `out.weight`. Other names stay unchanged:
    ///   [rename](Self::renamed) them before.
    /// - Axes: the weights of linear layers are [transposed](Self::transposed). The module knows its linear layers, so a
    ///   square weight is transposed too, and an embedding is not.
    /// - Recurrent layers: see [`recurrent_from_pytorch`](Self::recurrent_from_pytorch).
    /// - `num_batches_tracked` is dropped.
    ///
    /// [`restore`](Self::restore) then names each parameter that is missing or has another shape.
    ///
    /// ```
    /// use highwater::nn::{Linear, Module, Relu, Sequential};
    /// use highwater::io::Checkpoint;
    /// use highwater::{Device, Rng, Tensor};
    /// let (device, rng) = (Device::cpu()?, Rng::new(0));
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/iris.pt");
    /// // torch.save(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).state_dict(), path)
    /// let net = Sequential::new()
    ///     .with("hidden", Linear::new(&device, 4, 16, &rng)?)
    ///     .with("relu", Relu)
    ///     .with("out", Linear::new(&device, 16, 3, &rng)?);
    /// Checkpoint::load(path)?.converted_from_pytorch(&net)?.restore(&net)?;
    ///
    /// let flower = Tensor::from_slice(&device, &[5.1f32, 3.5, 1.4, 0.2], [1, 4])?;
    /// let scores = net.forward(&flower)?.to_vec::<f32>()?;
    /// for (score, in_pytorch) in scores.iter().zip([13.138228, 4.632444, -16.635180]) {
    ///     assert!((score - in_pytorch).abs() < 1e-5);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadArgument`](highwater_tensor::Error::BadArgument) if two parameters get the same name; otherwise see
    /// [`recurrent_from_pytorch`](Self::recurrent_from_pytorch).
    pub fn converted_from_pytorch(self, module: &(impl Module + ?Sized)) -> Result<Self> {
        let (mut own, transposed) = (Vec::new(), transposed_weights(module));
        module.walk(&mut |path, part| {
            if let PartRef::Parameter(_) | PartRef::Buffer(_) = part {
                own.push(path.to_owned());
            }
        });
        let known = expected(module);
        let checkpoint = self.recurrent_from_pytorch()?;
        let mut names = BTreeMap::new();
        Names { file: &checkpoint.parameters, own: &own }.pair("", "", &mut names);
        checkpoint
            .renamed(|name| {
                let is_counter = name.rsplit('.').next() == Some(BATCHES) && !known.contains_key(name);
                (!is_counter).then(|| names.get(name).map_or(name, String::as_str).to_owned())
            })?
            .transposed(|name, array| transposed.contains(name) && array.shape().rank() == 2)
    }
}

/// Returns the paths of all parameters that PyTorch stores transposed.
fn transposed_weights(module: &(impl Module + ?Sized)) -> HashSet<String> {
    let mut weights: HashSet<String> =
        module.pytorch_transposes().iter().map(|name| (*name).to_owned()).collect();
    module.walk(&mut |path, part| {
        if let PartRef::Module(part) = part {
            weights.extend(part.pytorch_transposes().iter().map(|name| format!("{path}.{name}")));
        }
    });
    weights
}

/// The names of a file and of a module. A level is the part of a name up to and including a dot.
struct Names<'a> {
    file: &'a Arrays,
    /// In the order of visits.
    own: &'a [String],
}

impl Names<'_> {
    /// Pairs the parameters of two modules, and of the modules inside. Follows the module, whose depth is bounded, and not
    /// the file.
    fn pair(&self, theirs: &str, own: &str, names: &mut BTreeMap<String, String>) {
        let (mut parts, mut seen) = (Vec::new(), HashSet::new());
        for path in self.own.iter().filter_map(|path| path.strip_prefix(own)) {
            match path.split_once('.') {
                Some((part, _)) if seen.insert(part) => parts.push(part),
                Some(_) => {}
                None => {
                    names.insert(format!("{theirs}{path}"), format!("{own}{path}"));
                }
            }
        }
        let mut found = self.parts_of_file(theirs);
        let (equal, others): (Vec<&str>, Vec<&str>) = parts.into_iter().partition(|part| found.remove(part));
        let mut pairs: Vec<(&str, &str)> = equal.into_iter().map(|part| (part, part)).collect();
        if let Some(numbered) = numbered(&found)
            && numbered.len() == others.len()
        {
            pairs.extend(numbered.into_iter().zip(others));
        }
        for (their_part, part) in pairs {
            self.pair(&format!("{theirs}{their_part}."), &format!("{own}{part}."), names);
        }
    }

    /// Returns the names of the modules at a level of the file.
    fn parts_of_file(&self, level: &str) -> BTreeSet<&str> {
        let names = self.file.range(level.to_owned()..).map_while(|(name, _)| name.strip_prefix(level));
        names.filter_map(|name| Some(name.split_once('.')?.0)).collect()
    }
}

/// Returns the parts in the order of their numbers; `None` unless all are numbers.
fn numbered<'a>(parts: &BTreeSet<&'a str>) -> Option<Vec<&'a str>> {
    let numbers = parts.iter().map(|part| Some((part.parse::<u64>().ok()?, *part)));
    let mut numbers = numbers.collect::<Option<Vec<_>>>()?;
    numbers.sort_unstable();
    Some(numbers.into_iter().map(|(_, part)| part).collect())
}
