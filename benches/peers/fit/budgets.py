"""Peak memory and step time of `torch.compile` with PyTorch's activation memory budgets, on the CPU.

`python3 budgets.py gpt512 --rounds 3` prints one line per budget: the peak by the allocator's events and by resident memory
(see peaks.py), the seconds of the first step with its compilation, and the fastest step of all rounds, in CPU time of the
process and in elapsed time. "none" is eager PyTorch, without compilation.

`--region block` compiles each block of the model alone, so that the budget counts for each block.

Needs a C++ compiler, as TorchInductor compiles C++ for the CPU. Each measurement is a process of its own, without caches of
compiled code. The rounds are interleaved, as other processes may use the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
import torch.nn.functional as F

import models
import peaks


def loss_function(net, budget, backend, region):
    def loss_of(x, y):
        return F.cross_entropy(net(x), y)

    if budget is None:
        return loss_of
    import torch._functorch.config

    torch._functorch.config.activation_memory_budget = budget
    if region == "step":
        return torch.compile(loss_of, backend=backend)
    for block in net.blocks:
        block.compile(backend=backend)
    return loss_of


def build(name, size, budget, backend, region):
    """Returns a function of one training step, and what remains alive between two steps."""
    net = models.model(name)
    optimizer, (x, y) = models.optimizer(name, net), models.batch(name, size)
    loss_of = loss_function(net, budget, backend, region)
    return lambda: models.step(net, optimizer, x, y, loss_of), net, optimizer, x, y


def measure_peak(make):
    result = {}

    def run(mark):
        # The events must start before the model exists.
        step, net, optimizer, x, y = make()
        step()
        step()
        with mark():
            step()
        optimizer.zero_grad()
        live = peaks.state_bytes(net, optimizer) + x.nbytes + y.nbytes
        result["resident"] = peaks.resident_peak(live, step)

    result["events"] = peaks.allocation_events(run)
    return result


def measure_time(make, steps):
    step, *_alive = make()
    times = [peaks.timed(step) for _ in range(steps + 2)]
    elapsed, cpu = zip(*times[2:])
    return {"first": times[0][0], "elapsed": min(elapsed), "cpu": min(cpu)}


def run_alone(budget, what, environment):
    """Runs this script for one budget in a process without caches of compiled code."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | environment
        environment |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--one", budget, what]
        run = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=models.MODELS)
    parser.add_argument("--batch", type=int, help="examples of a step")
    parser.add_argument("--budgets", default="none,1,0.75,0.5,0.25,0")
    parser.add_argument("--backend", default="inductor", help="of torch.compile, such as aot_eager_decomp_partition")
    parser.add_argument("--region", choices=["step", "block"], default="step", help="what is compiled at once")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a round")
    parser.add_argument("--one", nargs=2, help="a budget, and peak or time: measure it in this process, print JSON")
    args = parser.parse_args()
    if args.one:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        budget = None if args.one[0] == "none" else float(args.one[0])

        def make():
            return build(args.model, args.batch, budget, args.backend, args.region)

        print(json.dumps(measure_peak(make) if args.one[1] == "peak" else measure_time(make, args.steps)))
        return
    budgets = args.budgets.split(",")
    times = {budget: [] for budget in budgets}
    for _ in range(args.rounds):
        for budget in budgets:
            times[budget].append(run_alone(budget, "time", {}))
    size = args.batch or models.BATCH[args.model]
    print(f"{args.model}, batch {size}, {args.backend}, each {args.region} compiled")
    print(f"{'budget':>6} {'peak MiB':>9} {'resident':>9} {'first step s':>12} {'CPU ms':>9} {'elapsed ms':>10}")
    for budget in budgets:
        peak = run_alone(budget, "peak", peaks.RETURN_MEMORY)
        first, cpu, elapsed = (min(run[of] for run in times[budget]) for of in ("first", "cpu", "elapsed"))
        events, resident = (peak[way] / peaks.MIB for way in ("events", "resident"))
        print(f"{budget:>6} {events:9.1f} {resident:9.1f} {first:12.1f} {cpu * 1e3:9.1f} {elapsed * 1e3:10.1f}", flush=True)


if __name__ == "__main__":
    main()
