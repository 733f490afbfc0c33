//! Tensors on external memory. Ops read it without a copy, never write it, and release it once. Reports list
//! it under its own category.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bfc_core::{Allocation, Request, failed_drops};
use highwater_nn::optim::{Optimizer, Sgd};
use highwater_tensor::Parameter;
use highwater_tensor::dlpack::{
    CPU, DLDataType, DLDevice, DLManagedTensor, DLTensor, DlpackError, ManagedTensor,
};
use highwater_tensor::{DType, Device, Error, Result, Runtime, Tensor};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// A managed tensor as another library would create it.
struct Foreign {
    managed: DLManagedTensor,
    values: Vec<f32>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: Arc<AtomicUsize>,
}

const FLOAT: DLDataType = DLDataType { code: 2, bits: 32, lanes: 1 };

impl Foreign {
    /// Creates 24 values, 0 and up, as rows of 6.
    fn new() -> Self {
        let dl_tensor = DLTensor {
            data: ptr::null_mut(),
            device: DLDevice { device_type: CPU, device_id: 0 },
            ndim: 2,
            dtype: FLOAT,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        Self {
            managed: DLManagedTensor { dl_tensor, manager_ctx: ptr::null_mut(), deleter: Some(delete) },
            values: (0..24_u8).map(f32::from).collect(),
            shape: vec![4, 6],
            strides: Vec::new(),
            deleted: Arc::default(),
        }
    }

    /// Passes the tensor on after a last change, together with the count of its deletions.
    fn give(self, change: impl FnOnce(&mut DLTensor)) -> (ManagedTensor, Arc<AtomicUsize>) {
        let deleted = Arc::clone(&self.deleted);
        let foreign = Box::leak(Box::new(self));
        let tensor = &mut foreign.managed.dl_tensor;
        tensor.data = foreign.values.as_mut_ptr().cast();
        tensor.shape = foreign.shape.as_mut_ptr();
        if !foreign.strides.is_empty() {
            tensor.strides = foreign.strides.as_mut_ptr();
        }
        change(tensor);
        let foreign: *mut Self = foreign;
        // SAFETY: the box was leaked just now.
        let managed = unsafe { &mut (*foreign).managed };
        managed.manager_ctx = foreign.cast::<c_void>();
        // SAFETY: the pointers were set to what the box holds, which stays as it is until it is deleted.
        (unsafe { ManagedTensor::from_raw(managed) }.unwrap(), deleted)
    }
}

unsafe extern "C" fn delete(managed: *mut DLManagedTensor) {
    // SAFETY: the pointer is that of `give`.
    let foreign = unsafe { (*managed).manager_ctx }.cast::<Foreign>();
    // SAFETY: the box was leaked for this.
    let foreign = unsafe { Box::from_raw(foreign) };
    foreign.deleted.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn external_memory_is_released_once_on_any_thread() {
    let device = device();
    let (managed, deleted) = Foreign::new().give(|_| ());
    let tensor = Tensor::from_dlpack(&device, managed).unwrap();
    assert_eq!(tensor.dims(), [4, 6]);
    let row = tensor.slice(0, 3..).unwrap();
    assert_eq!(row.to_vec::<f32>().unwrap(), [18.0, 19.0, 20.0, 21.0, 22.0, 23.0]);
    drop(tensor);
    assert_eq!(deleted.load(Ordering::SeqCst), 0, "the row still looks into it");
    std::thread::spawn(move || drop(row)).join().unwrap();
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
    assert_eq!((failed_drops(), device.external_memory().bytes_in_use), (0, 0));
}

#[test]
fn strides_and_offsets_of_others_are_followed() {
    let device = device();
    // Every other column of the rows from the second on, transposed.
    let (managed, _) = Foreign { shape: vec![3, 3], strides: vec![2, 6], ..Foreign::new() }
        .give(|tensor| tensor.byte_offset = 6 * 4);
    let tensor = Tensor::from_dlpack(&device, managed).unwrap();
    let expected = [6.0, 12.0, 18.0, 8.0, 14.0, 20.0, 10.0, 16.0, 22.0];
    assert_eq!(tensor.to_vec::<f32>().unwrap(), expected);
    assert_eq!(tensor.add_scalar(1.0).unwrap().sum_all().unwrap().item::<f32>().unwrap(), 126.0 + 9.0);
    // The view reaches at most from the first to the last element: 2 rows and 4 columns further.
    assert_eq!(device.external_memory().bytes_in_use, (2 * 6 + 2 * 2 + 1) * 4);

    // Strides along axes with at most one element may have any value.
    for (shape, strides, count) in [(vec![1, 2], vec![-7, 1], 2), (vec![0, 2], vec![i64::MIN, 1], 0)] {
        let (managed, _) = Foreign { shape, strides, ..Foreign::new() }.give(|_| ());
        assert_eq!(Tensor::from_dlpack(&device, managed).unwrap().elements(), count);
    }
    let (managed, deleted) =
        Foreign { shape: vec![0, 3], ..Foreign::new() }.give(|tensor| tensor.data = ptr::null_mut());
    let empty = Tensor::from_dlpack(&device, managed).unwrap();
    assert!(empty.to_vec::<f32>().unwrap().is_empty());
    drop(empty);
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
}

#[test]
fn memory_of_others_stands_in_an_account_of_its_own() {
    let device = device();
    let pool = device.memory_allocated().unwrap();
    let (managed, _) = Foreign::new().give(|_| ());
    let tensor = Tensor::from_dlpack(&device, managed).unwrap();
    let vector = Tensor::from_owner(&device, vec![0_i64; 5], 5).unwrap();
    assert_eq!(device.memory_allocated().unwrap(), pool, "no byte of the pool");
    let stats = device.external_memory();
    assert_eq!((stats.bytes_in_use, stats.live_allocs, stats.peak_bytes_in_use), (96 + 40, 2, 136));
    let account = device.external_allocator();
    assert_eq!((account.name(), account.ledger().total()), ("cpu:0 external", 136));
    drop(tensor);
    drop(vector);
    let stats = device.external_memory();
    assert_eq!((stats.bytes_in_use, stats.live_allocs, stats.peak_bytes_in_use), (0, 0, 136));
    assert_eq!(account.ledger().total(), 0);
    assert!(account.allocate(&Request::new(96)).is_err(), "there is nothing to give");
}

#[test]
fn what_others_own_is_never_written() {
    let device = device();
    let values: Arc<[f32]> = Arc::from([1.0, 2.0, 3.0]);
    let tensor = Tensor::from_owner(&device, Arc::clone(&values), 3).unwrap();
    assert!(tensor.storage().is_read_only() && !tensor.ref_count_is_one());
    let parameter = Parameter::new(tensor).unwrap();
    let loss = parameter.tensor().square().unwrap().sum_all().unwrap();
    let mut sgd = Sgd::new(vec![("p".to_owned(), parameter.clone())], 0.5).unwrap();
    sgd.step(loss.backward().unwrap()).unwrap();
    assert_eq!(parameter.tensor().to_vec::<f32>().unwrap(), [0.0; 3]);
    assert_eq!(values[..], [1.0, 2.0, 3.0]);
    // The parameter now has its own buffer.
    assert_eq!(device.external_memory().bytes_in_use, 0);
    assert_eq!(Arc::strong_count(&values), 1);
}

#[test]
fn a_block_of_others_is_handed_out_to_nobody_else() {
    let device = device();
    let tensor = Tensor::from_owner(&device, vec![1.0_f32; 8], 8).unwrap();
    let import = Arc::clone(tensor.storage().allocation().allocator());
    for request in [Request::new(32), Request::new(32).with_alignment(1), Request::new(1)] {
        assert!(Allocation::new(&import, &request).is_err());
    }
    drop(tensor);
    assert!(Allocation::new(&import, &Request::new(32).with_alignment(1)).is_err());
    assert_eq!(device.external_memory().bytes_in_use, 0);
}

#[test]
fn owners_of_any_kind_lend_their_elements() {
    static CONSTANT: [u8; 4] = [1, 2, 3, 4];
    let device = device();
    let constant = Tensor::from_owner(&device, &CONSTANT[..], [2, 2]).unwrap();
    assert_eq!(constant.to_vec::<u8>().unwrap(), CONSTANT);
    let array = Tensor::from_owner(&device, [true, false, true], 3).unwrap();
    assert_eq!(array.to_vec::<bool>().unwrap(), [true, false, true]);
    let boxed = vec![0.5_f64; 3].into_boxed_slice();
    let address = boxed.as_ptr() as u64;
    let boxed = Tensor::from_owner(&device, boxed, 3).unwrap();
    assert_eq!(boxed.storage().address(), address);
    let deep = Tensor::from_owner(&device, vec![1_i64], [1; 9]).unwrap_err();
    assert_eq!(deep, Error::RankTooLarge { op: "from_owner", rank: 9 });
    let message = Tensor::from_owner(&device, vec![1_i64; 3], [2, 2]).unwrap_err().to_string();
    assert_eq!(
        message,
        "from_owner: shape [2, 2] does not match 3 elements; the sizes must multiply to that number"
    );
    let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
    let error = Tensor::from_owner(&dry, vec![1_i64; 3], 3).unwrap_err();
    assert_eq!(error, Error::Dlpack(DlpackError::NotHostDevice { device: "dry:0".to_owned() }));
}

#[test]
fn a_tensor_that_went_out_lives_until_others_let_it_go() {
    let device = device();
    for dtype in DType::ALL {
        let before = device.memory_allocated().unwrap();
        let ours = Tensor::arange(&device, 0, 6).unwrap().to_dtype(dtype).unwrap().reshape([2, 3]).unwrap();
        let (columns, expected) = (ours.t().unwrap(), ours.t().unwrap().contiguous().unwrap());
        let pointer = columns.slice(0, 1..).unwrap().to_dlpack().unwrap().into_raw();
        let address = ours.storage().address();
        drop(ours);
        drop(columns);
        // SAFETY: the pointer was taken from its owner just now.
        let managed = unsafe { ManagedTensor::from_raw(pointer) }.unwrap();
        let theirs = Tensor::from_dlpack(&device, managed).unwrap();
        assert_eq!((theirs.dtype(), theirs.dims()), (dtype, &[2, 2][..]));
        assert_eq!(theirs.storage().address(), address + dtype.size() as u64);
        let same = theirs.eq(&expected.slice(0, 1..).unwrap()).unwrap().to_vec::<bool>().unwrap();
        assert_eq!(same, [true; 4], "{dtype}");
        assert!(device.memory_allocated().unwrap() > before);
        drop((theirs, expected));
        assert_eq!(device.memory_allocated().unwrap(), before, "{dtype}");
    }
    // Out, in, out and in again: each call releases the previous tensor.
    let ours = Tensor::ones(&device, 4).unwrap();
    let mut theirs = Tensor::from_dlpack(&device, ours.to_dlpack().unwrap()).unwrap();
    drop(ours);
    for _ in 0..3 {
        theirs = Tensor::from_dlpack(&device, theirs.to_dlpack().unwrap()).unwrap();
    }
    assert_eq!(theirs.to_vec::<f32>().unwrap(), [1.0; 4]);
    drop(theirs);
    assert_eq!((device.memory_allocated().unwrap().get(), failed_drops()), (0, 0));
    let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
    assert!(matches!(Tensor::ones(&dry, 3).unwrap().to_dlpack(), Err(Error::Dlpack(_))));
}

#[test]
fn what_no_tensor_can_be_is_refused_and_deleted() {
    let device = device();
    let refused = |foreign: Foreign, change: fn(&mut DLTensor)| -> String {
        let (managed, deleted) = foreign.give(change);
        let error: Result<Tensor> = Tensor::from_dlpack(&device, managed);
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Dlpack(_)), "{error}");
        assert_eq!(deleted.load(Ordering::SeqCst), 1, "{error}");
        error.to_string()
    };
    let new = Foreign::new;
    for (foreign, change, message) in [
        (
            new(),
            (|tensor| tensor.device.device_type = 2) as fn(&mut DLTensor),
            "expected host memory, got memory of DLPack's device type 2; copy the tensor to the host first",
        ),
        (new(), |tensor| tensor.dtype.lanes = 4, "no element type has code 2, 32 bits and 4 lanes"),
        (new(), |tensor| tensor.dtype.code = 5, "no element type has code 5, 32 bits and 1 lanes"),
        (new(), |tensor| tensor.dtype.bits = 8, "no element type has code 2, 8 bits and 1 lanes"),
        (new(), |tensor| tensor.ndim = -1, "expected 0 to 8 axes, got -1"),
        (new(), |tensor| tensor.ndim = 1000, "expected 0 to 8 axes, got 1000"),
        (new(), |tensor| tensor.shape = ptr::null_mut(), "the shape is a null pointer"),
        (new(), |tensor| tensor.data = ptr::null_mut(), "the data is a null pointer"),
        (
            Foreign { shape: vec![4, -6], ..new() },
            |_| (),
            "axis 1 has size -6 and stride 0; neither may be negative",
        ),
        (
            Foreign { strides: vec![-6, 1], ..new() },
            |_| (),
            "axis 0 has size 4 and stride -6; neither may be negative",
        ),
        (Foreign { strides: vec![i64::MAX, 1], ..new() }, |_| (), "the elements exceed the address space"),
        (new(), |tensor| tensor.byte_offset = u64::MAX, "the elements exceed the address space"),
    ] {
        assert_eq!(refused(foreign, change), format!("dlpack: {message}"));
    }
    let message = refused(Foreign { shape: vec![2, 2], ..new() }, |tensor| tensor.byte_offset = 2);
    assert!(message.starts_with("dlpack: address 0x"), "{message}");
    // The bytes of 1.0 are 0, 0, 128 and 63.
    let truths = DLDataType { code: 6, bits: 8, lanes: 1 };
    let foreign = Foreign {
        managed: DLManagedTensor {
            dl_tensor: DLTensor { dtype: truths, ..new().managed.dl_tensor },
            ..new().managed
        },
        ..new()
    };
    assert_eq!(refused(foreign, |_| ()), "dlpack: expected 0 or 1 for a boolean, got 128");
    assert_eq!(device.external_memory().bytes_in_use, 0);
    // SAFETY: null is allowed.
    assert!(unsafe { ManagedTensor::from_raw(ptr::null_mut()) }.is_none());
}
