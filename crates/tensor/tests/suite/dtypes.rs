//! The element types: conversions between them, wrapping of integers, and conversions in files and host
//! arrays.

use crate::ops_table::device;
use half::{bf16, f16};
use highwater_nn::io::{Array, Safetensors, SafetensorsLimits, read_safetensors_from, write_safetensors_to};
use highwater_tensor::{DType, Element, Error, SortOrder, Tensor};

/// `values` as type `to`, converted by the device under test.
fn cast<A: Element, B: Element>(values: &[A]) -> Vec<B> {
    let x = Tensor::from_slice(&device(), values, values.len()).unwrap();
    x.to_dtype(B::DTYPE).unwrap().to_vec().unwrap()
}

/// Every f16 and every bf16 value.
fn all_halves() -> (Vec<f16>, Vec<bf16>) {
    ((0..=u16::MAX).map(f16::from_bits).collect(), (0..=u16::MAX).map(bf16::from_bits).collect())
}

#[test]
fn every_half_comes_back_from_the_wider_floats_as_it_was() {
    let (short, brain) = all_halves();
    for (way, back) in [
        ("f32", cast::<f32, f16>(&cast::<f16, f32>(&short))),
        ("f64", cast::<f64, f16>(&cast::<f16, f64>(&short))),
    ] {
        let same = |(a, b): (&f16, &f16)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        assert!(short.iter().zip(&back).all(same), "by way of {way}");
    }
    for (way, back) in [
        ("f32", cast::<f32, bf16>(&cast::<bf16, f32>(&brain))),
        ("f64", cast::<f64, bf16>(&cast::<bf16, f64>(&brain))),
    ] {
        let same = |(a, b): (&bf16, &bf16)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        assert!(brain.iter().zip(&back).all(same), "by way of {way}");
    }
}

