#!/usr/bin/env python3
"""Samples per second of two ranks relative to one, in turn: `ranks.py [mlp cnn gpt] [--rounds 3]`.

Needs `cargo build --release --features mpi`, mpiexec, and for the peer a Python with torch (PyTorch's
DistributedDataParallel over gloo). Each rank has one thread.
"""

import argparse
import re
import statistics
import subprocess
import sys

import torch_workloads as workloads

BINARY = "target/release/peers-train"


def milliseconds(command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = re.search(r"([0-9.]+) ms", result.stdout)
    if not found:
        sys.exit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return float(found.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["mlp", "cnn", "gpt"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    peers = ["highwater"] if args.no_torch else ["highwater", "torch"]
    for workload in args.workloads:
        times = {}
        for _ in range(args.rounds):
            for peer in peers:
                for ranks in (1, 2):
                    if peer == "highwater":
                        command = ["mpiexec", "-n", str(ranks), BINARY, "--ranks", workload]
                    else:
                        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
                        command = [*launcher, "torch_ddp.py", workload]
                    times.setdefault((peer, ranks), []).append(milliseconds(command))
        for peer in peers:
            one, two = (statistics.median(times[peer, ranks]) for ranks in (1, 2))
            batch = workloads.BATCH[workload]
            print(
                f"{workload:8} {peer:9}: {batch / one * 1e3:9.0f} to {2 * batch / two * 1e3:9.0f} samples/s, "
                f"factor {2 * one / two:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
