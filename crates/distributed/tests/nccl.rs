//! Ranks that connect over NCCL, as processes on the emulated driver.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

#[path = "../../bfc-cuda/tests/emulated_driver/mod.rs"]
mod emulated_driver;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bfc_core::{
    Allocator, BfcAllocator, BfcConfig, Bytes, DeviceId, DeviceKind, Driver, MemoryCopy, PinnedBuffer,
    PinnedMemory, Stream, StreamEvent,
};
use bfc_cuda::{Compute, CudaDriver, StreamCompute};
use highwater_distributed::{
    AgreeError, AgreedValue, CollectiveError, CollectiveOperation, Launch, Nccl, NcclConnectError,
    Rendezvous, Shard, SumOrder, World, spans,
};
use highwater_kernels::emulator::libraries;
use highwater_nn::modules::{Linear, Module, Relu, Sequential};
use highwater_nn::optim::{AdamW, Optimizer};
use highwater_tensor::{DType, Device, Gradients, Rng, Runtime, Tensor};

use emulated_driver::on_emulated_driver;

/// The time limit of operations that end.
const LONG: Duration = Duration::from_secs(60);

/// A rank with a buffer on its GPU.
struct Rank {
    driver: Arc<CudaDriver>,
    stream: Arc<Stream>,
    compute: StreamCompute,
    nccl: Arc<Nccl>,
    address: u64,
}

/// The place of this process, if a launcher started it.
fn launch() -> Option<Launch> {
    Launch::from_env().unwrap()
}

/// Starts the ranks of a test as `torchrun` does.
fn torchrun(test: &str, size: usize) -> Vec<Child> {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port().to_string();
    let size = size.to_string();
    let start = |rank: usize| {
        let rank = rank.to_string();
        Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .envs([
                ("RANK", &rank),
                ("LOCAL_RANK", &rank),
                ("WORLD_SIZE", &size),
                ("LOCAL_WORLD_SIZE", &size),
            ])
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (0..size.parse().unwrap()).map(start).collect()
}

/// The output of each process, and whether its test passed.
fn outcomes(children: Vec<Child>) -> Vec<(bool, String)> {
    let outcome = |child: Child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.success() && text.contains("1 passed"), text.into_owned())
    };
    children.into_iter().map(outcome).collect()
}

fn assert_all_passed(children: Vec<Child>) {
    let outcomes = outcomes(children);
    assert!(outcomes.iter().all(|(has_passed, _)| *has_passed), "{outcomes:?}");
}

impl Rank {
    /// Connects as a rank of `torchrun`.
    fn of_torchrun(launch: &Launch, limit: Duration) -> Self {
        Self::with(launch.local_rank, |driver| {
            Arc::new(Nccl::connect_at(&Rendezvous::from_env(launch).unwrap(), driver, limit).unwrap())
        })
    }

    fn with(ordinal: usize, connect: impl FnOnce(&Arc<CudaDriver>) -> Arc<Nccl>) -> Self {
        let driver = CudaDriver::new(ordinal as u32).unwrap();
        let stream = Stream::new(driver.clone()).unwrap();
        let compute = StreamCompute::new(driver.clone(), stream.clone()).unwrap();
        let nccl = connect(&driver);
        let address = driver.allocate_device(1 << 16).unwrap();
        Self { driver, stream, compute, nccl, address }
    }

    fn upload(&self, bytes: &[u8]) {
        // SAFETY: the buffer is larger than the data of these tests.
        unsafe { self.compute.upload(bytes, self.address) }.unwrap();
    }

    fn download(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: as for `upload`.
        unsafe { self.compute.download(self.address, &mut bytes) }.unwrap();
        bytes
    }

    fn wait(&self, operation: CollectiveOperation) -> Result<(), CollectiveError> {
        self.nccl.wait(operation, &StreamEvent::new(&self.stream).unwrap())
    }

