//! Collective operations of several processes, one per device.

use std::sync::Arc;

use bfc_core::{Driver, FreeFaults, Stream, StreamEvent};
use bfc_cuda::kernels::ElementType;
use bfc_cuda::{
    CollectiveCall, CollectiveKind, Communicator, Compute, CudaDriver, NcclLibrary, StreamCompute, probe,
};

use super::ranks_of_processes::{LONG, Place, place, run_all};
use super::say_skipped;

#[test]
fn device_ranks_get_correct_values() {
    if let Some(place) = place() {
        return check_all(&place);
    }
    let _driver = cuda_or_skip!();
    let devices = probe().unwrap().len();
    if devices < 2 {
        return say_skipped(&"needs several GPUs, and this machine has 1");
    }
    match NcclLibrary::find().and_then(|library| library.unique_id()) {
        Ok(id) => run_all("ranks::device_ranks_get_correct_values", &id, devices),
        Err(reason) => say_skipped(&reason),
    }
}

/// NCCL also connects one rank, which shows that the library understands these calls.
#[test]
fn device_rank_without_others_gets_its_own_values() {
    let _driver = cuda_or_skip!();
    match NcclLibrary::find().and_then(|library| library.unique_id()) {
        Ok(id) => check_all(&Place { rank: 0, size: 1, id }),
        Err(reason) => say_skipped(&reason),
    }
}

/// One rank with two buffers on its device.
struct Rank {
    driver: Arc<CudaDriver>,
    stream: Arc<Stream>,
    compute: StreamCompute,
    communicator: Communicator,
    buffers: [u64; 2],
}

/// The bytes of each buffer.
const BUFFER: u64 = 8 << 20;

fn check_all(place: &Place) {
    let driver = CudaDriver::new(place.rank as u32).unwrap();
    let stream = Stream::new(driver.clone()).unwrap();
    let compute = StreamCompute::new(driver.clone(), stream.clone()).unwrap();
    let library = NcclLibrary::find().unwrap();
    let communicator =
        Communicator::connect(&library, &driver, &place.id, place.rank, place.size, LONG).unwrap();
    assert_eq!((communicator.rank(), communicator.size()), (place.rank, place.size));
    let buffers = [(); 2].map(|()| driver.allocate_device(BUFFER).unwrap());
    let rank = Rank { driver, stream, compute, communicator, buffers };
    for element in ElementType::ALL {
        for elements in [1, 3, 33_000] {
            rank.check_kinds(element, elements);
        }
        rank.check_in_place(element);
    }
    rank.check_group();
    rank.check_messages();
    // Since NCCL 2.32 the communicator's memory is known.
    assert_eq!(rank.communicator.memory_bytes().unwrap().is_some(), library.version() >= 23_200);
    drop((rank.communicator, rank.compute, rank.stream));
    // SAFETY: they were allocated above, and all work with them has ended.
    rank.buffers.iter().for_each(|&buffer| unsafe { rank.driver.free_device(buffer) });
    assert_eq!(rank.driver.free_faults(), FreeFaults::default());
}

impl Rank {
    /// Each kind from one buffer to the other.
    fn check_kinds(&self, element: ElementType, elements: usize) {
        let (size, [from, to]) = (self.communicator.size(), self.buffers);
        let last = size - 1;
        for kind in [
            CollectiveKind::AllReduce,
            CollectiveKind::ReduceScatter,
            CollectiveKind::AllGather,
            CollectiveKind::Broadcast { root: last },
            CollectiveKind::Reduce { root: last },
        ] {
            let sent = if kind == CollectiveKind::ReduceScatter { size * elements } else { elements };
            self.upload(from, element, (0..sent).map(|i| value(self.communicator.rank(), i)));
            self.upload(to, element, (0..size * elements).map(|_| 9));
            self.run(&[CollectiveCall { kind, from, to, elements, element }]);
            let expected = self.expected(kind, elements);
            assert_eq!(self.download(to, element, expected.len()), encoded(element, expected), "{kind:?}");
        }
    }

