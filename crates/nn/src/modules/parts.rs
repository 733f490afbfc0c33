//! The parts of a module, listed once: all three visits follow from the list.

use highwater_tensor::{Parameter, Rng};

use super::module::Module;

/// A part of a [`Module`]: a module, a parameter or a random generator, and `Option`s or `Vec`s of them. See
/// [`visit_parts!`](crate::visit_parts).
///
/// The members of a `Vec` have their index as a name: `blocks.0.weight` is in the first of `blocks`.
pub trait ModulePart {
    /// Visits each parameter, with `name` before its path.
    fn visit_part(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter));

    /// Visits each buffer, with `name` before its path.
    fn visit_part_buffers(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter));

    /// Visits each random generator, with `name` before its path.
    fn visit_part_rngs(&self, name: &str, visitor: &mut dyn FnMut(&str, &Rng));
}

impl<M: Module> ModulePart for M {
    fn visit_part(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        self.visit_as(name, visitor);
    }

    fn visit_part_buffers(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        self.visit_buffers_as(name, visitor);
    }

    fn visit_part_rngs(&self, name: &str, visitor: &mut dyn FnMut(&str, &Rng)) {
        self.visit_rngs_as(name, visitor);
    }
}

impl ModulePart for Parameter {
    fn visit_part(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        visitor(name, self);
    }

    fn visit_part_buffers(&self, _name: &str, _visitor: &mut dyn FnMut(&str, &Parameter)) {}

    fn visit_part_rngs(&self, _name: &str, _visitor: &mut dyn FnMut(&str, &Rng)) {}
}

impl ModulePart for Rng {
    fn visit_part(&self, _name: &str, _visitor: &mut dyn FnMut(&str, &Parameter)) {}

    fn visit_part_buffers(&self, _name: &str, _visitor: &mut dyn FnMut(&str, &Parameter)) {}

    fn visit_part_rngs(&self, name: &str, visitor: &mut dyn FnMut(&str, &Rng)) {
        visitor(name, self);
    }
}

impl<P: ModulePart> ModulePart for Option<P> {
    fn visit_part(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        self.iter().for_each(|part| part.visit_part(name, visitor));
    }

    fn visit_part_buffers(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        self.iter().for_each(|part| part.visit_part_buffers(name, visitor));
    }

    fn visit_part_rngs(&self, name: &str, visitor: &mut dyn FnMut(&str, &Rng)) {
        self.iter().for_each(|part| part.visit_part_rngs(name, visitor));
    }
}

impl<P: ModulePart> ModulePart for Vec<P> {
    fn visit_part(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        for (number, part) in self.iter().enumerate() {
            part.visit_part(&format!("{name}.{number}"), visitor);
        }
    }

    fn visit_part_buffers(&self, name: &str, visitor: &mut dyn FnMut(&str, &Parameter)) {
        for (number, part) in self.iter().enumerate() {
            part.visit_part_buffers(&format!("{name}.{number}"), visitor);
        }
    }

    fn visit_part_rngs(&self, name: &str, visitor: &mut dyn FnMut(&str, &Rng)) {
        for (number, part) in self.iter().enumerate() {
            part.visit_part_rngs(&format!("{name}.{number}"), visitor);
        }
    }
}