    fn all_reduce(&self, elements: usize) -> Result<(), CollectiveError> {
        self.nccl.after(CollectiveOperation::AllReduce, &self.stream, |stream| {
            // SAFETY: the buffer is larger, and no work uses it before the end of this operation.
            unsafe { self.nccl.all_reduce(self.address, elements, DType::F32, stream) }
        })
    }

    /// Uploads without waiting, so that an operation comes too early unless it waits.
    fn all_reduce_after_upload(&self, values: &[f32]) -> Vec<f32> {
        let pinned = PinnedMemory::new(self.driver.clone());
        let config = BfcConfig::new(Bytes::mib(1));
        let pool: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("pinned", Arc::new(pinned), config));
        let bytes = size_of_val(values);
        let mut buffer = PinnedBuffer::new(&pool, bytes).unwrap();
        buffer.as_mut_slice().copy_from_slice(bytemuck::cast_slice(values));
        let copy = MemoryCopy::ToDevice {
            from: buffer.as_mut_slice().as_mut_ptr().expose_provenance() as u64,
            to: self.address,
            bytes: bytes as u64,
        };
        // SAFETY: both are as long, and live until the operation below has ended.
        unsafe { self.stream.copy(copy) }.unwrap();
        self.all_reduce(values.len()).unwrap();
        floats(&self.download(4 * values.len()))
    }

    /// Checks all operations with parts of equal and of different lengths, and with parts that leave elements out.
    fn check(&self) {
        let size = self.nccl.size();
        let apart: Vec<_> = (0..size).map(|rank| 10 * rank + 1..10 * rank + 1 + rank).collect();
        for parts in [spans(1, size), spans(12 * size, size), spans(1001, size), apart] {
            let elements = parts.iter().map(|part| part.end).max().unwrap();
            let rank = self.nccl.rank();
            let value = |rank: usize, index: usize| (rank * 10 + index % 7) as f32;
            let sum = |index| (0..size).map(|rank| value(rank, index)).sum();
            let upload = || self.upload(&bytes((0..elements).map(|index| value(rank, index))));
            let download = || floats(&self.download(4 * elements));
            let sums: Vec<f32> = (0..elements).map(sum).collect();
            let own = parts[rank].clone();

            upload();
            self.all_reduce(elements).unwrap();
            assert_eq!(download(), sums);

            upload();
            // SAFETY: the buffer is larger, and used by this stream alone.
            unsafe { self.nccl.reduce_scatter(self.address, elements, DType::F32, &parts, &self.stream) }
                .unwrap();
            self.wait(CollectiveOperation::ReduceScatter).unwrap();
            assert_eq!(download()[own.clone()], sums[own]);

            // SAFETY: as above.
            unsafe { self.nccl.all_gather(self.address, elements, DType::F32, &parts, &self.stream) }
                .unwrap();
            self.wait(CollectiveOperation::AllGather).unwrap();
            let all = download();
            assert!(parts.into_iter().all(|part| all[part.clone()] == sums[part]));

            upload();
            let root = size - 1;
            // SAFETY: as above.
            unsafe { self.nccl.broadcast(self.address, elements, DType::F32, root, &self.stream) }.unwrap();
            self.wait(CollectiveOperation::Broadcast).unwrap();
            assert_eq!(download(), (0..elements).map(|index| value(root, index)).collect::<Vec<_>>());
        }
        assert!(self.nccl.outside_bytes().unwrap().is_some_and(|bytes| bytes > 0));
    }

    /// Wrong calls change nothing.
    fn check_errors(&self) {
        // SAFETY: nothing is submitted.
        let sum = unsafe { self.nccl.all_reduce(self.address, 1, DType::U8, &self.stream) };
        assert_eq!(sum, Err(CollectiveError::Bytes { operation: CollectiveOperation::AllReduce }));
        let size = self.nccl.size();
        // SAFETY: nothing is submitted.
        let sent = unsafe { self.nccl.broadcast(self.address, 1, DType::U8, size, &self.stream) };
        assert_eq!(sent, Err(CollectiveError::Root { root: size, size }));
        // SAFETY: nothing is submitted.
        let gathered =
            unsafe { self.nccl.all_gather(self.address, 3, DType::U8, &[0..1, 2..4, 4..4], &self.stream) };
        assert!(matches!(
            gathered,
            Err(CollectiveError::Parts { operation: CollectiveOperation::AllGather, .. })
        ));
        // Bytes can be sent.
        self.upload(&[7, self.nccl.rank() as u8]);
        // SAFETY: the buffer is larger, and used by this stream alone.
        unsafe { self.nccl.broadcast(self.address, 2, DType::Bool, 0, &self.stream) }.unwrap();
        self.wait(CollectiveOperation::Broadcast).unwrap();
        assert_eq!(self.download(2), [7, 0]);
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // SAFETY: the tests have waited for all work.
        unsafe { self.driver.free_device(self.address) };
    }
}

