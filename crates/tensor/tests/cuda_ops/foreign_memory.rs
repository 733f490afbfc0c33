//! A device never computes on memory that its backend cannot address: of another kind, of another device, or of none.

#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::ops_table::computing::Computing;
use bfc_core::sim::SimDevice;
use bfc_core::{
    AddressOnlyMemory, AllocatorAttributes, BfcAllocator, BfcConfig, Bytes, DeviceId, DeviceKind,
    DeviceMemory, HostMemory, MemoryKind, Pool, Registry, SubAllocator,
};
use highwater_tensor::backend::Backend;
use highwater_tensor::backend::cpu::CpuBackend;
use highwater_tensor::backend::cuda::CudaBackend;
use highwater_tensor::{Error, Runtime, Tensor};

const CUDA: DeviceId = DeviceId::new(DeviceKind::Cuda, 0);

/// Device memory with nothing behind its addresses.
fn simulated() -> Arc<dyn SubAllocator> {
    Arc::new(DeviceMemory::new(Arc::new(SimDevice::new(Bytes::mib(64)))))
}

fn pool(source: Arc<dyn SubAllocator>) -> Arc<BfcAllocator> {
    Arc::new(BfcAllocator::new("a pool", source, BfcConfig::new(Bytes::mib(16))))
}

fn build(id: DeviceId, backend: Arc<dyn Backend>, memory: Arc<dyn SubAllocator>) -> Result<Runtime, Error> {
    Runtime::builder().threads(1).device(id, backend, memory).build()
}

#[test]
fn a_cpu_backend_takes_no_device_memory() {
    let Computing { memory, .. } = Computing::by_kernels();
    for memory in [simulated(), memory, Arc::new(AddressOnlyMemory::new())] {
        let kind = memory.memory_kind();
        let error = build(CUDA, Arc::new(CpuBackend::new(1).unwrap()), memory).unwrap_err();
        let name = "cuda:0".to_owned();
        assert_eq!(error, Error::WrongMemory { device: name.clone(), kind, allocator: name });
    }
    let host = build(CUDA, Arc::new(CpuBackend::new(1).unwrap()), Arc::new(HostMemory::new())).unwrap();
    let ones = Tensor::ones(&host.device(CUDA).unwrap(), [3]).unwrap();
    assert_eq!(ones.to_vec::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn a_refused_device_leaves_the_registry_unchanged() {
    let registry = Arc::new(Registry::new());
    let builder = || Runtime::builder().threads(1).registry(Arc::clone(&registry));
    let cpu = || Arc::new(CpuBackend::new(1).unwrap());
    builder().device(CUDA, cpu(), simulated()).build().unwrap_err();
    assert!(builder().device(CUDA, cpu(), Arc::new(HostMemory::new())).build().is_ok());
}

#[test]
fn an_own_device_ignores_the_limit_of_the_host() {
    let Computing { compute, memory } = Computing::by_kernels();
    let runtime = build(CUDA, Arc::new(CudaBackend::new(compute)), memory).unwrap();
    let device = runtime.device(CUDA).unwrap();
    // The emulated memory does not tell its size, and the host's does not count.
    let limit = device.default_allocator().unwrap().stats().bytes_limit;
    assert_eq!(limit, Some(Bytes::gib(64).get()));
}

#[test]
fn a_gpu_backend_takes_no_memory_but_its_own() {
    let Computing { compute, memory } = Computing::by_kernels();
    let other = Computing::by_kernels().memory;
    let backend = || Arc::new(CudaBackend::new(Arc::clone(&compute)));
    for foreign in [simulated(), other, Arc::new(HostMemory::new()), Arc::new(AddressOnlyMemory::new())] {
        let error = build(CUDA, backend(), foreign).unwrap_err();
        assert!(matches!(error, Error::WrongMemory { .. }), "{error}");
    }
    assert!(build(CUDA, backend(), memory).is_ok());
}

#[test]
fn a_gpu_takes_no_allocator_of_other_device_memory() {
    let computing = Computing::by_kernels();
    let own = pool(Arc::clone(&computing.memory));
    let device = computing.device(Runtime::builder().threads(1));
    let error = device.with_allocator(pool(simulated())).unwrap_err();
    let (device_name, allocator) = ("cuda:0".to_owned(), "a pool".to_owned());
    assert_eq!(error, Error::WrongMemory { device: device_name, kind: MemoryKind::Device, allocator });
    let ones = Tensor::ones(&device.with_allocator(own).unwrap(), [3]).unwrap();
    assert_eq!(ones.to_vec::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn a_gpu_makes_no_tensors_in_host_memory() {
    let device = Computing::by_kernels().device(Runtime::builder().threads(1));
    let host = device.allocator(AllocatorAttributes::default().with_on_host(true)).unwrap();
    assert_eq!(host.allocator().memory_kind(), MemoryKind::Host);
    let error = Tensor::zeros(&host, [3]).unwrap_err();
    assert!(matches!(error, Error::WrongMemory { kind: MemoryKind::Host, .. }), "{error}");
}

#[test]
fn memory_registered_in_the_place_of_a_gpus_is_not_used() {
    let Computing { compute, memory } = Computing::by_kernels();
    let runtime = build(CUDA, Arc::new(CudaBackend::new(compute)), memory).unwrap();
    let device = runtime.device(CUDA).unwrap();
    assert!(runtime.registry().unregister(CUDA));
    let foreign = Pool::new("foreign", simulated(), 0, BfcConfig::new(Bytes::mib(16)));
    runtime.registry().register(CUDA, [foreign]).unwrap();
    let error = Tensor::zeros(&device, [3]).unwrap_err();
    assert!(matches!(error, Error::WrongMemory { .. }), "{error}");
}
