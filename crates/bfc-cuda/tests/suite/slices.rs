//! Tests slices of programs that use cudarc, on the emulated driver: driver calls, streams, kernels, wrong pools.

use std::sync::Arc;

use bfc_core::{
    Allocator, BfcAllocator, BfcConfig, Bytes, Category, DeviceMemory, HostMemory, MemoryKind, Stream,
    StreamAllocator, failed_drops,
};
use bfc_cuda::cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg,
};
use bfc_cuda::cudarc::nvrtc::compile_ptx;
use bfc_cuda::{CudaDriver, PoolSlice, PoolSliceError, PoolStream};
use highwater_tracking::{Report, ScopedAllocator, Tracker, module};

use crate::controls::{allocations_and_frees, live_objects};
use crate::emulated_driver::on_emulated_driver;

const SAXPY: &str = r#"
extern "C" __global__ void saxpy(float* y, const float* x, float a, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}"#;

fn pool_on(stream: &Arc<CudaStream>) -> PoolStream {
    PoolStream::new(stream, BfcConfig::new(Bytes::mib(64))).unwrap()
}

fn saxpy(context: &Arc<CudaContext>) -> CudaFunction {
    context.load_module(compile_ptx(SAXPY).unwrap()).unwrap().load_function("saxpy").unwrap()
}

/// Adds `a * x` to `y` on a stream.
fn add(stream: &CudaStream, kernel: &CudaFunction, y: &mut PoolSlice<f32>, x: &PoolSlice<f32>, a: f32) {
    let count = x.len();
    let mut launch = stream.launch_builder(kernel);
    launch.arg(y).arg(x).arg(&a).arg(&count);
    // SAFETY: these are the kernel's arguments, and both slices have so many elements.
    unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }.unwrap();
}

#[test]
fn a_thousand_slices_are_one_call_of_the_driver() {
    on_emulated_driver(&[], || {
        let context = CudaContext::new(0).unwrap();
        let stream = pool_on(&context.default_stream());
        for round in 0..1000 {
            let slice = stream.clone_htod(&[round as f32; 1000]).unwrap();
            assert_eq!(stream.clone_dtoh(&slice.slice(999..)).unwrap(), [round as f32]);
        }
        assert_eq!(allocations_and_frees(), (1, 0));
        drop(stream);
        assert_eq!(allocations_and_frees(), (1, 1));
        assert_eq!(failed_drops(), 0);
        // The context of the program.
        assert_eq!(live_objects(), 1);
        // As cudarc: one call for each.
        let plain = context.default_stream();
        drop((0..10).map(|_| plain.alloc_zeros::<f32>(1000).unwrap()).collect::<Vec<CudaSlice<f32>>>());
        assert_eq!(allocations_and_frees(), (11, 11));
    });
}

#[test]
fn slices_are_kernel_arguments_copies_and_views() {
    on_emulated_driver(&[], || {
        let context = CudaContext::new(0).unwrap();
        let (stream, kernel) = (pool_on(&context.new_stream().unwrap()), saxpy(&context));
        let x = stream.clone_htod(&[1.0_f32, 2.0, 3.0, 4.0]).unwrap();
        let mut y = stream.alloc_zeros::<f32>(4).unwrap();
        add(&stream, &kernel, &mut y, &x, 2.0);
        let mut both = stream.clone_dtod(&y).unwrap();
        stream.memcpy_htod(&[0.5_f32], &mut both.slice_mut(1..2)).unwrap();
        let copy = both.try_clone().unwrap();
        assert_eq!(stream.clone_dtoh(&copy).unwrap(), [2.0, 0.5, 6.0, 8.0]);
        let (left, right) = copy.try_split_at(3).unwrap();
        assert_eq!((left.len(), stream.clone_dtoh(&right).unwrap()), (3, vec![8.0]));
        assert!(copy.try_slice(2..9).is_none() && both.try_split_at_mut(9).is_none());
        // A view is a kernel's argument, too.
        let (mut tail, count) = (y.slice_mut(2..), 2_usize);
        let (head, a) = (x.slice(..2), 10.0_f32);
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&mut tail).arg(&head).arg(&a).arg(&count);
        // SAFETY: these are the kernel's arguments, and both views have two elements.
        unsafe { launch.launch(LaunchConfig::for_num_elems(2)) }.unwrap();
        assert_eq!(stream.clone_dtoh(&y).unwrap(), [2.0, 4.0, 16.0, 28.0]);
        // An empty slice needs no memory.
        let before = stream.allocator().stats().num_allocs;
        let none = stream.alloc_zeros::<f32>(0).unwrap();
        assert!(
            none.is_empty() && stream.clone_htod::<u8, [u8]>(&[]).unwrap().try_clone().unwrap().is_empty()
        );
        assert_eq!(stream.allocator().stats().num_allocs, before);
    });
}