fn bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_ne_bytes).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect()
}

#[test]
fn ranks_of_torchrun_meet_over_tcp() {
    on_emulated_driver(&[("EMULATED_DEVICES", "3")], || match launch() {
        None => assert_all_passed(torchrun("ranks_of_torchrun_meet_over_tcp", 3)),
        Some(launch) => {
            let rank = Rank::of_torchrun(&launch, LONG);
            assert_eq!((rank.nccl.rank(), rank.nccl.size()), (launch.rank, 3));
            rank.check();
            rank.check_errors();
            for round in 0..20 {
                let sums = rank.all_reduce_after_upload(&[(round + launch.rank) as f32; 3]);
                assert_eq!(sums, [(3 * round + 3) as f32; 3]);
            }
        }
    });
}

#[test]
fn one_rank_connects_through_its_world() {
    on_emulated_driver(&[], || {
        let alone = World::alone();
        let rank = Rank::with(0, |driver| Arc::new(Nccl::connect(alone.collective(), driver, LONG).unwrap()));
        rank.check();
    });
}

/// Host memory travels over NCCL too, so that ranks need no other connection.
#[test]
fn a_world_of_torchrun_needs_no_mpi() {
    on_emulated_driver(&[("EMULATED_DEVICES", "3")], || match launch() {
        None => assert_all_passed(torchrun("a_world_of_torchrun_needs_no_mpi", 3)),
        Some(launch) => {
            let world = World::nccl_from_env_with(LONG).unwrap();
            assert_eq!((world.rank(), world.size()), (launch.rank, 3));
            // Less than a piece, and several ones.
            for length in [0, 1, 1000, 1_000_003] {
                check_host_sums(&world, length);
            }
            let entry = |options: usize| AgreedValue {
                name: "seed".into(),
                shape: vec![],
                dtype: None,
                options: options.to_string(),
            };
            assert_eq!(world.agree(&[entry(7)]), Ok(()));
            assert!(matches!(
                world.agree(&[entry(world.rank())]),
                Err(AgreeError::Differs { index: 0, rank: 1, .. })
            ));
            world.collective().barrier().unwrap();
            // The memory for messages and that of NCCL.
            assert!(world.nccl().unwrap().outside_bytes().unwrap().is_some_and(|bytes| bytes > 4_000_000));
        }
    });
}

