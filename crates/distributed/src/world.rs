//! The ranks that train together, and the place of this process among them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{num::NonZero, thread};

use bfc_core::DeviceId;
#[cfg(feature = "cuda")]
use bfc_core::{Bytes, DeviceKind};
#[cfg(feature = "cuda")]
use bfc_cuda::CudaDriver;
use highwater_nn::data::DataShard;
use highwater_tracking::Tracker;

use crate::agree::{AgreeError, AgreedValue, Fingerprint, Hash, agree};
use crate::collective::{Collective, SliceMut, spans};
#[cfg(feature = "cuda")]
use crate::error::NcclConnectError;
use crate::error::{CollectiveError, WorldError};
use crate::launch::Launch;
#[cfg(any(feature = "cuda", feature = "mpi"))]
use crate::launch::Launcher;
#[cfg(feature = "cuda")]
use crate::nccl::{HostCollective, Nccl, Rendezvous};
use crate::reduction::{ParallelError, Ranks, Reducer, RunStage, exchange, exchange_bits};
use crate::rehearsal::Rehearsal;

/// The time limit of an operation. Ranks that wait include those that wait for a checkpoint or an evaluation of rank 0.
pub const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(600);

/// The ranks that run the same program. Clones share one connection.
#[derive(Clone, Debug)]
pub struct World {
    collective: Arc<dyn Collective>,
    /// The number of ranks on this machine.
    local_size: usize,
    /// Sums gradients in the background, once a training loop needs it.
    reducer: Arc<OnceLock<Reducer>>,
    /// The operations on memory of GPUs.
    #[cfg(feature = "cuda")]
    nccl: Option<Arc<Nccl>>,
    /// The GPU of this rank, if NCCL connects the ranks.
    gpu: Option<DeviceId>,
}

impl World {
    /// Returns the world of one rank.
    #[must_use]
    pub fn alone() -> Self {
        Self::new(Arc::new(Rehearsal::new(0, 1)), 1)
    }

    pub(crate) fn new(collective: Arc<dyn Collective>, local_size: usize) -> Self {
        Self {
            collective,
            local_size,
            reducer: Arc::default(),
            #[cfg(feature = "cuda")]
            nccl: None,
            gpu: None,
        }
    }

    /// Connects the ranks that a launcher started; the world of one rank if no launcher started this program.
    ///
    /// [`Launch::from_variables`] says how launchers are recognized. Each operation may take [`DEFAULT_TIME_LIMIT`]. A
    /// process connects once: clone the world.
    ///
    /// # Errors
    ///
    /// A variable of a launcher is invalid, or this build cannot connect the ranks.
    pub fn from_env() -> Result<Self, WorldError> {
        Self::from_env_with(DEFAULT_TIME_LIMIT)
    }

    /// Like [`from_env`](Self::from_env), with another time limit for each operation.
    ///
    /// # Errors
    ///
    /// As for [`from_env`](Self::from_env).
    pub fn from_env_with(time_limit: Duration) -> Result<Self, WorldError> {
        match Launch::from_env()? {
            Some(launch) if launch.size > 1 => Ok(Self::new(connect(launch, time_limit)?, launch.local_size)),
            _ => Ok(Self::alone()),
        }
    }

    /// Connects the ranks that a launcher started, each with the GPU of its number on its machine, by NCCL. The world of one
    /// rank if no launcher started this program.
    ///
    /// The method `nccl` returns the operations on memory of GPUs. Host memory travels over MPI, or over NCCL if `torchrun`
    /// started the ranks or the feature `mpi` is off. The type `Rendezvous` says how such ranks find each other.
    ///
    /// # Errors
    ///
    /// A variable of the launcher is invalid, this rank has no GPU, NCCL is not installed, or the ranks do not answer. Without
    /// the feature `cuda`: always.
    pub fn nccl_from_env() -> Result<Self, WorldError> {
        Self::nccl_from_env_with(DEFAULT_TIME_LIMIT)
    }

