//! Kernels return typed errors for operands that do not fit, on every device, and write nothing. Safe code
//! cannot access memory outside a buffer.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "these are tests")]

#[cfg(feature = "cuda")]
#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "ops_table/computing.rs"]
mod computing;
mod kernel_cases;

use std::fmt;
use std::sync::{Arc, Mutex};

use highwater_tensor::backend::kernels::{self, AdamRule, Workspace};
use highwater_tensor::backend::{Kernel, OperandError, OperandFault};
use highwater_tensor::{
    Buffer, DType, Device, Error, Op, OpContext, RecurrentCell, Result, Runtime, Shape, Tensor, View,
    ViewMut, apply,
};
use kernel_cases::{Case, Operand, Type};

fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// The CPU, a device that computes nothing, and the emulated CUDA device.
fn devices() -> Vec<Device> {
    let mut devices = vec![cpu(), Runtime::builder().threads(1).build().unwrap().dry().unwrap()];
    #[cfg(feature = "cuda")]
    devices.push(computing::Computing::by_kernels().device(Runtime::builder().threads(1)));
    devices
}

/// The function that a custom op runs.
type Body<T> = dyn Fn(&OpContext<'_>) -> Result<T> + Send + Sync;

/// A custom op that runs a given function and stores its result.
struct Custom<T> {
    body: Box<Body<T>>,
    found: Arc<Mutex<Option<T>>>,
}

impl<T> fmt::Debug for Custom<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Custom")
    }
}

impl<T: Send + 'static> Op for Custom<T> {
    fn name(&self) -> &'static str {
        "custom"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        *self.found.lock().unwrap() = Some((self.body)(ctx)?);
        Ok(inputs[0].clone())
    }
}

/// Runs a custom op on a device.
fn custom<T: Send + 'static>(
    device: &Device,
    body: impl Fn(&OpContext<'_>) -> Result<T> + Send + Sync + 'static,
) -> Result<T> {
    let found = Arc::new(Mutex::new(None));
    let op = Custom { body: Box::new(body), found: Arc::clone(&found) };
    apply(op, &[&Tensor::zeros(device, [1])?])?;
    Ok(found.lock().unwrap().take().unwrap())
}

fn dtype(of: Type, float: DType) -> DType {
    match of {
        Type::F => float,
        Type::Computed => float.computed_as(),
        Type::Index => DType::I64,
        Type::Truth => DType::Bool,
        Type::Bytes => DType::U8,
    }
}

/// An operand: its element type, its layout and its device.
#[derive(Clone, Debug)]
struct Made {
    operand: Operand,
    dtype: DType,
    /// For input operands: a device other than the device of the op.
    elsewhere: Option<Device>,
    /// Whether the memory layout has its first and last axes exchanged.
    transposed: bool,
}

fn made(case: &Case, float: DType) -> Vec<Made> {
    let made = |operand: &Operand| Made {
        operand: operand.clone(),
        dtype: dtype(operand.dtype, float),
        elsewhere: None,
        transposed: false,
    };
    case.operands.iter().map(made).collect()
}

/// Calls a kernel with these operands. On failure, all writable memory is unchanged.
fn call(device: &Device, case: &Case, operands: Vec<Made>) -> Result<()> {
    let run = Arc::clone(&case.call);
    let (name, dry) = (case.name, device.is_dry());
    let read = |made: &Made| {
        let device = made.elsewhere.as_ref().unwrap_or(device);
        let mut dims = made.operand.dims.clone();
        if made.transposed {
            dims.reverse();
        }
        let tensor = Tensor::zeros_of(device, &dims[..], made.dtype).unwrap();
        let axes: Vec<isize> = (0..dims.len() as isize).rev().collect();
        if made.transposed { tensor.permute(&axes).unwrap() } else { tensor }
    };
    let inputs: Vec<Tensor> = operands.iter().filter(|made| !made.operand.written).map(read).collect();
    let outputs: Vec<Made> = operands.into_iter().filter(|made| made.operand.written).collect();
    custom(device, move |ctx| {
        let mut buffers = Vec::new();
        for made in &outputs {
            let mut buffer = ctx.output(&Shape::new(&made.operand.dims)?, made.dtype)?;
            let bytes = vec![1; buffer.view().layout().shape().elements() * made.dtype.size()];
            if !dry {
                ctx.upload(&bytes, buffer.view_mut())?;
            }
            buffers.push((buffer, bytes));
        }
        let from: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
        let to: Vec<ViewMut<'_>> = buffers.iter_mut().map(|(buffer, _)| buffer.view_mut()).collect();
        let result = run(ctx, &from, to);
        for (buffer, before) in buffers.iter().filter(|_| result.is_err() && !dry) {
            let mut after = vec![0; before.len()];
            ctx.download(buffer.view(), &mut after)?;
            assert_eq!(after, *before, "{name} has written: {result:?}");
        }
        result
    })
}

