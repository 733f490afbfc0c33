"""NumPy arrays in a pool: exact bytes by scope, and a recording. `numpy_pool.py [FILE.hwm]`."""

import sys

import numpy as np

import bfc


def live(pool, scope):
    """The live bytes of a scope and its high-water mark, in granted bytes."""
    row = next(row for row in pool.figures()["scopes"] if row["scope"] == scope)
    return row["live_bytes"], row["high_water_bytes"]


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "numpy.hwm"
    pool = bfc.Pool("memory=host,limit=256MiB,growth=on,retry_ms=0,name=arrays")
    with pool.recording(path), pool.numpy():
        with bfc.scope("load"):
            x = np.arange(1_000_000, dtype=np.float32)
            y = np.ones((1000, 1000), dtype=np.float64)
        with bfc.scope("compute"):
            product = y @ y
            mean = np.sqrt(product + 1.0).mean()  # two temporary arrays, one of them reused
        with bfc.scope("grow"):
            grown = np.zeros(10, dtype=np.int64)
            grown.resize(200_000, refcheck=False)
            assert grown[-1] == 0
        arrays = [x, y, product, grown]
        requested = pool.stats().bytes_requested
        assert requested == sum(array.nbytes for array in arrays), requested
        assert live(pool, "load")[0] >= x.nbytes + y.nbytes
        assert live(pool, "compute")[1] >= 2 * product.nbytes > live(pool, "compute")[0]
        print(f"{requested} requested bytes = sum of nbytes of {len(arrays)} arrays; mean {mean:.3f}")
        try:
            np.empty(1 << 40, dtype=np.uint8)
            raise AssertionError("there is no such memory")
        except MemoryError:
            print("MemoryError:", bfc._lib.bfc_last_error_message().decode().splitlines()[0])
        print(pool.report())
        with_pool = x
    # Arrays keep their handler, whatever the handler is now.
    outside = np.ones(1000)
    with_pool.resize(2_000_000, refcheck=False)
    arrays = [with_pool, y, product, grown]
    assert pool.stats().bytes_requested == sum(array.nbytes for array in arrays)
    try:
        pool.close()
        raise AssertionError("arrays live")
    except bfc.Error as error:
        assert "in use" in str(error), error
    del x, with_pool, y, product, grown, arrays, outside
    assert pool.stats().bytes_requested == 0
    pool.close()


if __name__ == "__main__":
    main()
