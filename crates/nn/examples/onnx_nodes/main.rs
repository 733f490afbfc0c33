//! Runs the node test cases of ONNX with Highwater's ops, and reports which cases pass.
//!
//! `cargo run -p highwater-tensor --example onnx_nodes -- CASES.jsonl`; `scripts/check-onnx` makes the cases and calls this.
//! A case fails if an op returns another result. The program skips cases with an unsupported op, option or
//! element type.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

mod case;
mod mapping;
mod recurrent;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

use case::{Case, Numbers};
use highwater_tensor::{DType, Device, Tensor};
use mapping::{Node, NotAsked};

/// The results of all cases of one op.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    not_asked: usize,
    failed: Vec<String>,
    reasons: BTreeMap<String, usize>,
}

/// Returns a description of the first difference, or `None` if the results agree.
fn difference(
    output: &Tensor,
    expected: &Numbers,
    (relative, absolute): (f64, f64),
) -> Result<Option<String>, Box<dyn Error>> {
    if output.dims() != expected.1 || output.dtype().name() != expected.0 {
        let (dtype, shape) = (output.dtype(), output.shape());
        return Ok(Some(format!("{dtype} {shape} for {} {:?}", expected.0, expected.1)));
    }
    let values = output.to_dtype(DType::F64)?.to_vec::<f64>()?;
    let differs = |left: f64, right: f64| {
        let same = left == right || left.is_nan() && right.is_nan();
        // The negation also reports a difference of NaN.
        !(same || (left - right).abs() <= absolute + relative * right.abs())
    };
    let first = values.into_iter().zip(expected.values()).find(|&(left, right)| differs(left, right));
    Ok(first.map(|(left, right)| format!("{left} for {right}")))
}

/// Runs a case. Returns `Ok(None)` if it passes.
fn run(device: &Device, case: &Case) -> Result<Option<String>, NotAsked> {
    if let Some(reason) = &case.why_not {
        return Err(NotAsked::Because(reason.clone()));
    }
    let outputs = mapping::run(&Node::new(device, case)?)?;
    for (output, expected) in outputs.iter().zip(&case.outputs) {
        let Some(expected) = expected else { continue };
        match difference(output, expected, case.tolerance) {
            Ok(None) => {}
            Ok(different) => return Ok(different),
            Err(error) => return Ok(Some(error.to_string())),
        }
    }
    Ok(None)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("the path of the cases is missing")?;
    let device = Device::cpu()?;
    let mut tallies = BTreeMap::<String, Tally>::new();
    for line in std::fs::read_to_string(&path)?.lines() {
        let case: Case = serde_json::from_str(line)?;
        let tally = tallies.entry(case.op.clone()).or_default();
        match run(&device, &case) {
            Ok(None) => tally.passed += 1,
            Ok(Some(different)) => tally.failed.push(format!("{}: {different}", case.name)),
            Err(NotAsked::Op(error)) => tally.failed.push(format!("{}: {error}", case.name)),
            Err(NotAsked::Because(reason)) => {
                tally.not_asked += 1;
                *tally.reasons.entry(reason).or_default() += 1;
            }
        }
    }
    let sum = |count: fn(&Tally) -> usize| tallies.values().map(count).sum::<usize>();
    println!("{:32}{:>8}{:>8}{:>11}", "op", "passed", "failed", "not asked");
    for (op, tally) in tallies.iter().filter(|(_, tally)| tally.passed + tally.failed.len() > 0) {
        let reasons: Vec<String> =
            tally.reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let counts = format!("{op:32}{:>8}{:>8}{:>11}", tally.passed, tally.failed.len(), tally.not_asked);
        println!("{counts}  {}", reasons.join(", "));
    }
    let without: Vec<&str> = tallies
        .iter()
        .filter(|(_, tally)| tally.passed + tally.failed.len() == 0)
        .map(|(op, _)| op.as_str())
        .collect();
    println!("\nnothing asked of {} ops: {}", without.len(), without.join(", "));
    for failure in tallies.values().flat_map(|tally| &tally.failed) {
        println!("failed: {failure}");
    }
    let failed = sum(|tally| tally.failed.len());
    println!(
        "\n{} passed, {failed} failed, {} not asked",
        sum(|tally| tally.passed),
        sum(|tally| tally.not_asked)
    );
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
