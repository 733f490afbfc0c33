//! The linear layers of a model, and patterns of their paths.

use std::collections::{BTreeSet, HashSet};

use super::error::LoraError;
use crate::modules::{Linear, Module, PartRef};

/// The pattern of all linear layers but the output layer.
const ALL_LINEAR: &str = "all-linear";

/// Names of output layers.
const OUTPUTS: [&str; 4] = ["lm_head", "embed_out", "score", "classifier"];

/// A linear layer with its path. The layer is a clone, which shares parameters and adapter with that of the model.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) path: String,
    pub(super) linear: Linear,
}

/// Returns all linear layers of a model. A shared layer occurs once, under its first path.
pub(super) fn linear_layers<M: Module + ?Sized>(model: &M) -> Vec<Target> {
    let (mut layers, mut seen) = (Vec::new(), HashSet::new());
    let mut add = |path: &str, linear: &Linear| {
        if seen.insert(linear.adapter().address()) {
            layers.push(Target { path: path.to_owned(), linear: linear.clone() });
        }
    };
    // A walk shows the parts of a module, but not the module itself.
    if let Some(linear) = model.as_linear() {
        add("", linear);
    }
    model.walk(&mut |path, part| {
        if let PartRef::Module(module) = part
            && let Some(linear) = module.as_linear()
        {
            add(path, linear);
        }
    });
    layers
}

/// Returns the layers that at least one pattern matches, in the order of the model.
///
/// # Errors
/// [`LoraError::NoMatch`] for a pattern that matches no layer; [`LoraError::BadOption`] if there is no pattern.
pub(super) fn select(mut layers: Vec<Target>, patterns: &[String]) -> Result<Vec<Target>, LoraError> {
    if patterns.is_empty() {
        let (option, expected) = ("targets", "at least one pattern");
        return Err(LoraError::BadOption { option, expected, got: "none".to_owned() });
    }
    let unmatched = patterns.iter().find(|pattern| !layers.iter().any(|layer| matches(pattern, &layer.path)));
    if let Some(pattern) = unmatched {
        let paths: BTreeSet<String> = layers.iter().map(|layer| shortened(&layer.path)).collect();
        let (pattern, layers) = (pattern.clone(), paths.into_iter().collect());
        return Err(LoraError::NoMatch { pattern, layers });
    }
    layers.retain(|layer| patterns.iter().any(|pattern| matches(pattern, &layer.path)));
    Ok(layers)
}

/// Whether a pattern matches a path: its names are the last names of the path.
fn matches(pattern: &str, path: &str) -> bool {
    if pattern == ALL_LINEAR {
        let name = path.rsplit('.').next().unwrap_or(path);
        return !OUTPUTS.contains(&name);
    }
    let mut names = path.rsplit('.').filter(|name| !name.is_empty());
    pattern.rsplit('.').all(|wanted| names.next().is_some_and(|name| wanted == "*" || wanted == name))
}

/// Returns a path with `*` in place of numbers, which is a pattern of all layers of this kind.
fn shortened(path: &str) -> String {
    let is_number = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let names: Vec<&str> = path.split('.').map(|name| if is_number(name) { "*" } else { name }).collect();
    names.join(".")
}

/// Returns the shortest list of names that selects these layers in PEFT: their last names, if no other layer has such a
/// name, or else their paths.
pub(super) fn peft_names(adapted: &BTreeSet<&str>, all: &[Target]) -> Vec<String> {
    let last = |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned();
    let names: BTreeSet<String> = adapted.iter().map(|path| last(path)).collect();
    let is_exact =
        all.iter().all(|layer| names.contains(&last(&layer.path)) == adapted.contains(&*layer.path));
    if is_exact { names.into_iter().collect() } else { adapted.iter().map(|&path| path.to_owned()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_last_names_of_a_path() {
        let path = "model.layers.0.self_attn.q_proj";
        for pattern in ["q_proj", "self_attn.q_proj", "*.q_proj", "self_attn.*", "*", path, "all-linear"] {
            assert!(matches(pattern, path), "{pattern}");
        }
        for pattern in
            ["proj", "q_proj.", "", "layers.q_proj", "*.model.layers.0.self_attn.q_proj", "self_attn"]
        {
            assert!(!matches(pattern, path), "{pattern}");
        }
        assert!(matches("all-linear", "fc") && !matches("all-linear", "lm_head"));
    }

    #[test]
    fn numbers_in_paths_become_stars() {
        assert_eq!(shortened("model.layers.12.mlp.fc1"), "model.layers.*.mlp.fc1");
        assert_eq!(shortened(""), "");
    }
}
