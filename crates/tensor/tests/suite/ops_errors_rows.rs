//! Errors of convolutions and pools along one axis: they name the axes and shapes that the caller gave.

use crate::ops_table::device;
use bfc_core::Bytes;
use highwater_tensor::{Conv1dOptions, Conv2dOptions, Error, Pool1dOptions, Result, Runtime, Tensor};

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
    told(x.conv1d(&filters, Conv1dOptions::padded(1)), "conv1d", &[2, 32, 8192]);
    let rows = ones(&[16, 8192]);
    told(rows.max_pool1d(1), "max_pool1d", &[16, 8192]);
    told(rows.avg_pool1d(1), "avg_pool1d", &[16, 8192]);
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
    let sparse = Conv1dOptions { stride: 8, ..Conv1dOptions::default() };
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
        message(x.conv1d(&ones(&[4, 2, 3]), Conv1dOptions::default())),
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
    let plain = Conv1dOptions::default();
    let at_least_one = "must be at least 1, got 0";
    assert_eq!(message(conv(Conv1dOptions { stride: 0, ..plain })), format!("conv1d: stride {at_least_one}"));
    assert_eq!(
        message(conv(Conv1dOptions { dilation: 0, ..plain })),
        format!("conv1d: dilation {at_least_one}")
    );
    assert_eq!(message(conv(Conv1dOptions { groups: 0, ..plain })), format!("conv1d: groups {at_least_one}"));
    assert_eq!(
        message(conv(Conv1dOptions { stride: 2, ..Conv1dOptions::same() })),
        "conv1d: stride must be 1, as Padding::Same keeps the size, got 2"
    );
    for options in [
        Pool1dOptions::new(0),
        Pool1dOptions { stride: 0, ..Pool1dOptions::new(2) },
        Pool1dOptions { padding: 2, ..Pool1dOptions::new(2) },
    ] {
        for (result, op) in [(x.max_pool1d(options), "max_pool1d"), (x.avg_pool1d(options), "avg_pool1d")] {
            let Pool1dOptions { size, stride, padding, .. } = options;
            let expected = format!(
                "{op}: options must be sizes and strides of at least 1, and padding of at most half the size, \
                 got size {size}, stride {stride}, padding {padding}"
            );
            assert_eq!(message(result), expected);
        }
    }
    let more = Conv2dOptions { output_padding: [0, 1], ..Conv2dOptions::default() };
    let refused = "output_padding must be none, as the convolution is not transposed, got [0, 1]";
    assert_eq!(message(ones(&[1, 1, 4, 4]).conv2d(&ones(&[1, 1, 2, 2]), more)), format!("conv2d: {refused}"));
}
