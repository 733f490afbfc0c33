//! Parameters: shared cells whose old values stay valid.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

use std::sync::{Arc, Mutex};

use bfc_core::{Bytes, Category};
use highwater_tensor::nn::Parameter;
use highwater_tensor::{DType, Device, Error, Runtime, Tensor};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn ones(device: &Device) -> Parameter {
    Parameter::new(Tensor::ones(device, [2]).unwrap()).unwrap()
}

#[test]
fn a_clone_is_the_same_parameter() {
    let device = device();
    let parameter = ones(&device);
    let clone = parameter.clone();
    clone.set(&Tensor::zeros(&device, [2]).unwrap()).unwrap();
    assert_eq!(parameter.tensor().to_vec::<f32>().unwrap(), [0.0, 0.0]);
    assert!(parameter.is_same(&clone));
    assert!(!parameter.is_same(&ones(&device)));
}

#[test]
fn setting_writes_in_place_when_nobody_else_looks() {
    let device = device();
    let parameter = ones(&device);
    let address = parameter.tensor().storage().allocation().block().address;
    parameter.set(&Tensor::zeros(&device, [2]).unwrap()).unwrap();
    assert_eq!(parameter.tensor().storage().allocation().block().address, address);
}

#[test]
fn a_tensor_taken_before_keeps_its_values() {
    let device = device();
    let parameter = ones(&device);
    let before = parameter.tensor();
    parameter.set(&Tensor::zeros(&device, [2]).unwrap()).unwrap();
    assert_eq!(before.to_vec::<f32>().unwrap(), [1.0, 1.0]);
    assert_eq!(parameter.tensor().to_vec::<f32>().unwrap(), [0.0, 0.0]);
    assert_eq!(parameter.tensor().storage().category(), Some(Category::Parameter));
}

#[test]
fn the_tensor_it_was_made_from_keeps_its_values() {
    let device = device();
    let origin = Tensor::ones(&device, [2]).unwrap();
    let parameter = Parameter::new(origin.clone()).unwrap();
    parameter.set(&Tensor::zeros(&device, [2]).unwrap()).unwrap();
    assert_eq!(origin.to_vec::<f32>().unwrap(), [1.0, 1.0]);
    let transposed = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap().t().unwrap();
    let view = Parameter::new(transposed.clone()).unwrap();
    view.set(&Tensor::from_slice(&device, &[5.0f32, 6.0, 7.0, 8.0], [2, 2]).unwrap()).unwrap();
    assert_eq!(view.tensor().to_vec::<f32>().unwrap(), [5.0, 6.0, 7.0, 8.0]);
    assert_eq!(transposed.to_vec::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
}

#[test]
fn a_graph_recorded_before_a_change_has_the_values_it_was_recorded_with() {
    let device = device();
    let parameter = ones(&device);
    let loss = parameter.tensor().square().unwrap().sum_all().unwrap();
    parameter.set(&Tensor::zeros(&device, [2]).unwrap()).unwrap();
    let gradients = loss.backward_stale().unwrap();
    assert_eq!(gradients.get(&parameter.tensor()).unwrap().to_vec::<f32>().unwrap(), [2.0, 2.0]);
}

#[test]
fn a_parameter_may_be_set_to_itself() {
    let device = device();
    let parameter = ones(&device);
    parameter.set(&parameter.tensor()).unwrap();
    assert_eq!(parameter.tensor().to_vec::<f32>().unwrap(), [1.0, 1.0]);
    assert_eq!(device.default_allocator().unwrap().stats().live_allocs, 1);
}

#[test]
fn values_that_are_not_alike_are_refused_and_change_nothing() {
    let device = device();
    let other = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
    let parameter = ones(&device);
    let shape = parameter.set(&Tensor::zeros(&device, [3]).unwrap()).unwrap_err();
    assert_eq!(shape.to_string(), "set_parameter: shapes [2] and [3] do not match");
    let dtype = parameter.set(&Tensor::zeros_of(&device, [2], DType::F64).unwrap()).unwrap_err();
    assert!(matches!(dtype, Error::DTypeMismatch { op: "set_parameter", .. }), "{dtype}");
    let place = parameter.set(&Tensor::zeros(&other, [2]).unwrap()).unwrap_err();
    assert!(matches!(place, Error::DeviceMismatch { op: "set_parameter", .. }), "{place}");
    assert_eq!(parameter.tensor().to_vec::<f32>().unwrap(), [1.0, 1.0]);
}

#[test]
fn integers_are_no_parameters() {
    let error = Parameter::new(Tensor::zeros_of(&device(), [2], DType::I64).unwrap()).unwrap_err();
    assert!(matches!(error, Error::UnsupportedDType { dtype: DType::I64, .. }), "{error}");
}

#[test]
fn a_copy_that_finds_no_memory_changes_nothing() {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let zeros = Tensor::zeros(&device, [60 << 10]).unwrap();
    let parameter = Parameter::new(Tensor::ones(&device, [60 << 10]).unwrap()).unwrap();
    let before = parameter.tensor();
    let hog = Tensor::zeros(&device, [120 << 10]).unwrap();
    let error = parameter.set(&zeros).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert!(parameter.tensor().shares_buffer_with(&before));
    drop(hog);
    parameter.set(&zeros).unwrap();
    assert_eq!(parameter.tensor().to_vec::<f32>().unwrap()[0], 0.0);
}

#[test]
fn who_is_asked_for_memory_may_read_the_parameter_that_it_is_for() {
    let runtime = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap();
    let device = runtime.cpu().unwrap();
    let zeros = Tensor::zeros(&device, [60 << 10]).unwrap();
    let parameter = Parameter::new(Tensor::ones(&device, [60 << 10]).unwrap()).unwrap();
    let before = parameter.tensor();
    let hog = Mutex::new(vec![Tensor::zeros(&device, [120 << 10]).unwrap()]);
    let (asked, read) = (parameter.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&read);
    runtime.tracker().last_resort().before_giving_up(move |_| {
        // As a program that saves what it has before it gives up.
        seen.lock().unwrap().push(asked.tensor().to_vec::<f32>().unwrap()[0]);
        hog.lock().unwrap().pop().is_some()
    });
    parameter.set(&zeros).unwrap();
    assert_eq!(*read.lock().unwrap(), [1.0]);
    assert_eq!(before.to_vec::<f32>().unwrap()[0], 1.0);
    assert_eq!(parameter.tensor().to_vec::<f32>().unwrap()[0], 0.0);
}

#[test]
fn parameters_are_debugged_by_what_they_are_not_by_their_values() {
    assert_eq!(format!("{:?}", ones(&device())), "Parameter(f32 [2] on cpu:0)");
}
