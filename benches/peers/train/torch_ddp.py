#!/usr/bin/env python3
"""The programs of torch_peer.py with DistributedDataParallel over gloo: `torchrun --nproc-per-node 2 torch_ddp.py gpt`."""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import torch_workloads as workloads


def main():
    workload, blocks = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    net = workloads.model(workload)
    optimizer = workloads.optimizer(workload, net.parameters())
    if size > 1:
        net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    data = workloads.batches(workload)
    steps, times = workloads.STEPS[workload], []
    for block in range(blocks + 1):
        start = time.perf_counter()
        for step in range(steps):
            x, y = data[(step * size + rank) % len(data)]
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            loss.item()
        if block:
            times.append((time.perf_counter() - start) / steps)
    if rank == 0:
        print(f"torch     {workload:8} ranks {size}: {statistics.median(times) * 1e3:8.3f} ms (best {min(times) * 1e3:8.3f})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    # The default algorithm of the thread pool would use all cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
