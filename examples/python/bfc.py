"""The C library of Highwater for Python: pools, scopes, figures and recordings. Needs only ctypes.

BFC_LIBRARY is the path of libbfc.so. Without it, the library must be where the system finds it.
"""

import atexit
import contextlib
import ctypes
import json
import os

try:
    _lib = ctypes.CDLL(os.environ.get("BFC_LIBRARY", "libbfc.so"))
except OSError as error:
    raise ImportError(f"{error}: set BFC_LIBRARY to the path of libbfc.so, such as target/release/libbfc.so") from error
for _name in ("bfc_last_error_message", "bfc_last_error_details"):
    getattr(_lib, _name).restype = ctypes.c_char_p
for _name in ("bfc_numpy_malloc", "bfc_numpy_calloc", "bfc_numpy_realloc", "bfc_cupy_malloc"):
    getattr(_lib, _name).restype = ctypes.c_void_p

library_path = _lib._name


# The status of calls in a child of fork, whose parent has called the library.
_FORKED = 14


class Error(RuntimeError):
    """A function of the library failed."""


def last_error():
    """Why the last call of this thread failed. Says what NumPy's MemoryError does not: the holders of the memory."""
    return _lib.bfc_last_error_details().decode()


def _check(status):
    if status:
        raise Error(last_error())


def _is_forked(status):
    """Whether the process is a child of fork, where scopes and `Pool.numpy()` have no effect. Raises other errors."""
    if status != _FORKED:
        _check(status)
    return status == _FORKED


def _leave(status):
    """Raises the error of leaving a block, except while the interpreter exits, which leaves blocks in any order."""
    if not _exiting:
        _is_forked(status)


# Has an element when the interpreter exits. Each subinterpreter has its own.
_exiting = []
atexit.register(_exiting.append, True)


def _text(value, what):
    """The bytes of a text for C, which ends at the first NUL."""
    value = value.encode() if isinstance(value, str) else os.fsencode(value)
    if b"\0" in value:
        raise ValueError(f"{what} contains NUL: {value!r}")
    return value


def _take(function, *arguments):
    """Calls a function that stores a string, and frees the string."""
    text = ctypes.c_char_p()
    _check(function(*arguments, ctypes.byref(text)))
    try:
        return text.value.decode()
    finally:
        _lib.bfc_string_free(text)


