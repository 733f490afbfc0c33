#!/usr/bin/env python3
"""The ops and training steps of `op_bench` in PyTorch on a GPU: `python3 torch_gpu.py [--beside op_bench.json]`.

Measures as `op_bench` does: two calls first, then rounds of 20 ms that end with a wait; the median counts. With the JSON file
of `op_bench`, prints its microseconds too and how many times PyTorch's time Highwater takes. Products in f32 are exact (no
TF32) on both sides.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda"
SIDE, PRODUCT = 1 << 13, 4096
ATTENTION, IMAGES = (64, 1024, 64), (32, 64, 56, 56)
NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}


def numbers(shape, dtype=torch.float32, grad=False):
    return (torch.rand(shape, device=DEVICE) + 0.5).to(dtype).requires_grad_(grad)


def single(name, dtype, f):
    x = numbers((SIDE, SIDE), dtype)
    return f"{name}, {NAMES[dtype]}, {SIDE} by {SIDE}", lambda: f(x)


def pair(name, dtype, f):
    x, y = numbers((SIDE, SIDE), dtype), numbers((SIDE, SIDE), dtype)
    return f"{name}, {NAMES[dtype]}, {SIDE} by {SIDE}", lambda: f(x, y)


def matmul(batch, side, dtype):
    shape = (side, side) if batch == 1 else (batch, side, side)
    x, y = numbers(shape, dtype), numbers(shape, dtype)
    return f"matmul, {NAMES[dtype]}, {batch} of {side} by {side}", lambda: x @ y


def attention(dtype, backward):
    heads, length, width = ATTENTION
    x = numbers((1, heads, length, width), dtype, backward)

    def call():
        y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return torch.autograd.grad(y.sum(), x) if backward else y

    return f"attention{' and gradients' if backward else ''}, {NAMES[dtype]}, {heads} of {length}", call


def conv2d(backward):
    images, channels, height, width = IMAGES
    x, w = numbers(IMAGES, grad=backward), numbers((channels, channels, 3, 3), grad=backward)

    def call():
        y = F.conv2d(x, w, padding=1)
        return torch.autograd.grad(y.sum(), (x, w)) if backward else y

    what = f"{images} of {channels} by {height} by {width}"
    return f"conv2d 3 by 3{' and gradients' if backward else ''}, f32, {what}", call


def max_pool2d():
    x = numbers(IMAGES)
    images, channels, height, width = IMAGES
    return f"max_pool2d 2 by 2, f32, {images} of {channels} by {height} by {width}", lambda: F.max_pool2d(x, 2)


def rows_by_index():
    table = numbers((SIDE, SIDE))
    rows = torch.arange(SIDE, device=DEVICE) * 7919 % SIDE
    return f"index_select of rows, f32, {SIDE} by {SIDE}", lambda: table.index_select(0, rows)


def cross_entropy():
    x, targets = numbers((SIDE, SIDE), grad=True), torch.arange(SIDE, device=DEVICE)
    name = f"cross_entropy and its gradient, f32, {SIDE} by {SIDE}"
    return name, lambda: torch.autograd.grad(F.cross_entropy(x, targets), x)


def adamw():
    weight = numbers((SIDE, SIDE), grad=True)
    optimizer = torch.optim.AdamW([weight], 1e-3, fused=True)

    def call():
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    return f"AdamW step of a sum's gradient, {SIDE} by {SIDE}", call


F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
CASES = [
    lambda: pair("add", F32, torch.add),
    lambda: pair("add", BF16, torch.add),
    lambda: pair("add, one transposed", F32, lambda x, y: x + y.t()),
    lambda: pair("add, a row to each", F32, lambda x, y: x + y[:1]),
    lambda: single("mul by a number", F32, lambda x: x * 0.5),
    lambda: single("exp", F32, torch.exp),
    lambda: single("gelu", F32, F.gelu),
    lambda: single("gelu", BF16, F.gelu),
    lambda: single("a transposed copy", F32, lambda x: x.t().contiguous()),
    lambda: single("to bf16", F32, lambda x: x.bfloat16()),
    lambda: single("sum of all", F32, torch.sum),
    lambda: single("sum of rows", F32, lambda x: x.sum(1)),
    lambda: single("sum of columns", F32, lambda x: x.sum(0)),
    lambda: single("max of rows", BF16, lambda x: x.amax(1)),
    lambda: single("argmax of rows", F32, lambda x: x.argmax(1)),
    lambda: single("cumsum of rows", F32, lambda x: x.cumsum(1)),
    lambda: single("argsort of rows", F32, lambda x: x.argsort(dim=1, stable=True)),
    lambda: single("softmax", F32, lambda x: x.softmax(1)),
    lambda: single("softmax", BF16, lambda x: x.softmax(1)),
    lambda: single("layer_norm", F32, lambda x: F.layer_norm(x, (SIDE,))),
    lambda: single("dropout", F32, lambda x: F.dropout(x, 0.1)),
    rows_by_index,
    cross_entropy,
    adamw,
    lambda: matmul(1, PRODUCT, F32),
    lambda: matmul(1, PRODUCT, BF16),
    lambda: matmul(1, PRODUCT, F16),
    lambda: matmul(1, PRODUCT // 4, F64),
    lambda: matmul(64, PRODUCT // 16, BF16),
    lambda: attention(F32, False),
    lambda: attention(BF16, False),
    lambda: attention(BF16, True),
    lambda: conv2d(False),
    lambda: conv2d(True),
    max_pool2d,
]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.project, self.output = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.project(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, width)
        x = x + self.output(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def perceptron():
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(DEVICE)
    x, y = torch.rand(64, 64, device=DEVICE), torch.full((64,), 3, device=DEVICE)
    return "perceptron 64-128-10, batch 64", net, lambda: F.cross_entropy(net(x), y)


def transformer(layers, width, heads, classes, sequences, length, dtype):
    blocks = [Block(width, heads) for _ in range(layers)]
    net = nn.Sequential(nn.Embedding(classes, width), *blocks, nn.Linear(width, classes)).to(DEVICE).to(dtype)
    words = torch.arange(sequences * length, device=DEVICE) % classes
    x = words.view(sequences, length)
    name = f"GPT {layers} by {width}, {sequences} of {length}, {NAMES[dtype]}"
    return name, net, lambda: F.cross_entropy(net(x).flatten(0, 1), words)


STEPS = [
    perceptron,
    lambda: transformer(4, 128, 4, 96, 16, 64, F32),
    lambda: transformer(12, 768, 12, 8192, 8, 512, BF16),
]


def microseconds(call, rounds):
    def once(calls):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    once(2)
    calls = min(max(int(0.02 / max(once(1), 1e-7)), 1), 2000)
    return statistics.median(once(calls) / calls for _ in range(rounds)) * 1e6


def step_times(make, rounds):
    name, net, loss = make()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, fused=True, capturable=True)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    eager = microseconds(step, rounds)
    # Capturing wants warm steps on a stream of its own.
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return name, eager, microseconds(graph.replay, rounds)


def beside(ours, theirs):
    return f"{ours:12.1f}{ours / theirs:8.2f}" if ours else f"{'-':>12}{'-':>8}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", metavar="FILE", help="what op_bench --json wrote")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    ours = {}
    if args.beside:
        with open(args.beside) as file:
            read = json.load(file)
        ours = {row["op"]: row["microseconds"] for row in read["ops"] if "op" in row}
        ours |= {row["step"]: row["microseconds"] for row in read["training_steps"] if "step" in row}
        ours |= {
            row["step"] + ", as a graph": row["microseconds_as_graphs"] for row in read["training_steps"] if "step" in row
        }
    rows = {}

    def show(name, theirs):
        rows[name] = theirs
        print(f"{name:58}{theirs:12.1f}{beside(ours.get(name), theirs)}", flush=True)

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, µs")
    print(f"{'':58}{'PyTorch':>12}{'Highwater':>12}{'ratio':>8}")
    for make in CASES:
        name, call = make()
        show(name, microseconds(call, args.rounds))
        del call
    for make in STEPS:
        name, eager, graph = step_times(make, args.rounds)
        show(name, eager)
        show(name + ", as a graph", graph)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "microseconds": rows}, file, indent=1)


if __name__ == "__main__":
    main()
