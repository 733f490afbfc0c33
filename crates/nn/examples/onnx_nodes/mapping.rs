//! Maps ONNX nodes to Highwater's ops and their options.

use highwater_nn::modules::{BatchNorm, Dropout, Module};
use highwater_tensor::{
    AttentionOptions, Conv1dOptions, Conv2dOptions, CrossEntropyOptions, DType, Device, Error, KernelError,
    Norm, PadMode, Pool1dOptions, Pool2dOptions, Reduction, Rng, Scalar, SortOrder, Tensor, evaluating,
};

use crate::case::Case;
use crate::recurrent;

/// The reason why a case did not produce a result.
#[derive(Debug)]
pub(crate) enum NotAsked {
    /// Highwater does not support the op, or rejects its options.
    Because(String),
    /// The op failed, so the case fails.
    Op(Error),
}

impl From<KernelError> for NotAsked {
    fn from(error: KernelError) -> Self {
        Error::from(error).into()
    }
}

impl From<Error> for NotAsked {
    fn from(error: Error) -> Self {
        match error {
            Error::UnsupportedDType { dtype, .. } => because(format!("not defined for {dtype}")),
            Error::BadEquation { reason, .. } => because(reason),
            Error::EmptyReduction { .. } => because("the extreme of nothing"),
            Error::IndexOutOfRange { .. } => because("an index out of range"),
            Error::BadArgument { argument: "options", expected, .. } => because(expected),
            error => Self::Op(error),
        }
    }
}

pub(crate) fn because(reason: impl Into<String>) -> NotAsked {
    NotAsked::Because(reason.into())
}

pub(crate) type Outcome<T = Tensor> = Result<T, NotAsked>;

/// A node with its inputs on a device.
pub(crate) struct Node<'a> {
    pub(crate) case: &'a Case,
    inputs: Vec<Option<Tensor>>,
}

impl<'a> Node<'a> {
    pub(crate) fn new(device: &Device, case: &'a Case) -> Outcome<Self> {
        let tensors =
            case.inputs.iter().map(|input| input.as_ref().map(|input| input.tensor(device)).transpose());
        Ok(Self { case, inputs: tensors.collect::<Result<_, _>>()? })
    }

    /// Returns an input, or `None` if the node omits it.
    pub(crate) fn given(&self, index: usize) -> Option<&Tensor> {
        self.inputs.get(index).and_then(Option::as_ref)
    }

    pub(crate) fn input(&self, index: usize) -> Outcome<&Tensor> {
        self.given(index).ok_or_else(|| because("an input is left out"))
    }

    /// Returns all inputs.
    fn all(&self) -> Vec<&Tensor> {
        self.inputs.iter().flatten().collect()
    }

    /// Rejects attributes with unsupported values.
    pub(crate) fn only(&self, name: &str, value: i64) -> Outcome<()> {
        if self.case.whole(name, value) == value { Ok(()) } else { Err(because(format!("option {name}"))) }
    }

    /// The result of folding all inputs.
    fn folded(&self, f: fn(&Tensor, &Tensor) -> highwater_tensor::Result<Tensor>) -> Outcome {
        let inputs = self.all();
        Ok(inputs[1..].iter().try_fold(inputs[0].clone(), |folded, next| f(&folded, next))?)
    }

    /// The axes of a reduction; `None` if nothing is reduced.
    fn axes(&self, rank: usize) -> Option<Vec<isize>> {
        let named = self.case.list("axes").or_else(|| self.case.given_list(1)).unwrap_or_default();
        if named.is_empty() {
            return (self.case.whole("noop_with_empty_axes", 0) == 0).then(|| (0..rank as isize).collect());
        }
        Some(named.into_iter().map(|axis| axis as isize).collect())
    }

