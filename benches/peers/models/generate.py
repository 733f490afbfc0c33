#!/usr/bin/env python3
"""Greedy text generation with transformers and with Highwater: tokens per second and peak resident memory.

    cargo build --release --features text --example generate
    pip install torch transformers accelerate gguf
    python3 benches/peers/models/generate.py FILE.gguf --tokens 100 --rounds 3

Both programs run in turns, each as a process of its own with f32 weights and the same number of threads. The speed counts
the tokens after the first one.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

from process import measured

PROMPT = "The history of computers begins with"


def transformers_run(path, tokens, threads):
    """Runs transformers in this process, and prints its tokens per second."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    folder, name = os.path.split(os.path.abspath(path))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    prompt = tokenizer(PROMPT, return_tensors="pt")

    class Clock:
        times = []

        def put(self, value):
            self.times.append(time.perf_counter())

        def end(self):
            pass

    clock = Clock()
    with torch.inference_mode():
        model.generate(**prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, streamer=clock)
    # The first call has the prompt, and the second one the first new token.
    first, last = clock.times[1], clock.times[-1]
    print(json.dumps({"tokens_per_second": (len(clock.times) - 2) / (last - first)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a GGUF file")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--program", default="target/release/examples/generate")
    parser.add_argument("--peer", metavar="JSON", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        with open(args.peer, "w", encoding="utf-8") as sys.stdout:
            transformers_run(args.file, args.tokens, args.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result.json")
        count, threads = str(args.tokens), str(args.threads)
        commands = {
            "transformers": [sys.executable, __file__, args.file, "--tokens", count, "--threads", threads, "--peer", result],
            "highwater": [args.program, "--model", args.file, "--prompt", PROMPT, "--tokens", count, "--threads", threads,
                          "--json", result],
        }
        speeds, memory = {name: [] for name in commands}, {name: [] for name in commands}
        for _ in range(args.rounds):
            for name, command in commands.items():
                memory[name].append(measured(command))
                with open(result, encoding="utf-8") as file:
                    contents = json.load(file)
                speeds[name].append(contents.get("results", contents)["tokens_per_second"])
    for name in commands:
        print(f"{name:13} {statistics.median(speeds[name]):8.1f} tokens/s {max(memory[name]):8.0f} MiB")
    speed = statistics.median(a / b for a, b in zip(speeds["highwater"], speeds["transformers"]))
    print(f"speed {speed:.2f} of transformers, memory {max(memory['highwater']) / max(memory['transformers']):.2f}")


if __name__ == "__main__":
    main()
