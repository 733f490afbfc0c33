//! Every op makes the same requests on the dry device as on the device under test, to the byte. The dry
//! device computes nothing.

use crate::ops_table::others::{self, others};
use crate::ops_table::{cases, device, dry_device, inputs, runtime};
use bfc_core::{Bytes, Category};
use highwater_tensor::{
    Conv2dOptions, CrossEntropyOptions, DType, Device, Reduction, Result, Rng, Tensor, mixed, no_grad,
};
use highwater_tracking::EventKind;

/// An event without its address, which differs between devices.
#[derive(Debug, PartialEq)]
enum Step {
    Alloc { requested: u64, granted: u64, owner: String, category: Category },
    Free { block: u32 },
    Retag { block: u32, owner: String, category: Category },
}

/// Runs `program` on a new device and returns its memory events.
fn steps(dry: bool, program: impl FnOnce(&Device) -> Result<()>) -> Vec<Step> {
    let device = if dry { dry_device() } else { device() };
    device.tracker().start_log(Bytes::mib(4));
    program(&device).unwrap();
    let log = device.tracker().take_log();
    assert!(!log.overflowed());
    let step = |kind| match kind {
        EventKind::Alloc(number) => {
            let block = log.block(number);
            let (requested, granted, category) = (block.requested, block.granted, block.category);
            Some(Step::Alloc { requested, granted, owner: log.owner_path(block.owner), category })
        }
        EventKind::Free(block) => Some(Step::Free { block }),
        EventKind::Retag(number) => {
            let retag = &log.retags()[number as usize];
            let owner = log.owner_path(retag.owner);
            Some(Step::Retag { block: retag.block, owner, category: retag.category })
        }
        _ => None,
    };
    log.events().iter().filter_map(|event| step(event.kind)).collect()
}

fn assert_same(name: &str, program: impl Fn(&Device) -> Result<()>) {
    let real = steps(false, &program);
    assert!(!real.is_empty(), "{name} took no memory");
    assert_eq!(steps(true, &program), real, "{name}");
}

#[test]
fn every_op_makes_the_same_requests_forward_and_backward() {
    for case in &cases() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            assert_same(&case.name, |device| {
                let leaves = inputs(case, device, dtype)
                    .into_iter()
                    .map(Tensor::requiring_grad)
                    .collect::<Result<Vec<_>>>()?;
                let loss = case.apply(&leaves)?.sum_all()?;
                let gradients = loss.backward()?;
                assert_eq!(gradients.len(), leaves.len(), "{}", case.name);
                Ok(())
            });
        }
    }
}

#[test]
fn every_op_makes_the_same_requests_without_gradients() {
    for case in &cases() {
        for dtype in [DType::F32, DType::BF16] {
            assert_same(&case.name, |device| {
                let inputs = inputs(case, device, dtype);
                no_grad(|| case.apply(&inputs)).map(drop)
            });
        }
    }
}

#[test]
fn every_op_makes_the_same_requests_in_mixed_precision() {
    let _mixed = mixed(DType::BF16).unwrap();
    for case in &cases() {
        assert_same(&case.name, |device| {
            let leaves = inputs(case, device, DType::F32)
                .into_iter()
                .map(Tensor::requiring_grad)
                .collect::<Result<Vec<_>>>()?;
            case.apply(&leaves)?.sum_all()?.backward().map(drop)
        });
    }
}

#[test]
fn ops_without_gradients_make_the_same_requests() {
    assert_same("constructors", |device| {
        let rng = Rng::new(1);
        Tensor::full_of(device, [3, 5], 2, DType::U8)?.ones_like()?;
        Tensor::uniform(device, [100], 0.0, 1.0, &rng)?.zeros_like()?;
        Tensor::normal_of(device, [7], 0.0, 1.0, &rng, DType::F64)?;
        Tensor::bernoulli(device, [70, 70], 0.5, &rng)?;
        Tensor::from_ndarray(device, &ndarray::array![[1u8, 2], [3, 4]])?;
        Tensor::randn(device, [3, 5], &rng)?;
        Tensor::arange_step(device, 0, 1, 0.01)?;
        Tensor::linspace(device, 0, 1, 70)?;
        Tensor::eye(device, 30)?;
        Tensor::scalar(device, 1.0f64).map(drop)
    });
    for (name, function) in others() {
        for dtype in [DType::F32, DType::BF16] {
            assert_same(name, |device| function.apply(&others::inputs(device, dtype)?).map(drop));
        }
    }
}

#[test]
fn indices_of_every_type_make_the_same_requests() {
    for dtype in [DType::I64, DType::I32, DType::U32, DType::U8] {
        assert_same(dtype.name(), |device| {
            let x = Tensor::ones(device, [4, 3])?.requiring_grad()?;
            let indices = Tensor::zeros_of(device, 4, dtype)?;
            let rows = x.embedding(&indices)?.add(&x.index_select(0, &indices)?)?;
            let rows = rows.add(&x.embedding_with_padding(&indices, 1)?)?;
            let places = indices.unsqueeze(1)?.broadcast_to([4, 3])?;
            let sums = x.scatter_add(0, &places, &rows)?.gather(0, &places)?;
            let options = CrossEntropyOptions { ignore_index: Some(1), ..Default::default() };
            let loss = sums.cross_entropy(&indices)?.add(&rows.cross_entropy_with(&indices, options)?)?;
            indices.one_hot(3)?.mul(&sums)?.sum_all()?.add(&loss)?.backward().map(drop)
        });
    }
}

#[test]
fn products_of_two_types_make_the_same_requests() {
    assert_same("promoted", |device| {
        let leaf = |shape: &[usize], dtype| Tensor::ones_of(device, shape, dtype)?.requiring_grad();
        let (x, weight) = (leaf(&[3, 5], DType::BF16)?, leaf(&[5, 2], DType::F32)?);
        let bias = leaf(&[2], DType::F16)?;
        let image = leaf(&[1, 2, 5, 5], DType::F16)?;
        let filter = leaf(&[3, 2, 2, 2], DType::F64)?;
        let y = x.matmul(&weight)?.add(&x.linear(&weight, &bias)?)?;
        let target = Tensor::zeros_of(device, [3, 2], DType::F64)?;
        let loss = y.mse_loss(&target)?.add(&y.l1_loss_with(&target, Reduction::Sum)?)?;
        let convolved = image.conv2d(&filter, Conv2dOptions::default())?.sum_all()?;
        let contracted = Tensor::einsum("ik,kj->", &[&x, &weight])?;
        let gradients = loss.add(&convolved)?.add(&contracted)?.backward()?;
        assert_eq!(gradients.len(), 5);
        Ok(())
    });
}

#[test]
fn large_reductions_ask_for_the_same_workspace() {
    assert_same("sum", |device| {
        let x = Tensor::zeros(device, [300, 1000])?;
        x.sum_all()?;
        x.sum(0)?;
        x.max(1)?;
        x.mean_all().map(drop)
    });
}

#[test]
fn values_are_not_to_be_had() {
    let dry = runtime().dry().unwrap();
    let error = Tensor::ones(&dry, [2, 2]).unwrap().matmul(&Tensor::ones(&dry, 2).unwrap()).unwrap();
    assert_eq!(
        error.to_vec::<f32>().unwrap_err().to_string(),
        "to_vec: dry:0 is a dry device, which has no data to read; check `Device::is_dry` first, or read losses with `item_or`"
    );
}