    /// A reduction, which is given the axes and keeps them.
    fn reduced(&self, f: impl Fn(&Tensor, &[isize]) -> highwater_tensor::Result<Tensor>) -> Outcome {
        let x = self.input(0)?;
        let Some(mut axes) = self.axes(x.rank()) else { return Ok(f(x, &[])?) };
        let kept = f(x, &axes)?;
        if self.case.whole("keepdims", 1) == 1 {
            return Ok(kept);
        }
        for axis in axes.iter_mut().filter(|axis| **axis < 0) {
            *axis += x.rank() as isize;
        }
        axes.sort_unstable();
        Ok(axes.iter().rev().try_fold(kept, |kept, &axis| kept.squeeze(axis))?)
    }

    /// The indices of an input, counted from the front of an axis.
    fn indices(&self, index: usize, len: usize) -> Outcome {
        let indices = self.input(index)?;
        let values = indices.to_vec::<i64>()?.into_iter().map(|i| if i < 0 { i + len as i64 } else { i });
        Ok(Tensor::from_slice(indices.device(), &values.collect::<Vec<_>>(), indices.shape())?)
    }

    /// A pair of an attribute, for height and width; along one axis the first is 1 place or 0.
    fn pair(&self, name: &str, default: usize) -> Outcome<[usize; 2]> {
        match self.case.list(name).as_deref() {
            None => Ok([default; 2]),
            Some(&[width]) => Ok([usize::from(name != "pads"), width as usize]),
            Some(&[height, width]) => Ok([height as usize, width as usize]),
            _ => Err(because("more than two axes")),
        }
    }

    /// The padding of height and width, if it is the same on both sides.
    fn padding(&self) -> Outcome<[usize; 2]> {
        if !matches!(self.case.word("auto_pad", "NOTSET"), "NOTSET" | "VALID") {
            return Err(because("option auto_pad"));
        }
        match self.case.list("pads").as_deref() {
            None => Ok([0, 0]),
            Some(&[before, after]) if before == after => Ok([0, before as usize]),
            Some(&[top, left, bottom, right]) if [top, left] == [bottom, right] => {
                Ok([top as usize, left as usize])
            }
            _ => Err(because("padding of one side")),
        }
    }

    /// A pool over height and width, or over the width alone.
    fn pool(&self) -> Outcome<Pool2dOptions> {
        self.only("ceil_mode", 0)?;
        if self.pair("dilations", 1)? != [1, 1] {
            return Err(because("option dilations"));
        }
        if !matches!(self.input(0)?.rank(), 3 | 4) {
            return Err(because("more than two axes"));
        }
        Ok(Pool2dOptions {
            size: self.pair("kernel_shape", 1)?,
            stride: self.pair("strides", 1)?,
            padding: self.padding()?,
            ..Pool2dOptions::square(1)
        })
    }

    /// A pool over the width alone.
    fn pool1d(&self) -> Outcome<Pool1dOptions> {
        let Pool2dOptions { size, stride, padding, ceil_mode, count_include_pad } = self.pool()?;
        let (size, stride, padding) = (size[1], stride[1], padding[1]);
        Ok(Pool1dOptions { size, stride, padding, ceil_mode, count_include_pad })
    }

    /// A convolution over the width alone.
    fn conv1d(&self) -> Outcome<Conv1dOptions> {
        let Conv2dOptions { stride, dilation, groups, .. } = self.conv()?;
        let padding = self.padding()?[1].into();
        Ok(Conv1dOptions { stride: stride[1], padding, dilation: dilation[1], groups })
    }

    fn conv(&self) -> Outcome<Conv2dOptions> {
        if self.case.list("output_shape").is_some() {
            return Err(because("option output_shape"));
        }
        Ok(Conv2dOptions {
            stride: self.pair("strides", 1)?,
            padding: self.padding()?.into(),
            dilation: self.pair("dilations", 1)?,
            groups: self.case.whole("group", 1) as usize,
            output_padding: self.pair("output_padding", 0)?,
        })
    }

    /// The result of a convolution with its bias, which is the third input.
    fn with_bias(&self, result: Tensor) -> Outcome {
        let Some(bias) = self.given(2) else { return Ok(result) };
        let mut shape = vec![1; result.rank() - 1];
        shape[0] = bias.elements();
        Ok(result.add(&bias.reshape(shape)?)?)
    }