    /// Like [`nccl_from_env`](Self::nccl_from_env), with another time limit for each operation.
    ///
    /// # Errors
    ///
    /// As for [`nccl_from_env`](Self::nccl_from_env).
    #[cfg(not(feature = "cuda"))]
    pub fn nccl_from_env_with(_time_limit: Duration) -> Result<Self, WorldError> {
        Err(WorldError::NoCuda)
    }

    /// Like [`nccl_from_env`](Self::nccl_from_env), with another time limit for each operation.
    ///
    /// # Errors
    ///
    /// As for [`nccl_from_env`](Self::nccl_from_env).
    #[cfg(feature = "cuda")]
    pub fn nccl_from_env_with(time_limit: Duration) -> Result<Self, WorldError> {
        let Some(launch) = Launch::from_env()?.filter(|launch| launch.size > 1) else {
            return Ok(Self::alone());
        };
        let ordinal = u32::try_from(launch.local_rank).unwrap_or(u32::MAX);
        let gpu = Some(DeviceId::new(DeviceKind::Cuda, ordinal));
        let driver = CudaDriver::new(ordinal).map_err(NcclConnectError::from)?;
        if cfg!(feature = "mpi") && launch.launcher != Launcher::Torchrun {
            let world = Self::from_env_with(time_limit)?;
            let nccl = Nccl::connect(world.collective(), &driver, time_limit)?;
            return Ok(Self { nccl: Some(Arc::new(nccl)), gpu, ..world });
        }
        let nccl = Arc::new(Nccl::connect_at(&Rendezvous::from_env(&launch)?, &driver, time_limit)?);
        let collective = HostCollective::new(Arc::clone(&nccl), &driver)?;
        Ok(Self { nccl: Some(nccl), gpu, ..Self::new(Arc::new(collective), launch.local_size) })
    }

