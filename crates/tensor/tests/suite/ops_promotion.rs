//! Ops on operands of two element types: the result has the type of the table of `DType`, and gradients that of their operand.

use crate::ops_table::{Case, cases, inputs};
use highwater_tensor::{DType, Device, Runtime, Tensor};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// Returns the inputs of a case: of the first type, then of the second, then of the first again.
fn operands(device: &Device, case: &Case, dtypes: [DType; 2]) -> Vec<Tensor> {
    let of_one_type = inputs(case, device, DType::F32).into_iter().zip(0..);
    of_one_type.map(|(x, at): (Tensor, usize)| x.to_dtype(dtypes[at % 2]).unwrap()).collect()
}

fn wide(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
fn two_float_types_give_what_their_promoted_type_gives() {
    let device = device();
    let mut faults = Vec::new();
    for case in cases().iter().filter(|case| case.inputs.len() > 1 && case.properties.promotes) {
        for (first, second) in FLOATS.iter().flat_map(|a| FLOATS.map(|b| (*a, b))) {
            if let Err(fault) = check_promotion(&device, case, [first, second]) {
                faults.push(format!("{} of {first} and {second}: {fault}", case.name));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Compares the result and the gradients of mixed operands with those of promoted operands.
fn check_promotion(device: &Device, case: &Case, dtypes: [DType; 2]) -> std::result::Result<(), String> {
    let leaf = |x: Tensor| x.requiring_grad().unwrap();
    let mixed: Vec<_> = operands(device, case, dtypes).into_iter().map(leaf).collect();
    let dtype = dtypes[0].promote(dtypes[1]);
    let y = case.apply(&mixed).map_err(|error| error.to_string())?;
    let promoted: Vec<_> = mixed.iter().map(|x| leaf(x.detach().to_dtype(dtype).unwrap())).collect();
    let expected = case.apply(&promoted).unwrap();
    if y.dtype() != expected.dtype() || wide(&y) != wide(&expected) {
        return Err(format!("{y} instead of {expected}"));
    }
    let gradients = y.sum_all().unwrap().backward().unwrap();
    let expected = expected.sum_all().unwrap().backward().unwrap();
    for (x, promoted) in mixed.iter().zip(&promoted) {
        let (found, expected) = (gradients.get(x).unwrap(), expected.get(promoted).unwrap());
        if found.dtype() != x.dtype() || wide(found) != wide(&expected.to_dtype(x.dtype()).unwrap()) {
            return Err(format!("gradient {found} instead of {expected}"));
        }
    }
    Ok(())
}

#[test]
fn known_values_are_kept_in_the_wider_type() {
    let device = device();
    // Next to 1 in f64, and 1 in f32.
    let x = Tensor::from_slice(&device, &[1.0f64 + f64::EPSILON], [1, 1]).unwrap();
    let one = Tensor::ones(&device, [1, 1]).unwrap();
    assert_eq!(x.matmul(&one).unwrap().to_vec::<f64>().unwrap(), [1.0 + f64::EPSILON]);
    assert_eq!(one.matmul(&x).unwrap().to_vec::<f64>().unwrap(), [1.0 + f64::EPSILON]);
    let zero = Tensor::zeros(&device, [1]).unwrap();
    assert_eq!(one.linear(&x, &zero).unwrap().to_vec::<f64>().unwrap(), [1.0 + f64::EPSILON]);
    // 257 needs nine bits, of which bf16 has eight.
    let x = Tensor::full_of(&device, [1, 1], 257.0, DType::F32).unwrap();
    let two = Tensor::full_of(&device, [1, 1], 2.0, DType::BF16).unwrap();
    assert_eq!(two.matmul(&x).unwrap().to_vec::<f32>().unwrap(), [514.0]);
}

#[test]
fn integers_meet_floats_by_the_table() {
    let device = device();
    let half = Tensor::full_of(&device, [3, 2], 0.5, DType::F16).unwrap();
    let counts = Tensor::arange(&device, 0, 6).unwrap().reshape([2, 3]).unwrap();
    for dtype in [DType::I64, DType::I32, DType::U32, DType::U8] {
        let product = counts.to_dtype(dtype).unwrap().matmul(&half).unwrap();
        assert_eq!((product.dtype(), wide(&product)), (DType::F16, vec![1.5, 1.5, 6.0, 6.0]), "{dtype}");
    }
    let bytes = counts.to_dtype(DType::U8).unwrap();
    let product = bytes.matmul(&counts.t().unwrap()).unwrap();
    assert_eq!(product.to_vec::<i64>().unwrap(), [5, 14, 14, 50]);
    let bools = counts.to_dtype(DType::Bool).unwrap();
    assert_eq!(wide(&bools.matmul(&half).unwrap()), [1.0, 1.0, 1.5, 1.5]);
}