    fn axis(&self, default: i64) -> isize {
        self.case.whole("axis", default) as isize
    }

    /// Everything from an axis on as one, normalized, then as before.
    fn normalized(&self, f: impl Fn(&Tensor, &[Tensor], f64) -> highwater_tensor::Result<Tensor>) -> Outcome {
        let x = self.input(0)?;
        let flat = x.flatten_from(self.axis(-1))?;
        let parameters =
            self.all()[1..].iter().map(|part| part.flatten_from(0)).collect::<Result<Vec<_>, _>>()?;
        let epsilon = self.case.float("epsilon").unwrap_or(1e-5);
        Ok(f(&flat, &parameters, epsilon)?.reshape(x.shape())?)
    }
}

/// Runs Highwater's ops for a node. Returns all its outputs, or the first of them.
pub(crate) fn run(node: &Node<'_>) -> Outcome<Vec<Tensor>> {
    let case = node.case;
    if node.inputs.is_empty() {
        return Err(because("no inputs"));
    }
    let x = node.input(0)?;
    Ok(vec![match case.op.as_str() {
        "Abs" => x.abs()?,
        "Neg" => x.neg()?,
        "Exp" => x.exp()?,
        "Log" => x.log()?,
        "Sqrt" => x.sqrt()?,
        "Reciprocal" => x.recip()?,
        "Sigmoid" => x.sigmoid()?,
        "Tanh" => x.tanh()?,
        "Relu" => x.relu()?,
        "LeakyRelu" => x.leaky_relu(case.float("alpha").unwrap_or(0.01))?,
        "Softplus" => x.softplus()?,
        "Sin" => x.sin()?,
        "Cos" => x.cos()?,
        "Sign" => x.sign()?,
        "Floor" => x.floor()?,
        "Ceil" => x.ceil()?,
        "Round" => x.round()?,
        "IsNaN" => x.is_nan()?,
        "Gelu" if case.word("approximate", "none") == "tanh" => x.gelu_tanh()?,
        "Gelu" => x.gelu()?,
        "Identity" => x.clone(),
        "Clip" => clip(node, x)?,
        "Add" => x.add(node.input(1)?)?,
        "Sub" => x.sub(node.input(1)?)?,
        "Mul" => x.mul(node.input(1)?)?,
        "Div" => x.div(node.input(1)?)?,
        // Made in the type that both promote to; the result is of the base's.
        "Pow" => x.pow(node.input(1)?)?.to_dtype(x.dtype())?,
        "Max" => node.folded(Tensor::maximum)?,
        "Min" => node.folded(Tensor::minimum)?,
        "Sum" => node.folded(Tensor::add)?,
        "Mean" => node.folded(Tensor::add)?.div_scalar(node.all().len() as f64)?,
        "And" => x.logical_and(node.input(1)?)?,
        "Or" => x.logical_or(node.input(1)?)?,
        "Xor" => x.logical_xor(node.input(1)?)?,
        "Not" => x.logical_not()?,
        "Swish" if case.float("alpha").unwrap_or(1.0) == 1.0 => x.silu()?,
        "Cast" => x.to_dtype(cast_to(case)?)?,
        "Dropout" => return dropout(node, x),
        "Range" => range(node, x)?,
        "Equal" => x.eq(node.input(1)?)?,
        "Greater" => x.gt(node.input(1)?)?,
        "GreaterOrEqual" => x.ge(node.input(1)?)?,
        "Less" => x.lt(node.input(1)?)?,
        "LessOrEqual" => x.le(node.input(1)?)?,
        "Where" => x.where_(node.input(1)?, node.input(2)?)?,
        "ReduceSum" => node.reduced(|x, axes| x.sum_keepdim(axes))?,
        "ReduceMean" => node.reduced(|x, axes| x.mean_keepdim(axes))?,
        "ReduceMax" if x.dtype() == DType::Bool => node.reduced(|x, axes| x.any_keepdim(axes))?,
        "ReduceMin" if x.dtype() == DType::Bool => node.reduced(|x, axes| x.all_keepdim(axes))?,
        "ReduceMax" => node.reduced(|x, axes| x.max_keepdim(axes))?,
        "ReduceMin" => node.reduced(|x, axes| x.min_keepdim(axes))?,
        "ReduceProd" => node.reduced(|x, axes| x.prod_keepdim(axes))?,
        "ReduceL1" => node.reduced(|x, axes| x.norm_keepdim(Norm::L1, axes))?,
        "ReduceL2" => node.reduced(|x, axes| x.norm_keepdim(Norm::L2, axes))?,
        "ReduceSumSquare" => node.reduced(|x, axes| x.square()?.sum_keepdim(axes))?,
        "ReduceLogSum" => node.reduced(|x, axes| x.sum_keepdim(axes)?.log())?,
        "ReduceLogSumExp" => node.reduced(|x, axes| x.logsumexp_keepdim(axes))?,
        "ArgMax" | "ArgMin" => {
            node.only("select_last_index", 0)?;
            let axis = node.axis(0);
            let found = if case.op == "ArgMax" { x.argmax(axis)? } else { x.argmin(axis)? };
            let place = if axis < 0 { axis + x.rank() as isize } else { axis };
            if case.whole("keepdims", 1) == 1 { found.unsqueeze(place)? } else { found }
        }
        "CumSum" => cumsum(node, x)?,
        "Softmax" => x.softmax(node.axis(-1))?,
        "LogSoftmax" => x.log_softmax(node.axis(-1))?,
        "MatMul" => x.matmul(node.input(1)?)?,
        "MatMulInteger" => {
            from_zero_point(x, node.given(2))?.matmul(&from_zero_point(node.input(1)?, node.given(3))?)?
        }
        "Gemm" => gemm(node, x)?,
        "Einsum" => Tensor::einsum(case.word("equation", ""), &node.all())?,
        "LayerNormalization" => node.normalized(|x, p, epsilon| match p {
            [weight, bias] => x.layer_norm(Some((weight, bias)), epsilon),
            [weight] => x.layer_norm(None, epsilon)?.mul(weight),
            _ => x.layer_norm(None, epsilon),
        })?,
        "RMSNormalization" => node.normalized(|x, p, epsilon| x.rms_norm(p.first(), epsilon))?,
        "GroupNormalization" | "InstanceNormalization" => {
            let groups = case.whole("num_groups", x.dims()[1] as i64) as usize;
            x.group_norm(
                groups,
                Some((node.input(1)?, node.input(2)?)),
                case.float("epsilon").unwrap_or(1e-5),
            )?
        }
        "BatchNormalization" if case.whole("training_mode", 0) == 0 => batch_norm(node, x)?,
        "Conv" if x.rank() == 4 => node.with_bias(x.conv2d(node.input(1)?, node.conv()?)?)?,
        "Conv" if x.rank() == 3 => node.with_bias(x.conv1d(node.input(1)?, node.conv1d()?)?)?,
        "ConvTranspose" if x.rank() == 4 => {
            node.with_bias(x.conv_transpose2d(node.input(1)?, node.conv()?)?)?
        }
        "MaxPool" if case.outputs.len() == 1 && x.rank() == 3 => x.max_pool1d(node.pool1d()?)?,
        "MaxPool" if case.outputs.len() == 1 => x.max_pool2d(node.pool()?)?,
        "AveragePool" => {
            let options = node.pool()?;
            if options.padding != [0, 0] && case.whole("count_include_pad", 0) != 1 {
                return Err(because("padding that does not count"));
            }
            if x.rank() == 3 { x.avg_pool1d(node.pool1d()?)? } else { x.avg_pool2d(options)? }
        }
        "GlobalAveragePool" => x.mean_keepdim(&(2..x.rank() as isize).collect::<Vec<_>>()[..])?,
        "GlobalMaxPool" => x.max_keepdim(&(2..x.rank() as isize).collect::<Vec<_>>()[..])?,
        "Attention" => attention(node, x)?,
        "Gather" => gather(node, x)?,
        "GatherElements" => {
            let axis = node.axis(0);
            x.gather(axis, &node.indices(1, x.dims()[x.shape().axis("gather", axis)?])?)?
        }
        "ScatterElements" if case.word("reduction", "none") == "add" => {
            let axis = node.axis(0);
            let indices = node.indices(1, x.dims()[x.shape().axis("scatter_add", axis)?])?;
            x.scatter_add(axis, &indices, node.input(2)?)?
        }
        "OneHot" => one_hot(node, x)?,
        "Concat" => Tensor::concat(&node.all(), node.axis(0))?,
        "Split" => return split(node, x),
        "Slice" => slice(node, x)?,
        "Pad" => pad(node, x)?,
        "Tile" => {
            let times = case.given_list(1).unwrap_or_default();
            x.tile(times.into_iter().map(|times| times as usize).collect::<Vec<_>>())?
        }
        "Expand" => expand(node, x)?,
        "Transpose" => {
            let reversed = || (0..x.rank() as i64).rev().collect();
            let axes = case.list("perm").unwrap_or_else(reversed);
            x.permute(axes.into_iter().map(|axis| axis as isize).collect::<Vec<_>>())?
        }
        "Reshape" => reshape(node, x)?,
        "Flatten" => {
            let axis = case.whole("axis", 1);
            let axis = if axis < 0 { axis + x.rank() as i64 } else { axis } as usize;
            x.reshape([x.dims()[..axis].iter().product(), x.dims()[axis..].iter().product::<usize>()])?
        }
        "Squeeze" => squeeze(node, x)?,
        "Unsqueeze" => unsqueeze(node, x)?,
        "Trilu" => {
            let diagonal = case.given_number(1).unwrap_or(0.0) as isize;
            if case.whole("upper", 1) == 1 { x.triu(diagonal)? } else { x.tril(diagonal)? }
        }
        "TopK" => {
            let k = case.given_number(1).unwrap_or(0.0) as usize;
            let order =
                if case.whole("largest", 1) == 1 { SortOrder::Descending } else { SortOrder::Ascending };
            let (values, indices) = x.top_k(k, node.axis(-1), order)?;
            return Ok(vec![values, indices]);
        }
        "GRU" => return recurrent::gru(node),
        "LSTM" => return recurrent::lstm(node),
        "RNN" => return recurrent::rnn(node),
        "SoftmaxCrossEntropyLoss" => return cross_entropy(node, x),
        _ => return Err(because("not mapped")),
    }])
}

