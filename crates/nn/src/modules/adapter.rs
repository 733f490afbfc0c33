//! The low-rank adapter of a linear layer (LoRA, Hu et al. 2021).
//!
//! ```text
//! x ──┬───────────── W ─────────────┐
//!     └─ dropout ─ A ─ scale ─ B ───┴─ + ── y
//!             [rows, rank]
//! ```
//!
//! Clones of a layer share its slot, so a clone in a graph that runs again has the same adapter.

use std::fmt;
use std::sync::Arc;

use bfc_core::Category;
use bfc_core::sync::{self, Mutex};
use highwater_tensor::{DType, Device, Parameter, Result, Rng, Tensor, no_grad, without_mixed};
use highwater_tracking::ModulePath;

use super::debug::{dtype, layer, mapping, size};
use super::dropout::Dropout;
use super::in_layer;
use super::init::{Fans, Init};
use super::module::Module;
use super::parts::{ModulePart, PartVisitor};

/// The place of an adapter in a linear layer, which clones of the layer share. It is empty by default.
#[derive(Clone, Default)]
pub(crate) struct AdapterSlot {
    adapter: Arc<Mutex<Option<Arc<LowRank>>>>,
}

impl AdapterSlot {
    /// Returns the adapter, if there is one.
    pub(crate) fn get(&self) -> Option<Arc<LowRank>> {
        sync::lock(&self.adapter).clone()
    }

    /// Returns the adapter that forward passes apply: none if it is merged into the weight.
    pub(super) fn acting(&self) -> Option<Arc<LowRank>> {
        self.get().filter(|adapter| !adapter.is_merged())
    }

    /// Puts an adapter into an empty slot. Returns whether the slot was empty.
    pub(crate) fn attach(&self, adapter: &Arc<LowRank>) -> bool {
        let mut slot = sync::lock(&self.adapter);
        let is_empty = slot.is_none();
        slot.get_or_insert_with(|| Arc::clone(adapter));
        is_empty
    }

    /// Removes this adapter. Keeps another one.
    pub(crate) fn detach(&self, adapter: &Arc<LowRank>) {
        let mut slot = sync::lock(&self.adapter);
        let removed = slot.take_if(|attached| Arc::ptr_eq(attached, adapter));
        // Drops tensors without the lock.
        drop(slot);
        drop(removed);
    }

    /// Returns a number that is unique among the slots of existing layers.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.adapter).addr()
    }
}

impl ModulePart for AdapterSlot {
    const HAS_PATH: bool = false;

    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        if let Some(adapter) = self.get() {
            adapter.visit_part(visitor);
        }
    }
}

/// The sizes and the place of an adapter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LowRankOptions<'a> {
    pub(crate) device: &'a Device,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) rank: usize,
    pub(crate) scale: f64,
    pub(crate) dropout: f64,
    pub(crate) dtype: DType,
}

/// A product of two matrices that is added to that of a frozen weight: scale·B·A.
pub(crate) struct LowRank {
    /// A, `[rank, inputs]`.
    a: LoraMatrix,
    /// B, `[outputs, rank]`.
    b: LoraMatrix,
    dropout: Option<Dropout>,
    scale: f64,
    /// The layer's weight before the update was merged into it.
    replaced: Mutex<Option<Tensor>>,
}

impl LowRank {
    /// Creates an adapter whose update is zero: A is uniform as in PEFT (Kaiming with a = √5), and B is zero. Without a
    /// generator, A is zero too.
    pub(crate) fn new(options: LowRankOptions<'_>, init: Option<&Rng>, dropout: &Rng) -> Result<Self> {
        let LowRankOptions { device, inputs, outputs, rank, scale, dtype, .. } = options;
        let fans = Fans { inputs, outputs };
        let bound = 1.0 / (inputs.max(1) as f64).sqrt();
        let (method, rng) = match init {
            Some(rng) => (Init::Uniform { low: -bound, high: bound }, rng),
            None => (Init::Zeros, dropout),
        };
        let a = method.parameter(device, [rank, inputs], dtype, fans, rng)?;
        let b = Init::Zeros.parameter(device, [outputs, rank], dtype, fans, rng)?;
        let dropout = (options.dropout > 0.0).then(|| Dropout::new(options.dropout, dropout)).transpose()?;
        let [a, b] = [a, b].map(|weight| LoraMatrix { path: ModulePath::new(), weight });
        Ok(Self { a, b, dropout, scale, replaced: Mutex::new(None) })
    }

