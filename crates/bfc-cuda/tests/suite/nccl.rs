//! Tests communicators on the emulated driver: values in rank order, wrong calls, failures on demand, dead ranks.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bfc_core::{Driver, Stream, StreamEvent};
use bfc_cuda::kernels::ElementType;
use bfc_cuda::{
    CollectiveCall, CollectiveKind, Communicator, Compute, CudaDriver, NcclError, NcclLibrary, StreamCompute,
    UniqueId,
};

use crate::controls::live_objects;
use crate::emulated_driver::{EmulatedDriver, expected, on_emulated_driver};
use crate::ranks::{LONG, Place, digits, has_passed, place, run_all, start, text};

/// The time limit of tests that reach it.
const SHORT: Duration = Duration::from_millis(700);

/// A rank with 64 KiB of memory on its device.
struct Rank {
    driver: Arc<CudaDriver>,
    stream: Arc<Stream>,
    compute: StreamCompute,
    communicator: Communicator,
    address: u64,
}

impl Rank {
    /// The only rank.
    fn alone(limit: Duration) -> Self {
        let id = NcclLibrary::find().unwrap().unique_id().unwrap();
        Self::connect(&Place { rank: 0, size: 1, id }, limit).unwrap()
    }

    fn connect(place: &Place, limit: Duration) -> Result<Self, NcclError> {
        let driver = CudaDriver::new(place.rank as u32).unwrap();
        let stream = Stream::new(driver.clone()).unwrap();
        let compute = StreamCompute::new(driver.clone(), stream.clone()).unwrap();
        let library = NcclLibrary::find()?;
        let communicator =
            Communicator::connect(&library, &driver, &place.id, place.rank, place.size, limit)?;
        let address = driver.allocate_device(1 << 16).unwrap();
        Ok(Self { driver, stream, compute, communicator, address })
    }

    fn all_reduce(&self, elements: usize) -> CollectiveCall {
        let (kind, element, address) = (CollectiveKind::AllReduce, ElementType::F32, self.address);
        CollectiveCall { kind, from: address, to: address, elements, element }
    }

    fn submit(&self, call: CollectiveCall) -> Result<(), NcclError> {
        // SAFETY: the emulated driver checks addresses, and the memory lives as long as `self`.
        unsafe { self.communicator.submit(&[call], &self.stream) }
    }

    /// Submits an operation and waits for it.
    fn run(&self, call: CollectiveCall) -> Result<(), NcclError> {
        self.submit(call)?;
        self.communicator.wait(&StreamEvent::new(&self.stream).unwrap())
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // SAFETY: the communicator has no work that uses it: tests wait, or the communicator is aborted.
        unsafe { self.driver.free_device(self.address) };
    }
}

/// The ranks of one test on the emulated driver: the test's process starts them, and each runs `body`.
fn on_ranks<F: FnOnce(Place)>(name: &str, size: usize, body: F) {
    if let Some(place) = place() {
        return body(place);
    }
    let id = NcclLibrary::find().unwrap().unique_id().unwrap();
    run_all(&format!("nccl::{name}"), &id, size);
    assert!(!shared_memory(&id).exists());
}

/// The memory that the ranks of an id share.
fn shared_memory(id: &UniqueId) -> std::path::PathBuf {
    Path::new("/dev/shm").join(format!("highwater-nccl-{}", digits(id, 16)))
}

#[test]
fn sums_are_in_rank_order() {
    on_emulated_driver(&[("EMULATED_DEVICES", "4")], || {
        on_ranks("sums_are_in_rank_order", 4, |place| {
            let rank = Rank::connect(&place, LONG).unwrap();
            // In another order, the small numbers are lost.
            let own = [1e8_f32, -1e8, 0.25, 0.5][place.rank];
            // SAFETY: the memory is large enough.
            unsafe { rank.compute.upload(&own.to_ne_bytes(), rank.address) }.unwrap();
            rank.run(rank.all_reduce(1)).unwrap();
            let mut sum = [0; 4];
            // SAFETY: as above.
            unsafe { rank.compute.download(rank.address, &mut sum) }.unwrap();
            assert_eq!(f32::from_ne_bytes(sum), 0.75);
        });
    });
}

