//! Bad input returns an error that names the problem and leaves all state unchanged.

use std::io::Write;

use highwater::data::DataError;
use highwater::prelude::*;
use highwater::{Error, Result, Shape};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

/// Runs an op that must fail, and checks that the pool is unchanged.
fn refuse(device: &Device, op: impl FnOnce() -> Result<Tensor>) -> Error {
    let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
    let before = in_use();
    let error = op().unwrap_err();
    assert_eq!(in_use(), before, "{error}");
    error
}

#[test]
fn shapes_that_do_not_match_are_named_with_the_op() {
    let device = device();
    let (a, b) = (Tensor::zeros(&device, [2, 3]).unwrap(), Tensor::zeros(&device, [4, 5]).unwrap());
    for (name, error) in [
        ("add", refuse(&device, || a.add(&b))),
        ("mul", refuse(&device, || a.mul(&b))),
        ("matmul", refuse(&device, || a.matmul(&b))),
        ("mse_loss", refuse(&device, || a.mse_loss(&b))),
        (
            "cross_entropy",
            refuse(&device, || a.cross_entropy(&Tensor::from_slice(&device, &[0i64; 4], [4])?)),
        ),
    ] {
        let text = error.to_string();
        assert!(text.starts_with(name) && text.contains("[2, 3]"), "{text}");
        assert!(text.contains("[4, 5]") || text.contains("[4]"), "{text}");
    }
}

#[test]
fn element_types_that_do_not_match_are_named_with_the_op() {
    let device = device();
    let of = |dims: [usize; 2], dtype| Tensor::zeros_of(&device, dims, dtype).unwrap();
    let (a, b) = (of([2, 2], DType::F32), of([2, 2], DType::F64));
    let integers = of([2, 2], DType::I64);
    // Arithmetic promotes types; an in-place sum keeps the type of its target.
    assert_eq!(a.matmul(&b).unwrap().dtype(), DType::F64);
    assert_eq!(a.add(&integers).unwrap().dtype(), DType::F32);
    let error = refuse(&device, || a.scatter_add(0, &integers, &b));
    assert!(
        matches!(error, Error::DTypeMismatch { op: "scatter_add", lhs: DType::F32, rhs: DType::F64, .. }),
        "{error}"
    );
    let error = refuse(&device, || integers.exp());
    assert!(matches!(error, Error::UnsupportedDType { op: "exp", dtype: DType::I64 }), "{error}");
}

#[test]
fn an_axis_out_of_range_is_named_with_the_shape() {
    let device = device();
    let x = Tensor::zeros(&device, [2, 3]).unwrap();
    for (axis, error) in [
        (2, refuse(&device, || x.softmax(2))),
        (-3, refuse(&device, || x.argmax(-3))),
        (5, refuse(&device, || x.slice(5, 0..1))),
    ] {
        assert!(matches!(error, Error::AxisOutOfRange { axis: at, .. } if at == axis), "{error}");
        assert!(error.to_string().contains("[2, 3]"), "{error}");
    }
}

#[test]
fn overflowing_element_counts_are_refused_first() {
    let device = device();
    for dims in [[usize::MAX, 2], [1 << 40, 1 << 40], [usize::MAX / 4, 1]] {
        let error = refuse(&device, || Tensor::zeros(&device, dims));
        assert!(matches!(error, Error::TooManyElements { shape: at, .. } if at == shape(&dims)), "{error}");
    }
    let x = Tensor::zeros(&device, [1]).unwrap();
    let error = refuse(&device, || x.broadcast_to([1usize << 40, 1 << 40]));
    assert!(matches!(error, Error::TooManyElements { .. }), "{error}");
}

#[test]
fn a_label_that_is_no_class_is_named_and_nothing_is_changed() {
    let device = device();
    let network = Linear::new(&device, 4, 3, &Rng::new(0)).unwrap();
    let before = network.weight().tensor().to_vec::<f32>().unwrap();
    for bad in [3, -1] {
        let error = refuse(&device, || {
            let y = Tensor::from_slice(&device, &[0i64, bad], [2])?;
            network.forward(&Tensor::ones(&device, [2, 4])?)?.cross_entropy(&y)
        });
        assert!(matches!(error, Error::IndexOutOfRange { index, len: 3, .. } if index == bad), "{error}");
    }
    assert_eq!(network.weight().tensor().to_vec::<f32>().unwrap(), before);
}

#[test]
fn tensors_of_two_devices_are_an_error_that_names_both() {
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let (cpu, dry) = (runtime.cpu().unwrap(), runtime.dry().unwrap());
    let (a, b) = (Tensor::zeros(&cpu, [2]).unwrap(), Tensor::zeros(&dry, [2]).unwrap());
    let error = a.add(&b).unwrap_err();
    assert_eq!(
        error.to_string(),
        "add: tensors are on cpu:0 and dry:0; move one of them first with `to_device`"
    );
    assert!(matches!(b.to_vec::<f32>(), Err(Error::NoData { .. })));
}

#[test]
fn malformed_and_truncated_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        path
    };
    let path = write("bad.csv", b"0,1,2\n3,four,5\n");
    let error = read_csv(&path, &CsvOptions::default()).unwrap_err();
    let expected = format!("{}: line 2, column 2: expected a finite number, found \"four\"", path.display());
    assert_eq!(error.to_string(), expected);
    assert_eq!(Error::from(error).to_string(), expected);

    let whole = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz")).unwrap();
    let path = write("cut.csv.gz", &whole[..whole.len() / 2]);
    assert_eq!(read_csv(&path, &CsvOptions::default()), Err(DataError::Truncated { path }));
}

#[test]
fn shapes_without_elements_work_forward_and_backward() {
    let device = device();
    let network = Sequential::new()
        .with("fc1", Linear::new(&device, 4, 3, &Rng::new(0)).unwrap())
        .with("relu", Relu)
        .with("dropout", Dropout::new(0.5, &Rng::new(0)).unwrap());
    let empty = Tensor::zeros(&device, [0, 4]).unwrap();
    let out = network.forward(&empty).unwrap();
    assert_eq!(out.dims(), [0, 3]);
    let gradients = out.sum_all().unwrap().backward().unwrap();
    let weight = network.parameters()[0].1.tensor();
    assert_eq!(gradients.get(&weight).unwrap().to_vec::<f32>().unwrap(), [0.0; 12]);
    let narrow = Linear::new(&device, 0, 2, &Rng::new(0)).unwrap();
    let out = narrow.forward(&Tensor::zeros(&device, [3, 0]).unwrap()).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [0.0; 6]);
}

#[test]
fn out_of_memory_leaves_parameters_and_pool_unchanged() {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let network = Linear::new(&device, 128, 256, &Rng::new(0)).unwrap();
    let mut optimizer = Adam::new(network.parameters(), 0.1).unwrap();
    let before = network.weight().tensor().to_vec::<f32>().unwrap();
    let mut step = |rows: usize| {
        let loss = network.forward(&Tensor::ones(&device, [rows, 128])?)?.square()?.mean_all()?;
        optimizer.step(loss.backward()?)
    };
    let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
    let held = in_use();
    let error = step(512).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!(report.limit, Some(1 << 20));
    assert!(report.holders.iter().any(|(owner, _)| owner.path().contains("adam")), "{}", report.details());
    assert_eq!((network.weight().tensor().to_vec::<f32>().unwrap(), in_use()), (before.clone(), held));
    step(8).unwrap();
    assert_ne!(network.weight().tensor().to_vec::<f32>().unwrap(), before);
    assert_eq!(in_use(), held);
}