/// Returns the element type for a number of ONNX.
fn cast_to(case: &Case) -> Outcome<DType> {
    Ok(match case.whole("to", 0) {
        1 => DType::F32,
        2 => DType::U8,
        // As in the cases, of which there is none beyond 32 bits.
        6 | 7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        16 => DType::BF16,
        other => return Err(because(format!("type number {other}"))),
    })
}

/// Dropout at inference, which drops nothing.
fn dropout(node: &Node<'_>, x: &Tensor) -> Outcome<Vec<Tensor>> {
    if node.case.given_number(2).unwrap_or(0.0) != 0.0 {
        return Err(because("random"));
    }
    let layer = Dropout::new(node.case.given_number(1).unwrap_or(0.5), &Rng::new(0))?;
    let kept = evaluating(|| layer.forward(x))?;
    let all = x.eq(x)?;
    Ok([kept, all].into_iter().take(node.case.outputs.len()).collect())
}

fn range(node: &Node<'_>, start: &Tensor) -> Outcome {
    let [start, end, step] = [start, node.input(1)?, node.input(2)?].map(|part| part.to_dtype(DType::F64));
    let [start, end, step] = [start?.item::<f64>()?, end?.item::<f64>()?, step?.item::<f64>()?];
    let count = ((end - start) / step).ceil().max(0.0) as usize;
    let x = node.input(0)?;
    let places = Tensor::arange(x.device(), 0, count)?.to_dtype(DType::F64)?;
    Ok(places.mul_scalar(step)?.add_scalar(start)?.to_dtype(x.dtype())?)
}

