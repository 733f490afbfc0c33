//! Compares ops with NumPy, whose results `reference/make_ops.py` wrote. Each case runs with contiguous
//! inputs, with transposed inputs, and with gaps between elements.

use crate::ops_table::{InOrder, Lies, Transposed, WithGaps, device};
use highwater_tensor::{
    AttentionOptions, CrossEntropyOptions, DType, Device, IntoAxisIndex, Norm, PadMode, Reduction, Result,
    SortOrder, Tensor,
};
use serde_json::Value;

const CASES: &str = include_str!("../reference/ops.json");

/// Values with their shape, as in the file.
struct Numbers {
    dtype: &'static str,
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Numbers {
    fn new(json: &Value) -> Self {
        let dtype = ["f64", "i64", "bool"].into_iter().find(|&name| json[0] == name).unwrap();
        let shape = json[1].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect();
        let number = |value: &Value| match value {
            Value::Bool(value) => f64::from(u8::from(*value)),
            Value::String(word) => word.parse().unwrap(),
            value => value.as_f64().unwrap(),
        };
        Self { dtype, shape, values: json[2].as_array().unwrap().iter().map(number).collect() }
    }

    /// Returns the tensor with the requested memory layout.
    fn tensor(&self, device: &Device, lies: Lies) -> Tensor {
        let dtype = match self.dtype {
            "f64" => DType::F64,
            "i64" => DType::I64,
            _ => DType::Bool,
        };
        let tensor = Tensor::from_slice(device, &self.values, &self.shape[..]).unwrap();
        let tensor = tensor.to_dtype(dtype).unwrap();
        let rank = self.shape.len() as isize;
        match lies {
            Transposed => {
                let axes: Vec<isize> = (0..rank).rev().collect();
                tensor.permute(&axes).unwrap().contiguous().unwrap().permute(&axes).unwrap()
            }
            WithGaps if rank > 0 => {
                let doubled = Tensor::stack(&[&tensor, &tensor], -1).unwrap();
                doubled.narrow(-1, 1, 1).unwrap().squeeze(-1).unwrap()
            }
            _ => tensor,
        }
    }

    #[track_caller]
    fn assert_like(&self, tensor: &Tensor, name: &str) {
        assert_eq!(tensor.dims(), self.shape, "{name}");
        assert_eq!(tensor.dtype().name(), self.dtype, "{name}");
        let values = tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
        for (left, right) in values.iter().zip(&self.values) {
            let same = left == right || left.is_nan() && right.is_nan();
            let close = (left - right).abs() <= 1e-12 * right.abs().max(1.0);
            assert!(same || close, "{name}: {left} for {right}");
        }
    }
}

fn reduction(word: &str) -> Reduction {
    match word {
        "mean" => Reduction::Mean,
        "sum" => Reduction::Sum,
        "none" => Reduction::None,
        _ => panic!("{word}"),
    }
}

/// Returns the axes that a word of digits names.
fn axes(word: &str) -> Vec<isize> {
    word.bytes().map(|digit| isize::from(digit as i8 - b'0' as i8)).collect()
}

/// Runs the case that `name` describes.
fn run(name: &str, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let words: Vec<&str> = name.split(' ').collect();
    let number = |word: &str| word.parse::<isize>().unwrap();
    let both = |(values, indices)| vec![values, indices];
    let one = |tensor: Result<Tensor>| tensor.map(|tensor| vec![tensor]);
    let cross_entropy = |options: CrossEntropyOptions<'_>, word| {
        let options = CrossEntropyOptions { reduction: reduction(word), ..options };
        x[0].cross_entropy_with(&x[1], options)
    };
    let plain = CrossEntropyOptions::default();
    one(match words[..] {
        ["l1", word] => x[0].l1_loss_with(&x[1], reduction(word)),
        ["mse", word] => x[0].mse_loss_with(&x[1], reduction(word)),
        ["huber", word] => x[0].huber_loss_with(&x[1], 0.7, reduction(word)),
        ["bce", word] => x[0].bce_with_logits_with(&x[1], reduction(word)),
        ["kl", word] => x[0].kl_div_with(&x[1], reduction(word)),
        ["cross", "entropy", word] => cross_entropy(plain, word),
        ["cross", "entropy", "smoothed", word] => {
            cross_entropy(CrossEntropyOptions { label_smoothing: 0.1, ..plain }, word)
        }
        ["cross", "entropy", "ignoring", word] => {
            cross_entropy(CrossEntropyOptions { ignore_index: Some(-1), ..plain }, word)
        }
        ["cross", "entropy", "weighted", word] => {
            cross_entropy(CrossEntropyOptions { class_weights: Some(&x[2]), ..plain }, word)
        }
        ["cross", "entropy", "everything", word] => {
            let (class_weights, ignore_index) = (Some(&x[2]), Some(-1));
            let options = CrossEntropyOptions { label_smoothing: 0.3, class_weights, ignore_index, ..plain };
            cross_entropy(options, word)
        }
        ["prod", word] => x[0].prod(&axes(word)[..]),
        ["var", correction, word] => x[0].var(&axes(word)[..], number(correction) as usize),
        ["std", correction, word] => x[0].std(&axes(word)[..], number(correction) as usize),
        ["logsumexp", word] => x[0].logsumexp(&axes(word)[..]),
        ["norm", "one", word] => x[0].norm(Norm::L1, &axes(word)[..]),
        ["norm", "two", word] => x[0].norm(Norm::L2, &axes(word)[..]),
        ["norm", "max", word] => x[0].norm(Norm::Max, &axes(word)[..]),
        ["cumsum", axis] => x[0].cumsum(number(axis)),
        ["pad"] => x[0].pad([(1, 0), (2, 3)], 0.5),
        ["pad_with", mode, ref widths @ ..] => {
            let mode = match mode {
                "reflect" => PadMode::Reflect,
                "edge" => PadMode::Replicate,
                "wrap" => PadMode::Circular,
                _ => panic!("{mode}"),
            };
            let widths: Vec<usize> = widths.iter().map(|word| number(word) as usize).collect();
            let pairs: Vec<(usize, usize)> = widths.chunks(2).map(|pair| (pair[0], pair[1])).collect();
            x[0].pad_with(&pairs, mode)
        }
        ["flip", word] => x[0].flip(&axes(word)[..]),
        ["roll", shift, axis] => x[0].roll(number(shift), number(axis)),
        ["tile", ref times @ ..] => {
            x[0].tile(times.iter().map(|word| number(word) as usize).collect::<Vec<_>>())
        }
        ["repeat_interleave", axis, times] => x[0].repeat_interleave(number(axis), number(times) as usize),
        ["tril", diagonal] => x[0].tril(number(diagonal)),
        ["triu", diagonal] => x[0].triu(number(diagonal)),
        ["masked_fill"] => x[0].masked_fill(&x[1], 0.25),
        ["scatter_add", axis] => x[0].scatter_add(number(axis), &x[1], &x[2]),
        ["at", "1:5:2,", "-1"] => x[0].at(((1..5).every(2), -1)),
        ["at", "-3:,", ":-1"] => x[0].at((-3.., ..-1)),
        ["at", "2"] => x[0].at(2),
        ["at", "-4..=-2,", "::3"] => x[0].at((-4..=-2, (..).every(3))),
        ["split", size] => return x[0].split(0, number(size) as usize),
        ["split_sizes", ref sizes @ ..] => {
            let sizes: Vec<usize> = sizes.iter().map(|word| number(word) as usize).collect();
            return x[0].split_sizes(0, &sizes);
        }
        ["chunk", count] => return x[0].chunk(0, number(count) as usize),
        ["chunk", "1", "of", "3", "columns"] => return x[0].chunk(1, 3),
        ["argsort", axis] => x[0].argsort(number(axis), SortOrder::Ascending),
        ["sort", axis] => return x[0].sort(number(axis), SortOrder::Ascending).map(both),
        ["sort", "down", axis] => return x[0].sort(number(axis), SortOrder::Descending).map(both),
        ["top", k, axis] => {
            return x[0].top_k(number(k) as usize, number(axis), SortOrder::Descending).map(both);
        }
        ["diagonal", offset, first, second] => x[0].diagonal(number(offset), number(first), number(second)),
        ["attention", ref words @ ..] => {
            let options = AttentionOptions { causal: words.contains(&"causal"), ..Default::default() };
            x[0].attention(&x[1], &x[2], x.get(3), options)
        }
        ["einsum", equation] => Tensor::einsum(equation, &x.iter().collect::<Vec<_>>()),
        _ => panic!("unknown op: {name}"),
    })
}

#[test]
fn ops_give_what_numpy_gives_however_their_inputs_lie() {
    let device = device();
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    assert!(cases.len() > 200);
    for case in &cases {
        let name = case[0].as_str().unwrap();
        let numbers = |part: &Value| part.as_array().unwrap().iter().map(Numbers::new).collect::<Vec<_>>();
        let (inputs, expected) = (numbers(&case[1]), numbers(&case[2]));
        for lies in [InOrder, Transposed, WithGaps] {
            let inputs: Vec<Tensor> = inputs.iter().map(|input| input.tensor(&device, lies)).collect();
            let outputs = run(name, &inputs).unwrap();
            assert_eq!(outputs.len(), expected.len(), "{name}");
            for (output, expected) in outputs.iter().zip(&expected) {
                expected.assert_like(output, &format!("{name}, {lies:?}"));
            }
        }
    }
}
