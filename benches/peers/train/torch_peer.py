#!/usr/bin/env python3
"""The same four programs in PyTorch, on the same weights and batches: `python3 torch_peer.py mlp cnn gpt tiny [--threads N]`."""

import argparse
import math
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BATCH = {"mlp": 64, "cnn": 64, "gpt": 16, "tiny": 4}
STEPS = {"mlp": 150, "cnn": 30, "gpt": 10, "tiny": 2000}
LAYERS, WIDTH, HEADS, CONTEXT, CLASSES = 4, 128, 4, 64, 65
DISTINCT = 32
MASK = (1 << 64) - 1


class SplitMix:
    """splitmix64, as in src/workload.rs."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def unit(self):
        return (self.next() >> 11) / float(1 << 53)


def parameters(workload):
    of = []

    def linear(inputs, outputs):
        of.append(((inputs, outputs), math.sqrt(1.0 / inputs)))
        of.append(((outputs,), 0.0))

    if workload == "mlp":
        for i, o in [(784, 256), (256, 128), (128, 10)]:
            linear(i, o)
    elif workload == "tiny":
        for i, o in [(2, 16), (16, 16), (16, 1)]:
            linear(i, o)
    elif workload == "cnn":
        for i, o in [(1, 16), (16, 32)]:
            of.append(((o, i, 3, 3), math.sqrt(1.0 / (9 * i))))
            of.append(((o,), 0.0))
        linear(32 * 7 * 7, 10)
    else:
        of += [((CLASSES, WIDTH), 0.02), ((CONTEXT, WIDTH), 0.02)]
        for _ in range(LAYERS):
            of += [((WIDTH,), None), ((WIDTH,), 0.0)]
            linear(WIDTH, 3 * WIDTH)
            linear(WIDTH, WIDTH)
            of += [((WIDTH,), None), ((WIDTH,), 0.0)]
            linear(WIDTH, 4 * WIDTH)
            linear(4 * WIDTH, WIDTH)
        of += [((WIDTH,), None), ((WIDTH,), 0.0), ((WIDTH, CLASSES), 0.02)]
    return of


def weights(workload):
    random = SplitMix(1)
    for shape, spread in parameters(workload):
        count = math.prod(shape)
        if spread is None:
            values = [1.0] * count
        elif spread == 0.0:
            values = [0.0] * count
        else:
            values = [(random.unit() * 2.0 - 1.0) * math.sqrt(3.0) * spread for _ in range(count)]
        tensor = torch.tensor(np.array(values, dtype=np.float32).reshape(shape))
        yield tensor


def batches(workload):
    random, out = SplitMix(2), []
    for _ in range(DISTINCT):
        if workload in ("mlp", "cnn"):
            images, classes = [], []
            for _ in range(64):
                label = random.next() % 10
                for place in range(784):
                    bar = place // 28 // 2 == label + 2
                    images.append(random.unit() * 0.5 + (0.5 if bar else 0.0))
                wrong = random.next() % 10 == 0
                classes.append(random.next() % 10 if wrong else label)
            shape = (64, 784) if workload == "mlp" else (64, 1, 28, 28)
            x = torch.tensor(np.array(images, dtype=np.float32).reshape(shape))
            out.append((x, torch.tensor(classes)))
        elif workload == "gpt":
            tokens, following = [], []
            for _ in range(16):
                at = random.next() % CLASSES
                for _ in range(CONTEXT):
                    tokens.append(at)
                    at = (at * 7 + 1 + random.next() % 3) % CLASSES
                    following.append(at)
            out.append((torch.tensor(tokens).reshape(16, CONTEXT), torch.tensor(following)))
        else:
            x = np.array([random.unit() * 2.0 - 1.0 for _ in range(8)], dtype=np.float32).reshape(4, 2)
            out.append((torch.tensor(x), torch.tensor(x[:, :1] * x[:, 1:])))
    return out


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.project, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        n, length, _ = x.shape
        q, k, v = self.project(self.norm1(x)).view(n, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, WIDTH)
        x = x + self.output(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CharGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(CLASSES, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, x):
        mixed = self.tokens(x) + self.positions(torch.arange(CONTEXT))
        return self.head(self.norm(self.blocks(mixed))).view(-1, CLASSES)


def model(workload):
    if workload in ("mlp", "tiny"):
        sizes = [784, 256, 128, 10] if workload == "mlp" else [2, 16, 16, 1]
        layers = []
        for i, o in zip(sizes, sizes[1:]):
            layers += [nn.Linear(i, o), nn.ReLU()]
        return nn.Sequential(*layers[:-1])
    if workload == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 49, 10),
        )
    return CharGpt()


def run(workload, threads, blocks):
    net = model(workload)
    is_linear = {id(m.weight) for m in net.modules() if isinstance(m, nn.Linear)}
    with torch.no_grad():
        for parameter, values in zip(net.parameters(), weights(workload), strict=True):
            parameter.copy_(values.t() if id(parameter) in is_linear else values)
    optimizer = {
        "mlp": lambda p: torch.optim.SGD(p, 0.1),
        "tiny": lambda p: torch.optim.SGD(p, 0.05),
        "cnn": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
        "gpt": lambda p: torch.optim.AdamW(p, 3e-4, weight_decay=0.01, fused=True),
    }[workload](net.parameters())
    data = batches(workload)
    losses, times = [], []
    for block in range(blocks + 1):
        start = time.perf_counter()
        for _ in range(STEPS[workload]):
            x, y = data[len(losses) % DISTINCT]
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y) if workload == "tiny" else F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if block:
            times.append((time.perf_counter() - start) / STEPS[workload])
    median, best = statistics.median(times), min(times)
    at = " ".join(f"{losses[step - 1]:.5f}" if len(losses) >= step else "NaN" for step in (1, 10, 100))
    print(
        f"torch     {workload:4} threads {threads}: {1 / median:9.1f} steps/s, {median * 1e3:8.3f} ms "
        f"(best {best * 1e3:8.3f}); loss at step 1, 10, 100: {at}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", choices=list(BATCH))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for workload in args.workloads:
        run(workload, args.threads, args.blocks)


main()