#[test]
fn wrong_arguments_of_a_caller_are_errors_with_a_reason() {
    on_emulated_driver(&[], || {
        let rank = Rank::alone(LONG);
        let root = |root| CollectiveCall { kind: CollectiveKind::Broadcast { root }, ..rank.all_reduce(1) };
        assert_eq!(rank.run(root(1)), Err(NcclError::Rank { rank: 1, size: 1 }));
        // That reaches no library, so the communicator still works.
        assert_eq!(rank.run(root(0)), Ok(()));
        let library = NcclLibrary::find().unwrap();
        let id = library.unique_id().unwrap();
        let connect = |rank_number, size| {
            let id = &id;
            Communicator::connect(&library, &rank.driver, id, rank_number, size, LONG).err()
        };
        assert_eq!(connect(2, 2), Some(NcclError::Rank { rank: 2, size: 2 }));
        assert_eq!(connect(0, 1 << 40), Some(NcclError::Rank { rank: 0, size: 1 << 40 }));
        assert!(matches!(connect(0, 1000), Some(NcclError::Call { code: 4, .. })));

        // More than the memory.
        let error = rank.run(rank.all_reduce((1 << 14) + 1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ncclAllReduce on rank 0: NCCL result 4, invalid argument (run with NCCL_DEBUG=WARN for details): \
             AllReduce : invalid sendbuff"
        );
        // The first error ends the communicator.
        let later = rank.run(rank.all_reduce(1)).unwrap_err().to_string();
        assert!(
            later.starts_with(
                "ncclAllReduce on rank 0: not started, because the communicator has ended: nccl"
            )
        );
        assert!(rank.communicator.memory_bytes().is_err());
    });
}

#[test]
fn results_of_nccl_have_its_texts_even_unknown_ones() {
    if let Some(expected) = expected() {
        let rank = Rank::alone(LONG);
        rank.run(rank.all_reduce(1)).unwrap();
        let error = rank.run(rank.all_reduce(1)).unwrap_err();
        let NcclError::Call { call, rank: Some(0), code, reason, detail } = error else { panic!("{error}") };
        assert_eq!(format!("{call} {code} {reason}"), expected);
        assert_eq!(detail, "a failure on demand");
        return;
    }
    let driver = EmulatedDriver::new("results_of_nccl_have_its_texts_even_unknown_ones");
    let run = |failure, expected| driver.run(expected, &[("EMULATED_NCCL_FAIL", failure)]);
    run("AllReduce:2:2", "ncclAllReduce 2 unhandled system error (run with NCCL_DEBUG=INFO for details)");
    run("AllReduce:2:8", "ncclAllReduce 8 timeout");
    run("AllReduce:2:99", "ncclAllReduce 99 unknown result code");
    // The operation fails on the device, after the call.
    run("stream:2:6", "waiting for an operation 6 remote process exited or there was a network error");
}

#[test]
fn ids_connections_and_groups_that_fail_are_errors() {
    if let Some(expected) = expected() {
        let error = match expected.as_str() {
            "ncclGetUniqueId" => NcclLibrary::find().unwrap().unique_id().unwrap_err(),
            "ncclCommInitRankConfig" => {
                let id = UniqueId::from_bytes([7; UniqueId::BYTES]);
                Rank::connect(&Place { rank: 0, size: 1, id }, LONG).err().unwrap()
            }
            _ => {
                let rank = Rank::alone(LONG);
                let calls = [rank.all_reduce(1), rank.all_reduce(2)];
                // SAFETY: the memory is large enough, and the group fails.
                unsafe { rank.communicator.submit(&calls, &rank.stream) }.unwrap_err()
            }
        };
        assert!(matches!(&error, NcclError::Call { call, .. } if *call == expected), "{error}");
        return;
    }
    let driver = EmulatedDriver::new("ids_connections_and_groups_that_fail_are_errors");
    driver.run("ncclGetUniqueId", &[("EMULATED_NCCL_FAIL", "GetUniqueId:1:2")]);
    driver.run("ncclCommInitRankConfig", &[]);
    driver.run("ncclGroupEnd", &[("EMULATED_NCCL_FAIL", "GroupEnd:1:3")]);
    // The second call of the group.
    driver.run("ncclGroupEnd", &[("EMULATED_NCCL_FAIL", "AllReduce:2:3")]);
}

#[test]
fn calls_that_never_end_reach_the_time_limit() {
    if let Some(expected) = expected() {
        let rank = Rank::alone(SHORT);
        let error = rank.run(rank.all_reduce(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{expected} on rank 0 of 1: not finished within 700ms; another rank has ended, hangs, or runs other \
                 operations: look for its error, or raise the time limit"
            )
        );
        // The abort has ended the operation, so that the stream goes on.
        rank.stream.synchronize().unwrap();
        return;
    }
    let driver = EmulatedDriver::new("calls_that_never_end_reach_the_time_limit");
    driver.run("ncclAllReduce", &[("EMULATED_NCCL_FAIL", "AllReduce:1:7")]);
    driver.run("waiting for an operation", &[("EMULATED_NCCL_FAIL", "stream:1:7")]);
}

#[test]
fn an_abort_wakes_a_thread_that_waits() {
    on_emulated_driver(&[("EMULATED_NCCL_FAIL", "stream:1:7")], || {
        let rank = Rank::alone(LONG);
        rank.submit(rank.all_reduce(1)).unwrap();
        let event = StreamEvent::new(&rank.stream).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| rank.communicator.wait(&event));
            rank.communicator.abort();
            let cause = "this rank aborted it".to_owned();
            let error = waiting.join().unwrap().unwrap_err();
            assert_eq!(error, NcclError::Ended { call: "waiting for an operation", rank: 0, cause });
        });
        rank.stream.synchronize().unwrap();
    });
}

