//! Matrix products through a library with cuBLAS's interface, which multiplies on the host, beside those of the kernel. On a
//! real device (`KERNELS_ON=cuda:0`) it is cuBLAS.

use std::io::Write;
use std::sync::Arc;

use crate::ops_table::counting::Counting;
use crate::ops_table::surrounded::Surrounded;
use crate::ops_table::{computed_by, device};
use bfc_cuda::Compute;
use highwater_tensor::{Activation, DType, Device, Result, Rng, Tensor, no_grad};

fn values(tensors: &[Tensor]) -> Vec<f64> {
    let of = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    tensors.iter().flat_map(of).collect()
}

/// A program with the library, as programs get the device, and by the kernel because the library refuses: they give the same
/// but for the order of sums. How many products the library computed.
fn library_calls(name: &str, tolerance: f64, program: impl Fn(&Device) -> Result<Vec<Tensor>>) -> usize {
    let (library, refusing) = (Counting::new(false), Counting::new(true));
    let by_kernel = values(&program(&computed_by(refusing)).unwrap());
    for device in [computed_by(Arc::clone(&library)), device()] {
        let products = values(&program(&device).unwrap());
        assert_eq!(products.len(), by_kernel.len(), "{name}");
        for (a, b) in products.iter().zip(&by_kernel) {
            assert!((a - b).abs() <= tolerance * a.abs().max(1.0), "{name}: {a} and {b}");
        }
    }
    library.products()
}

/// Leaves the test with a line that says why, if there is no library.
macro_rules! library_or_skip {
    () => {
        if !Counting::new(false).supports_products() {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a test");
            let _ = writeln!(std::io::stderr(), "skipped {name}: no cuBLAS");
            return;
        }
    };
}

fn uniform(device: &Device, shape: &[usize], dtype: DType, rng: &Rng) -> Result<Tensor> {
    Tensor::uniform(device, shape, -1.0, 1.0, rng)?.to_dtype(dtype)
}

const FLOATS: [(DType, f64); 4] =
    [(DType::F32, 1e-5), (DType::F64, 1e-13), (DType::F16, 2e-3), (DType::BF16, 2e-2)];

#[test]
fn products_of_all_types_and_layouts_are_those_of_the_kernel() {
    library_or_skip!();
    type Shapes = (&'static [usize], &'static [usize], usize);
    // The left and the right factor, and how many calls the library gets.
    let shapes: &[Shapes] = &[
        (&[5, 7], &[7, 3], 1),
        (&[70, 40], &[40, 65], 1),
        (&[1, 7], &[7, 1], 1),
        (&[7], &[7, 3], 1),
        (&[4, 5, 7], &[4, 7, 3], 1),
        (&[4, 5, 7], &[7, 3], 1),
        (&[2, 1, 5, 7], &[3, 7, 2], 2),
        (&[2, 0], &[0, 3], 0),
        (&[0, 2], &[2, 3], 0),
    ];
    for (dtype, tolerance) in FLOATS {
        for &(left, right, calls) in shapes {
            let name = format!("{left:?} by {right:?} in {dtype}");
            let made = library_calls(&name, tolerance, |device| {
                let rng = Rng::new(1);
                Ok(vec![uniform(device, left, dtype, &rng)?.matmul(&uniform(device, right, dtype, &rng)?)?])
            });
            assert_eq!(made, calls, "{name}");
        }
    }
}

#[test]
fn transposed_and_sliced_factors_need_no_copy() {
    library_or_skip!();
    let calls = library_calls("transposed and parts", 1e-5, |device| {
        let rng = Rng::new(2);
        let wide = uniform(device, &[12, 20], DType::F32, &rng)?;
        let part = wide.slice(0, 1..6)?.slice(1, 3..10)?;
        let left = uniform(device, &[7, 4], DType::F32, &rng)?.t()?;
        Ok(vec![part.matmul(&part.t()?)?, part.t()?.matmul(&part)?, left.matmul(&part.t()?)?])
    });
    assert_eq!(calls, 3);
}

#[test]
fn what_lies_as_no_library_knows_is_left_to_the_kernel() {
    library_or_skip!();
    let calls = library_calls("every second column, and one row for all", 1e-5, |device| {
        let rng = Rng::new(3);
        let x = uniform(device, &[6, 8], DType::F32, &rng)?;
        let second = x.slice_step(1, .., 2)?;
        let repeated = x.slice(0, 0..1)?.broadcast_to([5, 8])?;
        Ok(vec![second.matmul(&second.t()?)?, repeated.matmul(&x.t()?)?])
    });
    assert_eq!(calls, 0);
}

#[test]
fn heads_beside_each_other_take_a_call_for_each_sequence() {
    library_or_skip!();
    let calls = library_calls("heads", 1e-5, |device| {
        let rng = Rng::new(4);
        let heads = |device| uniform(device, &[2, 5, 3, 8], DType::F32, &rng)?.permute([0, 2, 1, 3]);
        let (query, key) = (heads(device)?, heads(device)?);
        Ok(vec![query.matmul(&key.transpose(-2, -1)?)?])
    });
    assert_eq!(calls, 2);
}