#[test]
fn scopes_have_marks_with_and_without_categories() {
    on_emulated_driver(&[], || {
        let (context, tracker) = (CudaContext::new(0).unwrap(), Tracker::new());
        let stream = pool_on(&context.default_stream()).wrapped(|pool| ScopedAllocator::new(&tracker, pool));
        let kept = {
            let _scope = module("slices");
            drop(stream.alloc_zeros::<f32>(4096).unwrap());
            stream.alloc_zeros::<f32>(1024).unwrap()
        };
        kept.set_category(Category::Parameter).unwrap();
        let report = Report::new(&tracker, std::slice::from_ref(stream.allocator()));
        let row = report.scopes.iter().find(|row| row.scope == "slices").unwrap();
        assert_eq!((row.high_water_bytes, row.live_bytes), (16384, 4096));
        assert_eq!(stream.allocator().ledger().category(Category::Parameter), 4096);
        let many = usize::MAX / 2;
        // SAFETY: there is no such slice.
        let error = unsafe { stream.alloc::<f32>(many) }.unwrap_err();
        assert_eq!(error, PoolSliceError::TooLarge { elements: many, element_bytes: 4 });
        let error = stream.alloc_zeros::<f32>(1 << 30).unwrap_err();
        assert!(
            matches!(error, PoolSliceError::Alloc(ref error) if error.out_of_memory().is_some()),
            "{error}"
        );
    });
}

/// The work of the second stream runs when the host or another stream waits for it.
const LAZY: [(&str, &str); 1] = [("EMULATED_LAZY", "1")];

/// Two streams, of which the pool belongs to the first one, without events of cudarc.
fn untracked() -> (PoolStream, Arc<CudaStream>) {
    let context = CudaContext::new(0).unwrap();
    // SAFETY: this is what the tests are about.
    unsafe { context.disable_event_tracking() };
    (pool_on(&context.new_stream().unwrap()), context.new_stream().unwrap())
}

/// Copies a slice to the host on another stream, and reuses the slice's memory before the copy has run. Returns the
/// copied value, and whether the new slice has the memory of the old one.
fn copy_during_reuse(stream: &PoolStream, other: &Arc<CudaStream>, is_recorded: bool) -> (f32, bool) {
    let slice = stream.clone_htod(&[1.0_f32; 256]).unwrap();
    stream.synchronize().unwrap();
    let mut copy = pool_on(other).alloc_zeros::<f32>(256).unwrap();
    if is_recorded {
        slice.record_stream(other).unwrap();
    }
    other.memcpy_dtod(&slice, &mut copy).unwrap();
    let address = slice.block().address;
    drop(slice);
    let reused = stream.clone_htod(&[2.0_f32; 256]).unwrap();
    stream.synchronize().unwrap();
    let value = other.clone_dtoh(&copy).unwrap()[0];
    (value, reused.block().address == address)
}

#[test]
fn memory_is_reused_under_an_unrecorded_stream() {
    on_emulated_driver(&LAZY, || {
        let (stream, other) = untracked();
        assert_eq!(copy_during_reuse(&stream, &other, false), (2.0, true));
    });
}

#[test]
fn a_recorded_stream_keeps_the_memory_until_its_work_ends() {
    on_emulated_driver(&LAZY, || {
        let (stream, other) = untracked();
        assert_eq!(copy_during_reuse(&stream, &other, true), (1.0, false));
        stream.allocator().trim(Bytes(0));
        assert_eq!(stream.allocator().bytes_in_use(), 0);
    });
}

