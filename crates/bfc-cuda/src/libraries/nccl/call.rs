//! Collective operations as data.

use std::ffi::c_int;

use super::abi;
use crate::kernels::ElementType;

/// A collective operation, or a message between two ranks. All ranks call an operation with the same kind, element type and
/// number of elements. For each message, one rank sends and the other one receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectiveKind {
    /// Every rank gets the sum of all ranks' elements.
    AllReduce,
    /// Rank `r` gets the sum of all ranks' part `r`. A rank passes `size × elements` elements and gets `elements`.
    ReduceScatter,
    /// Every rank gets the elements of all ranks, in rank order. A rank passes `elements` and gets `size × elements`.
    AllGather,
    /// Every rank gets the elements of rank `root`.
    Broadcast {
        /// The rank that sends.
        root: usize,
    },
    /// Rank `root` gets the sum of all ranks' elements.
    Reduce {
        /// The rank that receives.
        root: usize,
    },
    /// Rank `peer` gets the elements. Several messages at once must be calls of one [`submit`].
    ///
    /// [`submit`]: super::Communicator::submit
    Send {
        /// The rank that receives.
        peer: usize,
    },
    /// This rank gets the elements that rank `peer` sends.
    Receive {
        /// The rank that sends.
        peer: usize,
    },
}

/// One call of a collective operation, for [`Communicator::submit`](super::Communicator::submit).
///
/// Both addresses are device memory; a message uses only one of them. They may be equal (in place). For [`CollectiveKind::ReduceScatter`] `to` may also be
/// part `rank` of `from`, and for [`CollectiveKind::AllGather`] `from` may be part `rank` of `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveCall {
    /// The operation.
    pub kind: CollectiveKind,
    /// The address of the elements that this rank sends.
    pub from: u64,
    /// The address of the elements that this rank receives.
    pub to: u64,
    /// The number of elements, of one rank.
    pub elements: usize,
    /// The type of the elements.
    pub element: ElementType,
}

impl CollectiveCall {
    /// NCCL's function for this operation.
    pub(super) const fn function(&self) -> &'static str {
        match self.kind {
            CollectiveKind::AllReduce => "ncclAllReduce",
            CollectiveKind::ReduceScatter => "ncclReduceScatter",
            CollectiveKind::AllGather => "ncclAllGather",
            CollectiveKind::Broadcast { .. } => "ncclBroadcast",
            CollectiveKind::Reduce { .. } => "ncclReduce",
            CollectiveKind::Send { .. } => "ncclSend",
            CollectiveKind::Receive { .. } => "ncclRecv",
        }
    }

    /// The rank that the kind names.
    pub(super) const fn named_rank(&self) -> Option<usize> {
        match self.kind {
            CollectiveKind::Broadcast { root } | CollectiveKind::Reduce { root } => Some(root),
            CollectiveKind::Send { peer } | CollectiveKind::Receive { peer } => Some(peer),
            _ => None,
        }
    }

    /// NCCL's constant for the type of the elements.
    pub(super) const fn datatype(&self) -> c_int {
        match self.element {
            ElementType::F32 => abi::FLOAT32,
            ElementType::F64 => abi::FLOAT64,
            ElementType::F16 => abi::FLOAT16,
            ElementType::BF16 => abi::BFLOAT16,
            ElementType::I64 => abi::INT64,
            ElementType::I32 => abi::INT32,
            ElementType::U32 => abi::UINT32,
            ElementType::U8 => abi::UINT8,
        }
    }
}
