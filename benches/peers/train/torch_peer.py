#!/usr/bin/env python3
"""The same programs in PyTorch, on the same weights and batches: `python3 torch_peer.py mlp cnn gpt tiny [--threads N]`.

With several modes, the best one of each program is printed again. `channels-last` modes exist for images alone.
"""

import argparse
import os
import statistics
import time

# Layout of images, and whether products run in bf16 with f32 parameters.
MODES = {
    "eager": (False, False),
    "channels-last": (True, False),
    "autocast": (False, True),
    "autocast-channels-last": (True, True),
}


def restrict_instructions(avx512):
    """Sets the libraries' switches, which they read when they are loaded."""
    with open("/proc/cpuinfo", encoding="ascii") as info:
        has_amx = "amx_" in info.read()
    if not avx512:
        os.environ.update(ONEDNN_MAX_CPU_ISA="AVX2", ATEN_CPU_CAPABILITY="avx2", MKL_ENABLE_INSTRUCTIONS="AVX2")
    elif has_amx:
        # Highwater has no code for AMX.
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def run(workload, mode, args):
    import torch
    import torch.nn.functional as F

    import torch_workloads as workloads

    channels_last, autocast = MODES[mode]
    net, data = workloads.model(workload), workloads.batches(workload)
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
        data = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in data]
    optimizer = workloads.optimizer(workload, net.parameters())

    def step(number):
        x, y = data[number % len(data)]
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.mse_loss(net(x), y) if workload == "tiny" else F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    steps, losses, times = workloads.STEPS[workload], [], []
    for block in range(args.blocks + 1):
        start = time.perf_counter()
        for _ in range(steps):
            losses.append(step(len(losses)))
        if block:
            times.append((time.perf_counter() - start) / steps)
    median, best = statistics.median(times), min(times)
    at = " ".join(f"{losses[step - 1]:.5f}" if len(losses) >= step else "-" for step in (1, 10, 100))
    print(
        f"torch     {workload:8} threads {args.threads}: {1 / median:9.1f} steps/s, {median * 1e3:8.3f} ms "
        f"(best {best * 1e3:8.3f}); loss at step 1, 10, 100: {at}; {mode}",
        flush=True,
    )
    if args.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(steps):
                step(len(losses))
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=45))
    return median


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=9, help="timed blocks of steps; their median counts")
    parser.add_argument("--mode", default="eager", help=f"several, separated by commas: {', '.join(MODES)}")
    parser.add_argument("--no-avx512", action="store_true", help="use AVX2 at most")
    parser.add_argument("--profile", action="store_true", help="print the time of each op")
    args = parser.parse_args()
    modes = args.mode.split(",")
    if not set(modes) <= set(MODES):
        parser.error(f"--mode: choose from {', '.join(MODES)}")
    restrict_instructions(not args.no_avx512)

    import torch

    torch.set_num_threads(args.threads)
    for workload in args.workloads:
        usable = [mode for mode in modes if workload in ("cnn", "resnet18") or not MODES[mode][0]]
        medians = {mode: run(workload, mode, args) for mode in usable}
        if len(medians) > 1:
            print(f"          {workload:8} best mode: {min(medians, key=medians.get)}", flush=True)


main()
