//! Modules one after the other.

use std::collections::HashSet;

use highwater_tracking::module;

use super::module::Module;
use super::parameter::Parameter;
use crate::error::Result;
use crate::rng::Rng;
use crate::tensor::Tensor;

/// Modules applied in turn, each in a scope of its name.
///
/// A [`Linear`](super::Linear) and an activation that comes after it are computed by one op, in the scope of the former, to the same
/// bits: accounts of ops know a `linear_relu` in `fc1`, and none in `relu`. To have two ops, put a module of one's own between, or
/// call the layers one by one.
///
/// ```
/// use highwater_tensor::nn::{Linear, Module, Relu, Sequential};
/// use highwater_tensor::{Device, Rng, Tensor};
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let net = Sequential::new()
///     .with("fc1", Linear::new(&device, 64, 32, &rng)?)
///     .with("relu", Relu)
///     .with("fc2", Linear::new(&device, 32, 10, &rng)?);
/// assert_eq!(net.forward(&Tensor::zeros(&device, [7, 64])?)?.dims(), [7, 10]);
/// let paths: Vec<_> = net.parameters().into_iter().map(|(path, _)| path).collect();
/// assert_eq!(paths, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
/// # Ok::<(), highwater_tensor::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Sequential {
    layers: Vec<(String, Box<dyn Module>)>,
}

impl Sequential {
    /// No modules yet: the identity.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same modules with one more at the end. Dots in the name make nested scopes; a name that is taken (or
    /// empty) gets a number, so that every path names one parameter: the second `relu` is `relu2`.
    #[must_use]
    pub fn with(mut self, name: &str, module: impl Module + 'static) -> Self {
        let name = self.free_name(name, &module);
        let module = Box::new(module.named(&name));
        self.layers.push((name, module));
        self
    }

    /// How many modules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no modules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    fn free_name(&self, name: &str, module: &impl Module) -> String {
        // Scopes leave empty parts out; so do paths.
        let parts: Vec<&str> = name.split('.').filter(|part| !part.is_empty()).collect();
        let name = if parts.is_empty() { "layer".to_owned() } else { parts.join(".") };
        // A name with dots may lead to a parameter, or a source of randomness, inside another layer.
        let known = self.parameters().into_iter().chain(self.buffers());
        let mut paths: HashSet<String> = known.map(|(path, _)| path).collect();
        self.visit_rngs(&mut |path, _| {
            paths.insert(path.to_owned());
        });
        let is_free = |name: &String| {
            let mut leads_to_new = true;
            let mut look = |path: &str, _: &Parameter| leads_to_new &= !paths.contains(path);
            module.visit_as(name, &mut look);
            module.visit_buffers_as(name, &mut look);
            module.visit_rngs_as(name, &mut |path, _| leads_to_new &= !paths.contains(path));
            leads_to_new && self.layers.iter().all(|(taken, _)| taken != name)
        };
        if is_free(&name) {
            return name;
        }
        // Each layer and each path takes at most one candidate.
        let candidates = 2..=self.layers.len() + paths.len() + 2;
        candidates.map(|number| format!("{name}{number}")).find(is_free).unwrap_or_default()
    }
}

impl Module for Sequential {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut layers = self.layers.iter().peekable();
        let mut result = None;
        while let Some((name, layer)) = layers.next() {
            let x = result.as_ref().unwrap_or(x);
            let next = layers.peek().and_then(|(_, next)| next.as_activation());
            let together = next.and_then(|activation| {
                let _scope = module(name);
                layer.forward_activated(x, activation)
            });
            let y = match together {
                Some(y) => {
                    layers.next();
                    y?
                }
                None => layer.forward_as(name, x)?,
            };
            // Each result is dropped as soon as the next one is there, unless backward needs it.
            result = Some(y);
        }
        Ok(result.unwrap_or_else(|| x.unchanged()))
    }

    fn visit(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        for (name, layer) in &self.layers {
            layer.visit_as(name, visitor);
        }
    }

    fn visit_buffers(&self, visitor: &mut dyn FnMut(&str, &Parameter)) {
        for (name, layer) in &self.layers {
            layer.visit_buffers_as(name, visitor);
        }
    }

    fn visit_rngs(&self, visitor: &mut dyn FnMut(&str, &Rng)) {
        for (name, layer) in &self.layers {
            layer.visit_rngs_as(name, visitor);
        }
    }
}
