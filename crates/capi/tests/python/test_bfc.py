"""Tests of examples/python/bfc.py in processes of their own: children of fork, exits within blocks, names with NUL.

scripts/test-python runs them. They need NumPy.
"""

import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

POOL = """
import atexit, gc, os, sys, threading
import numpy as np
import bfc
pool = bfc.Pool("memory=host,limit=64MiB,growth=on,retry_ms=0,name=test")
"""


class Case(unittest.TestCase):
    def run_program(self, program, prelude=POOL, *arguments):
        """Runs a program, which must end with 0 and print nothing to stderr. Returns what it prints to stdout."""
        program = prelude + textwrap.dedent(program)
        command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual((done.returncode, done.stderr), (0, ""), program)
        return done.stdout


class Exit(Case):
    def test_a_block_that_is_open_at_exit(self):
        self.run_program("block = pool.numpy(); block.__enter__(); x = np.ones(1000)")
        self.run_program("with pool.numpy(), bfc.scope('open'):\n    x = np.ones(1000)\n    sys.exit(0)")

    def test_a_generator_that_is_suspended_at_exit(self):
        self.run_program(
            """
            def arrays(name):
                with bfc.scope(name), pool.numpy():
                    yield np.ones(1000)
            first, second = arrays("first"), arrays("second")
            kept = [next(first), next(second)]
            """
        )

    def test_a_recording_that_is_open_at_exit(self):
        program = """
            def arrays():
                with pool.recording(sys.argv[1]), pool.numpy():
                    yield np.ones(1000)
            generator = arrays()
            kept = next(generator)
            """
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.hwm")
            self.run_program(program, POOL, path)
            self.assertGreater(os.path.getsize(path), 100)

    def test_arrays_that_live_at_exit(self):
        self.run_program(
            """
            class Cycle:
                pass
            cycle = Cycle()
            cycle.own = cycle
            atexit.register(lambda: pool.numpy().__enter__() or np.ones(1000))
            with pool.numpy():
                cycle.array = np.ones(1000)
                sys.array = np.ones(1000)
                atexit.register(lambda array=np.ones(1000): array.resize(5000, refcheck=False))
            """
        )

    def test_threads_that_run_at_exit(self):
        self.run_program(
            """
            started = threading.Barrier(5)
            def work():
                with pool.numpy(), bfc.scope("thread"):
                    started.wait()
                    while True:
                        x = np.ones(1000) + 1
            for _ in range(4):
                threading.Thread(target=work, daemon=True).start()
            started.wait()
            """
        )

    def test_a_context_that_enters_and_another_that_leaves(self):
        self.run_program(
            """
            import asyncio
            async def work():
                with pool.numpy():
                    x = np.ones(1000)
                    await asyncio.sleep(0)
                    return pool.stats().live_blocks
            async def main():
                return await asyncio.gather(work(), work())
            assert max(asyncio.run(main())) >= 1
            assert pool.stats().live_blocks == 0
            pool.close()
            """
        )


class Blocks(Case):
    def test_blocks_are_decorators_and_may_be_entered_again(self):
        self.run_program(
            """
            @pool.numpy()
            @bfc.scope("outer")
            def ones(depth):
                return [np.ones(100)] + (ones(depth - 1) if depth else [])
            kept = ones(2)
            scopes = {row["scope"] for row in pool.figures()["scopes"]}
            assert "outer.outer.outer" in scopes, scopes
            block = bfc.scope(name="again")
            with block, block:
                pass
            del kept
            pool.close()
            """
        )


class Names(Case):
    def test_a_nul_in_a_text_is_an_error(self):
        self.run_program(
            r"""
            def fails(call):
                try:
                    call()
                except ValueError as error:
                    assert "contains NUL" in str(error), error
                else:
                    raise AssertionError("no error")
            fails(lambda: bfc.scope("a\0b").__enter__())
            fails(lambda: bfc.scope("\0").__enter__())
            fails(lambda: bfc.Pool("memory=dry\0,name=a"))
            fails(lambda: bfc.Pool("memory=dry,name=a\0b"))
            fails(lambda: pool.recording("run.hwm\0").__enter__())
            for wrong in [{"memory": "dry", "name": "a\0b"}, {"memory": "dry\0"}, {"limit": "1MiB\0"}, {"a\0b": 1}]:
                try:
                    bfc.Pool(wrong)
                except bfc.Error as error:
                    assert "pool configuration" in str(error) or "option" in str(error), error
                    assert "\0" not in str(error) and not str(error).endswith("a"), error
                else:
                    raise AssertionError(wrong)
            try:
                bfc.Pool({"a\0b": None})
            except bfc.Error as error:
                assert r"a\u{0}b" in str(error) and "text, a number" in str(error), error
            assert not os.path.exists("run.hwm")
            pool.close()
            """
        )


