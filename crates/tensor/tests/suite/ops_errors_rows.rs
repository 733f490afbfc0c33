//! Errors of convolutions and pools along one axis: they name the axes and shapes that the caller gave.

use crate::ops_table::device;
use bfc_core::Bytes;
use highwater_tensor::{Conv2dOptions, Error, Pool2dOptions, Result, Runtime, Tensor};

#[test]
fn oom_errors_of_ops_along_an_axis_name_the_given_axes() {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let ones = |dims: &[usize]| Tensor::ones(&device, dims).unwrap();
    let (x, filters) = (ones(&[2, 4, 8192]), ones(&[32, 4, 3]));
    let told = |result: Result<Tensor>, op: &str, dims: &[usize]| {
        let error = result.unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("{op}: cannot allocate shape {dims:?} of f32")),
            "{error}"
        );
        assert_eq!(error.out_of_memory().unwrap().subject.as_ref().unwrap().extents, dims);
    };
    told(
        x.conv1d(&filters, Conv2dOptions { padding: [0, 1].into(), ..Default::default() }),
        "conv1d",
        &[2, 32, 8192],
    );
    let rows = ones(&[16, 8192]);
    let side_by_side = Pool2dOptions { stride: [1, 1], ..Pool2dOptions::square(1) };
    told(rows.max_pool1d(side_by_side), "max_pool1d", &[16, 8192]);
    told(rows.avg_pool1d(side_by_side), "avg_pool1d", &[16, 8192]);
    drop((x, rows));

    // Errors of their gradients name the given axes too.
    let backward_told = |op: &str, dims: &[usize], run: &dyn Fn(&Tensor) -> Result<Tensor>| {
        let x = ones(dims).requiring_grad().unwrap();
        let loss = run(&x).unwrap().sum_all().unwrap();
        let held: Vec<Tensor> = std::iter::from_fn(|| Tensor::zeros(&device, 8192).ok()).collect();
        let error = loss.backward().unwrap_err();
        drop(held);
        assert!(
            error.to_string().starts_with(&format!("{op}: cannot allocate shape {dims:?} of f32")),
            "{error}"
        );
    };
    let filter = ones(&[1, 4, 8]);
    let sparse = Conv2dOptions { stride: [1, 8], ..Conv2dOptions::default() };
    backward_told("conv1d", &[2, 4, 8192], &|x| x.conv1d(&filter, sparse));
    backward_told("max_pool1d", &[8, 8192], &|x| x.max_pool1d(64));
    backward_told("avg_pool1d", &[8, 8192], &|x| x.avg_pool1d(64));
}

#[test]
fn errors_of_ops_along_an_axis_name_the_given_shapes() {
    let device = device();
    let ones = |dims: &[usize]| Tensor::ones(&device, dims).unwrap();
    let (x, filters) = (ones(&[2, 3, 8]), ones(&[4, 3, 3]));
    let conv = |options| x.conv1d(&filters, options);
    let message = |result: Result<Tensor>| result.unwrap_err().to_string();
    assert_eq!(
        message(x.conv1d(&ones(&[4, 2, 3]), Conv2dOptions::default())),
        "conv1d: shapes [2, 3, 8] and [4, 2, 3] do not match: the channels must be groups times those of the weight, and the groups must divide its filters"
    );
    assert_eq!(
        message(ones(&[2, 3, 2]).max_pool1d(3)),
        "max_pool1d: options must be a window that fits at least once, got size 3, stride 3, padding 0 for a tensor of shape \
         [2, 3, 2]"
    );
    for dims in [&[][..], &[1; 8]] {
        let refused = ones(dims).avg_pool1d(1);
        assert!(matches!(refused, Err(Error::BadRank { op: "avg_pool1d", .. })), "{refused:?}");
    }
    // The stride is equal in both elements, or the default in the first.
    let stride = |stride| Conv2dOptions { stride, ..Conv2dOptions::default() };
    assert_eq!(conv(stride([2, 2])).unwrap().dims(), conv(stride([1, 2])).unwrap().dims());
    assert_eq!(
        message(conv(stride([2, 1]))),
        "conv1d: stride must be equal in both elements, or the default in the first, got [2, 1]"
    );
    let padding = Conv2dOptions { padding: [usize::MAX, 0].into(), ..Conv2dOptions::default() };
    assert!(message(conv(padding)).starts_with("conv1d: padding must be equal in both elements"));
    for (options, lost) in [
        (Pool2dOptions { size: [3, 2], ..Pool2dOptions::square(2) }, "size"),
        (Pool2dOptions { stride: [3, 2], ..Pool2dOptions::square(2) }, "stride"),
        (Pool2dOptions { size: [0, 2], ..Pool2dOptions::square(2) }, "size"),
        (Pool2dOptions { padding: [1, 0], ..Pool2dOptions::square(2) }, "padding"),
    ] {
        for (result, op) in [(x.max_pool1d(options), "max_pool1d"), (x.avg_pool1d(options), "avg_pool1d")] {
            let start =
                format!("{op}: {lost} must be equal in both elements, or the default in the first, got [");
            assert!(result.unwrap_err().to_string().starts_with(&start));
        }
    }
    let more = Conv2dOptions { output_padding: [0, 1], ..Conv2dOptions::default() };
    let refused = "output_padding must be none, as the convolution is not transposed, got [0, 1]";
    assert_eq!(message(conv(more)), format!("conv1d: {refused}"));
    assert_eq!(message(ones(&[1, 1, 4, 4]).conv2d(&ones(&[1, 1, 2, 2]), more)), format!("conv2d: {refused}"));
}
