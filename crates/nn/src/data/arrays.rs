//! Data sets from arrays, for example from NumPy files.

use highwater_tensor::{DType, Error, RawElement, Result, Shape};

use super::answers::Answers;
use super::array_dataset::ArrayDataset;
use crate::io::Array;

const OP: &str = "from_arrays";

/// Converts all elements of an array to another type.
macro_rules! converted {
    ($array:expr, $to:ty) => {{
        let array: &Array = $array;
        match array.dtype() {
            DType::F32 => each::<f32, $to>(array, |value| value as $to),
            DType::F64 => each::<f64, $to>(array, |value| value as $to),
            DType::F16 => each::<half::f16, $to>(array, |value| value.to_f32() as $to),
            DType::BF16 => each::<half::bf16, $to>(array, |value| value.to_f32() as $to),
            DType::I64 => each::<i64, $to>(array, |value| value as $to),
            DType::I32 => each::<i32, $to>(array, |value| value as $to),
            DType::U32 => each::<u32, $to>(array, |value| value as $to),
            DType::U8 | DType::Bool => each::<u8, $to>(array, |value| value as $to),
            dtype => Err(Error::UnsupportedDType { op: OP, dtype }),
        }
    }};
}

/// Maps all elements of an array of type `T`.
fn each<T: RawElement, R>(array: &Array, convert: impl Fn(T) -> R) -> Result<Vec<R>> {
    let from: &[T] = bytemuck::cast_slice(array.bytes());
    let mut to = Vec::new();
    if to.try_reserve_exact(from.len()).is_err() {
        return Err(Error::NoHostMemory { op: OP, shape: *array.shape(), dtype: array.dtype() });
    }
    to.extend(from.iter().map(|&value| convert(value)));
    Ok(to)
}

