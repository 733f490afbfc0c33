"""What estimators predict for a training step without running it.

`python3 estimate.py TOOL gpt124 gpt512 resnet50` prints the predicted bytes and the time of the prediction (with imports for the first model), where TOOL is

- accelerate: the calculation of `accelerate estimate-memory`. The command itself accepts models of the Hugging Face Hub only.
- deepspeed: DeepSpeed's estimators for ZeRO 2 and 3 on one GPU.
- tracker: `MemTracker` of PyTorch on fake tensors, which have shapes and no data.
- sac: PyTorch's integer program for selective activation checkpointing (`torch.distributed._tools.sac_ilp`) within
  `--budget` GiB, which count parameters, gradients and activations without the optimizer's state. It prints -1 bytes if it
  finds no solution. Its time model fails without an accelerator even if `--gpu-type` gives the rates;
  `--skip-accelerator-check` makes it run.
"""

import argparse
import contextlib
import io
import os
import time

os.environ.setdefault("DS_BUILD_OPS", "0")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import models
import peaks

MIB = peaks.MIB


def accelerate(name, _args):
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with torch.device("meta"):
        net = hub_model() if name == "gpt124" else models.model(name)
    total, (largest, _) = calculate_maximum_sizes(net)
    usage = estimate_training_usage(total, "float32")
    # The command prints the largest of these values.
    yield f"training with Adam in float32 (parts: {usage}; largest layer {largest})", max(usage.values())


def hub_model():
    """The class and default configuration of the Hub's model "gpt2"."""
    from transformers import AutoModel, GPT2Config

    return AutoModel.from_config(GPT2Config())


def deepspeed(name, _args):
    with contextlib.redirect_stdout(io.StringIO()):
        from deepspeed.runtime.zero import stage3, stage_1_and_2

    # The estimators identify parameters by their addresses, which are 0 on the device "meta".
    total, largest = stage3.model_to_params(models.model(name))
    _, zero2 = stage_1_and_2.estimate_zero2_model_states_mem_needs(total, cpu_offload=False)
    _, offload2 = stage_1_and_2.estimate_zero2_model_states_mem_needs(total, cpu_offload=True)
    _, zero3, _ = stage3.estimate_zero3_model_states_mem_needs(total, largest, cpu_offload=False)
    _, offload3, _ = stage3.estimate_zero3_model_states_mem_needs(total, largest)
    for option, gpu in [("ZeRO 2", zero2), ("ZeRO 2, optimizer offloaded", offload2), ("ZeRO 3", zero3), ("ZeRO 3, all offloaded", offload3)]:
        yield f"{option}: per GPU", gpu


def tracker(name, args):
    def build():
        net = models.model(name)
        return net, models.optimizer(name, net), *models.batch(name)

    with FakeTensorMode(), torch.device(args.device):
        peak = peaks.tracked(build, steps=2)
    yield f"peak on fake {args.device} tensors", peak


def sac(name, args):
    from torch.distributed._tools.ilp_utils import aggregate_stats, parse_module_info
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator
    from torch.distributed._tools.sac_estimator import SACEstimator
    from torch.distributed._tools.sac_ilp import sac_milp

    if args.skip_accelerator_check:
        torch.accelerator.is_available = lambda: True
    with FakeTensorMode(), torch.device(args.device):
        net = models.model(name)
        optimizer, (x, y) = models.optimizer(name, net), models.batch(name)
        memory = MemTracker()
        memory.track_external(net, optimizer, x, y)
        with memory:
            for _ in range(2):
                memory.reset_mod_stats()
                models.step(net, optimizer, x, y)
        runtime = RuntimeEstimator(args.gpu_type)
        with runtime(estimate_mode_type="operator-level-cost-model"):
            models.step(net, optimizer, x, y)
        estimator = SACEstimator(args.gpu_type)
        with estimator(estimate_mode_type="operator-level-cost-model"):
            torch.nn.functional.cross_entropy(net(x), y)
    graph = parse_module_info(aggregate_stats(net, memory, runtime, estimator, x.device))
    recompute, milliseconds, peak = sac_milp(graph, args.budget)
    what = ", ".join(f"{module} {share:.0%}" for module, share in recompute.items()) or "nothing"
    yield f"within {args.budget} GiB: recompute {what}; {milliseconds} ms more", peak


TOOLS = {"accelerate": accelerate, "deepspeed": deepspeed, "tracker": tracker, "sac": sac}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("models", nargs="+", choices=models.MODELS)
    parser.add_argument("--device", default="cpu", help="of fake tensors")
    parser.add_argument("--budget", type=float, default=2.0, help="GiB")
    parser.add_argument("--skip-accelerator-check", action="store_true")
    parser.add_argument("--gpu-type", default="NVIDIA H100", help="whose rates the roofline model uses")
    args = parser.parse_args()
    torch.manual_seed(0)
    for name in args.models:
        start = time.perf_counter(), time.process_time()
        for what, predicted in TOOLS[args.tool](name, args):
            seconds, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
            print(f"{name:9} {predicted:14,} bytes {predicted / MIB:9.1f} MiB in {seconds:.2f} s ({cpu:.2f} s of a CPU): {what}", flush=True)


if __name__ == "__main__":
    main()
