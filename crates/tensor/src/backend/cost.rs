//! The work of a kernel as a pure function of its operands: multiply-adds, elements and bytes.
//!
//! Dry runs estimate time with it: see [`DeviceSpeed`](super::DeviceSpeed).

use serde::{Deserialize, Serialize};

use super::operands::Operand;
use super::{Attention, Distribution, Kernel, PoolAxis, Precision, Recurrence, Window};
use crate::layout::Layout;
use crate::shape::DType;

/// Kernels whose work takes about the same time per multiply-add or per element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Class {
    /// Matrix products.
    Product,
    /// Convolutions as products of filters and patches. Gradients of the weight are a class of their own, since their
    /// products have few rows and columns, and a large depth.
    Convolution,
    ConvolutionWeightGrad,
    /// Convolutions with 3 × 3 taps and stride 1, which Winograd's algorithm computes with fewer multiplications.
    Winograd,
    WinogradWeightGrad,
    /// Convolutions with one channel per group.
    Depthwise,
    Attention,
    AttentionGrad,
    Recurrent,
    RecurrentGrad,
    /// Arithmetic on elements of contiguous memory, copies and comparisons: nothing but memory traffic.
    Arithmetic,
    /// Copies that change the order of elements: of runs of neighbors, and of single elements.
    Reorder,
    Transpose,
    /// Elementwise functions such as exp, and their gradients.
    Function,
    FunctionGrad,
    /// Reductions along the last axes, and along others.
    ReduceRows,
    ReduceColumns,
    Softmax,
    SoftmaxGrad,
    Norm,
    NormGrad,
    NormSums,
    BatchNorm,
    BatchNormGrad,
    /// Pools with windows that do not overlap, per element of the input.
    Pool,
    PoolGrad,
    /// Pools with other windows, per element of a window.
    SlidingPool,
    SlidingPoolGrad,
    Gather,
    ScatterAdd,
    Random,
    /// Per comparison of a merge sort.
    Sort,
    /// Sums that depend on the previous one.
    Scan,
    Sgd,
    /// Optimizers with a square root per element.
    Adam,
}

impl Class {
    /// The number of classes.
    pub(crate) const COUNT: usize = Self::Adam as usize + 1;
}

/// The rows and columns of a tile of attention.
const TILE: u64 = 64;

/// The work of one kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) class: Class,
    /// Whether products round their factors to 16 bits.
    pub(crate) is_half: bool,
    /// The multiply-adds of products, without those that masks and padding make unnecessary.
    pub(crate) multiply_adds: u64,
    /// The multiply-adds with those that tiles compute although a mask hides them.
    pub(crate) computed: u64,
    /// The rows and columns of a product, which a device computes in tiles.
    pub(crate) sides: [usize; 2],
    /// The elements that products rearrange before they multiply: the factors, or the patches of images.
    pub(crate) moved: u64,
    /// The elements to which other functions apply, in units of the class.
    pub(crate) elements: u64,
    /// The bytes that the kernel reads. A broadcast operand counts its distinct elements.
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl Work {
    const fn new(class: Class) -> Self {
        Self {
            class,
            is_half: false,
            multiply_adds: 0,
            computed: 0,
            sides: [0; 2],
            moved: 0,
            elements: 0,
            read: 0,
            written: 0,
        }
    }

    const fn per_element(class: Class, elements: u64) -> Self {
        Self { elements, ..Self::new(class) }
    }

    /// The bytes read and written.
    pub(crate) const fn bytes(&self) -> u64 {
        self.read.saturating_add(self.written)
    }

    /// The amounts that take time: multiply-adds of whole tiles, rearranged elements, bytes, and elements.
    pub(crate) fn amounts(&self, tile: [usize; 2]) -> [f64; 4] {
        let waste = |size: usize, tile: usize| match size {
            0 => 1.0,
            size => (size.div_ceil(tile) * tile) as f64 / size as f64,
        };
        let waste = waste(self.sides[0], tile[0]) * waste(self.sides[1], tile[1]);
        [self.computed as f64 * waste, self.moved as f64, self.bytes() as f64, self.elements as f64]
    }

    /// The number that decides how well a device is used: multiply-adds, or elements.
    pub(crate) const fn size(&self) -> u64 {
        if self.multiply_adds > 0 { self.multiply_adds } else { self.elements }
    }
}

