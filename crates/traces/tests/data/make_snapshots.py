"""Writes the snapshots in this folder, in the shape of torch.cuda.memory._dump_snapshot.

    python make_snapshots.py                        # the small ones
    python make_snapshots.py --events 1000000 FILE  # one of a training loop with about so many events

A model of PyTorch's allocator decides the addresses, the blocks and the segments of the later ones. It follows the
documentation: rounding to 512 bytes, best fit, small and large segments, blocks that keep a rest of at most 1 MiB.
"""

import argparse
import bisect
import pickle

BASE = 0x7F00_0000_0000
KIB, MIB = 1 << 10, 1 << 20
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


class Block:
    """A block of a segment, in a list by address."""

    __slots__ = ("address", "size", "segment", "prev", "next", "requested", "state", "frames", "mapped")

    def __init__(self, address, size, segment, prev=None, next=None, mapped=True):
        self.address, self.size, self.segment = address, size, segment
        self.prev, self.next, self.mapped = prev, next, mapped
        self.requested, self.state, self.frames = 0, "inactive", []


class Segment:
    __slots__ = ("address", "size", "pool", "first", "frames")

    def __init__(self, address, size, pool):
        self.address, self.size, self.pool, self.frames = address, size, pool, []
        self.first = None


class Allocator:
    """A model of PyTorch's allocator on one device. A pool is (stream, is small, id of the private pool)."""

    def __init__(self, keys, expandable=False, max_split=None, divisions=0, device=0):
        self.keys, self.expandable, self.device = keys, expandable, device
        self.max_split, self.divisions = max_split or 1 << 62, divisions
        self.free_blocks, self.segments, self.live = {}, {}, {}
        self.events, self.annotations = [], []
        self.now, self.next_address = 1_700_000_000_000_000, BASE

    def record(self, action, address, size, stream, pool_id, frames):
        self.now += 3
        entry = {"action": action}
        entry["device_free" if action == "oom" else "addr"] = address
        entry |= {"size": size, "stream": stream}
        if "time_us" in self.keys:
            entry["time_us"] = self.now
        if "compile_context" in self.keys:
            # A new text for each event, as the conversion from C++ makes it.
            entry["compile_context"] = "".join(["N", "/A"])
        if "user_metadata" in self.keys:
            entry["user_metadata"] = ""
        if "pool_id" in self.keys:
            entry["pool_id"] = (pool_id[0], pool_id[1])
        if frames is not None:
            entry["frames"] = frames
        self.events.append(entry)

    def annotate(self, name, stage):
        if "annotations" in self.keys:
            self.annotations.append({"name": name, "stage": stage, "device": self.device, "time_us": self.now})

    def rounded(self, size):
        if self.divisions > 1 and size > 512 * self.divisions:
            step = (1 << size.bit_length() - 1) // self.divisions
            return -(-size // step) * step
        return max(512, -(-size // 512) * 512)

    def alloc(self, requested, frames, stream=0, pool_id=(0, 0)):
        size = self.rounded(requested)
        is_small = size <= MIB
        pool = (stream, is_small, pool_id)
        free = self.free_blocks.setdefault(pool, [])
        found = self.best(free, size)
        if found is None:
            found = self.grow(pool, size, frames)
        rest = found.size - size
        splits = rest >= 512 if is_small or self.expandable else size < self.max_split and rest > MIB
        if splits:
            after = Block(found.address + size, rest, found.segment, found, found.next)
            if after.next:
                after.next.prev = after
            found.next, found.size = after, size
            bisect.insort(free, (after.size, after.address, after))
        found.requested, found.state, found.frames = requested, "active_allocated", frames
        self.live[found.address] = found
        self.record("alloc", found.address, requested, stream, pool_id, frames)
        return found.address

    def best(self, free, size):
        index = bisect.bisect_left(free, (size, 0))
        if index == len(free):
            return None
        found = free[index][2]
        if not self.expandable:
            if size < self.max_split <= found.size or size >= self.max_split and found.size >= size + 20 * MIB:
                return None
        del free[index]
        return found

    def grow(self, pool, size, frames):
        stream, is_small, pool_id = pool
        if self.expandable:
            return self.map(pool, size, frames)
        total = 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        address, self.next_address = self.next_address, self.next_address + total + 2 * MIB
        segment = self.segments[address] = Segment(address, total, pool)
        segment.frames = frames
        segment.first = Block(address, total, segment)
        self.record("segment_alloc", address, total, stream, pool_id, frames)
        return segment.first

    def map(self, pool, size, frames):
        """Maps more memory at the end of the pool's expandable segment."""
        stream, is_small, pool_id = pool
        segment = next((found for found in self.segments.values() if found.pool == pool), None)
        if segment is None:
            address, self.next_address = self.next_address, self.next_address + (1 << 36)
            segment = self.segments[address] = Segment(address, 0, pool)
        last = segment.first
        while last and last.next:
            last = last.next
        tail = last if last and last.state == "inactive" else None
        page = 2 * MIB if is_small else 20 * MIB
        more = -(-(size - (tail.size if tail else 0)) // page) * page
        address = segment.address + segment.size
        segment.size += more
        self.record("segment_map", address, more, stream, pool_id, frames)
        if tail:
            self.free_blocks[pool].remove((tail.size, tail.address, tail))
            tail.size += more
            return tail
        added = Block(address, more, segment, last)
        if last:
            last.next = added
        else:
            segment.first = added
        return added

    def request_free(self, address, frames=None):
        block = self.live[address]
        stream, _, pool_id = block.segment.pool
        block.state = "active_pending_free"
        frames = block.frames if frames is None else frames
        self.record("free_requested", address, block.requested, stream, pool_id, frames)

    def free(self, address, frames=None):
        self.request_free(address, frames)
        self.complete(address, frames)

    def complete(self, address, frames=None):
        block = self.live.pop(address)
        pool = block.segment.pool
        frames = block.frames if frames is None else frames
        self.record("free_completed", address, block.requested, pool[0], pool[2], frames)
        block.state, block.requested, block.frames = "inactive", 0, []
        free = self.free_blocks[pool]
        for other in (block.prev, block.next):
            if other and other.state == "inactive":
                del free[bisect.bisect_left(free, (other.size, other.address))]
        if block.next and block.next.state == "inactive":
            block.size += block.next.size
            block.next = block.next.next
            if block.next:
                block.next.prev = block
        before = block.prev
        if before and before.state == "inactive":
            before.size += block.size
            before.next = block.next
            if before.next:
                before.next.prev = before
            block = before
        bisect.insort(free, (block.size, block.address, block))

    def empty_cache(self):
        for pool, free in self.free_blocks.items():
            for size, address, block in list(free):
                segment = block.segment
                if self.expandable:
                    # Whole pages at the end are unmapped.
                    page = 2 * MIB if pool[1] else 20 * MIB
                    if block.next is None and size >= page:
                        free.remove((size, address, block))
                        gone = size // page * page
                        segment.size -= gone
                        block.size -= gone
                        self.record("segment_unmap", segment.address + segment.size, gone, pool[0], pool[2], [])
                        if block.size:
                            bisect.insort(free, (block.size, address, block))
                        elif block.prev:
                            block.prev.next = None
                        else:
                            segment.first = None
                elif block.prev is None and block.next is None:
                    free.remove((size, address, block))
                    del self.segments[segment.address]
                    self.record("segment_free", address, size, pool[0], pool[2], [])

    def snapshot(self, most_events=None, settings=None):
        segments = []
        for segment in sorted(self.segments.values(), key=lambda found: found.address):
            stream, is_small, pool_id = segment.pool
            blocks, block = [], segment.first
            while block:
                found = {"address": block.address, "size": block.size, "requested_size": block.requested}
                blocks.append(found | {"state": block.state, "frames": block.frames})
                block = block.next
            if not blocks:
                continue
            live = [found for found in blocks if found["state"] == "active_allocated"]
            active = [found for found in blocks if found["state"] != "inactive"]
            fields = {"device": self.device, "address": segment.address, "total_size": segment.size}
            fields |= {"allocated_size": sum(found["size"] for found in live)}
            fields |= {"active_size": sum(found["size"] for found in active)}
            fields |= {"requested_size": sum(found["requested_size"] for found in live), "stream": stream}
            fields |= {"segment_type": "small" if is_small else "large", "segment_pool_id": pool_id}
            fields |= {"is_expandable": self.expandable, "frames": segment.frames, "blocks": blocks}
            segments.append(fields)
        self.record("snapshot", 0, 0, 0, (0, 0), None)
        events = self.events[-most_events:] if most_events else self.events
        snapshot = {"segments": segments, "device_traces": [[]] * self.device + [events, []]}
        if "settings" in self.keys:
            snapshot["allocator_settings"] = {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "max_split_size": -1 if self.max_split == 1 << 62 else self.max_split,
                "garbage_collection_threshold": 0.0,
                "expandable_segments": self.expandable,
                "pinned_num_register_threads": 1,
                "release_lock_on_cudamalloc": False,
                "pinned_use_cuda_host_register": False,
                "roundup_power2_divisions": {str(1 << range_): self.divisions for range_ in range(16)},
            } | (settings or {})
        if "annotations" in self.keys:
            snapshot["external_annotations"] = self.annotations
        if "host" in self.keys:
            host = {"address": 64, "size": 4096, "allocated": True, "active": True, "segment_pool_id": (0, 0)}
            snapshot |= {"host_segments": [host], "host_traces": []}
        return snapshot


def stack(*lines):
    """A stack of shared frames, innermost first, below the frames of C++."""
    return [CPP, *({"name": name, "filename": file, "line": line} for name, file, line in lines)]


LOOP = ("main", "/home/user/train.py", 88)
RUN = ("<module>", "/home/user/train.py", 120)
CALL = ("_call_impl", "/site/torch/nn/modules/module.py", 1750)


def train(allocator, steps, layers, hidden, graph=False, side_stream=False):
    """A training loop of linear layers with Adam. Sizes differ between steps, so that free blocks do."""
    modules = [
        stack(("forward", "/site/torch/nn/modules/linear.py", 134), CALL, ("forward", "/home/user/model.py", layer), LOOP, RUN)
        for layer in range(layers)
    ]
    init = stack(("__init__", "/site/torch/nn/modules/linear.py", 105), ("__init__", "/home/user/model.py", 9), RUN)
    backward = stack(("backward", "/site/torch/autograd/graph.py", 800), LOOP, RUN)
    adam = stack(("_init_group", "/site/torch/optim/adam.py", 180), ("step", "/site/torch/optim/optimizer.py", 493), LOOP, RUN)
    update = stack(("_foreach_add", "/site/torch/optim/adam.py", 700), ("step", "/site/torch/optim/optimizer.py", 493), LOOP, RUN)
    data = stack(("to", "/home/user/train.py", 70), LOOP, RUN)
    parameters = [allocator.alloc(4 * hidden * (hidden + 10 * layer), init) for layer in range(layers)]
    states, pending = [], None
    for step in range(steps):
        batch = 64 + 16 * (step % 5)
        allocator.annotate(f"step", "START")
        inputs = allocator.alloc(4 * batch * hidden, data, 7 if side_stream else 0)
        allocator.annotate("forward", "START")
        activations = []
        for layer in range(layers):
            pool_id = (0, 1) if graph and layer % 3 == 0 else (0, 0)
            scratch = allocator.alloc(batch * 1000 + 400, modules[layer])
            activations.append(allocator.alloc(4 * batch * (hidden + 10 * layer), modules[layer], 0, pool_id))
            allocator.free(scratch)
        allocator.annotate("forward", "END")
        if pending is not None:
            allocator.complete(pending)
        gradients = []
        for layer in reversed(range(layers)):
            gradients.append(allocator.alloc(4 * hidden * (hidden + 10 * layer), backward))
            scratch = allocator.alloc(4 * batch * hidden, backward)
            allocator.free(activations[layer])
            allocator.free(scratch)
        if not states:
            for layer in range(layers):
                states += [allocator.alloc(4 * hidden * (hidden + 10 * layer), adam) for _ in range(2)]
        scratch = [allocator.alloc(4 * hidden * hidden, update) for _ in range(3)]
        for address in scratch + gradients:
            allocator.free(address, update)
        # A side stream still uses the inputs until the next step.
        pending = inputs if side_stream else None
        if side_stream:
            allocator.request_free(inputs)
        else:
            allocator.free(inputs)
        allocator.annotate(f"step", "END")
    return parameters


OLD = frozenset()
TIMED = OLD | {"time_us", "compile_context", "settings"}
ANNOTATED = TIMED | {"user_metadata", "annotations"}
LATEST = ANNOTATED | {"pool_id", "host"}


def write(name, snapshot, protocol=4):
    with open(name, "wb") as file:
        pickle.dump(snapshot, file, protocol)


def small():
    for protocol in (2, 3, 4, 5):
        write(f"snapshot-{protocol}.pickle", SNAPSHOT, protocol)
    # PyTorch 2.1: events without times, no settings.
    model = Allocator(OLD)
    train(model, 2, 2, 500)
    write("pytorch-early.pickle", model.snapshot(), 4)
    # Then times and settings; the pool of an event is that of its segment. A part of the beginning is lost.
    model = Allocator(TIMED, max_split=200 * MIB, divisions=4)
    for _ in range(2):
        model.empty_cache()
        train(model, 1, 3, 900, graph=True)
    write("pytorch-timed.pickle", model.snapshot(80), 4)
    # Then annotations.
    model = Allocator(ANNOTATED, expandable=True)
    train(model, 2, 2, 700)
    model.empty_cache()
    write("pytorch-expandable.pickle", model.snapshot(), 4)
    # Then the pool of each event, and host memory.
    model = Allocator(LATEST, device=1)
    train(model, 2, 2, 900, graph=True, side_stream=True)
    model.record("oom", 5 * MIB, 80 << 30, 0, (0, 0), FORWARD)
    write("pytorch-latest.pickle", model.snapshot(60), 5)
    # Recording was never switched on.
    model = Allocator(LATEST)
    train(model, 1, 2, 900, side_stream=True)
    model.events.clear()
    write("pytorch-without-events.pickle", model.snapshot() | {"device_traces": [[], []]}, 4)


def large(events, name):
    model = Allocator(LATEST)
    layers = 48
    train(model, max(1, 4 * events // (layers * 49)), layers, 700, side_stream=True)
    write(name, model.snapshot(), pickle.DEFAULT_PROTOCOL)
    print(len(model.events), "events")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int)
    parser.add_argument("file", nargs="?")
    options = parser.parse_args()
    if options.events:
        large(options.events, options.file)
    else:
        small()