/// Batch normalization at inference, with running means.
fn batch_norm(node: &Node<'_>, x: &Tensor) -> Outcome {
    let epsilon = node.case.float("epsilon").unwrap_or(1e-5);
    let norm = BatchNorm::new(x.device(), x.dims()[1])?.with_epsilon(epsilon);
    let names = ["weight", "bias", "running_mean", "running_var"];
    for (path, parameter) in norm.parameters().into_iter().chain(norm.buffers()) {
        let number = names.iter().position(|name| *name == path).unwrap_or(0);
        parameter.set(node.input(number + 1)?)?;
    }
    Ok(evaluating(|| norm.forward(x))?)
}

fn clip(node: &Node<'_>, x: &Tensor) -> Outcome {
    let bound = |index, none: Scalar| match node.case.given_number(index) {
        None => none,
        Some(bound) if x.dtype().is_float() => Scalar::Float(bound),
        Some(bound) => Scalar::Int(bound as i64),
    };
    let (least, most) = match x.dtype() {
        DType::I64 => (Scalar::Int(i64::MIN), Scalar::Int(i64::MAX)),
        DType::U8 => (Scalar::Int(0), Scalar::Int(255)),
        _ => (Scalar::Float(f64::NEG_INFINITY), Scalar::Float(f64::INFINITY)),
    };
    let (low, high) = (bound(1, least), bound(2, most));
    if low.as_f64() > high.as_f64() {
        return Err(because("bounds in the wrong order"));
    }
    Ok(x.clamp(low, high)?)
}