    /// Returns A, `[rank, inputs]`, and B, `[outputs, rank]`.
    pub(crate) const fn matrices(&self) -> [&Parameter; 2] {
        [&self.a.weight, &self.b.weight]
    }

    /// Adds the update for x to the layer's product y, in the memory of y if no other tensor shares it.
    pub(super) fn add_to(&self, y: Tensor, x: &Tensor) -> Result<Tensor> {
        let small = match &self.dropout {
            Some(dropout) => self.a.product(&dropout.forward(x)?, y.dtype())?,
            None => self.a.product(x, y.dtype())?,
        };
        let update = self.b.product(&(small * self.scale)?, y.dtype())?;
        y + &update
    }

    pub(crate) fn is_merged(&self) -> bool {
        sync::lock(&self.replaced).is_some()
    }

    /// Moves a weight to new memory with W + scale·B·A, computed in the wider element type, and keeps W. Does nothing if
    /// that has happened. `is_transposed` says that the weight has PyTorch's shape.
    pub(crate) fn merge(&self, weight: &Parameter, is_transposed: bool) -> Result<()> {
        if self.is_merged() {
            return Ok(());
        }
        let _scope = weight.module().enter();
        let before = weight.value();
        let merge = || {
            let [a, b] = self.matrices().map(Parameter::value);
            let b = (b * self.scale)?;
            let update = if is_transposed { b.matmul(&a)? } else { a.t()?.matmul(&b.t()?)? };
            (update + &before)?.to_dtype(before.dtype())
        };
        let merged = no_grad(|| without_mixed(merge))?;
        let replaced = weight.replace(merged.with_category(Category::Parameter))?;
        weight.charge_memory();
        *sync::lock(&self.replaced) = Some(replaced);
        Ok(())
    }

    /// Restores the weight from before [`merge`](Self::merge).
    pub(crate) fn unmerge(&self, weight: &Parameter) -> Result<()> {
        let before = sync::lock(&self.replaced).clone();
        if let Some(before) = before {
            weight.replace(before)?;
            drop(sync::lock(&self.replaced).take());
        }
        Ok(())
    }

    /// Returns the part of a layer's `Debug` form.
    pub(super) fn debug_part(&self) -> String {
        let rank = size(&self.a.weight, 0);
        if self.is_merged() { format!("lora rank {rank} merged") } else { format!("lora rank {rank}") }
    }
}

impl ModulePart for LowRank {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.part("lora_A", &self.a);
        visitor.part("lora_B", &self.b);
        visitor.part("lora_dropout", &self.dropout);
    }
}

impl fmt::Debug for LowRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.debug_part())
    }
}

/// One of the two matrices of an adapter, in PyTorch's shape: y = x·Wᵀ.
#[derive(Module)]
struct LoraMatrix {
    path: ModulePath,
    weight: Parameter,
}

impl LoraMatrix {
    /// Computes x·Wᵀ with the weight in another element type.
    fn product(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        in_layer(&self.path, &self.weight, || x.matmul(&self.weight.operand()?.to_dtype(dtype)?.t()?))
    }
}

impl Module for LoraMatrix {
    enters_itself!(path);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, self.weight.value().dtype())
    }
}

impl fmt::Debug for LoraMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        layer(f, "LoraMatrix", [mapping(size(&self.weight, 1), size(&self.weight, 0)), dtype(&self.weight)])
    }
}