class Fork(Case):
    CHILD = """
def in_child(work):
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(30)
        work()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

    def test_arrays_in_a_child(self):
        with tempfile.TemporaryDirectory() as folder:
            program = """
                with pool.recording(sys.argv[1]), pool.numpy():
                    x, y = np.arange(1000.0), np.arange(10)
                    live = pool.stats().live_blocks
                    def work():
                        global x
                        assert x.sum() == 499500 and y.tolist() == list(range(10))
                        y.resize(100_000, refcheck=False)
                        assert y[:10].tolist() == list(range(10)) and not y[10:].any()
                        kept = [np.zeros(n) + n for n in range(1000)]
                        for array in kept:
                            array.resize(array.size + 5000, refcheck=False)
                        assert all((array[:n] == n).all() and not array[n:].any() for n, array in enumerate(kept))
                        del x, kept[::2]
                        with bfc.scope("child"), pool.numpy():
                            assert (np.ones((300, 300)) @ np.ones((300, 300))).sum() == 300.0**3
                        for call in [pool.stats, pool.report, pool.close, lambda: bfc.Pool("memory=dry")]:
                            try:
                                call()
                            except bfc.Error as error:
                                assert "child of fork()" in str(error), error
                            else:
                                raise AssertionError(call)
                    in_child(work)
                    in_child(lambda: in_child(work))
                    assert pool.stats().live_blocks == live and x.sum() == 499500 and len(y) == 10
                """
            self.run_program(program, POOL + self.CHILD, os.path.join(folder, "run.hwm"))

    def test_multiprocessing_forks_while_threads_allocate(self):
        self.run_program(
            """
            import multiprocessing
            def busy():
                with pool.numpy():
                    while not stop.is_set():
                        with bfc.scope("busy"):
                            np.ones(1000).sum()
            def work(n):
                with bfc.scope("work"), pool.numpy():
                    return (np.ones(n) + shared[:n]).sum()
            stop = threading.Event()
            threads = [threading.Thread(target=busy) for _ in range(3)]
            for thread in threads:
                thread.start()
            with pool.numpy():
                shared = np.ones(1000)
                context = multiprocessing.get_context("fork")
                for _ in range(5):
                    with context.Pool(2) as workers:
                        found = workers.map_async(work, range(1000)).get(60)
                    assert found == [2.0 * n for n in range(1000)]
                    process = context.Process(target=sys.exit, args=(0,))
                    process.start()
                    process.join(60)
                    assert process.exitcode == 0, process.exitcode
            stop.set()
            for thread in threads:
                thread.join()
            del shared
            assert pool.stats().live_blocks == 0
            pool.close()
            """
        )

    def test_children_of_a_process_that_only_imported_the_library(self):
        self.run_program(
            """
            def work():
                pool = bfc.Pool("memory=host,limit=1MiB,retry_ms=0")
                with pool.numpy():
                    x = np.ones(1000)
                    assert pool.stats().bytes_requested == x.nbytes
                del x
                pool.close()
            in_child(work)
            work()
            """,
            prelude="import os, sys\nimport numpy as np\nimport bfc\n" + self.CHILD,
        )

    def test_numpy_allocator_in_a_child(self):
        self.run_program(
            """
            with bfc.numpy_allocator():
                x = np.ones(1000)
                def work():
                    global x
                    x.resize(2000, refcheck=False)
                    assert x.sum() == 1000
                    del x
                    assert np.zeros(1000).sum() == 0
                in_child(work)
            assert x.sum() == 1000
            """,
            prelude=POOL + self.CHILD,
        )


if __name__ == "__main__":
    unittest.main()