/// Checks operations on host memory: sums in rank order, to the bit.
fn check_host_sums(world: &World, length: usize) {
    let (rank, size, collective) = (world.rank(), world.size(), world.collective());
    // In another order, the small numbers are lost.
    let value = |rank: usize, index: usize| [1e8_f32, -1e8, 0.25][rank] + (index % 5) as f32;
    let sum = |index| (0..size).map(|rank| value(rank, index)).fold(0.0, |sum, value| sum + value);
    let input: Vec<f32> = (0..length).map(|index| value(rank, index)).collect();
    let sums: Vec<f32> = (0..length).map(sum).collect();
    let bytes = SumOrder::Ordered.workspace_bytes(length, DType::F32, size);
    let mut workspace = vec![0.0_f32; bytes / 4];
    let workspace: &mut [u8] = bytemuck::cast_slice_mut(&mut workspace);

    let mut data = input.clone();
    collective.all_reduce((&mut data[..]).into(), SumOrder::Ordered, workspace).unwrap();
    assert_eq!(data, sums);

    let parts = spans(length, size);
    let mut data = input.clone();
    collective.reduce_scatter((&mut data[..]).into(), &parts, workspace).unwrap();
    assert_eq!(data[parts[rank].clone()], sums[parts[rank].clone()]);
    collective.all_gather((&mut data[..]).into(), &parts).unwrap();
    assert_eq!(data, sums);

    let mut data = input;
    collective.broadcast((&mut data[..]).into(), 1).unwrap();
    assert!((0..length).all(|index| data[index] == value(1, index)));

    // These sums are exact in any order.
    let mut data = vec![(rank + 1) as f64; length];
    let mut workspace = vec![0.0_f64; SumOrder::Library.workspace_bytes(length, DType::F64, size) / 8];
    let workspace = bytemuck::cast_slice_mut(&mut workspace);
    collective.all_reduce((&mut data[..]).into(), SumOrder::Library, workspace).unwrap();
    assert_eq!(data, vec![6.0; length]);
}

/// Rank 1 of two is killed. Rank 0 gets an error that names the operation, and then only that error.
#[test]
fn the_other_rank_fails_after_the_time_limit() {
    let limit = Duration::from_secs(2);
    on_emulated_driver(&[], || match launch() {
        None => {
            let outcomes = outcomes(torchrun("the_other_rank_fails_after_the_time_limit", 2));
            assert!(outcomes[0].0 && !outcomes[1].0, "{outcomes:?}");
        }
        Some(launch) => {
            let rank = Rank::of_torchrun(&launch, limit);
            rank.all_reduce(100).unwrap();
            if launch.rank == 1 {
                Command::new("kill").args(["-9", &std::process::id().to_string()]).status().unwrap();
                thread::sleep(LONG);
            }
            let (operation, rank_number, peers) = (CollectiveOperation::AllReduce, 0, vec![]);
            let error = CollectiveError::TimedOut { operation, rank: rank_number, peers, limit };
            assert_eq!(rank.all_reduce(100), Err(error));
            assert!(matches!(rank.all_reduce(100), Err(CollectiveError::Ended { rank: 0, .. })));
            assert!(rank.nccl.outside_bytes().is_err());
            rank.stream.synchronize().unwrap();
        }
    });
}

#[test]
fn without_nccl_no_rank_waits_for_others() {
    on_emulated_driver(&[("HIGHWATER_NCCL", "/nowhere")], || {
        let driver = CudaDriver::new(0).unwrap();
        let rendezvous = Rendezvous::new(0, 2, "127.0.0.1", 1).unwrap();
        let error = Nccl::connect_at(&rendezvous, &driver, LONG).unwrap_err();
        assert!(matches!(error, NcclConnectError::Nccl(_)), "{error}");
        let error = Nccl::connect(World::alone().collective(), &driver, LONG).unwrap_err();
        assert!(error.to_string().contains("HIGHWATER_NCCL=/nowhere"), "{error}");
    });
}

/// The world's connection brings the id to all ranks.
#[cfg(feature = "mpi")]
mod over_mpi {
    use super::*;

    /// Starts both ranks with `mpiexec`, each with variables of its own.
    fn mpiexec(test: &str, variables: [&[&str]; 2]) -> Vec<(bool, String)> {
        let program = std::env::current_exe().unwrap();
        let program = program.to_str().unwrap();
        let rank = |variables: &[&str]| -> Vec<String> {
            [&["-n", "1"], variables, &[program, test, "--exact", "--nocapture"]]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect()
        };
        let arguments = [rank(variables[0]), vec![":".to_owned()], rank(variables[1])].concat();
        let mut command = Command::new("mpiexec");
        outcomes(vec![command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()])
    }

