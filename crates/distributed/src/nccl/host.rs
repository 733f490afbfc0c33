//! Collective operations on host memory over NCCL, for ranks without another connection.
//!
//! Host memory travels through slots on the GPU. NCCL only moves it: the algorithms and the bits are those of MPI. It is
//! meant for small data, such as flags and options; gradients on GPUs do not leave them.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use bfc_core::Stream;
use bfc_cuda::kernels::ElementType;
use bfc_cuda::{CollectiveCall, CollectiveKind, CudaDriver};
use highwater_tensor::DType;

use super::Nccl;
use super::staging::Staging;
use crate::collective::{
    Collective, SliceMut, SumOrder, check_parts, check_reduction, check_root, check_scatter,
};
use crate::error::{CollectiveError, NcclConnectError};
use crate::operation::CollectiveOperation;
use crate::ordered::{self, Messages};

/// The bytes of all slots together, unless there are many ranks.
const STAGING_BYTES: usize = 4 << 20;
/// The least bytes of a slot.
const LEAST_SLOT: usize = 4 << 10;

/// The ranks of [`Nccl`] as a [`Collective`].
pub(crate) struct HostCollective {
    nccl: Arc<Nccl>,
    staging: Mutex<Staging>,
}

impl HostCollective {
    pub(crate) fn new(nccl: Arc<Nccl>, driver: &Arc<CudaDriver>) -> Result<Self, NcclConnectError> {
        // One slot per message: to and from each rank. All ranks cut messages into the same pieces.
        let slots = 2 * nccl.size();
        let slot_bytes = (STAGING_BYTES / slots / 8 * 8).max(LEAST_SLOT);
        let staging = Staging::new(driver, slots, slot_bytes).map_err(NcclConnectError::Driver)?;
        nccl.staging_bytes.store(staging.device_bytes(), Ordering::Relaxed);
        Ok(Self { nccl, staging: Mutex::new(staging) })
    }

    fn run<T>(&self, operation: CollectiveOperation, work: impl FnOnce(&mut Endpoint<'_>) -> T) -> T {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut Endpoint { nccl: &self.nccl, staging: &mut staging, operation })
    }
}

impl fmt::Debug for HostCollective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.nccl.fmt(f)
    }
}

impl Collective for HostCollective {
    fn rank(&self) -> usize {
        self.nccl.rank()
    }

    fn size(&self) -> usize {
        self.nccl.size()
    }

    fn all_reduce(
        &self,
        data: SliceMut<'_>,
        reduce: SumOrder,
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError> {
        check_reduction(CollectiveOperation::AllReduce, &data, reduce, self.size(), workspace)?;
        self.run(CollectiveOperation::AllReduce, |endpoint| match (reduce, &data) {
            (SumOrder::Library, SliceMut::F32(_) | SliceMut::F64(_)) => endpoint.library_all_reduce(data),
            _ => ordered::all_reduce(endpoint, data, workspace),
        })
    }

    fn reduce_scatter(
        &self,
        mut data: SliceMut<'_>,
        parts: &[Range<usize>],
        workspace: &mut [u8],
    ) -> Result<(), CollectiveError> {
        check_scatter(&data, parts, self.rank(), self.size(), workspace)?;
        self.run(CollectiveOperation::ReduceScatter, |endpoint| {
            ordered::reduce_scatter(endpoint, &mut data, parts, workspace)
        })
    }

    fn all_gather(&self, data: SliceMut<'_>, parts: &[Range<usize>]) -> Result<(), CollectiveError> {
        check_parts(CollectiveOperation::AllGather, data.len(), parts, self.size())?;
        self.run(CollectiveOperation::AllGather, |endpoint| ordered::all_gather(endpoint, data, parts))
    }

    fn broadcast(&self, data: SliceMut<'_>, root: usize) -> Result<(), CollectiveError> {
        check_root(root, self.size())?;
        self.run(CollectiveOperation::Broadcast, |endpoint| {
            ordered::broadcast(endpoint, data.into_bytes(), root)
        })
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.run(CollectiveOperation::Barrier, |endpoint| ordered::barrier(endpoint))
    }

    /// NCCL cannot end other processes: their launcher does, or their time limits.
    fn abort(&self, code: i32) -> ! {
        self.nccl.abort();
        std::process::exit(code)
    }
}

/// This rank during one operation.
struct Endpoint<'a> {
    nccl: &'a Nccl,
    staging: &'a mut Staging,
    operation: CollectiveOperation,
}