class Stats(ctypes.Structure):
    """The figures of a pool, in bytes; bfc.h explains them."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "size", "live_blocks", "total_blocks", "bytes_in_use", "peak_bytes_in_use", "bytes_requested",
            "peak_bytes_requested", "bytes_reserved", "peak_bytes_reserved", "bytes_limit", "largest_free_block",
            "largest_block", "waits", "failed_waits",
        )
    ]

    def __repr__(self):
        return "Stats(" + ", ".join(f"{name}={getattr(self, name)}" for name, _ in self._fields_[1:]) + ")"


class Pool:
    """An open pool, until the end of `with Pool("memory=host,limit=2GiB,retry_ms=0") as pool:` or `close()`.

    The configuration is a text or a dictionary; bfc.h lists the options.
    """

    def __init__(self, configuration="", handle=None):
        self.handle = ctypes.c_uint64(handle or 0)
        if handle is None:
            text = configuration if isinstance(configuration, str) else json.dumps(configuration)
            _check(_lib.bfc_pool_open(_text(text, "the configuration of a pool"), ctypes.byref(self.handle)))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        # An error of the block is more important than the arrays that it leaves alive.
        if kind is None:
            _is_forked(_lib.bfc_pool_close(self.handle))

    @classmethod
    def of_numpy(cls):
        """The pool of numpy-allocator, opened from BFC_NUMPY_POOL unless `use_for_numpy` chose one."""
        pool = cls(handle=0)
        _check(_lib.bfc_numpy_pool(ctypes.byref(pool.handle)))
        return pool

    @classmethod
    def of_device(cls, device=0):
        """The pool of PyTorch and CuPy, opened from BFC_CUDA_POOL unless `use_for_device` chose one."""
        pool = cls(handle=0)
        _check(_lib.bfc_device_pool(device, ctypes.byref(pool.handle)))
        return pool

    def use_for_numpy(self):
        _check(_lib.bfc_numpy_use(self.handle))

    def use_for_device(self, device=0):
        _check(_lib.bfc_device_use(device, self.handle))

    def close(self):
        """Returns the memory. Fails while blocks are live."""
        _check(_lib.bfc_pool_close(self.handle))

    def stats(self):
        """The figures of the pool, such as `stats().bytes_requested`."""
        stats = Stats(size=ctypes.sizeof(Stats))
        _check(_lib.bfc_pool_stats(self.handle, ctypes.byref(stats)))
        return stats

    def trim(self, keep=0):
        """Collects ended frees, and returns unused memory while more than `keep` bytes stay reserved."""
        _check(_lib.bfc_pool_trim(self.handle, ctypes.c_uint64(keep), None))

    def report(self):
        """The report as text."""
        return _take(_lib.bfc_report_text, self.handle)

    def figures(self):
        """The report as a dictionary; docs/columns.md explains it."""
        return json.loads(_take(_lib.bfc_report_json, self.handle))

    def recording(self, path):
        """Records all pools with memory into a file that `highwater report` opens."""
        return _Recording(path)

    def numpy(self):
        """Puts the data of new NumPy arrays into the pool. Arrays keep their memory after the block ends."""
        return _NumpyPool(self)

    def _numpy_capsule(self):
        """The handler of the pool; None in a child of fork."""
        handler = ctypes.c_void_p()
        if _is_forked(_lib.bfc_numpy_handler(self.handle, ctypes.byref(handler))):
            return None
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        # The capsule keeps the address of the name.
        return new(handler, _MEM_HANDLER, None)


_MEM_HANDLER = ctypes.c_char_p(b"mem_handler")


class _Block(contextlib.ContextDecorator):
    """A `with` block, also as a decorator. Unlike a generator, it does nothing if the interpreter exits within the block."""

    def __init__(self, *arguments):
        self._arguments = arguments
        # One value for each time that the block was entered.
        self._entered = []

    def _recreate_cm(self):
        # Each call of a decorated function enters a block of its own.
        return type(self)(*self._arguments)


class _Recording(_Block):
    def __enter__(self):
        _check(_lib.bfc_recording_start(ctypes.c_uint64(0), _text(*self._arguments, "the path of a recording")))

    def __exit__(self, *error):
        _leave(_lib.bfc_recording_stop(ctypes.c_uint64(0)))


class _NumpyPool(_Block):
    def __enter__(self):
        capsule = self._arguments[0]._numpy_capsule()
        # Kept, because the interpreter may leave the block when it can no longer import NumPy.
        set_handler = capsule and _numpy_handler_setter()
        self._entered.append((set_handler, capsule and set_handler(capsule)))

    def __exit__(self, *error):
        set_handler, before = self._entered.pop()
        if before:
            set_handler(before)


class scope(_Block):
    """Charges what the thread allocates to a scope, as in `with bfc.scope("load"):`."""

    def __init__(self, name):
        super().__init__(name)

    def __enter__(self):
        handle = ctypes.c_uint64()
        _is_forked(_lib.bfc_scope_push(_text(*self._arguments, "the name of a scope"), ctypes.byref(handle)))
        self._entered.append(handle)

    def __exit__(self, *error):
        _leave(_lib.bfc_scope_pop(self._entered.pop()))


def _numpy_handler_setter():
    """PyDataMem_SetHandler of NumPy's C API, which returns the previous handler."""
    import numpy

    core = getattr(numpy, "_core", None) or numpy.core
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    api = ctypes.cast(get(core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    # Entry 304 since NumPy 1.22.
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(api[304])


def numpy_allocator():
    """The class for the package numpy-allocator, as in `with bfc.numpy_allocator():`. Uses `Pool.of_numpy()`."""
    import numpy_allocator as package

    functions = {
        f"_{name}_": ctypes.addressof(getattr(_lib, f"bfc_numpy_{name}"))
        for name in ("malloc", "calloc", "realloc", "free")
    }
    return package.type("bfc_numpy", (), functions)


def torch_allocator():
    """PyTorch's allocator in `Pool.of_device()`, for torch.cuda.memory.change_current_allocator()."""
    import torch

    allocator = torch.cuda.memory.CUDAPluggableAllocator(library_path, "bfc_torch_malloc", "bfc_torch_free")
    for hook in ("record_stream", "reset", "base_alloc"):
        address = ctypes.cast(getattr(_lib, f"bfc_torch_{hook}"), ctypes.c_void_p).value
        getattr(allocator.allocator(), f"set_{hook}_fn")(address)
    return allocator


def cupy_malloc(bytes, device):
    """For cupy.cuda.memory.PythonFunctionAllocator(bfc.cupy_malloc, bfc.cupy_free)."""
    address = _lib.bfc_cupy_malloc(None, ctypes.c_size_t(bytes), device)
    if bytes and not address:
        raise MemoryError(last_error())
    return address or 0


def cupy_free(address, device):
    """See `cupy_malloc`."""
    _lib.bfc_cupy_free(None, ctypes.c_void_p(address), device)
