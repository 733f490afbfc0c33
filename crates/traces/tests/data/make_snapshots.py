"""Writes the snapshots in this folder, in the shape of torch.cuda.memory._dump_snapshot."""

import pickle

BASE = 0x7F00_0000_0000
CPP = {"filename": "??", "line": 0, "name": "torch::unwind::unwind()"}
LINEAR = {"filename": "/site/torch/nn/modules/linear.py", "line": 134, "name": "forward"}
ADAM = {"filename": "/site/torch/optim/adamw.py", "line": 97, "name": "_init_group"}
FORWARD = [CPP, LINEAR]
STEP = [CPP, ADAM]


def event(action, address, size, frames=FORWARD, **more):
    fields = {"action": action, "addr": BASE + address, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000}
    return {**fields, "compile_context": "N/A", "user_metadata": "", "frames": frames, **more}


def freed(address, size):
    return [event("free_requested", address, size), event("free_completed", address, size)]


EVENTS = [
    # Allocated before the ring buffer's oldest event.
    *freed(0, 4000),
    event("segment_alloc", 1 << 20, 2 << 20),
    event("alloc", 1 << 20, 1_000_000),
    event("alloc", (1 << 20) + 1_000_448, 700, STEP),
    {"action": "oom", "size": 1 << 40, "device_free": 1 << 30, "stream": 0, "frames": FORWARD},
    *freed(1 << 20, 1_000_000),
    event("alloc", 1 << 20, 300_000),
    # Another stream still uses it, so that its memory is not free yet.
    event("free_requested", 1 << 20, 300_000),
    event("snapshot", 0, 0),
]


def block(address, size, requested, state):
    return {"address": BASE + address, "size": size, "requested_size": requested, "state": state, "frames": []}


def segment(address, blocks):
    total = sum(block["size"] for block in blocks)
    kind = {"device": 0, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False}
    return {**kind, "address": BASE + address, "total_size": total, "frames": [], "blocks": blocks}


SNAPSHOT = {
    "segments": [
        # Live since before the oldest event, and after the last one.
        segment(0, [block(0, 4096, 0, "inactive"), block(4096, 1024, 1000, "active_allocated")]),
        segment(
            1 << 20,
            [
                block(1 << 20, 300_032, 300_000, "active_pending_free"),
                block((1 << 20) + 300_032, 700_416, 0, "inactive"),
                block((1 << 20) + 1_000_448, 1024, 700, "active_allocated"),
            ],
        ),
    ],
    "device_traces": [EVENTS, []],
    "allocator_settings": {"expandable_segments": False, "garbage_collection_threshold": 0.5, "max_split_size": -1},
}

for protocol in (2, 3, 4, 5):
    with open(f"snapshot-{protocol}.pickle", "wb") as file:
        pickle.dump(SNAPSHOT, file, protocol)