impl Endpoint<'_> {
    /// Sums over all ranks in an order that NCCL chooses.
    fn library_all_reduce(&mut self, data: SliceMut<'_>) -> Result<(), CollectiveError> {
        let dtype = data.dtype();
        let slot = self.staging.slot_bytes();
        for piece in data.into_bytes().chunks_mut(slot) {
            self.upload(0, piece)?;
            let (address, elements) = (self.staging.address(0), piece.len() / dtype.size());
            let stream = Arc::clone(self.staging.stream());
            self.submit_sum(address, elements, dtype, &stream)?;
            self.download(0, piece.len())?;
            self.wait()?;
            self.staging.read(0, piece);
        }
        Ok(())
    }

    fn submit_sum(
        &self,
        address: u64,
        elements: usize,
        dtype: DType,
        stream: &Stream,
    ) -> Result<(), CollectiveError> {
        // SAFETY: the elements are within a slot, which only the stream of the staging uses.
        unsafe { self.nccl.all_reduce(address, elements, dtype, stream) }
    }

    /// Exchanges the pieces `round` of all messages.
    fn exchange_pieces(
        &mut self,
        sends: &[(usize, &[u8])],
        receives: &mut [(usize, &mut [u8])],
        round: usize,
    ) -> Result<(), CollectiveError> {
        let slot_bytes = self.staging.slot_bytes();
        let piece = |length: usize| {
            let start = (round * slot_bytes).min(length);
            start..length.min(start + slot_bytes)
        };
        let call = |kind, address, elements| CollectiveCall {
            kind,
            from: address,
            to: address,
            elements,
            element: ElementType::U8,
        };
        let mut calls = Vec::with_capacity(sends.len() + receives.len());
        for (slot, (peer, bytes)) in sends.iter().enumerate() {
            let piece = &bytes[piece(bytes.len())];
            if !piece.is_empty() {
                self.upload(slot, piece)?;
                calls.push(call(
                    CollectiveKind::Send { peer: *peer },
                    self.staging.address(slot),
                    piece.len(),
                ));
            }
        }
        let received = |index: usize| sends.len() + index;
        for (index, (peer, bytes)) in receives.iter().enumerate() {
            let length = piece(bytes.len()).len();
            if length > 0 {
                calls.push(call(
                    CollectiveKind::Receive { peer: *peer },
                    self.staging.address(received(index)),
                    length,
                ));
            }
        }
        let stream = Arc::clone(self.staging.stream());
        // SAFETY: the elements are within slots, which only the stream of the staging uses.
        unsafe { self.nccl.submit(self.operation, &calls, &stream) }?;
        for (index, (_, bytes)) in receives.iter().enumerate() {
            self.download(received(index), piece(bytes.len()).len())?;
        }
        self.wait()?;
        for (index, (_, bytes)) in receives.iter_mut().enumerate() {
            let piece = piece(bytes.len());
            self.staging.read(received(index), &mut bytes[piece]);
        }
        Ok(())
    }

    fn upload(&mut self, slot: usize, bytes: &[u8]) -> Result<(), CollectiveError> {
        let result = self.staging.upload(slot, bytes);
        result.map_err(|error| self.nccl.device_error(self.operation, &error))
    }

    fn download(&mut self, slot: usize, bytes: usize) -> Result<(), CollectiveError> {
        if bytes == 0 {
            return Ok(());
        }
        let result = self.staging.download(slot, bytes);
        result.map_err(|error| self.nccl.device_error(self.operation, &error))
    }

    fn wait(&self) -> Result<(), CollectiveError> {
        let event = self.staging.event();
        let event = event.map_err(|error| self.nccl.device_error(self.operation, &error))?;
        self.nccl.wait(self.operation, &event)
    }
}

impl Messages for Endpoint<'_> {
    fn rank(&self) -> usize {
        self.nccl.rank()
    }

    fn size(&self) -> usize {
        self.nccl.size()
    }

    fn exchange(
        &mut self,
        sends: &[(usize, &[u8])],
        receives: &mut [(usize, &mut [u8])],
    ) -> Result<(), CollectiveError> {
        let sent = sends.iter().map(|(_, bytes)| bytes.len());
        let longest = sent.chain(receives.iter().map(|(_, bytes)| bytes.len())).max().unwrap_or(0);
        (0..longest.div_ceil(self.staging.slot_bytes()))
            .try_for_each(|round| self.exchange_pieces(sends, receives, round))
    }
}
