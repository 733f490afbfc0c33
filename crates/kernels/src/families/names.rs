//! Tests that the CUDA sources have a case for every name that launches pass to them.

use super::OptimizerRule;
use crate::cuda::Family;
use crate::families::{Activation, Binary, BlockFormat, Compare, Distribution, Domain, Reduce, Unary};

/// The part of a source from the start of a function to the line that closes it.
fn function<'s>(source: &'s str, start: &str) -> &'s str {
    let (_, rest) = source.split_once(start).unwrap_or_else(|| panic!("no {start}"));
    rest.split("\n}").next().unwrap_or(rest)
}

/// The names without a case in a function.
fn missing(function: &str, names: impl IntoIterator<Item = &'static str>) -> Vec<&'static str> {
    names.into_iter().filter(|name| !function.contains(&format!("case NAMED(\"{name}\")"))).collect()
}

#[test]
fn kernels_have_a_case_for_every_function() {
    let (elementwise, float) = (Family::Elementwise.source().text(), Family::Float.source().text());
    let (reduce, random) = (Family::Reduce.source().text(), Family::Random.source().text());
    let unary = |supports: fn(Domain) -> bool| {
        Unary::ALL.iter().filter(move |f| supports(f.domain())).map(|f| f.name())
    };
    // Elements of both signs, neither 0 nor 1.
    let is_mapped = |f: &&Reduce| f.element(3.0) != 3.0 || f.element(-3.0) != -3.0;
    let distributions = [
        Distribution::Uniform { low: 0.0, high: 1.0 },
        Distribution::Normal { mean: 0.0, std: 1.0 },
        Distribution::Bernoulli { p: 0.5, value: 1.0 },
    ];
    let missing = [
        (
            "elementwise.cu, arithmetic",
            missing(function(elementwise, "KERNEL(arithmetic)"), unary(|domain| domain != Domain::Floats)),
        ),
        (
            "float.cu, transcendental",
            missing(function(float, "KERNEL(transcendental)"), unary(|domain| domain != Domain::Numbers)),
        ),
        ("float.cu, derivative", missing(function(float, "KERNEL(derivative)"), unary(|_| true))),
        (
            "activation.cuh, activated",
            missing(function(float, "E activated("), Activation::ALL.iter().map(|f| f.name())),
        ),
        (
            "quantized.cu, dequantized",
            missing(
                function(Family::Quantized.source().text(), "DEVICE float dequantized("),
                BlockFormat::ALL.iter().map(|format| format.name()),
            ),
        ),
        (
            "elementwise.cu, binary",
            missing(function(elementwise, "KERNEL(binary)"), Binary::ALL.iter().map(|f| f.name())),
        ),
        (
            "elementwise.cu, compare",
            missing(function(elementwise, "KERNEL(compare)"), Compare::ALL.iter().map(|f| f.name())),
        ),
        ("reduce.cu, fold", missing(function(reduce, "E fold("), Reduce::ALL.iter().map(|f| f.name()))),
        (
            "reduce.cu, element",
            missing(function(reduce, "E element("), Reduce::ALL.iter().filter(is_mapped).map(|f| f.name())),
        ),
        (
            "random.cu, element_of",
            missing(
                function(random, "DEVICE T ELEMENT("),
                distributions.iter().map(|f| f.name()).chain(["uniform_not_zero"]),
            ),
        ),
        (
            "optim.cu, kernels",
            OptimizerRule::all()
                .map(|rule| rule.name())
                .filter(|&name| !Family::Optim.source().kernels().any(|kernel| kernel == name))
                .collect(),
        ),
    ];
    for (place, missing) in missing {
        assert!(missing.is_empty(), "{place}: no case for {missing:?}");
    }
}