#[test]
fn every_kernel_has_a_case() {
    let cases = include_str!("kernel_cases/mod.rs");
    let missing = Kernel::NAMES.iter().filter(|name| !cases.contains(&format!("kernels::{name} {{")));
    assert_eq!(missing.collect::<Vec<_>>(), <[&&str; 0]>::default(), "add them to kernel_cases/mod.rs");
}

#[test]
fn every_kernel_takes_operands_that_fit() {
    for device in devices() {
        for case in kernel_cases::all() {
            for float in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                let result = call(&device, &case, made(&case, float));
                assert_eq!(result, Ok(()), "{} of {float} on {device}", case.name);
            }
        }
    }
}

/// A named change to one operand of a valid call.
type Change = (&'static str, fn(&mut Made));

const SHAPES: &[Change] = &[
    ("a longer last axis", |made| *made.operand.dims.last_mut().unwrap() += 1),
    ("a shorter last axis", |made| *made.operand.dims.last_mut().unwrap() -= 1),
    ("a longer first axis", |made| made.operand.dims[0] += 1),
    ("a shorter first axis", |made| made.operand.dims[0] -= 1),
    ("another axis", |made| made.operand.dims.insert(0, 2)),
];

/// Operands that also fit with changed shapes: lone outputs, parts of a window, and classes without an index.
const ALSO_FIT: &[(&str, &str)] = &[
    ("fill", "out"),
    ("arange", "out"),
    ("random", "out"),
    ("clip", "values"),
    ("scale", "values"),
    ("running_sum", "out"),
    ("running_product", "out"),
    ("copy_into", "out"),
    ("copy_into", "input"),
    // Fewer elements than the windows have.
    ("conv2d", "out"),
    ("conv2d_input_grad", "grad"),
    ("conv2d_input_grad", "out"),
    ("conv2d_weight_grad", "grad"),
    ("conv2d_weight_grad", "input"),
    ("conv2d", "input"),
    // Sizes of the axes that are folded, and of windows that cover an axis.
    ("reduce", "input"),
    ("largest", "input"),
    ("arg_reduce", "input"),
    ("pool2d", "input"),
    // The indices are 0, which stays valid for more and for fewer rows and classes.
    ("gather", "input"),
    ("cross_entropy", "logits"),
    ("cross_entropy_in_place", "logits"),
    ("scatter_add", "out"),
    ("one_hot", "out"),
    ("dequantize_rows", "blocks"),
];

#[test]
fn a_changed_shape_is_an_error_of_that_operand() {
    for device in devices() {
        for case in kernel_cases::all() {
            for (place, operand) in case.operands.iter().enumerate() {
                for &(change, apply) in SHAPES {
                    let mut operands = made(&case, DType::F32);
                    apply(&mut operands[place]);
                    let result = call(&device, &case, operands);
                    let at = format!("{change} of {} of {} on {device}", operand.name, case.name);
                    match result {
                        Ok(()) => assert!(ALSO_FIT.contains(&(case.name, operand.name)), "{at}"),
                        Err(Error::Operand(error)) => {
                            assert_eq!(error.op, "custom", "{at}");
                            assert!(matches!(error.fault, OperandFault::Shape { .. }), "{at}: {error}");
                        }
                        Err(
                            Error::AxisOutOfRange { .. } | Error::BadArgument { .. } | Error::BadRank { .. },
                        ) => {}
                        Err(Error::RangeOutOfBounds { .. }) => assert_eq!(case.name, "copy_into", "{at}"),
                        Err(error) => panic!("{at}: {error}"),
                    }
                }
            }
        }
    }
}

#[test]
fn another_element_type_is_an_error_of_that_operand() {
    // These kernels convert between types, or have one operand.
    let any = [
        "copy",
        "fill",
        "arange",
        "random",
        "clip",
        "scale",
        "running_sum",
        "running_product",
        "one_hot",
        "arg_reduce",
        "arg_sort",
        "dequantize_rows",
        "quantize_rows",
    ];
    for device in devices() {
        for case in kernel_cases::all() {
            for (place, operand) in case.operands.iter().enumerate() {
                for changed in DType::ALL {
                    let mut operands = made(&case, DType::F32);
                    if changed == operands[place].dtype
                        || operand.dtype == Type::F && any.contains(&case.name)
                    {
                        continue;
                    }
                    operands[place].dtype = changed;
                    let result = call(&device, &case, operands);
                    let at = format!("{changed} for {} of {} on {device}", operand.name, case.name);
                    match result {
                        // Kernels accept f32 operands next to 16-bit floats, because they compute in f32.
                        Ok(()) => assert!(changed.is_half() || operand.name == "of.mask", "{at}"),
                        Err(Error::Operand(error)) => {
                            assert!(matches!(error.fault, OperandFault::DType { .. }), "{at}: {error}");
                        }
                        Err(Error::UnsupportedDType { .. }) => assert_eq!(case.name, "reduce", "{at}"),
                        Err(error) => panic!("{at}: {error}"),
                    }
                }
            }
        }
    }
}

#[test]
fn an_operand_of_another_device_is_an_error() {
    for device in devices() {
        // A device of the same kind in another runtime.
        for other in devices().into_iter().filter(|other| other.id() == device.id()) {
            for case in kernel_cases::all() {
                for (place, operand) in
                    case.operands.iter().enumerate().filter(|(_, operand)| !operand.written)
                {
                    let mut operands = made(&case, DType::F32);
                    operands[place].elsewhere = Some(other.clone());
                    let result = call(&device, &case, operands);
                    let at = format!("{} of {} on {device}", operand.name, case.name);
                    let Err(Error::Operand(error)) = result else { panic!("{at}: {result:?}") };
                    assert!(matches!(error.fault, OperandFault::Device { .. }), "{at}: {error}");
                    assert_eq!(error.operand, operand.name);
                }
            }
        }
    }
}

#[test]
fn an_output_of_another_device_is_an_error() {
    for [device, other] in [[0, 1], [1, 0]].map(|places| places.map(|place| devices().swap_remove(place))) {
        let buffer = custom(&other, |ctx| ctx.output(&Shape::new(&[4])?, DType::F32)).unwrap();
        let buffer = Arc::new(Mutex::new(buffer));
        let result = custom(&device, move |ctx| {
            let mut buffer = buffer.lock().unwrap();
            let uploaded = ctx.upload(&[0; 16], buffer.view_mut());
            assert!(matches!(uploaded, Err(Error::Operand(_))), "{uploaded:?}");
            ctx.compute(kernels::Fill { value: 1.into(), out: buffer.view_mut() })
        });
        let Err(Error::Operand(error)) = result else { panic!("{result:?}") };
        assert!(matches!(error.fault, OperandFault::Device { .. }), "{error}");
    }
}

#[test]
fn recurrent_operands_of_other_cells_are_errors() {
    let run = |device: &Device, cell: RecurrentCell, [has_cell, has_extra]: [bool; 2]| {
        custom(device, move |ctx| {
            let buffer = |dims: &[usize]| ctx.output(&Shape::new(dims)?, DType::F32);
            let width = 3 * cell.gates();
            let [weight, bias, initial] = [buffer(&[3, width])?, buffer(&[width])?, buffer(&[2, 3])?];
            let [mut gates, mut extra, mut out] = [buffer(&[4, width])?, buffer(&[4, 3])?, buffer(&[4, 3])?];
            let mut room =
                ctx.workspace(kernels::RecurrentWorkspace { cell, sizes: [2, 2, 3], dtype: DType::F32 })?;
            let initial_cell = has_cell.then(|| initial.view());
            ctx.compute(kernels::Recurrent {
                of: kernels::Recurrence {
                    cell,
                    reverse: false,
                    len: 2,
                    weight: weight.view(),
                    initial_state: Some(initial.view()),
                    initial_cell,
                },
                bias: bias.view(),
                workspace: room.as_mut().map(Buffer::view_mut),
                gates: gates.view_mut(),
                extra: has_extra.then(|| extra.view_mut()),
                out: out.view_mut(),
            })
        })
    };
    for device in devices() {
        for (cell, given, expected) in [
            (RecurrentCell::Lstm, [true, false], Some(("extra", true))),
            (RecurrentCell::Gru, [true, true], Some(("of.initial_cell", false))),
            (RecurrentCell::Tanh, [false, true], Some(("extra", false))),
            (RecurrentCell::Gru, [false, true], None),
        ] {
            match (run(&device, cell, given), expected) {
                (Ok(()), None) => {}
                (Err(Error::Operand(error)), Some((operand, required))) => {
                    assert_eq!((error.operand, error.fault), (operand, OperandFault::Presence { required }));
                }
                (result, _) => panic!("{cell:?} with {given:?} on {device}: {result:?}"),
            }
        }
    }
}

#[test]
fn the_largest_variance_of_adam_is_present_with_amsgrad_only() {
    let run = |device: &Device, amsgrad: bool, is_present: bool| {
        custom(device, move |ctx| {
            let buffer = || ctx.output(&Shape::new(&[3])?, DType::F32);
            let (grad, mut mean, mut variance) = (buffer()?, buffer()?, buffer()?);
            let (mut largest, mut param) = (buffer()?, buffer()?);
            ctx.compute(kernels::OptimizerStep {
                rule: AdamRule { amsgrad, ..AdamRule::DEFAULT }.into(),
                number: 1,
                grad: grad.view(),
                states: [
                    Some(mean.view_mut()),
                    Some(variance.view_mut()),
                    is_present.then(|| largest.view_mut()),
                ],
                param: param.view_mut(),
            })
        })
    };
    for device in devices() {
        for amsgrad in [false, true] {
            assert_eq!(run(&device, amsgrad, amsgrad), Ok(()));
            let Err(Error::Operand(error)) = run(&device, amsgrad, !amsgrad) else { panic!("{amsgrad}") };
            let fault = OperandFault::Presence { required: amsgrad };
            assert_eq!((error.operand, error.fault), ("max_variance", fault));
        }
    }
}

#[test]
fn any_layout_of_inputs_is_computed_or_is_an_error() {
    for device in devices() {
        for case in kernel_cases::all() {
            for (place, operand) in case.operands.iter().enumerate().filter(|(_, operand)| !operand.written) {
                let mut operands = made(&case, DType::F32);
                operands[place].transposed = true;
                let result = call(&device, &case, operands);
                let packed = operand.dims.len() > 1
                    && (["of.statistics", "log_sums", "of.query", "of.key", "of.value", "blocks"]
                        .contains(&operand.name)
                        || case.name == "attention_grad" && ["output", "grad"].contains(&operand.name)
                        || case.name.starts_with("batch_norm")
                        || case.name.starts_with("conv2d")
                        || case.name.starts_with("pool2d"));
                let strided =
                    matches!(&result, Err(Error::Operand(error)) if error.fault == OperandFault::Strided);
                let at = format!("{} of {} on {device}: {result:?}", operand.name, case.name);
                assert!(if packed { strided } else { result.is_ok() }, "{at}");
            }
        }
    }
}

/// Random numbers: SplitMix64 (Steele, Lea and Flood 2014).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}

#[test]
fn random_shapes_are_computed_or_are_errors_on_all_devices() {
    let devices = devices();
    let mut numbers = Numbers(3);
    let mut counts = [0, 0];
    for case in kernel_cases::all() {
        for _ in 0..60 {
            let mut operands = made(&case, DType::F32);
            // Changes a few sizes. Sizes that were equal may change together.
            let (from, to) = (numbers.below(7), numbers.below(7));
            let everywhere = numbers.below(2) == 0;
            for made in &mut operands {
                for size in &mut made.operand.dims {
                    if *size == from && (everywhere || numbers.below(3) == 0) {
                        *size = to;
                    }
                }
            }
            let results: Vec<Result<()>> =
                devices.iter().map(|device| call(device, &case, operands.clone())).collect();
            counts[usize::from(results[0].is_ok())] += 1;
            // Indices are data, which a dry device does not have.
            let differ = results.iter().any(|result| {
                let by_data = |result: &Result<()>| matches!(result, Err(Error::IndexOutOfRange { .. }));
                result.is_ok() != results[0].is_ok() && !by_data(result) && !by_data(&results[0])
            });
            assert!(!differ, "{} of {operands:?}: {results:?}", case.name);
        }
    }
    assert!(counts.iter().all(|&count| count > 300), "{counts:?}");
}

#[test]
fn a_copy_of_many_elements_into_one_is_an_error() {
    const MANY: usize = 64 << 20;
    for device in devices() {
        let many = Tensor::zeros_of(&device, [1], DType::U8).unwrap().broadcast_to([MANY]).unwrap();
        let result = custom(&device, move |ctx| {
            let mut one = ctx.output(&Shape::new(&[1])?, DType::U8)?;
            ctx.compute(kernels::Copy { input: many.view(), out: one.view_mut() })
        });
        let fault = OperandFault::Shape {
            other: "input",
            other_shape: Shape::new(&[MANY]).unwrap(),
            rule: "their shapes must be equal",
        };
        let (operand, shape) = ("out", Shape::new(&[1]).unwrap());
        let error = OperandError { op: "custom", operand, shape, fault };
        let message = "custom: operand `out` of shape [1] does not match `input` of shape [67108864]: \
                       their shapes must be equal";
        assert_eq!(error.to_string(), message);
        assert_eq!(result, Err(Error::Operand(Box::new(error))), "{device}");
    }
}

#[test]
fn a_workspace_that_is_too_small_is_an_error() {
    for device in devices() {
        let x = Tensor::zeros(&device, [2, 3]).unwrap();
        let result = custom(&device, move |ctx| {
            let (input, shape) = (x.view(), x.shape());
            let mut out = ctx.output(shape, DType::I64)?;
            let bytes = kernels::ArgSortWorkspace { shape }.bytes(ctx.backend().rules());
            let mut room = ctx.output(&Shape::new(&[bytes - 1])?, DType::U8)?;
            let (descending, first) = (false, 3);
            for workspace in [None, Some(room.view_mut())] {
                let has = workspace.as_ref().map_or(0, |_| bytes - 1);
                let result = ctx.compute(kernels::ArgSort {
                    descending,
                    first,
                    input,
                    workspace,
                    out: out.view_mut(),
                });
                let Err(Error::Operand(error)) = result else { panic!("{result:?}") };
                assert_eq!(error.fault, OperandFault::Workspace { bytes: has, required: bytes });
            }
            Ok(())
        });
        assert_eq!(result, Ok(()), "{device}");
    }
}

#[test]
fn indices_beyond_the_axis_are_errors_where_values_are_known() {
    for device in devices().into_iter().filter(|device| !device.is_dry()) {
        for bad in [-1_i64, 3, i64::MIN, i64::MAX] {
            let logits = Tensor::zeros(&device, [2, 3]).unwrap();
            // The device computes these values, so the host does not know them.
            let targets = Tensor::full_of(&device, [2], bad, DType::I64).unwrap();
            let places = targets.reshape([2, 1]).unwrap();
            let result = custom(&device, move |ctx| {
                let (x, grad) = (logits.view(), Tensor::zeros(ctx.device(), [2])?);
                let (targets, indices) = (targets.view(), places.view());
                let output = |dims: &[usize]| ctx.output(&Shape::new(dims)?, DType::F32);
                let mut row = [output(&[2])?, output(&[2, 1])?];
                let mut all = [output(&[2, 3])?, output(&[2, 3])?, output(&[2, 3])?];
                let [losses, gathered] = row.each_mut().map(Buffer::view_mut);
                let [out, sums, ones] = all.each_mut().map(Buffer::view_mut);
                let column = Tensor::zeros(ctx.device(), [2, 1])?;
                let results = [
                    ctx.compute(kernels::CrossEntropy { logits: x, targets, losses }),
                    ctx.compute(kernels::CrossEntropyGrad { logits: x, targets, grad: grad.view(), out }),
                    ctx.compute(kernels::Gather { input: x, indices, axis: 1, out: gathered }),
                    ctx.compute(kernels::ScatterAdd {
                        input: column.view(),
                        indices,
                        axis: 1,
                        workspace: None,
                        out: sums,
                    }),
                    ctx.compute(kernels::OneHot { indices: targets, out: ones }),
                ];
                for result in results {
                    assert_eq!(result, Err(Error::IndexOutOfRange { op: "custom", index: bad, len: 3 }));
                }
                Ok(())
            });
            assert_eq!(result, Ok(()), "{bad} on {device}");
        }
    }
}
