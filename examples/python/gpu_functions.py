"""The functions for PyTorch and CuPy, called as the libraries call them. Needs a GPU, or `scripts/run-emulated`.

Loads PyTorch's CUDAPluggableAllocator too, if PyTorch with CUDA is installed. BFC_CUDA_POOL configures the pool.
"""

import ctypes

import bfc

lib = bfc._lib
malloc = lib.bfc_torch_malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
free = lib.bfc_torch_free
free.restype, free.argtypes = None, [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
base = lib.bfc_torch_base_alloc
base.restype, base.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]


def main():
    driver = ctypes.CDLL("libcuda.so.1")
    pool = bfc.Pool.of_device(0)
    stats = lambda: pool.figures()["pools"][0]
    device = ctypes.c_size_t()
    with bfc.scope("model"):
        weights = malloc(4 << 20, 0, None)
    with bfc.scope("batches"):
        for _ in range(1000):
            batch = malloc(64 << 10, 0, None)
            assert batch and batch % 512 == 0
            lib.bfc_torch_record_stream(ctypes.c_void_p(batch), None)
            free(batch, 64 << 10, 0, None)
    # The functions leave the thread's device as it was: none.
    driver.cuCtxGetCurrent(ctypes.byref(device))
    assert device.value == 0, device.value
    size = ctypes.c_size_t()
    start = base(weights + 100, ctypes.byref(size))
    assert start <= weights and weights + (4 << 20) <= start + size.value
    scopes = {row["scope"]: row["live_bytes"] for row in pool.figures()["scopes"]}
    assert scopes["model"] == 4 << 20
    # A foreign address and a request beyond the memory change nothing.
    free(0x1234, 8, 0, None)
    assert not malloc(1 << 50, 0, None) and not malloc(8, 77, None) and not malloc(8, -1, None)
    print("PyTorch's functions:", stats()["allocations"], "blocks")

    with bfc.scope("cupy"):
        array = bfc.cupy_malloc(1 << 20, 0)
    try:
        bfc.cupy_malloc(1 << 50, 0)
        raise AssertionError("there is no such memory")
    except MemoryError as error:
        print("CuPy's MemoryError:", str(error).splitlines()[0])
    bfc.cupy_free(array, 0)
    explicit = lib.bfc_cupy_malloc(ctypes.c_void_p(pool.handle.value), ctypes.c_size_t(256), 0)
    lib.bfc_cupy_free(ctypes.c_void_p(pool.handle.value), ctypes.c_void_p(explicit), 0)
    print(pool.report())

    free(weights, 4 << 20, 0, None)
    lib.bfc_torch_reset()
    # Nothing is left in the pool, and the driver has its memory back.
    assert stats()["in_use_bytes"] == 0 and stats()["reserved_bytes"] == 0, stats()
    pool.close()
    if hasattr(driver, "emulated_allocations"):
        print(driver.emulated_allocations(), "calls of cuMemAlloc,", driver.emulated_frees(), "of cuMemFree")

    try:
        import torch
    except ImportError:
        return
    print("PyTorch", torch.__version__, "loads", bfc.torch_allocator())


if __name__ == "__main__":
    main()