/// The work of a batch of products of `[rows, depth]` and `[depth, columns]`.
fn products(class: Class, batch: usize, [rows, columns, depth]: [usize; 3]) -> Work {
    let multiply_adds = times(&[batch, rows, columns, depth]);
    Work {
        multiply_adds,
        computed: multiply_adds,
        sides: [rows, columns],
        moved: times(&[batch, rows, depth]).saturating_add(times(&[batch, depth, columns])),
        ..Work::new(class)
    }
}

/// The product of sizes as a count.
fn times(sizes: &[usize]) -> u64 {
    sizes.iter().fold(1_u64, |product, &size| product.saturating_mul(size as u64))
}

fn elements(layout: &Layout) -> u64 {
    layout.shape().elements() as u64
}

/// The number of distinct elements of a layout: an axis with stride 0 repeats its elements.
fn distinct(layout: &Layout) -> u64 {
    let axes = layout.shape().dims().iter().zip(layout.strides());
    axes.fold(1_u64, |count, (&size, &stride)| {
        count.saturating_mul(if stride == 0 { size.min(1) } else { size } as u64)
    })
}

const fn is_half(precision: Precision, dtype: DType) -> bool {
    matches!(precision, Precision::BF16) || dtype.is_half()
}

impl Kernel<'_> {
    /// Returns the work of this kernel.
    pub(crate) fn work(&mut self) -> Work {
        let mut work = self.computation();
        let (mut read, mut written) = (0_u64, 0_u64);
        let reads_part = matches!(self, Self::Gather { .. });
        let part = match self {
            Self::CopyInto { input, .. } => elements(input.layout()),
            Self::Gather { out, .. } => elements(out.layout()),
            _ => 0,
        };
        // Visitors return no error here.
        let _ = self.operands(|name, operand| {
            let size = operand.dtype().size() as u64;
            let bytes = |count: u64| count.saturating_mul(size).min(operand.storage().bytes() as u64);
            let all = bytes(distinct(operand.layout()));
            let [reads, writes] = match operand {
                // Products rearrange their factors in the workspace, which `moved` counts.
                Operand::Write(_) if name == "workspace" && work.multiply_adds > 0 => [0, 0],
                Operand::Write(_) if name == "workspace" => [all, all],
                Operand::Read(_) if reads_part && name == "input" => [bytes(part), 0],
                Operand::Read(_) | Operand::ReadContiguous(_) => [all, 0],
                Operand::Write(_) => [0, all],
                Operand::WritePart(_) => [0, bytes(part)],
                Operand::Update(_) => [all, all],
            };
            read = read.saturating_add(reads);
            written = written.saturating_add(writes);
            Ok(())
        });
        (work.read, work.written) = (read, written);
        work
    }

    /// Returns the work without its bytes.
    fn computation(&self) -> Work {
        match self {
            Self::Fill { out, .. } | Self::Arange { out, .. } | Self::OneHot { out, .. } => {
                Work::per_element(Class::Arithmetic, elements(out.layout()))
            }
            Self::Copy { input, out } => {
                let class = match input.layout() {
                    layout if layout.is_contiguous() => Class::Arithmetic,
                    layout if has_rows(layout) => Class::Reorder,
                    _ => Class::Transpose,
                };
                Work::per_element(class, elements(out.layout()))
            }
            Self::Flip { out, .. } => Work::per_element(Class::Transpose, elements(out.layout())),
            Self::CopyInto { input, .. } => Work::per_element(Class::Reorder, elements(input.layout())),
            Self::Unary { f, out, .. } => {
                let class = if f.is_light() { Class::Arithmetic } else { Class::Function };
                Work::per_element(class, elements(out.layout()))
            }
            Self::UnaryGrad { f, out, .. } => {
                let class = if f.is_grad_light() { Class::Arithmetic } else { Class::FunctionGrad };
                Work::per_element(class, elements(out.layout()))
            }
            Self::Binary { f, out, .. } | Self::Accumulate { f, acc: out, .. } => {
                let class = if f.is_light() { Class::Arithmetic } else { Class::Function };
                Work::per_element(class, elements(out.layout()))
            }
            Self::Compare { out, .. } | Self::Select { out, .. } => {
                Work::per_element(Class::Arithmetic, elements(out.layout()))
            }
            Self::Reduce { input, axes, .. } => {
                let class = if axes.last() == Some(&true) { Class::ReduceRows } else { Class::ReduceColumns };
                Work::per_element(class, elements(input.layout()))
            }
            Self::ArgReduce { input, axis, .. } => {
                let is_last = axis + 1 == input.layout().shape().rank();
                let class = if is_last { Class::ReduceRows } else { Class::ReduceColumns };
                Work::per_element(class, elements(input.layout()))
            }
            Self::ArgSort { input, .. } => {
                let row = input.layout().shape().dims().last().copied().unwrap_or(1);
                let comparisons = u64::from(row.max(2).next_power_of_two().ilog2());
                Work::per_element(Class::Sort, elements(input.layout()).saturating_mul(comparisons))
            }
            Self::RunningSum { out, .. } => Work::per_element(Class::Scan, elements(out.layout())),
            Self::MatMul { precision, lhs, rhs, activation, out, .. } => {
                let (&[ref batch @ .., rows, columns], depth) =
                    (out.layout().shape().dims(), lhs.layout().shape().dims().last().copied().unwrap_or(0))
                else {
                    return Work::new(Class::Product);
                };
                let batch = batch.iter().product();
                let applied = activation.as_ref().map_or(0, |activated| {
                    if activated.function.function().is_light() { 0 } else { elements(out.layout()) }
                });
                Work {
                    is_half: is_half(*precision, rhs.dtype()),
                    elements: applied,
                    ..products(Class::Product, batch, [rows, columns, depth])
                }
            }
            Self::Softmax { input, .. } | Self::CrossEntropy { logits: input, .. } => {
                Work::per_element(Class::Softmax, elements(input.layout()))
            }
            // The gradient of the cross entropy computes the softmax again.
            Self::CrossEntropyGrad { out, .. } => Work::per_element(Class::Softmax, elements(out.layout())),
            Self::SoftmaxGrad { out, .. } => Work::per_element(Class::SoftmaxGrad, elements(out.layout())),
            Self::LayerNorm { out, .. } => Work::per_element(Class::Norm, elements(out.layout())),
            Self::LayerNormGrad { out, .. } => Work::per_element(Class::NormGrad, elements(out.layout())),
            Self::LayerNormSums { grad, .. } => Work::per_element(Class::NormSums, elements(grad.layout())),
            Self::BatchNorm { out, .. } => Work::per_element(Class::BatchNorm, elements(out.layout())),
            Self::BatchNormGrad { grad, .. } => {
                Work::per_element(Class::BatchNormGrad, elements(grad.layout()))
            }
            Self::Conv2d { precision, conv, input, weight, out, .. } => {
                let sizes = Sizes::new(conv.groups, input.layout(), weight.layout(), out.layout());
                sizes.forward(&conv.windows, is_half(*precision, input.dtype()))
            }
            Self::Conv2dInputGrad { precision, conv, weight, grad, out, .. } => {
                let sizes = Sizes::new(conv.groups, out.layout(), weight.layout(), grad.layout());
                sizes.input_grad(&conv.windows, is_half(*precision, grad.dtype()))
            }
            Self::Conv2dWeightGrad { precision, conv, input, grad, out, .. } => {
                let sizes = Sizes::new(conv.groups, input.layout(), out.layout(), grad.layout());
                sizes.weight_grad(&conv.windows, is_half(*precision, grad.dtype()))
            }
            Self::Pool2d { axes, input, out, .. } => {
                pool([Class::Pool, Class::SlidingPool], axes, input.layout(), out.layout())
            }
            Self::Pool2dGrad { axes, grad, out, .. } => {
                let classes = [Class::PoolGrad, Class::SlidingPoolGrad];
                pool(classes, axes, out.layout(), grad.layout())
            }
            Self::Attention { of, .. } => attention(of, Class::Attention),
            Self::AttentionGrad { of, .. } => attention(of, Class::AttentionGrad),
            Self::Recurrent { of, gates, .. } => recurrent(of, gates.layout(), Class::Recurrent),
            Self::RecurrentGrad { of, gates, .. } => recurrent(of, gates.layout(), Class::RecurrentGrad),
            Self::Gather { out, .. } => Work::per_element(Class::Gather, elements(out.layout())),
            Self::ScatterAdd { input, .. } => Work::per_element(Class::ScatterAdd, elements(input.layout())),
            Self::Random { distribution, out, .. } => {
                // Normal numbers need a logarithm and a cosine besides random bits.
                let weight = if matches!(distribution, Distribution::Normal { .. }) { 2 } else { 1 };
                Work::per_element(Class::Random, elements(out.layout()).saturating_mul(weight))
            }
            Self::Scale { values, .. } | Self::Clip { values, .. } => {
                Work::per_element(Class::Arithmetic, elements(values.layout()))
            }
            Self::Sgd { param, .. } | Self::Lion { param, .. } => {
                Work::per_element(Class::Sgd, elements(param.layout()))
            }
            Self::Adam { param, .. } | Self::RmsProp { param, .. } => {
                Work::per_element(Class::Adam, elements(param.layout()))
            }
        }
    }
}