#[test]
fn a_dropped_communicator_leaves_nothing() {
    on_emulated_driver(&[], || {
        on_ranks("a_dropped_communicator_leaves_nothing", 2, |place| {
            let driver = CudaDriver::new(place.rank as u32).unwrap();
            let before = live_objects();
            let library = NcclLibrary::find().unwrap();
            let connect =
                || Communicator::connect(&library, &driver, &place.id, place.rank, place.size, LONG);
            let communicator = connect().unwrap();
            assert_eq!(live_objects(), before + 1);
            drop(communicator);
            assert_eq!(live_objects(), before);
        });
    });
}

#[test]
fn ranks_that_pass_different_lengths_fail_together() {
    on_emulated_driver(&[], || {
        on_ranks("ranks_that_pass_different_lengths_fail_together", 2, |place| {
            let rank = Rank::connect(&place, LONG).unwrap();
            let error = rank.run(rank.all_reduce(100 + place.rank)).unwrap_err();
            let expected = format!("rank {} runs another operation", 1 - place.rank);
            assert!(
                matches!(&error, NcclError::Call { code: 5, detail, .. } if *detail == expected),
                "{error}"
            );
        });
    });
}

#[test]
fn a_message_of_another_length_is_an_error() {
    on_emulated_driver(&[], || {
        on_ranks("a_message_of_another_length_is_an_error", 2, |place| {
            let rank = Rank::connect(&place, LONG).unwrap();
            let kinds = [CollectiveKind::Send { peer: 1 }, CollectiveKind::Receive { peer: 0 }];
            let call = CollectiveCall { kind: kinds[place.rank], ..rank.all_reduce(100 + place.rank) };
            match rank.run(call) {
                Ok(()) => assert_eq!(place.rank, 0),
                Err(NcclError::Call { code: 5, detail, .. }) => {
                    assert_eq!(detail, "rank 0 sends a message of another length");
                }
                Err(error) => panic!("{error}"),
            }
            // The other rank is not there anymore.
            rank.communicator.abort();
        });
    });
}

