#!/usr/bin/env python3
"""Highwater beside PyTorch, interleaved (A, B, A, B): `python3 compare.py target/release/peers-train resnet18 lstm`.

Prints one Markdown row for each workload and number of threads: milliseconds of a step, and the ratio to PyTorch's best mode
(below 1, Highwater is faster). The fastest block of all rounds counts, as other work on the machine can only add to it.
With several binaries, the last one counts for the ratio. `--peers burn,candle` adds columns of libraries that the last
binary was built with; a dash stands for a program that the library does not have.
"""

import argparse
import os
import re
import subprocess
import sys

LINE = re.compile(r"^\S+ +\S+ +threads .*\(best +([\d.]+)\); loss at step 1, 10, 100: (\S+) (\S+) [^;]*(.*)$")
PRECISIONS = {
    # Options of Highwater, modes of PyTorch.
    "f32": ([], "eager,channels-last"),
    "mixed": (["--mixed"], "autocast,autocast-channels-last"),
    "bf16": (["--dtype", "bf16"], "eager,channels-last"),
    "f16": (["--dtype", "f16"], "eager,channels-last"),
}


def measure(command, environment, optional=False):
    """Milliseconds, losses at steps 1 and 10, and the rest of the line: of the fastest line. None if it may fail, and does."""
    run = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    lines = [found.groups() for found in map(LINE.match, run.stdout.splitlines()) if found]
    if optional and run.returncode:
        return None
    if run.returncode or not lines:
        sys.exit(f"{' '.join(command)}\n{run.stdout}{run.stderr}")
    return min(((float(ms), (one, ten), rest) for ms, one, ten, rest in lines), key=lambda line: line[0])


def sides(workload, threads, precision, args):
    """The command and the environment of each binary, of PyTorch and of the other libraries."""
    ours, modes = PRECISIONS[precision]
    common = [workload, "--threads", str(threads), "--blocks", str(args.blocks)]
    environment = {} if args.avx512 else {"HIGHWATER_CPU_INSTRUCTIONS": "avx2"}
    # The other peers read the number of threads from this variable.
    environment["RAYON_NUM_THREADS"] = str(threads)
    for binary in args.binaries:
        yield [binary, *common, *ours], environment
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_peer.py")
    yield [sys.executable, script, *common, "--mode", modes, *([] if args.avx512 else ["--no-avx512"])], {}
    for peer in args.peers:
        yield [args.binaries[-1], *common, "--peer", peer], environment


def row(workload, threads, precision, args):
    torch = len(args.binaries)
    best = [None] * (torch + 1 + len(args.peers))
    for _ in range(args.rounds):
        for side, (command, environment) in enumerate(sides(workload, threads, precision, args)):
            result = measure(command, environment, optional=side > torch)
            best[side] = min(filter(None, (best[side], result)), key=lambda line: line[0], default=None)
    ours = best[torch - 1]
    losses = " ".join("–" if line is None else "/".join(line[1]) for line in best[torch - 1 :])
    notes = "; ".join(rest.strip("; ") for _, _, rest in (ours, best[torch]))
    times = " | ".join("–" if line is None else f"{line[0]:.4g}" for line in best)
    ratio = ours[0] / best[torch][0]
    print(f"| {workload} | {threads} | {precision} | {times} | {ratio:.2f} | {losses} | {notes} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binaries", nargs="+", metavar="BINARY|WORKLOAD", help="paths of peers-train, then workloads")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--precision", default="f32", help=f"several, separated by commas: {', '.join(PRECISIONS)}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=4, help="timed blocks of a run")
    parser.add_argument("--peers", default="", help="other libraries, separated by commas: burn, candle, dfdx")
    parser.add_argument("--no-avx512", dest="avx512", action="store_false", help="use AVX2 at most, on both sides")
    args = parser.parse_args()
    args.peers = [peer for peer in args.peers.split(",") if peer]
    workloads = [name for name in args.binaries if not os.path.exists(name)]
    args.binaries = [name for name in args.binaries if os.path.exists(name)]
    if not args.binaries or not workloads:
        parser.error("name at least one binary and one workload")

    columns = [*args.binaries, "PyTorch", *args.peers]
    print(f"| workload | threads | precision | {' | '.join(columns)} | ratio | losses at steps 1/10 | |")
    print("|---" * (len(columns) + 6) + "|")
    for precision in args.precision.split(","):
        for workload in workloads:
            for threads in args.threads.split(","):
                row(workload, int(threads), precision, args)


main()