/// Whether the last axis of a layout is contiguous and longer than a cache line of f32.
fn has_rows(layout: &Layout) -> bool {
    match (layout.shape().dims(), layout.strides()) {
        ([.., size], [.., stride]) => *size >= 16 && *stride <= 1,
        _ => true,
    }
}

fn attention(of: &Attention<'_>, class: Class) -> Work {
    let dims = |layout: &Layout| match *layout.shape().dims() {
        [heads, rows, width] => [heads, rows, width],
        _ => [0; 3],
    };
    let ([heads, queries, width], [_, keys, values]) = (dims(of.query.layout()), dims(of.value.layout()));
    // Query i attends to the keys 0 to i. Tiles in which a query attends to a key are computed in full.
    let (pairs, computed) = match of.causal {
        true => {
            let seen = queries.min(keys) as u64;
            let rest = times(&[queries.saturating_sub(keys), keys]);
            let side = seen.div_ceil(TILE).saturating_mul(TILE);
            let in_tiles = side.saturating_mul(side.saturating_add(TILE)) / 2;
            let all = times(&[queries.min(keys), keys]);
            (seen.saturating_mul(seen + 1) / 2 + rest, in_tiles.min(all) + rest)
        }
        false => (times(&[queries, keys]), times(&[queries, keys])),
    };
    // Forward: scores and their sums of values. Backward: the scores again, and the gradients of four factors.
    let columns = match class {
        Class::AttentionGrad => 3 * width as u64 + 2 * values as u64,
        _ => width as u64 + values as u64,
    };
    let of_all = |pairs: u64| pairs.saturating_mul(heads as u64);
    Work {
        is_half: of.query.dtype().is_half(),
        multiply_adds: of_all(pairs).saturating_mul(columns),
        computed: of_all(computed).saturating_mul(columns),
        sides: [queries, keys],
        elements: of_all(pairs),
        ..Work::new(class)
    }
}

