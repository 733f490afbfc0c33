//! Indices of every integer type: the results, gradients and errors are those of i64.

use crate::ops_table::{device, dry_device};
use highwater_tensor::{CrossEntropyOptions, DType, Device, Error, Reduction, Result, Rng, Tensor};

const TYPES: [DType; 4] = [DType::I64, DType::I32, DType::U32, DType::U8];

/// The rows to select.
const CHOSEN: [i64; 6] = [2, 0, 3, 3, 1, 2];

/// An op on a leaf `[4, 3]`, with six indices below 4.
type Indexed = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>);

const OPS: &[Indexed] = &[
    ("gather", |x, i| x.gather(0, &i.reshape([2, 3])?)),
    ("index_select", |x, i| x.index_select(0, i)),
    ("index_select", |x, i| x.t()?.index_select(-1, i)),
    ("embedding", |x, i| x.embedding(&i.reshape([3, 2])?)),
    ("embedding", |x, i| x.embedding_with_padding(&i.reshape([3, 2])?, 3)),
    ("one_hot", |_, i| i.one_hot(4)),
    ("scatter_add", |x, i| {
        let source = Tensor::uniform(x.device(), [2, 3], 1.0, 2.0, &Rng::new(2))?.requiring_grad()?;
        x.scatter_add(0, &i.reshape([2, 3])?, &source)
    }),
    ("cross_entropy", |x, i| x.t()?.cross_entropy(&i.narrow(0, 0, 3)?)),
    ("cross_entropy", |x, i| {
        // One class per position.
        x.t()?.unsqueeze(0)?.transpose(1, 2)?.cross_entropy(&i.narrow(0, 3, 3)?.unsqueeze(0)?)
    }),
    ("cross_entropy", |x, i| {
        let weights = Tensor::from_slice(x.device(), &[1.0f32, 0.5, 2.0, 3.0], 4)?;
        let options = CrossEntropyOptions {
            label_smoothing: 0.1,
            ignore_index: Some(3),
            class_weights: Some(&weights),
            reduction: Reduction::Mean,
        };
        x.t()?.cross_entropy_with(&i.narrow(0, 1, 3)?, options)
    }),
];

fn table(device: &Device) -> Tensor {
    Tensor::uniform(device, [4, 3], -1.0, 1.0, &Rng::new(1)).unwrap().requiring_grad().unwrap()
}

/// Returns the indices in a buffer of their own, at an offset, and with gaps between them.
fn layouts(device: &Device, dtype: DType, values: &[i64]) -> [Tensor; 3] {
    let alone = Tensor::from_slice(device, values, values.len()).unwrap();
    let among = Tensor::stack(&[&alone.ones_like().unwrap(), &alone], 1).unwrap();
    let [alone, among] = [alone, among].map(|all| all.to_dtype(dtype).unwrap());
    let after = Tensor::concat(&[&alone.ones_like().unwrap(), &alone], 0).unwrap();
    [alone, after.narrow(0, values.len(), values.len()).unwrap(), among.at((.., 1)).unwrap()]
}

fn bits(values: &Tensor) -> Vec<u32> {
    values.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn results_and_gradients_are_those_of_i64() {
    let device = device();
    for &(name, op) in OPS {
        let outcome = |indices: &Tensor| {
            let x = table(&device);
            let y = op(&x, indices).unwrap();
            let gradient = y.requires_grad().then(|| {
                let shares = Tensor::arange(&device, 1, y.elements() + 1).unwrap();
                let loss = y.mul(&shares.reshape(*y.shape()).unwrap()).unwrap().sum_all().unwrap();
                bits(loss.backward().unwrap().get(&x).unwrap())
            });
            (y.dims().to_vec(), bits(&y), gradient)
        };
        let [of_i64, ..] = layouts(&device, DType::I64, &CHOSEN);
        let expected = outcome(&of_i64);
        for dtype in TYPES {
            for (number, indices) in layouts(&device, dtype, &CHOSEN).iter().enumerate() {
                assert_eq!(outcome(indices), expected, "{name} by {dtype} in layout {number}");
            }
        }
    }
}

#[test]
fn an_index_out_of_range_is_one_error_for_every_op_and_type() {
    let device = device();
    for dtype in TYPES {
        let bad: &[i64] = match dtype {
            DType::U8 => &[4, 255],
            DType::U32 => &[4, u32::MAX as i64],
            DType::I32 => &[4, -1, i32::MIN as i64],
            _ => &[4, -1, i64::MIN],
        };
        for &index in bad {
            // Each op reads one of these two positions first.
            let values = [2, 0, index, index, 1, 2];
            for indices in layouts(&device, dtype, &values) {
                for &(op, function) in OPS {
                    let x = table(&device);
                    let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
                    let before = in_use();
                    let error = function(&x, &indices).unwrap_err();
                    assert_eq!(error, Error::IndexOutOfRange { op, index, len: 4 }, "{dtype}");
                    assert_eq!(in_use(), before, "{op}");
                }
            }
        }
    }
}

#[test]
fn the_ignored_target_may_be_outside_of_the_type_of_the_targets() {
    let device = device();
    let logits = table(&device).t().unwrap();
    let targets = Tensor::from_slice(&device, &[255u8, 0, 2], 3).unwrap();
    let loss = |ignored| {
        let options = CrossEntropyOptions { ignore_index: Some(ignored), ..Default::default() };
        logits.cross_entropy_with(&targets, options)
    };
    // -1 has the same bits as 255 in 8 bits.
    assert_eq!(loss(-1).unwrap_err(), Error::IndexOutOfRange { op: "cross_entropy", index: 255, len: 4 });
    let rest = logits.narrow(0, 1, 2).unwrap().cross_entropy(&targets.narrow(0, 1, 2).unwrap()).unwrap();
    assert!((loss(255).unwrap().item::<f32>().unwrap() - rest.item::<f32>().unwrap()).abs() < 1e-6);
}

#[test]
fn floats_and_booleans_are_no_indices() {
    let device = device();
    let x = table(&device);
    for dtype in [DType::F32, DType::F16, DType::Bool] {
        let indices = Tensor::zeros_of(&device, 6, dtype).unwrap();
        for &(op, function) in OPS {
            let message = function(&x, &indices).unwrap_err().to_string();
            let expected = match op {
                "one_hot" => format!("one_hot: does not support element type {dtype}; "),
                "cross_entropy" => {
                    format!("{op}: targets must be of type u8, i32, u32 or i64, got {dtype} of shape ")
                }
                _ => format!("{op}: indices must be of type u8, i32, u32 or i64, got {dtype} of shape "),
            };
            assert!(message.starts_with(&expected), "{message}");
        }
    }
}

#[test]
fn conversion_needs_eight_bytes_per_distinct_index_on_every_device() {
    const WIDTH: usize = 4096;
    let peak = |device: &Device, dtype| {
        let table = Tensor::zeros(device, [16, WIDTH]).unwrap().requiring_grad().unwrap();
        let rows = Tensor::zeros_of(device, 1024, dtype).unwrap();
        let pool = device.default_allocator().unwrap();
        let before = pool.stats().bytes_in_use;
        // The kernel gathers with every index repeated along the columns.
        let y = table.embedding(&rows).unwrap();
        drop(y.sum_all().unwrap().backward().unwrap());
        (pool.stats().peak_bytes_in_use - before) as usize
    };
    let plain = peak(&device(), DType::I64);
    for dtype in TYPES {
        assert_eq!(peak(&device(), dtype), peak(&dry_device(), dtype), "{dtype}");
        assert!(peak(&device(), dtype) <= plain + 8 * 1024, "{dtype}");
    }
}