#[test]
fn events_of_cudarc_order_the_reuse_without_a_record() {
    on_emulated_driver(&LAZY, || {
        let context = CudaContext::new(0).unwrap();
        let (stream, other) = (pool_on(&context.new_stream().unwrap()), context.new_stream().unwrap());
        assert_eq!(copy_during_reuse(&stream, &other, false), (1.0, true));
    });
}

#[test]
fn a_slice_of_another_stream_is_recorded_for_it() {
    on_emulated_driver(&LAZY, || {
        let (stream, other) = untracked();
        let second = PoolStream::over(&other, stream.allocator().clone()).unwrap();
        let slice = second.clone_htod(&[3.0_f32; 256]).unwrap();
        let (address, mut copy) = (slice.block().address, pool_on(&other).alloc_zeros::<f32>(256).unwrap());
        second.memcpy_dtod(&slice, &mut copy).unwrap();
        drop(slice);
        let reused = stream.clone_htod(&[4.0_f32; 256]).unwrap();
        stream.synchronize().unwrap();
        assert_ne!(reused.block().address, address);
        assert_eq!(other.clone_dtoh(&copy).unwrap()[0], 3.0);
    });
}

#[test]
fn wrong_pools_and_contexts_are_errors() {
    on_emulated_driver(&[], || {
        let (first, second) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
        let stream = pool_on(&first.default_stream());
        let zeros = |pool: &Arc<dyn Allocator>| {
            PoolSlice::<f32>::zeros(pool, &first.default_stream(), 8).map(|slice| slice.len()).unwrap_err()
        };
        let config = BfcConfig::new(Bytes::mib(1));
        let host: Arc<dyn Allocator> =
            Arc::new(BfcAllocator::new("host", Arc::new(HostMemory::new()), config.clone()));
        let error = PoolSliceError::NotDeviceMemory { allocator: "host".to_owned(), kind: MemoryKind::Host };
        assert_eq!(zeros(&host), error);
        let memory = Arc::new(DeviceMemory::new(CudaDriver::new(0).unwrap()));
        let bare: Arc<dyn Allocator> = Arc::new(BfcAllocator::new("bare", memory, config));
        assert_eq!(zeros(&bare), PoolSliceError::NoStreamOrder { allocator: "bare".to_owned() });
        // A device of the other context, for a new slice and for a live one.
        let other = pool_on(&second.default_stream());
        let error = PoolSliceError::OtherContext { allocator: "cuda:1".to_owned(), ordinal: 0 };
        assert_eq!(zeros(other.allocator()), error);
        let error = PoolSliceError::OtherContext { allocator: "cuda:0".to_owned(), ordinal: 1 };
        let slice = stream.alloc_zeros::<u8>(8).unwrap();
        assert_eq!(slice.record_stream(&second.default_stream()).unwrap_err(), error);
        // A pool of another driver of the same device and of another stream suits.
        let driver = CudaDriver::new(0).unwrap();
        let compute = Stream::new(driver.clone()).unwrap();
        let pool =
            BfcAllocator::new("pool", Arc::new(DeviceMemory::new(driver)), BfcConfig::new(Bytes::mib(1)));
        let pool: Arc<dyn Allocator> = Arc::new(StreamAllocator::new(Arc::new(pool), compute));
        let slice = PoolSlice::<f32>::zeros(&pool, &first.default_stream(), 8).unwrap();
        assert_eq!(slice.device_ptr(&first.default_stream()).0, slice.block().address);
    });
}

#[test]
fn a_failed_event_is_an_error_and_frees_the_block() {
    on_emulated_driver(&[], || {
        let context = CudaContext::new(0).unwrap();
        let stream = pool_on(&context.default_stream());
        drop(stream.alloc_zeros::<u8>(8).unwrap());
        crate::controls::lose(0);
        // SAFETY: there is no such slice.
        let error = unsafe { stream.alloc::<u8>(8) }.unwrap_err();
        let reason = "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned();
        assert_eq!(error, PoolSliceError::Driver { call: "new_event", reason });
        assert_eq!(stream.allocator().bytes_in_use(), 0);
    });
}