/// The work of a recurrent layer: a product with the weight for each step, and the functions of the gates.
fn recurrent(of: &Recurrence<'_>, gates: &Layout, class: Class) -> Work {
    let [hidden, width] = match *of.weight.layout().shape().dims() {
        [hidden, width] => [hidden, width],
        _ => [0; 2],
    };
    let rows = gates.shape().dims().first().copied().unwrap_or(0);
    let sequences = rows.checked_div(of.len).unwrap_or(0);
    let multiply_adds = times(&[rows, hidden, width]);
    Work {
        is_half: is_half(of.precision, of.weight.dtype()),
        multiply_adds,
        computed: multiply_adds,
        sides: [sequences, if class == Class::Recurrent { width } else { hidden }],
        elements: elements(gates),
        ..Work::new(class)
    }
}

/// The sizes of a convolution.
struct Sizes {
    images: usize,
    groups: usize,
    inputs: usize,
    outputs: usize,
    from: usize,
    to: usize,
    taps: usize,
}

impl Sizes {
    fn new(groups: usize, input: &Layout, weight: &Layout, out: &Layout) -> Self {
        let groups = groups.max(1);
        let (&[images, inputs, height, width], &[outputs, _, down, across], &[_, _, rows, columns]) =
            (input.shape().dims(), weight.shape().dims(), out.shape().dims())
        else {
            return Self { images: 0, groups, inputs: 0, outputs: 0, from: 0, to: 0, taps: 0 };
        };
        Self {
            images,
            groups,
            inputs: inputs / groups,
            outputs: outputs / groups,
            from: height.saturating_mul(width),
            to: rows.saturating_mul(columns),
            taps: down.saturating_mul(across),
        }
    }

