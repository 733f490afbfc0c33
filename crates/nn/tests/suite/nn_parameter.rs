//! Parameters: shared cells whose old values stay valid.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bfc_core::{Bytes, Category};
use highwater_nn::optim::{Optimizer, Sgd};
use highwater_tensor::Parameter;
use highwater_tensor::{DType, Device, Error, Rng, Runtime, Tensor, checkpoint};

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
fn a_graph_keeps_the_values_from_its_recording() {
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
    assert_eq!(shape.to_string(), "set_parameter: shapes [2] and [3] do not match: they must be equal");
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
fn an_allocator_may_read_the_parameter_being_changed() {
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
    // It holds the parameter, whose memory holds the runtime.
    runtime.tracker().last_resort().clear();
}

#[test]
fn parameters_are_debugged_by_what_they_are_not_by_their_values() {
    assert_eq!(format!("{:?}", ones(&device())), "Parameter(f32 [2] on cpu:0)");
}

/// Memory whose owner calls back when it is dropped.
struct Owner {
    values: Vec<f32>,
    on_drop: Box<dyn Fn() + Send>,
}

impl AsRef<[f32]> for Owner {
    fn as_ref(&self) -> &[f32] {
        &self.values
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        (self.on_drop)();
    }
}

/// A parameter over outside memory. Its owner, when dropped, reads, formats and sets the parameter, and notes the values that it
/// found.
fn owned(device: &Device) -> (Parameter, Arc<Mutex<Vec<f32>>>) {
    let (found, cell) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None::<Parameter>)));
    let on_drop: Box<dyn Fn() + Send> = Box::new({
        let (found, cell) = (Arc::clone(&found), Arc::clone(&cell));
        move || {
            let Some(parameter) = cell.lock().unwrap().take() else { return };
            assert!(!parameter.is_frozen() && format!("{parameter:?}").contains("cpu:0"));
            let values = parameter.tensor();
            found.lock().unwrap().extend(values.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap());
            parameter.set(&values.mul_scalar(2.0).unwrap()).unwrap();
        }
    });
    let owner = Owner { values: vec![1.0, 2.0], on_drop };
    let parameter = Parameter::new(Tensor::from_owner(device, owner, [2]).unwrap()).unwrap();
    *cell.lock().unwrap() = Some(parameter.clone());
    (parameter, found)
}

fn values_of(parameter: &Parameter) -> Vec<f32> {
    parameter.tensor().to_dtype(DType::F32).unwrap().to_vec().unwrap()
}

#[test]
fn an_owner_may_use_the_parameter_that_set_moves_off_its_memory() {
    let device = device();
    let (parameter, found) = owned(&device);
    parameter.set(&Tensor::from_slice(&device, &[3.0f32, 4.0], [2]).unwrap()).unwrap();
    // The owner goes after the change: it finds the new values, and doubles them.
    assert_eq!(*found.lock().unwrap(), [3.0, 4.0]);
    assert_eq!(values_of(&parameter), [6.0, 8.0]);
    assert_eq!(device.external_memory().bytes_in_use, 0);
}

#[test]
fn an_owner_may_use_the_parameter_that_is_converted() {
    let device = device();
    let (parameter, found) = owned(&device);
    parameter.convert(DType::F64).unwrap();
    assert_eq!(*found.lock().unwrap(), [1.0, 2.0]);
    assert_eq!((parameter.tensor().dtype(), values_of(&parameter)), (DType::F64, vec![2.0, 4.0]));
}

#[test]
fn an_owner_may_use_the_parameter_that_is_stepped() {
    let device = device();
    let (parameter, found) = owned(&device);
    let mut sgd = Sgd::new(vec![("own".to_owned(), parameter.clone())], 1.0).unwrap();
    let gradients = parameter.tensor().sum_all().unwrap().backward().unwrap();
    sgd.step(gradients).unwrap();
    // The copy was made before the step, which found the doubled values.
    assert_eq!(*found.lock().unwrap(), [1.0, 2.0]);
    assert_eq!(values_of(&parameter), [1.0, 3.0]);
}

#[test]
fn an_owner_on_another_tensor_may_use_any_parameter() {
    let device = device();
    let (parameter, found) = owned(&device);
    let before = parameter.tensor();
    parameter.set(&Tensor::zeros(&device, [2]).unwrap()).unwrap();
    assert!(found.lock().unwrap().is_empty());
    drop(before);
    assert_eq!(*found.lock().unwrap(), [0.0, 0.0]);
}

/// Text that goes to a parameter's reader.
struct Reader<'a>(&'a Parameter);

impl std::fmt::Write for Reader<'_> {
    fn write_str(&mut self, _: &str) -> std::fmt::Result {
        self.0.set(&self.0.tensor()).map_err(|_| std::fmt::Error)
    }
}

#[test]
fn a_writer_of_debug_text_may_use_the_parameter() {
    let parameter = ones(&device());
    std::fmt::write(&mut Reader(&parameter), format_args!("{parameter:?}")).unwrap();
}

#[test]
fn an_owner_may_use_parameters_where_a_replay_departs() {
    let device = device();
    let (parameter, found) = owned(&device);
    let (rng, own, first) = (Rng::new(1), parameter.clone(), AtomicBool::new(true));
    let program = move |x: &Tensor| {
        if first.swap(false, Ordering::Relaxed) { x.mul(&own.tensor()) } else { x.dropout(0.5, &rng) }
    };
    let x = Tensor::ones(&device, [2]).unwrap().requiring_grad().unwrap();
    let loss = checkpoint(&x, program).unwrap().sum_all().unwrap();
    // From here on only what the first run drew holds the outside memory.
    parameter.set(&Tensor::zeros(&device, [2]).unwrap()).unwrap();
    assert!(found.lock().unwrap().is_empty());
    let differs = loss.backward_stale().unwrap_err();
    assert!(matches!(differs, Error::ReplayDiffers { .. }), "{differs}");
    assert_eq!(*found.lock().unwrap(), [0.0, 0.0]);
}
