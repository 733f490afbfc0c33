"""Peak memory and step time of micro-batches and checkpointing in eager PyTorch, chosen by hand: each combination is measured.

`python3 by_hand.py --batch 16 --limit 50%` measures gpt512 with a global batch of 16, prints one line per combination, and
marks the fastest one within the limit. The limit is a share of the peak of the plain step, or a number of MiB.

- parts: micro-batches of a step, whose gradients are accumulated.
- kept: "all", or the blocks that run without `torch.utils.checkpoint`, of 6. "2 segments" recomputes two runs of three blocks
  each, like `checkpoint_sequential`.

A shorter run measures fewer combinations: `--only "1:all,4:all,8:all,2:none,4:4,2:2 segments,1:none,1:3 segments,1:2 segments,
2:3 segments,2:2,4:2,16:all,2:4"` (on one line).

Peaks are those of the allocator's events (see peaks.py). Times are CPU seconds of the process and
elapsed seconds, of the fastest steps of all rounds, which are interleaved.
"""

import argparse
import json
import math
import os
import subprocess
import sys

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import models
import peaks

NAME = "gpt512"
BLOCKS = models.GPT[NAME][0]
# Blocks that run without recomputation, then the lengths of the recomputed runs.
RECOMPUTATIONS = {
    "all": (6, []), "4": (4, [1] * 2), "2": (2, [1] * 4), "none": (0, [1] * 6), "3 segments": (0, [2] * 3), "2 segments": (0, [3] * 2),
}


def loss_function(net, recomputation):
    kept, runs = RECOMPUTATIONS[recomputation]

    def loss_of(tokens, targets):
        x = net.tokens(tokens) + net.positions(torch.arange(tokens.shape[1]))
        # The recomputed blocks come first: their activations are needed last, when the kept ones are freed.
        at = 0
        for length in runs:
            x = checkpoint(net.blocks[at : at + length], x, use_reentrant=False)
            at += length
        x = net.blocks[at:](x)
        return F.cross_entropy(net.head(net.norm(x)).flatten(0, 1), targets)

    assert kept + sum(runs) == BLOCKS
    return loss_of


def build(size, parts, recomputation):
    net = models.model(NAME)
    optimizer, (x, y) = models.optimizer(NAME, net), models.batch(NAME, size)
    loss_of = loss_function(net, recomputation)
    return lambda: models.step(net, optimizer, x, y, loss_of, parts)


def measure(size, parts, recomputation, steps):
    """Peak bytes, and CPU and elapsed seconds of the fastest of `steps` steps."""
    alive = []

    def run(mark):
        alive.append(build(size, parts, recomputation))
        alive[0]()
        with mark():
            alive[0]()

    peak = peaks.allocation_events(run)
    times = [peaks.timed(alive[0])[::-1] for _ in range(steps)]
    return [peak, *min(times, default=(math.nan, math.nan))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=models.BATCH[NAME], help="global batch")
    parser.add_argument("--limit", default="50%", help="of the plain peak in percent, or MiB")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a round")
    parser.add_argument("--only", help="combinations, such as '1:all,4:none'")
    parser.add_argument("--one", help="measure this combination in this process, print JSON")
    args = parser.parse_args()
    if args.one:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        parts, recomputation = args.one.split(":")
        print(json.dumps(measure(args.batch, int(parts), recomputation, args.steps)))
        return
    parts = [1 << power for power in range(args.batch.bit_length()) if args.batch % (1 << power) == 0]
    keys = args.only.split(",") if args.only else [f"{p}:{recomputation}" for p in parts for recomputation in RECOMPUTATIONS]
    found = {key: [] for key in keys}
    for _ in range(args.rounds):
        for key, runs in found.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--one", key]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs.append(json.loads(run.stdout))
            print(key, *runs[-1], file=sys.stderr, flush=True)
    found = {key: [min(values) for values in zip(*runs, strict=True)] for key, runs in found.items()}
    limit = float(args.limit.rstrip("%"))
    limit = found["1:all"][0] * limit / 100 if args.limit.endswith("%") else limit * peaks.MIB
    fitting = [key for key in keys if found[key][0] <= limit]
    fastest = min(fitting, key=lambda key: found[key][1], default=None)
    print(f"{NAME}, batch {args.batch}, limit {limit / peaks.MIB:.1f} MiB")
    print(f"{'parts':>5} {'kept':>10} {'peak MiB':>9} {'CPU ms':>9} {'elapsed ms':>10}")
    for key, (peak, cpu, elapsed) in found.items():
        mark = "  fastest within the limit" if key == fastest else ""
        parts, recomputation = key.split(":")
        print(f"{parts:>5} {recomputation:>10} {peak / peaks.MIB:9.1f} {cpu * 1e3:9.1f} {elapsed * 1e3:10.1f}{mark}")


if __name__ == "__main__":
    main()