#[test]
fn two_ranks_on_one_device_are_refused() {
    on_emulated_driver(&[], || {
        on_ranks("two_ranks_on_one_device_are_refused", 2, |place| {
            let (library, driver) = (NcclLibrary::find().unwrap(), CudaDriver::new(1).unwrap());
            let connected = Communicator::connect(&library, &driver, &place.id, place.rank, place.size, LONG);
            let NcclError::Call { code: 5, detail, .. } = connected.unwrap_err() else { panic!() };
            assert_eq!(detail, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1");
        });
    });
}

#[test]
fn ranks_of_worlds_of_other_sizes_are_refused() {
    on_emulated_driver(&[], || {
        on_ranks("ranks_of_worlds_of_other_sizes_are_refused", 2, |place| {
            let connected = Rank::connect(&Place { size: 2 + place.rank, ..place }, SHORT);
            // The rank that comes second notices; the other one waits.
            let error = connected.err().unwrap();
            assert!(matches!(error, NcclError::Call { code: 4, .. } | NcclError::TimedOut { .. }), "{error}");
        });
    });
}

#[test]
fn a_rank_that_never_connects_is_missed() {
    on_emulated_driver(&[], || {
        let id = NcclLibrary::find().unwrap().unique_id().unwrap();
        let error = Rank::connect(&Place { rank: 0, size: 2, id: id.clone() }, SHORT).err().unwrap();
        let call = "ncclCommInitRankConfig";
        assert_eq!(error, NcclError::TimedOut { call, rank: 0, size: 2, limit: SHORT });
        assert!(!shared_memory(&id).exists());
    });
}

/// Rank 1 of three is killed between two operations. The others wait for it on the device.
#[test]
fn ranks_give_up_when_another_one_is_killed() {
    const SIZE: usize = 3;
    on_emulated_driver(&[("EMULATED_DEVICES", "4")], || {
        if let Some(place) = place() {
            let rank = Rank::connect(&place, Duration::from_secs(2)).unwrap();
            rank.run(rank.all_reduce(1000)).unwrap();
            if place.rank == 1 {
                let own = std::process::id().to_string();
                Command::new("kill").args(["-9", &own]).status().unwrap();
                thread::sleep(LONG);
            }
            let error = rank.run(rank.all_reduce(1000)).unwrap_err();
            assert!(matches!(error, NcclError::TimedOut { call: "waiting for an operation", .. }), "{error}");
            rank.stream.synchronize().unwrap();
            return;
        }
        let id = NcclLibrary::find().unwrap().unique_id().unwrap();
        let children: Vec<_> = (0..SIZE)
            .map(|rank| {
                let place = Place { rank, size: SIZE, id: id.clone() };
                start("nccl::ranks_give_up_when_another_one_is_killed", &place)
            })
            .collect();
        let outputs: Vec<Output> =
            children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        assert!(
            [0, 2].iter().all(|&rank| has_passed(&outputs[rank])),
            "{}{}",
            text(&outputs[0]),
            text(&outputs[2])
        );
        assert!(!outputs[1].status.success() && !has_passed(&outputs[1]), "{}", text(&outputs[1]));
        assert!(!shared_memory(&id).exists());
    });
}

#[test]
fn without_nccl_the_error_says_what_to_install() {
    on_emulated_driver(&[("HIGHWATER_NCCL", "/nowhere/libnccl.so.2")], || {
        let text = NcclLibrary::find().unwrap_err().to_string();
        assert!(
            text.contains("HIGHWATER_NCCL=/nowhere/libnccl.so.2: cannot open shared object file"),
            "{text}"
        );
        assert!(text.contains("; install the package libnccl2, or nvidia-nccl-cu13 from PyPI"), "{text}");
    });
}

#[test]
fn versions_before_2_32_do_not_tell_their_memory() {
    if expected().is_some() {
        let rank = Rank::alone(LONG);
        assert_eq!(rank.communicator.memory_bytes(), Ok(None));
        return rank.run(rank.all_reduce(1)).unwrap();
    }
    let options = ["-DncclCommMemStats=another_function"];
    let driver = EmulatedDriver::without_toolkit("versions_before_2_32_do_not_tell_their_memory", &options);
    driver.with_nccl().run("", &[]);
}