    #[test]
    fn ranks_of_mpiexec_meet_through_their_world() {
        on_emulated_driver(&[], || match launch() {
            None => {
                let outcomes = mpiexec("over_mpi::ranks_of_mpiexec_meet_through_their_world", [&[], &[]]);
                assert!(outcomes[0].0, "{outcomes:?}");
            }
            Some(launch) => {
                let world = World::nccl_from_env_with(LONG).unwrap();
                let rank = Rank::with(launch.local_rank, |_| Arc::clone(world.nccl().unwrap()));
                assert_eq!((rank.nccl.rank(), rank.nccl.size()), (world.rank(), 2));
                rank.check();
            }
        });
    }

    #[test]
    fn ranks_do_not_wait_for_a_rank_0_without_nccl() {
        on_emulated_driver(&[], || match launch() {
            None => {
                let missing = ["-env", "HIGHWATER_NCCL", "/nowhere"];
                let outcomes =
                    mpiexec("over_mpi::ranks_do_not_wait_for_a_rank_0_without_nccl", [&missing, &[]]);
                assert!(outcomes[0].0, "{outcomes:?}");
            }
            Some(launch) => {
                let world = World::from_env_with(LONG).unwrap();
                let driver = CudaDriver::new(launch.local_rank as u32).unwrap();
                let error = Nccl::connect(world.collective(), &driver, LONG).unwrap_err();
                match world.rank() {
                    0 => assert!(matches!(error, NcclConnectError::Nccl(_)), "{error}"),
                    rank => assert!(matches!(error, NcclConnectError::NoId { rank: 1 }), "{rank}: {error}"),
                }
            }
        });
    }
}

/// Trains on the GPU of each rank, and compares with one process that adds the gradients of all batches on the same GPU.
#[test]
fn ranks_on_gpus_train_as_one_process() {
    const STEPS: usize = 3;
    const RANKS: usize = 2;

    fn network(device: &Device) -> Sequential {
        let rng = Rng::new(3);
        Sequential::new()
            .with("fc1", Linear::new(device, 6, 40, &rng).unwrap())
            .with("relu", Relu)
            .with("fc2", Linear::new(device, 40, 3, &rng).unwrap())
    }

    fn loss(network: &Sequential, device: &Device, batch: usize) -> Tensor {
        let x = Tensor::randn(device, [8, 6], &Rng::new(batch as u64)).unwrap();
        network.forward(&x).unwrap().square().unwrap().mean_all().unwrap()
    }

    fn values(network: &Sequential) -> Vec<Vec<f32>> {
        network.parameters().iter().map(|(_, own)| own.value().to_vec().unwrap()).collect()
    }

    let test = "ranks_on_gpus_train_as_one_process";
    on_emulated_driver(&[("EMULATED_DEVICES", "2")], || match launch() {
        None => assert_all_passed(torchrun(test, RANKS)),
        Some(launch) => {
            let world = World::nccl_from_env_with(LONG).unwrap();
            let runtime = Runtime::builder().build().unwrap();
            let gpu = DeviceId::new(DeviceKind::Cuda, u32::try_from(launch.local_rank).unwrap());
            let device = runtime.choose(Some(gpu)).unwrap().device;

            let alone = network(&device);
            let mut optimizer = AdamW::new(alone.parameters(), 0.01).unwrap();
            for step in 0..STEPS {
                let mut gradients = Gradients::default();
                for batch in 0..RANKS {
                    let loss = loss(&alone, &device, step * RANKS + batch);
                    gradients.accumulate(&mut loss.backward().unwrap()).unwrap();
                }
                gradients.scale(1.0 / RANKS as f64).unwrap();
                optimizer.step(gradients).unwrap();
            }

            for shard in [Shard::None, Shard::Optimizer, Shard::Gradients] {
                let together = network(&device);
                let optimizer = world.sharded(shard, together.parameters(), |own| AdamW::new(own, 0.01));
                let mut optimizer = optimizer.unwrap().bucket_bytes(600);
                for step in 0..STEPS {
                    let loss = loss(&together, &device, step * RANKS + world.rank());
                    optimizer.step(loss.backward().unwrap()).unwrap();
                }
                assert_eq!(values(&together), values(&alone), "{shard:?}");
            }
        }
    });
}