    /// The received elements of each kind. Other ranks than the root of a reduction keep theirs.
    fn expected(&self, kind: CollectiveKind, elements: usize) -> Vec<u8> {
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        let sum = |i| (0..size).map(|rank| value(rank, i)).sum();
        match kind {
            CollectiveKind::Reduce { root } if rank != root => vec![9; elements],
            CollectiveKind::AllReduce | CollectiveKind::Reduce { .. } => (0..elements).map(sum).collect(),
            CollectiveKind::ReduceScatter => (rank * elements..(rank + 1) * elements).map(sum).collect(),
            CollectiveKind::AllGather => {
                (0..size).flat_map(|rank| (0..elements).map(move |i| value(rank, i))).collect()
            }
            CollectiveKind::Broadcast { root } => (0..elements).map(|i| value(root, i)).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// A reduce-scatter and an all-gather in place are an all-reduce.
    fn check_in_place(&self, element: ElementType) {
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        let (all, elements) = (self.buffers[0], 20_000);
        let part = all + (rank * elements * encoded(element, [0]).len()) as u64;
        let call = |kind, from, to, elements| CollectiveCall { kind, from, to, elements, element };
        self.upload(all, element, (0..size * elements).map(|i| value(rank, i)));
        self.run(&[call(CollectiveKind::ReduceScatter, all, part, elements)]);
        self.run(&[call(CollectiveKind::AllGather, part, all, elements)]);
        let expected = self.expected(CollectiveKind::AllReduce, size * elements);
        assert_eq!(self.download(all, element, size * elements), encoded(element, expected));
        self.upload(all, element, (0..elements).map(|i| value(rank, i)));
        self.run(&[call(CollectiveKind::AllReduce, all, all, elements)]);
        let expected = self.expected(CollectiveKind::AllReduce, elements);
        assert_eq!(self.download(all, element, elements), encoded(element, expected));
    }

    /// Several calls at once, of two types.
    fn check_group(&self) {
        let rank = self.communicator.rank();
        let [floats, bytes] = self.buffers;
        let kind = CollectiveKind::AllReduce;
        let call = |at, elements, element| CollectiveCall { kind, from: at, to: at, elements, element };
        self.upload(floats, ElementType::F32, (0..1000).map(|i| value(rank, i)));
        self.upload(bytes, ElementType::U8, (0..77).map(|i| value(rank, i)));
        self.run(&[call(floats, 1000, ElementType::F32), call(bytes, 77, ElementType::U8)]);
        let sums = self.expected(kind, 1000);
        assert_eq!(self.download(bytes, ElementType::U8, 77), sums[..77]);
        assert_eq!(self.download(floats, ElementType::F32, 1000), encoded(ElementType::F32, sums));
    }

    /// Each rank sends two messages to the next one. With one rank, that is itself.
    fn check_messages(&self) {
        const ELEMENTS: [usize; 2] = [100_000, 3];
        let (rank, size, [from, to]) = (self.communicator.rank(), self.communicator.size(), self.buffers);
        let [next, previous] = [(rank + 1) % size, (rank + size - 1) % size];
        let second = (4 * ELEMENTS[0]) as u64;
        let all = ELEMENTS[0] + ELEMENTS[1];
        let call = |kind, at, elements| CollectiveCall {
            kind,
            from: from + at,
            to: to + at,
            elements,
            element: ElementType::F32,
        };
        let (send, receive) =
            (CollectiveKind::Send { peer: next }, CollectiveKind::Receive { peer: previous });
        self.upload(from, ElementType::F32, (0..all).map(|i| value(rank, i)));
        self.upload(to, ElementType::F32, (0..all).map(|_| 9));
        self.run(&[
            call(send, 0, ELEMENTS[0]),
            call(send, second, ELEMENTS[1]),
            call(receive, 0, ELEMENTS[0]),
            call(receive, second, ELEMENTS[1]),
        ]);
        let expected = encoded(ElementType::F32, (0..all).map(|i| value(previous, i)));
        assert_eq!(self.download(to, ElementType::F32, all), expected);
    }

    fn run(&self, calls: &[CollectiveCall]) {
        // SAFETY: the calls name the buffers, which are large enough and used by this stream alone.
        unsafe { self.communicator.submit(calls, &self.stream) }.unwrap();
        self.communicator.wait(&StreamEvent::new(&self.stream).unwrap()).unwrap();
    }

    fn upload(&self, to: u64, element: ElementType, values: impl IntoIterator<Item = u8>) {
        let bytes = encoded(element, values);
        assert!(bytes.len() as u64 <= BUFFER);
        // SAFETY: the buffer is large enough.
        unsafe { self.compute.upload(&bytes, to) }.unwrap();
    }

    fn download(&self, from: u64, element: ElementType, elements: usize) -> Vec<u8> {
        let mut bytes = encoded(element, (0..elements).map(|_| 0));
        // SAFETY: the buffer is large enough.
        unsafe { self.compute.download(from, &mut bytes) }.unwrap();
        bytes
    }
}

/// An element of a rank. Sums of these are exact for all types and up to 16 ranks.
fn value(rank: usize, index: usize) -> u8 {
    ((rank * 5 + index * 3) % 7) as u8
}

/// The bytes of these elements. Each fits the significand of all types.
fn encoded(element: ElementType, values: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let bytes = |value: u8| match element {
        ElementType::F32 => f32::from(value).to_ne_bytes().to_vec(),
        ElementType::F64 => f64::from(value).to_ne_bytes().to_vec(),
        // The exponents have another bias: 15 instead of 127.
        ElementType::F16 => {
            let bits = f32::from(value).to_bits() >> 13;
            (bits.saturating_sub(112 << 10) as u16).to_ne_bytes().to_vec()
        }
        ElementType::BF16 => ((f32::from(value).to_bits() >> 16) as u16).to_ne_bytes().to_vec(),
        ElementType::I64 => i64::from(value).to_ne_bytes().to_vec(),
        ElementType::I32 => i32::from(value).to_ne_bytes().to_vec(),
        ElementType::U32 => u32::from(value).to_ne_bytes().to_vec(),
        ElementType::U8 => vec![value],
        other => panic!("{other:?}"),
    };
    values.into_iter().flat_map(bytes).collect()
}