fn cumsum(node: &Node<'_>, x: &Tensor) -> Outcome {
    let axis = node.case.given_number(1).unwrap_or(0.0) as isize;
    let reverse = node.case.whole("reverse", 0) == 1;
    let x = if reverse { x.flip(axis)? } else { x.clone() };
    let sums = x.cumsum(axis)?;
    let sums = if node.case.whole("exclusive", 0) == 1 { sums.sub(&x)? } else { sums };
    Ok(if reverse { sums.flip(axis)? } else { sums })
}

/// Dequantizes bytes: subtracts the zero point.
fn from_zero_point(bytes: &Tensor, zero: Option<&Tensor>) -> Outcome {
    let counted = bytes.to_dtype(DType::I64)?;
    Ok(match zero {
        Some(zero) => counted.sub(&zero.to_dtype(DType::I64)?)?,
        None => counted,
    })
}

fn gemm(node: &Node<'_>, x: &Tensor) -> Outcome {
    let turned = |x: &Tensor, name| if node.case.whole(name, 0) == 1 { x.t() } else { Ok(x.clone()) };
    let product = turned(x, "transA")?.matmul(&turned(node.input(1)?, "transB")?)?;
    let product = product.mul_scalar(node.case.float("alpha").unwrap_or(1.0))?;
    let Some(addend) = node.given(2) else { return Ok(product) };
    Ok(product.add(&addend.mul_scalar(node.case.float("beta").unwrap_or(1.0))?)?)
}

fn attention(node: &Node<'_>, x: &Tensor) -> Outcome {
    let (case, [key, value]) = (node.case, [node.input(1)?, node.input(2)?]);
    let plain = x.rank() == 4
        && key.dims()[1] == x.dims()[1]
        && case.outputs.len() == 1
        && node.inputs.iter().skip(4).all(Option::is_none)
        && case.has_only(&["is_causal", "scale"]);
    if !plain {
        return Err(because("other than plain attention"));
    }
    let causal = case.whole("is_causal", 0) == 1;
    let options = AttentionOptions { causal, scale: case.float("scale") };
    let sizes = [x.dims()[2], key.dims()[2]];
    if !causal || sizes[0] == sizes[1] {
        return Ok(x.attention(key, value, node.given(3), options)?);
    }
    // In ONNX, query i sees the keys 0 to i, also if there are more keys.
    let hidden = Tensor::ones(x.device(), sizes)?.tril(0)?.eq(0)?;
    let mask = match node.given(3) {
        None => hidden.logical_not()?,
        Some(mask) if mask.dtype() == DType::Bool => mask.logical_and(&hidden.logical_not()?)?,
        Some(mask) => mask.masked_fill(&hidden, f64::NEG_INFINITY)?,
    };
    Ok(x.attention(key, value, Some(&mask), AttentionOptions { causal: false, ..options })?)
}

