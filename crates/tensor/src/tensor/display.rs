//! Formatting of tensors.

use std::fmt;

use ndarray::{ArrayD, IxDyn};

use crate::error::{Error, Result};
use crate::shape::{DType, Element};
use crate::tensor::Tensor;

/// Prints shape, type and device on one line, then the values as `ndarray` prints them. `{:#}` prints all
/// values of a large tensor, `{:.3}` rounds. Without values it prints "no data".
///
/// ```
/// use highwater::{Device, Tensor};
/// let x = Tensor::from_slice(&Device::cpu()?, &[1.0f32, 2.5, -3.0, 4.0], [2, 2])?;
/// assert_eq!(x.to_string(), "[2, 2] f32 on cpu:0\n[[1, 2.5],\n [-3, 4]]");
/// # Ok::<(), highwater::Error>(())
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} on {}", self.shape(), self.dtype(), self.device())?;
        let values = match self.dtype() {
            DType::F32 => print::<f32>(self, f),
            DType::F64 => print::<f64>(self, f),
            DType::F16 => print::<half::f16>(self, f),
            DType::BF16 => print::<half::bf16>(self, f),
            DType::I64 => print::<i64>(self, f),
            DType::I32 => print::<i32>(self, f),
            DType::U32 => print::<u32>(self, f),
            DType::U8 => print::<u8>(self, f),
            DType::Bool => print::<bool>(self, f),
            dtype => Err(Error::UnsupportedDType { op: "display", dtype }),
        };
        match values {
            Ok(result) => result,
            Err(Error::NoData { .. }) => f.write_str("no data"),
            Err(error) => write!(f, "no data: {error}"),
        }
    }
}

/// Prints the values. The outer error means that the values are unreadable.
fn print<T: Element + fmt::Display>(tensor: &Tensor, f: &mut fmt::Formatter<'_>) -> Result<fmt::Result> {
    let values = tensor.to_vec::<T>()?;
    Ok(print_all(tensor.dims(), values.iter().map(|value| value as &dyn fmt::Display).collect(), f))
}

/// Prints values of any type. Dynamic dispatch avoids one compiled copy per type.
fn print_all(dims: &[usize], values: Vec<&dyn fmt::Display>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    ArrayD::from_shape_vec(IxDyn(dims), values).map_or(Err(fmt::Error), |array| fmt::Display::fmt(&array, f))
}

/// Prints one line without the values, which may be many or unreadable.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {} on {}", self.shape(), self.dtype(), self.device())?;
        if self.requires_grad() {
            f.write_str(", requires grad")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Runtime;

    #[test]
    fn values_follow_a_line_about_the_tensor() {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let device = runtime.cpu().unwrap();
        let x = Tensor::from_slice(&device, &[1.0f32, 0.5, 1.0 / 3.0, -2.0], [2, 2]).unwrap();
        assert_eq!(format!("{:.2}", x.t().unwrap()), "[2, 2] f32 on cpu:0\n[[1.00, 0.33],\n [0.50, -2.00]]");
        assert_eq!(Tensor::scalar(&device, 7i64).unwrap().to_string(), "[] i64 on cpu:0\n7");
        let truths = Tensor::from_slice(&device, &[true, false], 2).unwrap();
        assert_eq!(truths.to_string(), "[2] bool on cpu:0\n[true, false]");
        assert_eq!(Tensor::zeros(&device, [0, 2]).unwrap().to_string(), "[0, 2] f32 on cpu:0\n[[]]");
    }

    #[test]
    fn the_alternate_format_prints_all_values() {
        let device = Runtime::builder().threads(1).build().unwrap().cpu().unwrap();
        let x = Tensor::arange(&device, 0, 2000).unwrap();
        assert!(x.to_string().len() < 200);
        assert!(format!("{x:#}").len() > 2000 * 5);
    }

    #[test]
    fn dry_tensors_print_no_data() {
        let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
        let x = Tensor::zeros(&dry, [2, 3]).unwrap();
        assert_eq!(x.to_string(), "[2, 3] f32 on dry:0\nno data");
        assert_eq!(format!("{x:?}"), "Tensor([2, 3] f32 on dry:0)");
        let x = x.requiring_grad().unwrap();
        assert_eq!(format!("{x:?}"), "Tensor([2, 3] f32 on dry:0, requires grad)");
    }
}
