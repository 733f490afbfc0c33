//! Tensors of more than 2³¹ elements. These tests require a real device: an emulator is too slow, and few
//! machines have the memory.

use highwater_tensor::{DType, Device, Tensor};

/// Exceeds the range of 31-bit integers, and is not a multiple of any block size.
const ELEMENTS: usize = (1 << 31) + 9;

/// Peak memory of the largest test: one tensor of 2-byte elements, one of 4-byte elements, and temporaries.
const BYTES: u64 = 14 << 30;

/// Returns the device that `KERNELS_ON` names, if it has enough memory. Otherwise prints one line and returns
/// `None`.
fn large_device(test: &str) -> Option<Device> {
    if std::env::var_os("KERNELS_ON").is_none() {
        println!("{test}: skipped, as KERNELS_ON names no device (KERNELS_ON=cuda:0)");
        return None;
    }
    let device = crate::ops_table::device();
    if Tensor::zeros_of(&device, BYTES as usize, DType::U8).is_err() {
        println!("{test}: skipped, as the device has no {} GiB to give", BYTES >> 30);
        return None;
    }
    Some(device)
}

/// Returns the elements from `start` on, as f64.
fn end(tensor: &Tensor, start: usize) -> Vec<f64> {
    tensor.slice(0, start..).unwrap().to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
#[ignore = "needs a device with 14 GiB of free memory"]
fn fills_copies_and_casts_reach_the_last_element() {
    let Some(device) = large_device("fills_copies_and_casts_reach_the_last_element") else { return };
    let bytes = Tensor::full_of(&device, ELEMENTS, 7, DType::U8).unwrap();
    assert_eq!(end(&bytes, ELEMENTS - 11), [7.0; 11]);
    let halves = bytes.to_dtype(DType::BF16).unwrap();
    drop(bytes);
    assert_eq!(end(&halves, ELEMENTS - 11), [7.0; 11]);
    // These copies cannot use packs: the first starts at an unaligned element, the second reads every second
    // element.
    let beside = halves.slice(0, 1..).unwrap().neg().unwrap();
    assert_eq!(end(&beside, ELEMENTS - 12), [-7.0; 11]);
    drop(beside);
    let second = halves.slice_step(0, .., 2).unwrap().contiguous().unwrap();
    assert_eq!(end(&second, second.elements() - 5), [7.0; 5]);
}

#[test]
#[ignore = "needs a device with 14 GiB of free memory"]
fn sums_count_every_element() {
    let Some(device) = large_device("sums_count_every_element") else { return };
    // Sums of powers of two are exact in f32, and these sums are also exact in 16 bits.
    let rows = (1 << 15) + 1;
    let halves = Tensor::full_of(&device, [rows, 1 << 16], 0.5, DType::BF16).unwrap();
    assert!(halves.elements() > 1 << 31);
    assert_eq!(end(&halves.sum(1).unwrap(), 0), vec![f64::from(1 << 15); rows]);
    let all = halves.to_dtype(DType::F32).unwrap().sum_all().unwrap();
    assert_eq!(all.item::<f32>().unwrap(), (rows << 15) as f32);
}

#[test]
#[ignore = "needs a device with 14 GiB of free memory"]
fn the_largest_is_found_and_picked_at_the_end() {
    let Some(device) = large_device("the_largest_is_found_and_picked_at_the_end") else { return };
    let zeros = Tensor::zeros_of(&device, ELEMENTS - 3, DType::U8).unwrap();
    let last = Tensor::from_slice(&device, &[5_u8, 9, 2], 3).unwrap();
    let bytes = Tensor::concat(&[&zeros, &last], 0).unwrap();
    drop(zeros);
    assert_eq!(bytes.argmax(0).unwrap().item::<i64>().unwrap(), ELEMENTS as i64 - 2);
    let places = [0, ELEMENTS as i64 - 1, ELEMENTS as i64 - 2, 1 << 31];
    let places = Tensor::from_slice(&device, &places, places.len()).unwrap();
    assert_eq!(bytes.index_select(0, &places).unwrap().to_vec::<u8>().unwrap(), [0, 2, 9, 0]);
}
