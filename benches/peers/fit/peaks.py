"""Measures the peak memory of PyTorch's tensors on the CPU, in three independent ways.

`python3 peaks.py gpt124 gpt512 resnet50` prints one line for each model and way:

- events: every allocation and free of PyTorch's CPU allocator, from its profiler. It includes temporaries inside of ops and
  the buffers of code that `torch.compile` generates.
- tensors: the storages that `MemTracker` sees, which are those of tensors that ops return.
- resident: the peak of the process's resident memory in a step, less its resident memory before the step, plus the live bytes
  of parameters and optimizer. It includes buffers of libraries, and is exact to a few MiB only.
"""

import argparse
import os
import subprocess
import sys
import time

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # Read when PyTorch is loaded.

import torch
from torch.profiler import record_function

import models

MIB = 2**20
WAYS = ["events", "tensors", "resident"]
MARK = "measured step"
# A fixed threshold makes free() return the memory of tensors to the system. It slows steps down.
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def allocation_events(run):
    """Peak bytes of the CPU allocator while `run(mark)` is within `mark()`. Models must be built by `run`."""
    with torch.autograd.profiler.profile(use_kineto=True, profile_memory=True) as profile:
        run(lambda: record_function(MARK))
    totals, marks, stack = [], [], list(profile.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.name == MARK:
            marks.append((event.start_time_ns, event.end_time_ns))
        elif event.name == "[memory]":
            totals.append((event.start_time_ns, event.extra_fields.total_allocated))
    (start, end), *_ = marks
    before = max(((at, total) for at, total in totals if at < start), default=(0, 0))[1]
    return max([before] + [total for at, total in totals if start <= at <= end])


def resident(field):
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field + ":"))


def resident_peak(live, call):
    """Peak of resident memory during `call`, on top of `live` bytes that exist before it."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
        clear.write("5")  # Sets the peak to the current value.
    before = resident("VmRSS")
    call()
    return live + resident("VmHWM") - before


def timed(call):
    """Elapsed seconds, and seconds of CPU time of this process."""
    start = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def state_bytes(net, optimizer):
    tensors = list(net.parameters()) + list(net.buffers())
    tensors += [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return sum({id(t): t.nbytes for t in tensors}.values())


def measure(name, way):
    def build():
        net = models.model(name)
        return net, models.optimizer(name, net), *models.batch(name)

    if way == "events":
        def run(mark):
            parts = build()
            models.step(*parts)
            with mark():
                models.step(*parts)

        return allocation_events(run)
    if way == "tensors":
        return tracked(build, steps=2)
    net, optimizer, x, y = build()
    models.step(net, optimizer, x, y)
    optimizer.zero_grad()
    live = state_bytes(net, optimizer) + x.nbytes + y.nbytes
    return resident_peak(live, lambda: models.step(net, optimizer, x, y))


def tracked(build, steps):
    """Peak of `MemTracker`, with real or fake tensors."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    net, optimizer, x, y = build()
    tracker.track_external(net, optimizer, x, y)
    with tracker:
        for _ in range(steps):
            tracker.reset_mod_stats()  # MemTracker allows one forward pass of each module.
            models.step(net, optimizer, x, y)
    return tracker.get_tracker_snapshot("peak")[x.device]["Total"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=models.MODELS)
    parser.add_argument("--way", choices=WAYS, help="this one, in this process")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name in args.models:
        if args.way:
            peak = measure(name, args.way)
            print(f"{name:9} {args.way:9} {peak:14,} bytes {peak / MIB:9.1f} MiB", flush=True)
            continue
        for way in WAYS:
            subprocess.run([sys.executable, __file__, name, "--way", way], env=os.environ | RETURN_MEMORY, check=True)


if __name__ == "__main__":
    main()
