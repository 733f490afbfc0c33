//! Errors for tensors of two devices and for an exhausted pool.

use crate::ops_table::runtime;
use bfc_core::Bytes;
use highwater_tensor::{Error, Runtime, Tensor};

#[test]
fn tensors_of_two_devices_do_not_meet_in_an_op() {
    let runtime = runtime();
    let (cpu, dry) = (runtime.cpu().unwrap(), runtime.dry().unwrap());
    let (a, b) = (Tensor::ones(&cpu, [2, 2]).unwrap(), Tensor::ones(&dry, [2, 2]).unwrap());
    for (result, op) in
        [(a.add(&b), "add"), (a.matmul(&b), "matmul"), (Tensor::concat(&[&a, &b], 0), "concat")]
    {
        let message =
            format!("{op}: tensors are on cpu:0 and dry:0; move one of them first with `to_device`");
        assert_eq!(result.unwrap_err().to_string(), message);
    }
    let elsewhere = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
    let refused = a.add(&Tensor::ones(&elsewhere, [2, 2]).unwrap()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "add: tensors are on cpu:0 of two runtimes; move one of them first with `to_device`"
    );
    let stack = a.broadcast_to([3, 2, 2]).unwrap().contiguous().unwrap();
    assert!(matches!(stack.matmul(&b), Err(Error::DeviceMismatch { op: "matmul", .. })));
}

#[test]
fn an_exhausted_pool_reports_an_error_and_stays_usable() {
    let runtime = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap();
    let device = runtime.cpu().unwrap();
    let x = Tensor::ones(&device, [256, 512]).unwrap().requiring_grad().unwrap();
    let error = x.matmul(&x.t().unwrap().contiguous().unwrap()).unwrap_err();
    assert!(error.to_string().starts_with("matmul: cannot allocate shape [256, 256] of f32"), "{error}");
    let error = x.exp().and_then(|y| y.exp()).unwrap_err();
    assert!(error.to_string().starts_with("exp: cannot allocate shape [256, 512] of f32"), "{error}");
    let report = error.out_of_memory().unwrap();
    assert_eq!(report.requested, 256 * 512 * 4);
    // An op that fits still works, and the tensor is unchanged.
    assert_eq!(x.sum_all().unwrap().item::<f32>().unwrap(), 256.0 * 512.0);
    assert_eq!(x.exp().unwrap().dims(), [256, 512]);
}