    /// Returns the operations on memory of GPUs, if [`nccl_from_env`](Self::nccl_from_env) has connected them.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub const fn nccl(&self) -> Option<&Arc<Nccl>> {
        self.nccl.as_ref()
    }

    /// Returns the GPU of this rank, if NCCL connects the ranks: the one with the number of the rank on its machine.
    #[must_use]
    pub const fn gpu(&self) -> Option<DeviceId> {
        self.gpu
    }

    /// Returns one rank of a world whose other ranks do not exist, for dry runs. Operations move no data.
    ///
    /// ```
    /// let world = highwater_distributed::World::rehearsal(3, 8)?;
    /// assert_eq!((world.rank(), world.size()), (3, 8));
    /// # Ok::<(), highwater_distributed::WorldError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The rank is not below the number of ranks.
    pub fn rehearsal(rank: usize, size: usize) -> Result<Self, WorldError> {
        if rank >= size {
            return Err(WorldError::Rank { rank, size });
        }
        Ok(Self::new(Arc::new(Rehearsal::new(rank, size)), 1))
    }

    /// Returns the number of this rank, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.collective.rank()
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.collective.size()
    }

    /// Returns whether this is rank 0, which prints and saves.
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.rank() == 0
    }

    /// Returns whether the other ranks do not exist.
    #[must_use]
    pub fn is_rehearsal(&self) -> bool {
        self.collective.is_rehearsal()
    }

    /// Returns the number of threads that this rank should compute with: the cores that this process may use, divided
    /// by the number of ranks on this machine, and at least one.
    #[must_use]
    pub fn threads(&self) -> usize {
        (thread::available_parallelism().map_or(1, NonZero::get) / self.local_size).max(1)
    }

    /// Checks that all ranks have the same entries in the same order. Each rank compares its list with that of rank 0.
    ///
    /// ```
    /// use highwater_distributed::{AgreedValue, World};
    ///
    /// let entry = AgreedValue { name: "seed".into(), shape: vec![], dtype: None, options: "7".into() };
    /// World::from_env()?.agree(&[entry])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// An entry differs; all ranks then return the same error. Or a rank does not answer.
    pub fn agree(&self, entries: &[AgreedValue]) -> Result<(), AgreeError> {
        agree(self.collective(), entries)
    }

    /// Waits until all ranks are at the same stage of a training loop, and checks that all have the same entries. Training
    /// loops call it where ranks may run different operations, such as at the end of an epoch.
    ///
    /// ```
    /// use highwater_distributed::{AgreedValue, RunStage, World};
    ///
    /// let entry = AgreedValue { name: "steps".into(), shape: vec![], dtype: None, options: "100".into() };
    /// World::from_env()?.agree_at(RunStage::Begin, vec![entry])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// An entry differs, or a rank is at another stage. All ranks then return the same error. If a rank does not answer, only
    /// the waiting ranks return an error.
    pub fn agree_at(&self, stage: RunStage, entries: Vec<AgreedValue>) -> Result<(), ParallelError> {
        if self.size() == 1 {
            return Ok(());
        }
        exchange(self.collective(), stage.into(), &Fingerprint::of(entries), &[]).map(drop)
    }

    /// Waits until all ranks are at the same stage of a training loop, and returns the numbers of all ranks, in rank order. If
    /// all ranks have the same numbers, only a hash travels. In a rehearsal all have those of this rank.
    ///
    /// ```
    /// use highwater_distributed::{RunStage, World};
    ///
    /// let world = World::alone();
    /// assert_eq!(world.gather_at(RunStage::Batch, &[4.0, 0.25])?, [[4.0, 0.25]]);
    /// # Ok::<(), highwater_distributed::ParallelError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`agree_at`](Self::agree_at).
    pub fn gather_at(&self, stage: RunStage, own: &[f64]) -> Result<Vec<Vec<f64>>, ParallelError> {
        let size = self.size();
        if size == 1 || self.is_rehearsal() {
            return Ok(vec![own.to_vec(); size]);
        }
        let hash = Hash::new().add(bytemuck::cast_slice(own)).get();
        let hashes = exchange_bits(self.collective(), stage.into(), &Fingerprint::of(Vec::new()), hash)?;
        if hashes.iter().all(|other| *other == hash) {
            return Ok(vec![own.to_vec(); size]);
        }
        // All ranks have read the same hashes, so all of them send their numbers.
        let counts = self.all_gather_f64([own.len() as f64])?;
        let mut end = 0;
        let part = |[count]: &[f64; 1]| {
            let start = end;
            end += *count as usize;
            start..end
        };
        let parts: Vec<_> = counts.iter().map(part).collect();
        let mut all = vec![0.0; end];
        all[parts[self.rank()].clone()].copy_from_slice(own);
        self.collective.all_gather(SliceMut::F64(&mut all), &parts)?;
        Ok(parts.into_iter().map(|part| all[part].to_vec()).collect())
    }

    /// Returns the numbers of all ranks, in rank order. In a rehearsal all have those of this rank.
    ///
    /// # Errors
    ///
    /// Another rank fails.
    pub fn all_gather_f64<const N: usize>(&self, own: [f64; N]) -> Result<Vec<[f64; N]>, CollectiveError> {
        let mut all = vec![own; self.size()];
        if self.is_rehearsal() {
            return Ok(all);
        }
        let values = all.as_flattened_mut();
        let parts = spans(values.len(), self.size());
        self.collective.all_gather(values.into(), &parts)?;
        Ok(all)
    }

    /// Returns the connections of this rank.
    pub(crate) fn ranks(&self) -> Ranks {
        Ranks {
            collective: Arc::clone(&self.collective),
            #[cfg(feature = "cuda")]
            nccl: self.nccl.clone(),
        }
    }

    /// Returns whether this world can sum gradients in the memory of GPUs.
    pub(crate) const fn has_nccl(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.nccl.is_some();
        #[cfg(not(feature = "cuda"))]
        false
    }

    /// Returns the thread that sums gradients.
    ///
    /// # Errors
    ///
    /// The thread does not start.
    pub(crate) fn reducer(&self) -> std::io::Result<&Reducer> {
        if let Some(reducer) = self.reducer.get() {
            return Ok(reducer);
        }
        let reducer = Reducer::start(self.ranks())?;
        Ok(self.reducer.get_or_init(|| reducer))
    }

    /// Tells the tracker the memory that NCCL holds outside of the pools, if it is known.
    pub fn report_outside(&self, tracker: &Tracker) {
        #[cfg(feature = "cuda")]
        if let Some(bytes) = self.nccl.as_ref().and_then(|nccl| nccl.outside_bytes().ok().flatten()) {
            tracker.set_outside("NCCL", Bytes(bytes));
        }
        let _ = tracker;
    }

    /// Returns the operations between the ranks.
    #[must_use]
    pub fn collective(&self) -> &dyn Collective {
        &*self.collective
    }
}