    /// The product of `[rows, depth]` filters and `depth` elements for each of `columns` places of all images.
    fn product(&self, class: Class, [rows, columns, depth]: [usize; 3], is_half: bool) -> Work {
        let all = products(class, self.groups, [rows, columns, depth]);
        Work { is_half, ..all }
    }

    fn places(&self) -> usize {
        self.images.saturating_mul(self.to)
    }

    /// Selects the class of a convolution whose products have `channels` rows.
    fn class(&self, windows: &[Window; 2], [direct, winograd]: [Class; 2]) -> Class {
        if self.inputs == 1 && self.outputs == 1 && self.groups > 1 {
            return Class::Depthwise;
        }
        let is_plain = windows.iter().all(|window| {
            *window == Window { padding: window.padding, ..Window::new(3) } && window.padding <= 2
        });
        // As on the CPU, where tiles must be mostly full and channels many.
        let pays = self.groups == 1 && self.inputs.min(self.outputs) >= 32 && self.to >= 16;
        if is_plain && pays { winograd } else { direct }
    }

    fn multiply_adds(&self) -> u64 {
        times(&[self.images, self.groups, self.outputs, self.to, self.inputs, self.taps])
    }

    fn forward(&self, windows: &[Window; 2], is_half: bool) -> Work {
        let class = self.class(windows, [Class::Convolution, Class::Winograd]);
        let depth = self.inputs.saturating_mul(self.taps);
        let work = self.product(class, [self.outputs, self.places(), depth], is_half);
        self.with_tiles(work)
    }

    fn input_grad(&self, windows: &[Window; 2], is_half: bool) -> Work {
        let class = self.class(windows, [Class::Convolution, Class::Winograd]);
        let depth = self.outputs.saturating_mul(self.taps);
        let columns = self.images.saturating_mul(self.from);
        let work = self.product(class, [self.inputs, columns, depth], is_half);
        // With a stride, each place sees a part of the taps.
        let moved = times(&[self.groups, self.outputs, self.taps, self.places()]);
        self.with_tiles(Work {
            multiply_adds: self.multiply_adds(),
            computed: self.multiply_adds(),
            moved,
            ..work
        })
    }

    fn weight_grad(&self, windows: &[Window; 2], is_half: bool) -> Work {
        let class = self.class(windows, [Class::ConvolutionWeightGrad, Class::WinogradWeightGrad]);
        let columns = self.inputs.saturating_mul(self.taps);
        let work = self.product(class, [self.outputs, columns, self.places()], is_half);
        self.with_tiles(work)
    }

    /// Winograd's algorithm multiplies in tiles of 2 × 2 places, and transforms images and filters instead of rearranging
    /// patches. The traffic of the images stands for their transforms.
    fn with_tiles(&self, work: Work) -> Work {
        let filters = times(&[self.inputs, self.outputs, self.taps]);
        let tiles = self.places().div_ceil(4);
        match work.class {
            _ if work.is_half => work,
            Class::Winograd => Work { moved: filters, sides: [work.sides[0], tiles], ..work },
            Class::WinogradWeightGrad => Work { moved: filters, sides: [self.outputs, self.inputs], ..work },
            _ => work,
        }
    }
}

/// The work of a pool. Its first class is for windows that do not overlap.
fn pool([aligned, sliding]: [Class; 2], axes: &[PoolAxis; 2], input: &Layout, out: &Layout) -> Work {
    let taps = axes.map(|axis| match axis {
        PoolAxis::Sliding(pool) if pool.window.size == pool.window.stride => Some(1),
        PoolAxis::Sliding(pool) => Some(pool.window.size),
        PoolAxis::Adaptive { .. } => None,
    });
    match taps {
        [None | Some(1), _] | [_, None | Some(1)] => Work::per_element(aligned, elements(input)),
        [Some(down), Some(across)] => {
            Work::per_element(sliding, elements(out).saturating_mul(times(&[down, across])))
        }
    }
}
