"""Peak memory and step time of micro-batches and checkpointing in eager PyTorch, chosen by hand: each combination is measured.

`python3 by_hand.py --batch 16 --limit 50%` measures gpt512 with a global batch of 16, prints one line per combination, and
marks the fastest one within the limit. The limit is a share of the peak of the plain step, or a number of MiB.

- parts: micro-batches of a step, whose gradients are accumulated.
- kept: "all", or the blocks that run without `torch.utils.checkpoint`, of 6. "2 segments" recomputes two runs of three blocks
  each, like `checkpoint_sequential`.

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
SCHEDULES = {
    "all": (6, []), "5": (5, [1]), "4": (4, [1] * 2), "3": (3, [1] * 3), "2": (2, [1] * 4), "1": (1, [1] * 5), "none": (0, [1] * 6),
    "3 segments": (0, [2] * 3), "2 segments": (0, [3] * 2),
}


def loss_function(net, schedule):
    kept, runs = SCHEDULES[schedule]

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


def build(size, parts, schedule):
    net = models.model(NAME)
    optimizer, (x, y) = models.optimizer(NAME, net), models.batch(NAME, size)
    loss_of = loss_function(net, schedule)
    return lambda: models.step(net, optimizer, x, y, loss_of, parts)


def measure_peak(size, parts, schedule):
    def run(mark):
        step = build(size, parts, schedule)
        step()
        with mark():
            step()

    return peaks.allocation_events(run)


def measure_time(size, parts, schedule, steps):
    step = build(size, parts, schedule)
    step()
    return min(peaks.timed(step)[::-1] for _ in range(steps))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=models.BATCH[NAME], help="global batch")
    parser.add_argument("--limit", default="50%%", help="of the plain peak, or MiB")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a round")
    parser.add_argument("--all", action="store_true", help="time the combinations beyond the limit, too")
    parser.add_argument("--one", nargs=2, metavar=("PARTS", "KEPT"), help="print the peak of this one as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.one:
        print(json.dumps(measure_peak(args.batch, int(args.one[0]), args.one[1])))
        return
    combinations = [(1 << p, s) for p in range(args.batch.bit_length()) if args.batch % (1 << p) == 0 for s in SCHEDULES]
    found = {}
    for parts, schedule in combinations:
        command = [sys.executable, __file__, "--batch", str(args.batch), "--one", str(parts), schedule]
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[parts, schedule] = json.loads(run.stdout)
    plain = found[1, "all"]
    limit = plain * float(args.limit.rstrip("%")) / 100 if args.limit.endswith("%") else float(args.limit) * peaks.MIB
    timed = [key for key in combinations if args.all or found[key] <= limit or key == (1, "all")]
    times = {key: [] for key in timed}
    for _ in range(args.rounds):
        for parts, schedule in timed:
            times[parts, schedule].append(measure_time(args.batch, parts, schedule, args.steps))
    fitting = [key for key in timed if found[key] <= limit]
    fastest = min(fitting, key=lambda key: min(times[key]), default=None)
    print(f"{NAME}, batch {args.batch}, limit {limit / peaks.MIB:.1f} MiB; the plain step peaks at {plain / peaks.MIB:.1f} MiB")
    print(f"{'parts':>5} {'kept':>10} {'peak MiB':>9} {'CPU ms':>9} {'elapsed ms':>10}")
    for parts, schedule in combinations:
        cpu, elapsed = min(times.get((parts, schedule), [(math.nan, math.nan)]))
        mark = "  fastest within the limit" if (parts, schedule) == fastest else ""
        print(f"{parts:5} {schedule:>10} {found[parts, schedule] / peaks.MIB:9.1f} {cpu * 1e3:9.1f} {elapsed * 1e3:10.1f}{mark}")


if __name__ == "__main__":
    main()
