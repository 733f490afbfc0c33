"""Records the snapshots in this folder: python record.py KIND FILE.

They were recorded by PyTorch 2.15 with stubs in place of the CUDA runtime, so that the allocator works on addresses
without memory. The paths of source files were shortened.
"""

import pickle
import sys

import torch
from torch.profiler import record_function

MIB = 1 << 20


def bytes_of(count):
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def streams():
    side = torch.cuda.Stream()
    first = bytes_of(5 * MIB)
    with torch.cuda.stream(side):
        second, third = bytes_of(30 * MIB), bytes_of(100)
        first.record_stream(side)
    del second
    fourth = bytes_of(30 * MIB)
    del first
    return third, fourth, bytes_of(3 * MIB)


def mempool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        first, second = bytes_of(5 * MIB), bytes_of(1000)
    third = bytes_of(5 * MIB)
    del first
    return pool, second, third, bytes_of(5 * MIB)


def expandable():
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    first = [bytes_of((i % 7 + 1) * MIB) for i in range(40)]
    del first[::2]
    second = [bytes_of((i % 5 + 1) * 3 * MIB // 2) for i in range(20)]
    third = [bytes_of(700 * i + 1) for i in range(300)]
    torch.cuda.empty_cache()
    return first, second, third


def annotations():
    kept = []
    for step in range(3):
        with record_function(f"ProfilerStep#{step}"):
            with record_function("forward"):
                x, y = bytes_of(8 * MIB), bytes_of(3 * MIB)
            with record_function("backward"):
                z = bytes_of(20 * MIB)
                del y, x
            kept.append(bytes_of(MIB))
            del z
    return kept


def ring():
    kept = [bytes_of(3 * MIB) for _ in range(4)]
    for i in range(30):
        bytes_of((i % 4 + 1) * MIB)
    return kept


def oom():
    kept = [bytes_of(1000 * MIB)]
    try:
        bytes_of(1 << 50)
    except torch.OutOfMemoryError:
        pass
    return kept


def some():
    kept = bytes_of(3 * MIB), bytes_of(1000)
    bytes_of(30 * MIB)
    return kept


KINDS = {
    "streams": (streams, {}),
    "mempool": (mempool, {}),
    "expandable": (expandable, {}),
    "annotations": (annotations, {"global_record_annotations": True}),
    "ring": (ring, {"max_entries": 60}),
    "oom": (oom, {}),
    "without-events": (some, {"enabled": None}),
    "state": (some, {"enabled": "state"}),
}

if __name__ == "__main__":
    program, options = KINDS[sys.argv[1]]
    torch.cuda.memory._record_memory_history(**{"max_entries": 1_000_000, "stacks": "python"} | options)
    kept = program()
    with open(sys.argv[2], "wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file)