impl ArrayDataset {
    /// Creates a data set from arrays of any element type. The first axis counts the rows.
    ///
    /// The other axes of `features` are the shape of a row, and batches keep them. One integer or boolean per row is a label. Floats are
    /// [targets](Self::with_targets), and their other axes are the targets of a row.
    ///
    /// ```
    /// use highwater::data::ArrayDataset;
    /// use highwater::io::{Array, NpyLimits, read_npz, write_npz};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("digits.npz");
    /// # let digits = [("images".to_owned(), Array::from_slice(&[0u8; 3 * 8 * 8], [3, 8, 8])?),
    /// #     ("labels".to_owned(), Array::from_slice(&[7i64, 1, 9], [3])?)];
    /// # write_npz(&path, &digits.into_iter().collect())?;
    /// // numpy.savez("digits.npz", images=images, labels=labels)
    /// let file = read_npz(&path, &NpyLimits::default())?.arrays;
    /// let data = ArrayDataset::from_arrays(&file["images"], Some(&file["labels"]))?.scaled(1.0 / 255.0);
    /// assert_eq!((data.rows(), data.width(), data.labels()), (3, 64, &[7, 1, 9][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadRank`] for an array without axes, [`Error::BadArgument`] for rows without features, for labels or
    /// targets of another number of rows, and for several labels per row; [`Error::NoHostMemory`] if host memory runs
    /// out.
    pub fn from_arrays(features: &Array, answers: Option<&Array>) -> Result<Self> {
        let bad = |argument, expected, got: &Array| {
            let got = format!("{} of shape {} for {} features", got.dtype(), got.shape(), features.shape());
            Err(Error::BadArgument { op: OP, argument, expected, got })
        };
        let [rows, of_row @ ..] = features.shape().dims() else {
            return Err(Error::BadRank { op: OP, expected: "at least one axis", shape: *features.shape() });
        };
        // The product fits into memory, unless there are no rows.
        let count = |sizes: &[usize]| sizes.iter().fold(1, |count: usize, &size| count.saturating_mul(size));
        let rows = *rows;
        let shape = if of_row.is_empty() { Shape::new(&[1])? } else { Shape::new(of_row)? };
        if shape.checked_elements().is_none_or(|width| width == 0) {
            return bad("features", "at least one for each row", features);
        }
        let values = converted!(features, f32)?;
        let Some(answers) = answers else {
            return Ok(Self::from_rows(values, Answers::default(), rows, shape));
        };
        let (answered, of_answer) = match answers.shape().dims() {
            [first, rest @ ..] => (*first, count(rest)),
            [] => return bad("answers", "some for each row", answers),
        };
        if answered != rows || of_answer == 0 {
            return bad("answers", "some for each row", answers);
        }
        let answers = if answers.dtype().is_float() {
            Answers::Targets { values: converted!(answers, f32)?, width: of_answer }
        } else if of_answer == 1 {
            Answers::Labels(converted!(answers, i64)?)
        } else {
            return bad("answers", "one label for each row, or floats", answers);
        };
        Ok(Self::from_rows(values, answers, rows, shape))
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use highwater_tensor::{Element, IntoShape};

    fn array<T: Element>(values: &[T], shape: impl IntoShape) -> Array {
        Array::from_slice(values, shape).unwrap()
    }

    #[test]
    fn features_and_targets_convert_from_every_type() {
        let features = [
            array(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]),
            array(&[1.0f64, 2.0, 3.0, 4.0], [2, 1, 2]),
            array(&[1.0, 2.0, 3.0, 4.0].map(f16::from_f32), [2, 2]),
            array(&[1i64, 2, 3, 4], [2, 2]),
            array(&[1i32, 2, 3, 4], [2, 2, 1]),
            array(&[1u8, 2, 3, 4], [2, 2]),
        ];
        for features in features {
            let data = ArrayDataset::from_arrays(&features, None).unwrap();
            assert_eq!((data.rows(), data.width(), data.labels()), (2, 2, &[][..]));
            assert_eq!(data.features(), [1.0, 2.0, 3.0, 4.0], "{features:?}");
        }
        let rows = array(&[0.5f32, 1.5], 2);
        for labels in [array(&[3u8, 1], 2), array(&[3i32, 1], [2, 1]), array(&[3i64, 1], 2)] {
            assert_eq!(ArrayDataset::from_arrays(&rows, Some(&labels)).unwrap().labels(), [3, 1]);
        }
        assert_eq!(
            ArrayDataset::from_arrays(&rows, Some(&array(&[true, false], 2))).unwrap().labels(),
            [1, 0]
        );
        let targets = array(&[1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]);
        let data = ArrayDataset::from_arrays(&rows, Some(&targets)).unwrap();
        assert_eq!((data.target_width(), data.targets()), (3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..]));
    }

    #[test]
    fn arrays_that_make_no_rows_are_refused() {
        let rows = array(&[0.5f32, 1.5], 2);
        let scalar = array(&[1.0f32], ());
        assert!(matches!(ArrayDataset::from_arrays(&scalar, None), Err(Error::BadRank { .. })));
        let without = array::<f32>(&[], [2, 0]);
        for (features, answers, argument) in [
            (&without, None, "features"),
            (&rows, Some(array(&[1i64, 2, 3], 3)), "answers"),
            (&rows, Some(array(&[1i64], ())), "answers"),
            (&rows, Some(array(&[1i64, 2, 3, 4], [2, 2])), "answers"),
            (&rows, Some(array::<f32>(&[], [2, 0])), "answers"),
        ] {
            let error = ArrayDataset::from_arrays(features, answers.as_ref()).unwrap_err();
            assert!(matches!(&error, Error::BadArgument { argument: a, .. } if *a == argument), "{error}");
        }
        let none =
            ArrayDataset::from_arrays(&array::<f32>(&[], [0, 3]), Some(&array::<i64>(&[], 0))).unwrap();
        assert_eq!((none.rows(), none.width()), (0, 3));
    }
}
