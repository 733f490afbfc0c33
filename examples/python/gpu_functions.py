"""The functions for PyTorch and CuPy, called as the libraries call them. Needs a GPU, or `scripts/run-emulated`.

Loads PyTorch's CUDAPluggableAllocator too, if PyTorch with CUDA is installed. BFC_CUDA_POOL configures the pool.
"""

import ctypes
import time

import bfc

lib = bfc._lib
malloc = lib.bfc_torch_malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
free = lib.bfc_torch_free
free.restype, free.argtypes = None, [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
base = lib.bfc_torch_base_alloc
base.restype, base.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]


def wait_for_device(pool, bytes_in_use):
    """Waits until the device has done the work before all frees."""
    start = time.monotonic()
    while pool.stats().bytes_in_use != bytes_in_use:
        assert time.monotonic() < start + 10, pool.stats().bytes_in_use
        pool.trim(keep=1 << 60)


def main():
    driver = ctypes.CDLL("libcuda.so.1")
    pool = bfc.Pool.of_device(0)
    device = ctypes.c_size_t()
    with bfc.scope("model"):
        weights = malloc(4 << 20, 0, None)
    # The functions leave the device of the thread as it was: none.
    driver.cuCtxGetCurrent(ctypes.byref(device))
    assert device.value == 0, device.value
    with bfc.scope("batches"):
        for _ in range(200):
            batch = malloc(64 << 10, 0, None)
            assert batch and batch % 512 == 0
            lib.bfc_torch_record_stream(ctypes.c_void_p(batch), None)
            free(batch, 64 << 10, 0, None)
            # A freed block of the default stream is reusable at once.
            assert pool.stats().bytes_in_use == 4 << 20
    size = ctypes.c_size_t()
    start = base(weights + 100, ctypes.byref(size))
    assert start <= weights and weights + (4 << 20) <= start + size.value
    scopes = {row["scope"]: row["live_bytes"] for row in pool.figures()["scopes"]}
    assert (scopes["model"], scopes["batches"]) == (4 << 20, 0)
    # A foreign address and a request beyond the memory change nothing.
    free(0x1234, 8, 0, None)
    assert not malloc(1 << 50, 0, None) and not malloc(8, 77, None) and not malloc(8, -1, None)
    print("PyTorch's functions:", pool.stats().total_blocks, "blocks")

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
    # CuPy's blocks are pending until the blocking streams have done their work.
    wait_for_device(pool, 0)
    lib.bfc_torch_reset()
    # Nothing is left in the pool, and the driver has its memory back.
    assert (pool.stats().bytes_in_use, pool.stats().bytes_reserved) == (0, 0)
    pool.close()
    try:
        import torch
    except ImportError:
        return
    print("PyTorch", torch.__version__, "loads", bfc.torch_allocator())


if __name__ == "__main__":
    main()