#[test]
fn every_half_is_the_number_that_its_bits_say() {
    // Sign, exponent of `exponent_bits`, fraction of the rest, as IEEE 754 defines them.
    let meaning = |bits: u16, exponent_bits: u32| {
        let fraction_bits = 15 - exponent_bits;
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let (exponent, fraction) =
            (bits >> fraction_bits & ((1 << exponent_bits) - 1), bits & ((1 << fraction_bits) - 1));
        let (bias, share) =
            ((1 << (exponent_bits - 1)) - 1, f64::from(fraction) / f64::from(1 << fraction_bits));
        match exponent {
            0 => sign * share * 2f64.powi(1 - bias),
            e if u32::from(e) == (1 << exponent_bits) - 1 => {
                if fraction == 0 {
                    sign * f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            e => sign * (1.0 + share) * 2f64.powi(i32::from(e) - bias),
        }
    };
    let (short, brain) = all_halves();
    for (bits, (short, brain)) in
        (0..=u16::MAX).zip(cast::<f16, f64>(&short).into_iter().zip(cast::<bf16, f64>(&brain)))
    {
        for (found, exponent_bits) in [(short, 5), (brain, 8)] {
            let expected = meaning(bits, exponent_bits);
            assert!(
                found == expected || found.is_nan() && expected.is_nan(),
                "{bits:#x}: {found}, not {expected}"
            );
        }
    }
}

/// Checks rounding between neighboring positive 16-bit floats: midpoints round to even, other values to the
/// nearer neighbor.
fn check_rounding<H: Element>(bits_of: fn(H) -> u16, value_of: fn(u16) -> f64, infinity: u16) {
    let mut between = Vec::new();
    for bits in 0..infinity {
        let low = value_of(bits);
        // Infinity follows the largest finite value.
        let high = if bits + 1 < infinity { value_of(bits + 1) } else { low + (low - value_of(bits - 1)) };
        between.push((bits, low + (high - low) / 2.0));
    }
    let middles: Vec<f64> = between.iter().map(|&(_, middle)| middle).collect();
    let narrow: Vec<f32> = middles.iter().map(|&middle| middle as f32).collect();
    // These values are too close to the midpoint for f32 to distinguish.
    let below: Vec<f64> = middles.iter().map(|middle| middle.next_down()).collect();
    let above: Vec<f64> = middles.iter().map(|middle| middle.next_up()).collect();
    let mirrored: Vec<f64> = above.iter().map(|above| -above).collect();
    let (even, also_even): (Vec<H>, Vec<H>) = (cast(&middles), cast(&narrow));
    let (down, up, mirrored): (Vec<H>, Vec<H>, Vec<H>) = (cast(&below), cast(&above), cast(&mirrored));
    for (place, &(bits, middle)) in between.iter().enumerate() {
        let expected = bits + (bits & 1);
        assert_eq!(bits_of(even[place]), expected, "the middle {middle}");
        assert_eq!(bits_of(also_even[place]), expected, "the middle {middle} as f32");
        assert_eq!(bits_of(down[place]), bits, "below {middle}");
        assert_eq!(bits_of(up[place]), bits + 1, "above {middle}");
        assert_eq!(bits_of(mirrored[place]), (bits + 1) | 0x8000, "below -{middle}");
    }
}

#[test]
fn halves_are_rounded_once_to_the_nearest_and_ties_to_even() {
    check_rounding::<f16>(f16::to_bits, |bits| f16::from_bits(bits).to_f64(), 0x7c00);
    check_rounding::<bf16>(bf16::to_bits, |bits| bf16::from_bits(bits).to_f64(), 0x7f80);
}

#[test]
fn wide_integers_become_the_nearest_half_too() {
    // 257 · 2⁵⁴ is a midpoint: only the last of 63 bits decides the rounding.
    let middle = 0x101_i64 << 54;
    assert_eq!(
        cast::<i64, bf16>(&[middle, middle + 1, -middle - 1, i64::MAX]).map_to_f64(),
        [2f64.powi(62), 258.0 * 2f64.powi(54), -258.0 * 2f64.powi(54), 2f64.powi(63)]
    );
    assert_eq!(
        cast::<i64, f16>(&[2049, 2051, 65_519, 65_520]).map_to_f64(),
        [2048.0, 2052.0, 65_504.0, f64::INFINITY]
    );
    assert_eq!(cast::<i32, f16>(&[-2049, i32::MIN]).map_to_f64(), [-2048.0, f64::NEG_INFINITY]);
    assert_eq!(cast::<i32, bf16>(&[0x7f7f_ffff, 257]).map_to_f64(), [2_139_095_040.0, 256.0]);
    // Just above a midpoint, which f32 cannot represent.
    let middle = 0x101_u32 << 23;
    let expected = [2f64.powi(31), 258.0 * 2f64.powi(23), 2f64.powi(32)];
    assert_eq!(cast::<u32, bf16>(&[middle, middle + 1, u32::MAX]).map_to_f64(), expected);
    assert_eq!(cast::<u32, f16>(&[2049, 65_520]).map_to_f64(), [2048.0, f64::INFINITY]);
}

/// Converts values to f64 for comparisons.
trait MapToF64 {
    fn map_to_f64(self) -> Vec<f64>;
}

impl<T: Into<f64>> MapToF64 for Vec<T> {
    fn map_to_f64(self) -> Vec<f64> {
        self.into_iter().map(Into::into).collect()
    }
}

#[test]
fn floats_saturate_at_the_ends_of_32_bits_and_wide_integers_wrap() {
    let hard = [1.9, -1.9, 3e9, -3e9, f64::NAN, f64::INFINITY, 2_147_483_647.5];
    assert_eq!(cast::<f64, i32>(&hard), [1, -1, i32::MAX, i32::MIN, 0, i32::MAX, i32::MAX]);
    let halves = [f16::from_f32(-1.5), f16::MAX, f16::INFINITY, f16::NAN];
    assert_eq!(cast::<f16, i32>(&halves), [-1, 65_504, i32::MAX, 0]);
    assert_eq!(cast::<f16, u8>(&halves), [0, 255, 255, 0]);
    assert_eq!(cast::<bf16, i64>(&[bf16::MAX]), [i64::MAX]);
    assert_eq!(cast::<i64, i32>(&[(1 << 32) + 5, i64::MAX, -1]), [5, -1, -1]);
    assert_eq!(cast::<i32, u8>(&[-1, 256, 255]), [255, 0, 255]);
    let hard = [1.9, -1.9, 3e9, 5e9, f64::NAN, f64::INFINITY, 4_294_967_295.5];
    assert_eq!(cast::<f64, u32>(&hard), [1, 0, 3_000_000_000, u32::MAX, 0, u32::MAX, u32::MAX]);
    assert_eq!(cast::<f32, u32>(&[2.5, -0.5, 4.3e9]), [2, 0, u32::MAX]);
    assert_eq!(cast::<f16, u32>(&halves), [0, 65_504, u32::MAX, 0]);
    assert_eq!(cast::<i64, u32>(&[(1 << 32) + 5, -1]), [5, u32::MAX]);
    assert_eq!(cast::<i32, u32>(&[-1, i32::MIN]), [u32::MAX, 1 << 31]);
    assert_eq!(cast::<u32, i32>(&[u32::MAX, 7]), [-1, 7]);
    assert_eq!(cast::<u32, i64>(&[u32::MAX, 7]), [0xffff_ffff, 7]);
    assert_eq!(cast::<u32, f32>(&[u32::MAX, 16_777_217]), [4_294_967_296.0, 16_777_216.0]);
    assert_eq!(cast::<u32, u8>(&[256, 255]), [0, 255]);
    assert_eq!(cast::<u32, bool>(&[0, 1 << 31]), [false, true]);
    assert_eq!(cast::<f16, bool>(&[f16::NEG_ZERO, f16::from_bits(1), f16::NAN]), [false, true, true]);
    assert_eq!(cast::<i32, bool>(&[0, i32::MIN]), [false, true]);
}

#[test]
fn halves_become_each_other_by_rounding_once() {
    let ones = [f16::from_f32(1.0 + 1.0 / 256.0), f16::MAX, f16::from_bits(1), f16::NEG_INFINITY];
    assert_eq!(cast::<f16, bf16>(&ones).map_to_f64(), [1.0, 65_536.0, 2f64.powi(-24), f64::NEG_INFINITY]);
    assert_eq!(cast::<bf16, f16>(&[bf16::MAX, bf16::MIN_POSITIVE]).map_to_f64(), [f64::INFINITY, 0.0]);
}

#[test]
fn strided_and_broadcast_tensors_convert_in_logical_order() {
    let device = device();
    let x = Tensor::arange(&device, 0, 6).unwrap().reshape([2, 3]).unwrap().t().unwrap();
    for dtype in [DType::F16, DType::BF16, DType::I32] {
        let converted = x.to_dtype(dtype).unwrap();
        assert_eq!(
            converted.t().unwrap().to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap(),
            [0, 1, 2, 3, 4, 5]
        );
        let spread = converted.slice(0, ..1).unwrap().broadcast_to([3, 2]).unwrap();
        assert_eq!(spread.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), [0., 3., 0., 3., 0., 3.]);
        let none = Tensor::zeros_of(&device, [0, 4], dtype).unwrap().to_dtype(DType::F32).unwrap();
        assert_eq!(none.to_vec::<f32>().unwrap(), [0.0; 0]);
    }
}

#[test]
fn fills_and_ranges_and_choices_are_of_every_type() {
    let device = device();
    let third = Tensor::full_of(&device, 3, 1.0 / 3.0, DType::F16).unwrap();
    assert_eq!(third.to_vec::<f16>().unwrap(), [f16::from_f64(1.0 / 3.0); 3]);
    let long = Tensor::full_of(&device, 2, -7, DType::I32).unwrap();
    assert_eq!(long.to_vec::<i32>().unwrap(), [-7; 2]);
    let joined = Tensor::concat(&[&third, &third.zeros_like().unwrap()], 0).unwrap();
    assert_eq!(
        joined.to_dtype(DType::Bool).unwrap().to_vec::<bool>().unwrap(),
        [true, true, true, false, false, false]
    );
    let rows = Tensor::from_slice(&device, &[2i64, 0], 2).unwrap();
    let table = Tensor::arange(&device, 0, 6).unwrap().reshape([3, 2]).unwrap();
    for dtype in DType::ALL {
        let chosen = table.to_dtype(dtype).unwrap().index_select(0, &rows).unwrap();
        let expected = if dtype == DType::Bool { [1, 1, 0, 1] } else { [4, 5, 0, 1] };
        assert_eq!(chosen.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap(), expected, "{dtype}");
    }
}

#[test]
fn arithmetic_of_i32_wraps_and_never_traps() {
    let device = device();
    let ints = |values: &[i32]| Tensor::from_slice(&device, values, values.len()).unwrap();
    let values = |tensor: highwater_tensor::Result<Tensor>| tensor.unwrap().to_vec::<i32>().unwrap();
    let (ends, one) = (ints(&[i32::MAX, i32::MIN]), ints(&[1]));
    assert_eq!(values(ends.add(&one)), [i32::MIN, i32::MIN + 1]);
    assert_eq!(values(ends.sub(&one)), [i32::MAX - 1, i32::MAX]);
    assert_eq!(values(ends.mul(&ints(&[2]))), [-2, 0]);
    assert_eq!(values(ints(&[7, -7, 7, i32::MIN]).div(&ints(&[2, 2, 0, -1]))), [3, -3, 0, i32::MIN]);
    assert_eq!(values(ints(&[i32::MIN, -5]).abs()), [i32::MIN, 5]);
    assert_eq!(values(ints(&[i32::MIN, 5]).neg()), [i32::MIN, -5]);
    assert_eq!(values(ints(&[46_341]).square()), [-2_147_479_015]);
    assert_eq!(values(ints(&[-3, 0, 9]).clamp(-1, 4)), [-1, 0, 4]);
    assert_eq!(values(ints(&[-3, 0, 9]).sign()), [-1, 0, 1]);
    assert_eq!(values(ints(&[-3, 9]).relu()), [0, 9]);
    assert_eq!(values(ends.maximum(&one)), [i32::MAX, 1]);
    assert_eq!(values(ends.add_scalar(1)), [i32::MIN, i32::MIN + 1]);
    let table = ints(&[3, -2, 5, 7, 0, 5]).reshape([2, 3]).unwrap();
    assert_eq!(values(table.max(0)), [7, 0, 5]);
    assert_eq!(values(table.min(1)), [-2, 0]);
    assert_eq!(table.argmax(1).unwrap().to_vec::<i64>().unwrap(), [2, 0]);
    assert_eq!(table.gt(&one).unwrap().to_vec::<bool>().unwrap(), [true, false, true, true, false, true]);
}

#[test]
fn arithmetic_of_u32_wraps_and_compares_without_a_sign() {
    let device = device();
    let ints = |values: &[u32]| Tensor::from_slice(&device, values, values.len()).unwrap();
    let values = |tensor: highwater_tensor::Result<Tensor>| tensor.unwrap().to_vec::<u32>().unwrap();
    const TOP: u32 = 1 << 31;
    let (ends, one) = (ints(&[u32::MAX, 0, TOP]), ints(&[1]));
    assert_eq!(values(ends.add(&one)), [0, 1, TOP + 1]);
    assert_eq!(values(ends.sub(&one)), [u32::MAX - 1, u32::MAX, TOP - 1]);
    assert_eq!(values(ends.mul(&ints(&[2]))), [u32::MAX - 1, 0, 0]);
    assert_eq!(values(ends.div(&ints(&[2, 2, 0]))), [TOP - 1, 0, 0]);
    assert_eq!(values(ends.neg()), [1, 0, TOP]);
    for same in [ends.abs(), ends.relu(), ends.clamp(0, u32::MAX)] {
        assert_eq!(values(same), [u32::MAX, 0, TOP]);
    }
    assert_eq!(values(ends.sign()), [1, 0, 1]);
    assert_eq!(values(ends.maximum(&one)), [u32::MAX, 1, TOP]);
    assert_eq!(values(ends.clamp(1, TOP)), [TOP, 1, TOP]);
    assert_eq!(values(ends.add_scalar(-1)), [u32::MAX - 1, u32::MAX, TOP - 1]);
    assert_eq!((values(ends.max(0)), values(ends.min(0))), (vec![u32::MAX], vec![0]));
    assert_eq!(ends.argsort(0, SortOrder::Ascending).unwrap().to_vec::<i64>().unwrap(), [1, 2, 0]);
    assert_eq!(ends.gt(&ints(&[TOP])).unwrap().to_vec::<bool>().unwrap(), [true, false, false]);
    assert_eq!(ends.sum_all().unwrap().item::<i64>().unwrap(), 0x1_7fff_ffff);
    let signed = Tensor::from_slice(&device, &[-1i32], 1).unwrap();
    assert_eq!(ends.add(&signed).unwrap().to_vec::<i64>().unwrap(), [0xffff_fffe, -1, 0x7fff_ffff]);
    assert_eq!(Tensor::full_of(&device, 1, u32::MAX, DType::U32).unwrap().item::<u32>().unwrap(), u32::MAX);
    assert!(matches!(ends.div_scalar(-1), Err(Error::BadArgument { argument: "scalar", .. })));
    assert!(matches!(ends.clamp(0, 1i64 << 32), Err(Error::BadArgument { argument: "scalar", .. })));
    assert!(ends.to_string().ends_with("\n[4294967295, 0, 2147483648]"));
}

#[test]
fn integers_and_booleans_are_summed_as_i64() {
    let device = device();
    let table = Tensor::from_slice(&device, &[i32::MAX, i32::MAX, -1, 3], [2, 2]).unwrap();
    let (large, most) = (i64::from(i32::MAX), i64::from(i32::MAX));
    let values = |x: highwater_tensor::Result<Tensor>| x.unwrap().to_vec::<i64>().unwrap();
    assert_eq!(values(table.sum(1)), [2 * large, 2]);
    assert_eq!(values(table.transpose(0, 1).unwrap().sum(1)), [large - 1, large + 3]);
    assert_eq!(values(table.prod(1)), [large * most, -3]);
    assert_eq!(values(table.cumsum(1)), [large, 2 * large, -1, 2]);
    assert_eq!(values(table.sum_to([1, 2])), [large - 1, large + 3]);
    let bytes = Tensor::full_of(&device, [3, 5], 200, DType::U8).unwrap();
    assert_eq!(values(bytes.sum_all()), [3000]);
    assert_eq!(values(bytes.sum_keepdim(1)), [1000; 3]);
    assert_eq!(values(bytes.prod(0)), [8_000_000; 5]);
    let truths = bytes.to_dtype(DType::Bool).unwrap();
    assert_eq!((values(truths.sum_all()), values(truths.prod_all())), (vec![15], vec![1]));
    assert_eq!(values(truths.cumsum(1))[..6], [1, 2, 3, 4, 5, 1]);
    // The sum of no elements is 0 and their product is 1, in i64 too.
    let none = Tensor::zeros_of(&device, [0, 2], DType::Bool).unwrap();
    assert_eq!((values(none.sum(0)), values(none.prod(0))), (vec![0; 2], vec![1; 2]));
}

#[test]
fn what_i32_is_not_for_is_an_error_that_says_so() {
    let x = Tensor::full_of(&device(), 3, 2, DType::I32).unwrap();
    assert_eq!(x.exp().unwrap_err(), Error::UnsupportedDType { op: "exp", dtype: DType::I32 });
    assert!(matches!(x.add_scalar(0.5), Err(Error::BadArgument { argument: "scalar", .. })));
    assert!(matches!(x.div_scalar(1i64 << 40), Err(Error::BadArgument { argument: "scalar", .. })));
    assert!(matches!(x.requiring_grad(), Err(Error::UnsupportedDType { dtype: DType::I32, .. })));
}

#[test]
fn host_arrays_and_text_and_files_have_every_type() {
    let device = device();
    let halves = [f16::from_f32(1.5), f16::MIN_POSITIVE, f16::INFINITY];
    let x = Tensor::from_ndarray(&device, &ndarray::arr1(&halves)).unwrap();
    assert_eq!((x.dtype(), x.to_ndarray::<f16>().unwrap()), (DType::F16, ndarray::arr1(&halves).into_dyn()));
    assert_eq!(
        Tensor::scalar(&device, bf16::from_f32(0.5)).unwrap().item::<bf16>().unwrap(),
        bf16::from_f32(0.5)
    );
    assert!(x.to_vec::<bf16>().unwrap_err().to_string().contains("f16"));
    let text = Tensor::from_slice(&device, &[1i32, -2], 2).unwrap().to_string();
    assert!(text.starts_with("[2] i32 on ") && text.ends_with("\n[1, -2]"), "{text}");
    let text = x.slice(0, ..1).unwrap().to_string();
    assert!(text.starts_with("[1] f16 on ") && text.ends_with("\n[1.5]"), "{text}");

    let mut contents = Safetensors::default();
    for dtype in DType::ALL {
        let ones = Tensor::ones_of(&device, [2, 3], dtype).unwrap();
        contents.arrays.insert(dtype.to_string(), Array::of(&ones).unwrap());
    }
    let mut file = Vec::new();
    write_safetensors_to(&mut file, &contents).unwrap();
    let read = read_safetensors_from(&file[..], "memory", &SafetensorsLimits::default()).unwrap();
    assert_eq!(read, contents);
    for (name, array) in &read.arrays {
        let ones = array.to_tensor(&device).unwrap();
        assert_eq!(ones.dtype().name(), name);
        assert_eq!(ones.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), [1.0; 6]);
    }
}

#[test]
fn halves_in_a_file_of_another_writer_are_read() {
    // The bytes that PyTorch writes for torch.tensor([1.0, -2.5], dtype=torch.float16) and [1.0, 3.140625] as
    // torch.bfloat16.
    let header = br#"{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend([0x00, 0x3c, 0x00, 0xc1, 0x80, 0x3f, 0x49, 0x40]);
    let read = read_safetensors_from(&file[..], "memory", &SafetensorsLimits::default()).unwrap();
    let tensor = |name: &str| read.arrays[name].to_tensor(&device()).unwrap();
    assert_eq!(tensor("a").to_vec::<f16>().unwrap().map_to_f64(), [1.0, -2.5]);
    assert_eq!(tensor("b").to_vec::<bf16>().unwrap().map_to_f64(), [1.0, 3.140625]);
}