fn gather(node: &Node<'_>, x: &Tensor) -> Outcome {
    let axis = x.shape().axis("index_select", node.axis(0))?;
    let indices = node.indices(1, x.dims()[axis])?;
    let picked = x.index_select(axis as isize, &indices.flatten_from(0).or_else(|_| indices.reshape(1))?)?;
    Ok(picked.reshape([&x.dims()[..axis], indices.dims(), &x.dims()[axis + 1..]].concat())?)
}

fn one_hot(node: &Node<'_>, x: &Tensor) -> Outcome {
    let depth = node.case.given_number(1).unwrap_or(0.0) as usize;
    let whole = x.to_dtype(DType::I64)?.to_vec::<i64>()?.into_iter();
    let places: Vec<i64> = whole.map(|i| if i < 0 { i + depth as i64 } else { i }).collect();
    let values = node.input(2)?;
    let hot = Tensor::from_slice(x.device(), &places, x.shape())?.one_hot(depth)?.to_dtype(DType::Bool)?;
    let chosen = hot.where_(&values.at(1)?, &values.at(0)?)?;
    let rank = chosen.rank() as isize;
    let axis = node.axis(-1).rem_euclid(rank);
    let axes: Vec<isize> =
        (0..rank - 1).take(axis as usize).chain([rank - 1]).chain(axis..rank - 1).collect();
    Ok(chosen.permute(&axes)?)
}

fn split(node: &Node<'_>, x: &Tensor) -> Outcome<Vec<Tensor>> {
    let (case, axis) = (node.case, node.axis(0));
    if let Some(sizes) = case.given_list(1).or_else(|| case.list("split")) {
        return Ok(x.split_sizes(axis, sizes.into_iter().map(|size| size as usize).collect::<Vec<_>>())?);
    }
    Ok(x.chunk(axis, case.outputs.len())?)
}

fn slice(node: &Node<'_>, x: &Tensor) -> Outcome {
    let case = node.case;
    let (Some(starts), Some(ends)) = (case.given_list(1), case.given_list(2)) else {
        return Err(because("an older form"));
    };
    let axes = case.given_list(3).unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = case.given_list(4).unwrap_or_else(|| vec![1; starts.len()]);
    let mut part = x.clone();
    for (((start, end), axis), step) in starts.into_iter().zip(ends).zip(axes).zip(steps) {
        let size = x.dims()[x.shape().axis("slice", axis as isize)?] as i64;
        let from_front = |place: i64| if place < 0 { place.saturating_add(size) } else { place };
        // The op clips ranges that exceed the axis.
        let (start, end) = if step > 0 {
            (from_front(start).clamp(0, size), from_front(end).clamp(0, size))
        } else {
            // Count from the end of the axis.
            part = part.flip(axis as isize)?;
            (size - 1 - from_front(start).clamp(0, size - 1), size - 1 - from_front(end).clamp(-1, size - 1))
        };
        let range = start as usize..end.max(start) as usize;
        part = part.slice_step(axis as isize, range, step.unsigned_abs() as usize)?;
    }
    Ok(part)
}