/// The part of a data set that this rank reads: `data.batches(32, &device)?.sharded(&world)`.
impl From<&World> for DataShard {
    fn from(world: &World) -> Self {
        // A world has a rank below its size.
        Self::new(world.rank(), world.size()).unwrap_or_default()
    }
}

#[cfg(feature = "mpi")]
fn connect(launch: Launch, time_limit: Duration) -> Result<Arc<dyn Collective>, WorldError> {
    let Launch { launcher, rank, size, .. } = launch;
    if launcher == Launcher::Torchrun {
        return Err(WorldError::NoTransport { launcher, size });
    }
    let mpi = crate::mpi::Mpi::connect(time_limit)?;
    let (mpi_rank, mpi_size) = (mpi.rank(), mpi.size());
    if (mpi_rank, mpi_size) != (rank, size) {
        return Err(WorldError::OtherMpi { launcher, rank, size, mpi_rank, mpi_size });
    }
    Ok(Arc::new(mpi))
}

#[cfg(not(feature = "mpi"))]
fn connect(Launch { launcher, size, .. }: Launch, _: Duration) -> Result<Arc<dyn Collective>, WorldError> {
    Err(WorldError::NoTransport { launcher, size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::SumOrder;
    use crate::error::CollectiveError;

    #[test]
    fn a_rehearsal_checks_arguments_as_a_connected_rank_does() {
        let world = World::rehearsal(1, 3).unwrap();
        let (mut values, mut workspace) = ([1.0_f32, 2.0, 3.0, 4.0], [0.0_f32; 4]);
        let workspace: &mut [u8] = bytemuck::cast_slice_mut(&mut workspace);
        let collective = world.collective();
        let mut reduce = |workspace: &mut [u8]| {
            collective.all_reduce(SliceMut::F32(&mut values), SumOrder::Ordered, workspace)
        };
        assert_eq!(reduce(workspace), Ok(())); // two elements of each of two other ranks
        assert!(matches!(
            reduce(&mut workspace[..12]),
            Err(CollectiveError::Workspace { needed: 16, given: 12, .. })
        ));
        assert!(matches!(reduce(&mut workspace[1..]), Err(CollectiveError::Workspace { needed: 16, .. })));
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0]);
        let mut bytes = [0_u8; 8];
        let bytes_reduced = collective.reduce_scatter(SliceMut::Bytes(&mut bytes), &spans(8, 3), workspace);
        assert!(matches!(bytes_reduced, Err(CollectiveError::Bytes { .. })));
        let sent = collective.broadcast(SliceMut::Bytes(&mut bytes), 3);
        assert_eq!(sent, Err(CollectiveError::Root { root: 3, size: 3 }));
    }

    #[test]
    fn a_rehearsal_needs_a_rank_below_the_size() {
        assert!(World::rehearsal(2, 3).is_ok_and(|world| world.is_rehearsal() && !world.is_main()));
        let error = World::rehearsal(3, 3).unwrap_err();
        assert_eq!(error.to_string(), "there is no rank 3 among 3 ranks: ranks are counted from 0");
        assert!(World::rehearsal(0, 0).is_err());
    }

    #[test]
    fn one_rank_needs_no_workspace_and_computes_with_all_cores() {
        let world = World::alone();
        let mut values = [1.5_f64];
        world.collective().all_reduce((&mut values[..]).into(), SumOrder::Ordered, &mut []).unwrap();
        assert_eq!(values, [1.5]);
        assert_eq!(world.threads(), thread::available_parallelism().unwrap().get());
        let shared = World { local_size: world.threads() + 1, ..world };
        assert_eq!(shared.threads(), 1);
    }
}
