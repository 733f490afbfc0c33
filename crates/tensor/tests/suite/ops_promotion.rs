//! Ops on operands of two element types: the result has the type of the table of `DType`, and gradients that of their operand.

use highwater_tensor::{
    Activation, Conv1dOptions, Conv2dOptions, DType, Device, Reduction, Result, Rng, Runtime, Tensor,
};

type Function = fn(&[Tensor]) -> Result<Tensor>;

/// Ops with the shapes of their operands.
const OPS: [(&str, &[&[usize]], Function); 17] = [
    ("matmul", &[&[3, 4], &[4, 2]], |x| x[0].matmul(&x[1])),
    ("matmul, stacks", &[&[2, 3, 4], &[4, 2]], |x| x[0].matmul(&x[1])),
    ("matmul, column", &[&[3, 4], &[4]], |x| x[0].matmul(&x[1])),
    ("linear", &[&[3, 4], &[4, 2], &[2]], |x| x[0].linear(&x[1], &x[2])),
    ("linear, stacks", &[&[2, 3, 4], &[4, 2], &[2]], |x| x[0].linear(&x[1], &x[2])),
    ("linear_relu", &[&[3, 4], &[4, 2], &[2]], |x| x[0].linear_activation(&x[1], &x[2], Activation::Relu)),
    ("linear_gelu", &[&[3, 4], &[4, 2], &[2]], |x| x[0].linear_activation(&x[1], &x[2], Activation::Gelu)),
    ("einsum", &[&[3, 4], &[2, 4]], |x| Tensor::einsum("ik,jk->ij", &[&x[0], &x[1]])),
    ("einsum of three", &[&[3, 4], &[4], &[3]], |x| Tensor::einsum("ik,k,i->k", &[&x[0], &x[1], &x[2]])),
    ("conv1d", &[&[1, 2, 6], &[3, 2, 3]], |x| x[0].conv1d(&x[1], Conv1dOptions::default())),
    ("conv2d", &[&[1, 2, 4, 4], &[3, 2, 2, 2]], |x| x[0].conv2d(&x[1], Conv2dOptions::default())),
    ("conv_transpose2d", &[&[1, 2, 3, 3], &[2, 1, 2, 2]], |x| {
        x[0].conv_transpose2d(&x[1], Conv2dOptions::default())
    }),
    ("mse_loss", &[&[5], &[5]], |x| x[0].mse_loss(&x[1])),
    ("l1_loss", &[&[5], &[5]], |x| x[0].l1_loss_with(&x[1], Reduction::Sum)),
    ("huber_loss", &[&[5], &[5]], |x| x[0].huber_loss_with(&x[1], 0.5, Reduction::None)),
    ("bce_with_logits", &[&[5], &[5]], |x| x[0].bce_with_logits(&x[1])),
    ("kl_div", &[&[5], &[5]], |x| x[0].kl_div_with(&x[1], Reduction::Sum)),
];

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// Operands of the first type, then of the second, then of the first again.
fn operands(device: &Device, shapes: &[&[usize]], dtypes: [DType; 2]) -> Vec<Tensor> {
    let operand = |(at, shape): (usize, &&[usize])| {
        let values = Tensor::uniform_of(device, *shape, 0.25, 2.0, &Rng::new(at as u64), DType::F32).unwrap();
        values.to_dtype(dtypes[at % 2]).unwrap()
    };
    shapes.iter().enumerate().map(operand).collect()
}

fn wide(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
fn two_float_types_give_what_their_promoted_type_gives() {
    let device = device();
    for (name, shapes, function) in OPS {
        for (first, second) in FLOATS.iter().flat_map(|a| FLOATS.map(|b| (*a, b))) {
            let case = format!("{name} of {first} and {second}");
            let leaf = |x: Tensor| x.requiring_grad().unwrap();
            let mixed: Vec<_> = operands(&device, shapes, [first, second]).into_iter().map(leaf).collect();
            let dtype = first.promote(second);
            let y = function(&mixed).unwrap();
            assert_eq!(y.dtype(), dtype, "{case}");
            let promoted: Vec<_> = mixed.iter().map(|x| leaf(x.detach().to_dtype(dtype).unwrap())).collect();
            let expected = function(&promoted).unwrap();
            assert_eq!(wide(&y), wide(&expected), "{case}");

            let gradients = y.sum_all().unwrap().backward().unwrap();
            let expected = expected.sum_all().unwrap().backward().unwrap();
            for (x, promoted) in mixed.iter().zip(&promoted) {
                let (found, expected) = (gradients.get(x).unwrap(), expected.get(promoted).unwrap());
                assert_eq!(found.dtype(), x.dtype(), "{case}");
                assert_eq!(wide(found), wide(&expected.to_dtype(x.dtype()).unwrap()), "{case}");
            }
        }
    }
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
