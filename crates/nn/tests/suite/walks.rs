//! Walks through modules, for the tests.

use highwater_nn::modules::Module;

/// The paths of the random generators, in the order of a walk.
pub(crate) fn rng_paths(module: &dyn Module) -> Vec<String> {
    module.rngs().into_iter().map(|(path, _)| path).collect()
}
