//! The weight of a linear layer or an embedding: a dense parameter, or a constant matrix in quantized blocks.

use highwater_tensor::{BlockFormat, DType, Device, Parameter, QuantizedMatrix, Result};

use super::debug::{dtype, size};
use super::parts::{ModulePart, PartVisitor};

/// A weight. A quantized one is a buffer of its layer: checkpoints store it, and training does not change it.
#[derive(Clone)]
pub(super) enum Weight {
    /// Floats.
    Dense(Parameter),
    /// Rows of blocks: a constant of u8.
    Quantized {
        /// The blocks.
        blocks: Parameter,
        /// Their format.
        format: BlockFormat,
    },
}

impl Weight {
    pub(super) fn quantized(matrix: &QuantizedMatrix) -> Self {
        Self::Quantized { blocks: Parameter::constant(matrix.bytes().clone()), format: matrix.format() }
    }

    /// Returns the parameter of the floats or of the blocks.
    pub(super) const fn parameter(&self) -> &Parameter {
        match self {
            Self::Dense(parameter) | Self::Quantized { blocks: parameter, .. } => parameter,
        }
    }

    /// Returns the matrix of the current blocks; `None` for a dense weight.
    pub(super) fn matrix(&self) -> Result<Option<QuantizedMatrix>> {
        match self {
            Self::Dense(_) => Ok(None),
            Self::Quantized { blocks, format } => {
                QuantizedMatrix::from_blocks(blocks.tensor(), *format).map(Some)
            }
        }
    }

    /// Returns the size of an axis: rows, or columns.
    pub(super) fn size(&self, axis: usize) -> usize {
        match (self, axis) {
            (Self::Quantized { blocks, format }, 1) => {
                size(blocks, 1) / format.block_bytes() * format.block_values()
            }
            _ => size(self.parameter(), axis),
        }
    }

    /// Returns the element type of the values: f32 for blocks.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::Dense(parameter) => parameter.value().dtype(),
            Self::Quantized { .. } => DType::F32,
        }
    }

    pub(super) fn device(&self) -> Device {
        self.parameter().value().device().clone()
    }

    /// Returns the format, or the element type unless it is f32, for `Debug`.
    pub(super) fn debug_part(&self) -> Option<String> {
        match self {
            Self::Dense(parameter) => dtype(parameter),
            Self::Quantized { format, .. } => Some(format.to_string()),
        }
    }
}

impl ModulePart for Weight {
    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        match self {
            Self::Dense(parameter) => parameter.visit_part(visitor),
            Self::Quantized { blocks, .. } => visitor.buffer("", blocks),
        }
    }
}
