//! Walks through modules, for the tests.

use highwater_nn::modules::{Module, Part};

/// The paths of the random generators, in the order of a walk.
pub(crate) fn rng_paths(module: &dyn Module) -> Vec<String> {
    let mut paths = Vec::new();
    module.walk(&mut |path, part| {
        if let Part::Rng(_) = part {
            paths.push(path.to_owned());
        }
    });
    paths
}