/// Implements the visits of a [`Module`](crate::modules::Module) inside its `impl`, from a list of fields. The fields
/// are [`ModulePart`](crate::modules::ModulePart)s, in the order of the visits. After `; buffers:` follow parameters that are not
/// trained, such as running means.
///
/// It defines `visit`, `visit_buffers` and `visit_rngs`, so a checkpoint cannot miss running means or random
/// generators.
///
/// ```
/// use highwater::{Device, Result, Rng, Tensor};
/// use highwater::nn::{BatchNorm, Linear, Module, Parameter};
/// use highwater::visit_parts;
///
/// #[derive(Debug)]
/// struct Network {
///     layers: Vec<Linear>,
///     norm: Option<BatchNorm>,
///     scale: Parameter,
/// }
///
/// impl Module for Network {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let mut x = x.clone();
///         for (number, layer) in self.layers.iter().enumerate() {
///             x = layer.forward_as(&format!("layers.{number}"), &x)?.relu()?;
///         }
///         if let Some(norm) = &self.norm {
///             x = norm.forward_as("norm", &x)?;
///         }
///         x.mul(&self.scale.tensor())
///     }
///
///     visit_parts!(layers, norm, scale);
/// }
///
/// let (device, rng) = (Device::cpu()?, Rng::new(0));
/// let network = Network {
///     layers: vec![Linear::new(&device, 4, 8, &rng)?, Linear::new(&device, 8, 2, &rng)?],
///     norm: Some(BatchNorm::new(&device, 2)?),
///     scale: Parameter::new(Tensor::ones(&device, [1])?)?,
/// }
/// .named(""); // parameters are charged to `layers.0` and so on, where their ops run
/// let paths: Vec<String> = network.parameters().into_iter().map(|(path, _)| path).collect();
/// assert_eq!(paths[..2], ["layers.0.weight", "layers.0.bias"]);
/// assert_eq!(paths[4..], ["norm.weight", "norm.bias", "scale"]);
/// assert_eq!(network.buffers().len(), 2);
/// assert_eq!(network.forward(&Tensor::ones(&device, [3, 4])?)?.dims(), [3, 2]);
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// A layer with a parameter, a buffer and a random generator:
///
/// ```
/// use highwater::{Device, Result, Rng, Tensor, is_training, no_grad};
/// use highwater::nn::{Module, Parameter};
/// use highwater::visit_parts;
///
/// /// x over the largest value seen so far, scaled, with noise in training.
/// #[derive(Debug)]
/// struct Level {
///     scale: Parameter,
///     largest: Parameter,
///     noise: Rng,
/// }
///
/// impl Module for Level {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let largest = self.largest.tensor().detach();
///         if !is_training() {
///             return x.div(&largest)?.mul(&self.scale.tensor());
///         }
///         let largest = no_grad(|| x.abs()?.max_all()?.maximum(&largest))?;
///         self.largest.set(&largest)?;
///         let noise = Tensor::normal(x.device(), x.shape(), 0.0, 0.1, &self.noise)?;
///         x.div(&largest)?.add(&noise)?.mul(&self.scale.tensor())
///     }
///
///     visit_parts!(scale, noise; buffers: largest);
/// }
///
/// let one = |device: &Device| Parameter::new(Tensor::ones(device, [])?);
/// let device = Device::cpu()?;
/// let level = Level { scale: one(&device)?, largest: one(&device)?, noise: Rng::new(0) };
/// level.forward(&Tensor::full(&device, [3], -5.0)?)?;
/// assert_eq!((level.parameters()[0].0.as_str(), level.buffers()[0].0.as_str()), ("scale", "largest"));
/// assert_eq!(level.buffers()[0].1.tensor().item::<f32>()?, 5.0);
/// # Ok::<(), highwater::Error>(())
/// ```
#[macro_export]
macro_rules! visit_parts {
    ($($part:ident),+ $(,)?) => {
        $crate::visit_parts!($($part),+; buffers: );
    };
    ($($part:ident),* $(,)?; buffers: $($buffer:ident),* $(,)?) => {
        fn visit(&self, visitor: &mut dyn FnMut(&str, &$crate::modules::Parameter)) {
            let _ = &visitor;
            $($crate::modules::ModulePart::visit_part(&self.$part, stringify!($part), visitor);)*
        }

        fn visit_buffers(&self, visitor: &mut dyn FnMut(&str, &$crate::modules::Parameter)) {
            let _ = &visitor;
            $($crate::modules::ModulePart::visit_part_buffers(&self.$part, stringify!($part), visitor);)*
            $($crate::modules::ModulePart::visit_part(&self.$buffer, stringify!($buffer), visitor);)*
        }

        fn visit_rngs(&self, visitor: &mut dyn FnMut(&str, &$crate::macros::Rng)) {
            let _ = &visitor;
            $($crate::modules::ModulePart::visit_part_rngs(&self.$part, stringify!($part), visitor);)*
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{BatchNorm, Dropout, Linear};
    use highwater_tensor::{Device, Result, Tensor};

    #[derive(Debug)]
    struct Network {
        inner: Box<dyn Module>,
        blocks: Vec<Inner>,
        none: Option<Linear>,
        own: Parameter,
    }

    impl Module for Network {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            Ok(x.clone())
        }

        visit_parts!(inner, blocks, none, own);
    }

    #[derive(Debug)]
    struct Inner {
        norm: BatchNorm,
        dropout: Dropout,
    }

    impl Module for Inner {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            Ok(x.clone())
        }

        visit_parts!(norm, dropout);
    }

    fn inner(device: &Device) -> Result<Inner> {
        Ok(Inner { norm: BatchNorm::new(device, 3)?, dropout: Dropout::new(0.5, &Rng::new(0)) })
    }

    fn paths(parameters: Vec<(String, Parameter)>) -> Vec<String> {
        parameters.into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn submodules_are_visited_in_order() -> Result<()> {
        let device = Device::cpu()?;
        let network = Network {
            inner: Box::new(inner(&device)?),
            blocks: vec![inner(&device)?, inner(&device)?],
            none: None,
            own: Parameter::new(Tensor::ones(&device, [2])?)?,
        };
        let expected = ["inner.norm", "blocks.0.norm", "blocks.1.norm"]
            .map(|norm| [format!("{norm}.weight"), format!("{norm}.bias")]);
        assert_eq!(paths(network.parameters()), [expected.as_flattened(), &["own".to_owned()]].concat());
        assert_eq!(paths(network.buffers()).len(), 3 * 2);
        let mut rngs = Vec::new();
        network.visit_rngs(&mut |path, _| rngs.push(path.to_owned()));
        assert_eq!(rngs.len(), 3, "{rngs:?}");
        assert!(rngs[1].starts_with("blocks.0.dropout"), "{rngs:?}");
        Ok(())
    }

    #[derive(Debug)]
    struct Own {
        learnt: Parameter,
        drawn: Option<Rng>,
        inside: Inner,
        kept: Vec<Parameter>,
    }

    impl Module for Own {
        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            Ok(x.clone())
        }

        visit_parts!(learnt, drawn, inside; buffers: kept);
    }

    #[test]
    fn a_module_visits_its_own_state_and_its_submodules() -> Result<()> {
        let device = Device::cpu()?;
        let one = || Parameter::new(Tensor::ones(&device, [2])?);
        let (learnt, drawn, kept) = (one()?, Some(Rng::new(0)), vec![one()?, one()?]);
        let own = Own { learnt, drawn, inside: inner(&device)?, kept };
        assert_eq!(paths(own.parameters()), ["learnt", "inside.norm.weight", "inside.norm.bias"]);
        let means = ["inside.norm.running_mean", "inside.norm.running_var"];
        assert_eq!(paths(own.buffers()), [&means[..], &["kept.0", "kept.1"]].concat());
        let mut rngs = Vec::new();
        own.visit_rngs(&mut |path, _| rngs.push(path.to_owned()));
        assert_eq!(rngs, ["drawn", "inside.dropout.rng"]);
        Ok(())
    }

    #[test]
    fn an_unnamed_whole_charges_each_parameter_where_its_ops_run() -> Result<()> {
        let device = highwater_tensor::Runtime::builder().build()?.cpu()?;
        let network = Network {
            inner: Box::new(inner(&device)?),
            blocks: vec![inner(&device)?],
            none: None,
            own: Parameter::new(Tensor::ones(&device, [2])?)?,
        }
        .named("");
        let pools = [std::sync::Arc::clone(device.default_allocator()?)];
        let report = highwater_tracking::Report::new(device.tracker(), &pools);
        let held: Vec<&str> =
            report.scopes.iter().filter(|row| row.live_bytes > 0).map(|row| row.scope.as_str()).collect();
        for scope in ["inner.norm", "blocks.0.norm"] {
            assert!(held.contains(&scope), "{scope} is not in {held:?}");
        }
        drop(network);
        Ok(())
    }
}
