"""NumPy arrays in a pool through the package numpy-allocator. BFC_NUMPY_POOL configures the pool."""

import numpy as np

import bfc


def main():
    allocator = bfc.numpy_allocator()
    with allocator, bfc.scope("arrays"):
        a = np.full(1000, 7, dtype=np.int32)
        b = np.zeros(5000)
        a.resize(3000, refcheck=False)
    assert allocator.handles(a) and not allocator.handles(np.ones(3))
    assert a[999] == 7 and a[1000] == 0 and not b.any()
    pool = bfc.Pool.of_numpy()
    requested = pool.stats().bytes_requested
    assert requested == a.nbytes + b.nbytes, requested
    print(f"numpy-allocator: {requested} requested bytes = sum of nbytes")
    # Another pool from now on; earlier arrays return to theirs.
    other = bfc.Pool("memory=host,limit=1MiB,retry_ms=0,name=other")
    other.use_for_numpy()
    with allocator:
        c = np.empty(100)
    assert (pool.stats().bytes_requested, other.stats().bytes_requested) == (requested, c.nbytes)
    del a, b, c
    pool.close()
    other.close()


if __name__ == "__main__":
    main()