fn pad(node: &Node<'_>, x: &Tensor) -> Outcome {
    let case = node.case;
    let pads = case.given_list(1).ok_or_else(|| because("an older form"))?;
    let mode = match case.word("mode", "constant") {
        "reflect" => Some(PadMode::Reflect),
        "edge" => Some(PadMode::Replicate),
        "wrap" => Some(PadMode::Circular),
        _ => None,
    };
    if pads.iter().any(|&pad| pad < 0) {
        return Err(because("a border that is cut off"));
    }
    let axes = case.given_list(3).unwrap_or_else(|| (0..x.rank() as i64).collect());
    let mut widths = vec![(0, 0); x.rank()];
    for (index, &axis) in axes.iter().enumerate() {
        let axis = x.shape().axis("pad", axis as isize)?;
        widths[axis] = (pads[index] as usize, pads[index + axes.len()] as usize);
    }
    Ok(match mode {
        Some(mode) => x.pad_with(&widths, mode)?,
        None => x.pad(&widths, case.given_number(2).unwrap_or(0.0))?,
    })
}

fn expand(node: &Node<'_>, x: &Tensor) -> Outcome {
    let wanted = node.case.given_list(1).unwrap_or_default();
    let rank = wanted.len().max(x.rank());
    let from_back = |sizes: &[usize], place| sizes.len().checked_sub(place + 1).map_or(1, |axis| sizes[axis]);
    let wanted: Vec<usize> = wanted.into_iter().map(|size| size as usize).collect();
    let larger = |place| from_back(x.dims(), place).max(from_back(&wanted, place));
    Ok(x.broadcast_to((0..rank).rev().map(larger).collect::<Vec<_>>())?)
}

fn reshape(node: &Node<'_>, x: &Tensor) -> Outcome {
    let wanted = node.case.given_list(1).unwrap_or_default();
    let copies = node.case.whole("allowzero", 0) == 0;
    let mut dims: Vec<usize> =
        wanted
            .iter()
            .enumerate()
            .map(|(axis, &size)| {
                if size == 0 && copies { x.dims()[axis] } else { size.max(1 - i64::from(size == 0)) as usize }
            })
            .collect();
    if let Some(open) = wanted.iter().position(|&size| size == -1) {
        dims[open] = x.elements().checked_div(dims.iter().product()).unwrap_or(0);
    }
    Ok(x.reshape(dims)?)
}

fn squeeze(node: &Node<'_>, x: &Tensor) -> Outcome {
    let ones = || (0..x.rank()).filter(|&axis| x.dims()[axis] == 1).map(|axis| axis as i64).collect();
    let axes = node.case.given_list(1).or_else(|| node.case.list("axes")).unwrap_or_else(ones);
    let mut axes: Vec<i64> = axes.into_iter().map(|axis| axis.rem_euclid(x.rank() as i64)).collect();
    axes.sort_unstable();
    Ok(axes.into_iter().rev().try_fold(x.clone(), |x, axis| x.squeeze(axis as isize))?)
}

fn unsqueeze(node: &Node<'_>, x: &Tensor) -> Outcome {
    let axes = node.case.given_list(1).or_else(|| node.case.list("axes")).unwrap_or_default();
    let rank = (x.rank() + axes.len()) as i64;
    let mut axes: Vec<i64> = axes.into_iter().map(|axis| axis.rem_euclid(rank)).collect();
    axes.sort_unstable();
    Ok(axes.into_iter().try_fold(x.clone(), |x, axis| x.unsqueeze(axis as isize))?)
}

fn cross_entropy(node: &Node<'_>, x: &Tensor) -> Outcome<Vec<Tensor>> {
    let (case, targets) = (node.case, node.input(1)?);
    let reduction = match case.word("reduction", "mean") {
        "none" => Reduction::None,
        "sum" => Reduction::Sum,
        _ => Reduction::Mean,
    };
    let ignored = case.whole("ignore_index", i64::MIN);
    let options = CrossEntropyOptions {
        label_smoothing: 0.0,
        ignore_index: (ignored != i64::MIN).then_some(ignored),
        class_weights: node.given(2),
        reduction,
    };
    Ok(vec![x.cross_entropy_with(targets, options)?, x.log_softmax(1)?])
}