#[test]
fn a_linear_layer_by_the_library_equals_the_kernel() {
    library_or_skip!();
    for (dtype, tolerance) in FLOATS {
        let calls = library_calls("linear", 4.0 * tolerance, |device| {
            let rng = Rng::new(5);
            let leaf = |shape: &[usize]| uniform(device, shape, dtype, &rng)?.requiring_grad();
            let (x, w, b) = (leaf(&[9, 6])?, leaf(&[6, 4])?, leaf(&[4])?);
            let y = x.linear(&w, &b)?;
            let gradients = y.mul(&y)?.sum_all()?.backward()?;
            let mut all = vec![y.detach()];
            for leaf in [&x, &w, &b] {
                all.push(gradients.get(leaf).unwrap().clone());
            }
            Ok(all)
        });
        assert_eq!(calls, 3, "{dtype}");
    }
}

#[test]
fn an_activation_is_computed_in_the_pass_that_adds_the_bias() {
    library_or_skip!();
    for (dtype, tolerance) in FLOATS {
        for f in Activation::ALL {
            for (rows, depth) in [(70, 6), (5, 0)] {
                let program = |device: &Device| {
                    let rng = Rng::new(6);
                    let leaf = |shape: &[usize]| {
                        uniform(device, shape, dtype, &rng)?.mul_scalar(0.4)?.detach().requiring_grad()
                    };
                    let (x, w) = (leaf(&[rows, depth])?, leaf(&[depth, 67])?);
                    // No sum is near 0, where the derivative of one function jumps.
                    let signs: Vec<f32> = (0..67).map(|i| if i % 3 == 0 { -1.5 } else { 1.5 }).collect();
                    let b = Tensor::from_slice(device, &signs, 67)?.to_dtype(dtype)?.requiring_grad()?;
                    let y = x.linear_activation(&w, &b, f)?;
                    let gradients = y.sum_all()?.backward()?;
                    let gradients = [&x, &w, &b].map(|leaf| gradients.get(leaf).unwrap().clone());
                    let [to_x, to_w, to_b] = gradients;
                    Ok(vec![y.detach(), no_grad(|| x.linear_activation(&w, &b, f))?, to_x, to_w, to_b])
                };
                let name = format!("{f:?} of {rows} rows and {depth} columns in {dtype}");
                library_calls(&name, 8.0 * tolerance, program);
                let here = values(&program(&crate::ops_table::runtime().cpu().unwrap()).unwrap());
                let there = values(&program(&device()).unwrap());
                for (a, b) in here.iter().zip(&there) {
                    assert!((a - b).abs() <= 8.0 * tolerance * a.abs().max(1.0), "{name}: {a} and {b}");
                }
            }
        }
    }
    let launched = |program: &dyn Fn(&[Tensor; 3]) -> Result<Tensor>| {
        let compute = Counting::new(false);
        let device = computed_by(compute.clone());
        let ones = [&[4, 6][..], &[6, 5], &[5]].map(|shape| Tensor::ones(&device, shape).unwrap());
        let before = compute.launched().len();
        program(&ones).unwrap();
        compute.launched().split_off(before)
    };
    assert_eq!(launched(&|[x, w, b]| x.linear_activation(w, b, Activation::Relu)), ["bias_activation"]);
    assert_eq!(launched(&|[x, w, b]| x.linear(w, b)?.relu()), ["copy", "arithmetic"]);
}

#[test]
fn the_library_reads_factors_and_biases_at_their_offset() {
    library_or_skip!();
    for (dtype, tolerance) in FLOATS {
        for how in Surrounded::ALL {
            let name = format!("{how:?} in {dtype}");
            // Elements of another place would be no number. The gradients are sums of squares, whose roundings add up.
            let made = library_calls(&name, 32.0 * tolerance, |device| {
                let rng = Rng::new(2);
                let leaf = |shape: &[usize]| {
                    let values = Tensor::uniform(device, shape, -1.0, 1.0, &rng)?.to_dtype(dtype)?;
                    how.copy(&values, f64::NAN)?.requiring_grad()
                };
                let (x, w, b) = (leaf(&[33, 20])?, leaf(&[20, 17])?, leaf(&[17])?);
                let (plain, stack) = (x.linear(&w, &b)?, leaf(&[3, 5, 20])?.transpose(1, 2)?);
                let activated = x.linear_activation(&w, &b, Activation::Gelu)?;
                let both = how.into_larger(&plain.mul(&activated)?)?;
                let gradients = both.square()?.sum_all()?.backward()?;
                let gradient = |leaf: &Tensor| gradients.get(leaf).unwrap().clone();
                let stacked = leaf(&[3, 4, 5])?.matmul(&stack.transpose(1, 2)?)?.detach();
                Ok(vec![
                    plain.detach(),
                    activated.detach(),
                    stacked,
                    gradient(&x),
                    gradient(&w),
                    gradient(&b),
                ])
            });
            // The library takes no factors with gaps between all elements.
            assert_eq!(made > 0, how != Surrounded::EverySecond, "{name}");
        }
    }
}
