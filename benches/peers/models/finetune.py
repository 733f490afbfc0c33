#!/usr/bin/env python3
"""LoRA training steps with transformers and PEFT, and with Highwater: seconds per step, peak resident memory, losses.

    cargo build --release -p highwater-benches --example lora_step
    pip install torch transformers peft accelerate gguf
    python3 benches/peers/models/finetune.py FILE.gguf TEXT --rounds 3

Each step has 4 rows of 256 tokens of the text, and adapters of rank 8 on q_proj and v_proj with the same first values. The
programs run in turns, each as a process of its own with the same number of threads. The time is the median of all steps but
the first one of each process; CPU seconds are those of the process and its threads. Both keep all activations. Highwater
also runs with quantized weights and recomputed layers, which PEFT's f32 is compared with.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time

from process import measured

ROWS, LEN = 4, 256


def encode(folder, name, text):
    """Returns the tokens of a text."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, gguf_file=name)(text)["input_ids"]


def peft_run(path, tokens, args):
    """Trains with PEFT in this process. Returns seconds and CPU seconds per step, and losses."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    folder, name = os.path.split(os.path.abspath(path))
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model = get_peft_model(model, config)
    for key, parameter in model.named_parameters():
        if "lora_A" in key:
            values = torch.linspace(-1, 1, parameter.numel()).view_as(parameter)
            parameter.data.copy_(values / parameter.shape[1] ** 0.5)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0)
    model.train()
    seconds, cpu, losses = [], [], []
    for step in range(args.steps):
        batch = torch.tensor(tokens[step * ROWS * LEN : (step + 1) * ROWS * LEN]).view(ROWS, LEN)
        start, cpu_start = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.peer_bf16):
            loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    return {"seconds": seconds, "cpu_seconds": cpu, "losses": losses}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a GGUF file of the architecture of Llama")
    parser.add_argument("text", help="a text of at least as many tokens as all steps need")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="the rows to run, such as 'peft f32'")
    parser.add_argument("--program", default="target/release/examples/lora_step")
    parser.add_argument("--peer", metavar="JSON", help=argparse.SUPPRESS)
    parser.add_argument("--peer-bf16", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        with open(args.text, encoding="utf-8") as file:
            result = peft_run(args.file, json.load(file), args)
        with open(args.peer, "w", encoding="utf-8") as file:
            json.dump(result, file)
        return
    with tempfile.TemporaryDirectory() as work:
        result, tokens = os.path.join(work, "result.json"), os.path.join(work, "tokens.json")
        with open(args.text, encoding="utf-8") as file:
            text = file.read(8 * args.steps * ROWS * LEN)
        folder, name = os.path.split(os.path.abspath(args.file))
        # In a process of its own: the peak of a program includes the memory of the process that starts it.
        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
            encoded = pool.submit(encode, folder, name, text).result()
        with open(tokens, "w", encoding="utf-8") as file:
            json.dump(encoded, file)
        sizes = ["--steps", str(args.steps), "--threads", str(args.threads)]
        peft = [sys.executable, __file__, args.file, tokens, *sizes, "--peer", result]
        own = [args.program, args.file, tokens, *sizes, "--json", result]
        commands = {
            "peft f32": peft,
            "highwater f32": own,
            "peft bf16": [*peft, "--peer-bf16"],
            "highwater bf16": [*own, "--bf16"],
            "highwater quantized": [*own, "--quantized", "--recompute"],
        }
        commands = {name: command for name, command in commands.items() if not args.only or name in args.only}
        runs, memory = {name: [] for name in commands}, {name: [] for name in commands}
        for _ in range(args.rounds):
            for name, command in commands.items():
                memory[name].append(measured(command))
                with open(result, encoding="utf-8") as file:
                    runs[name].append(json.load(file))
    median = {}
    for name in commands:
        time_of = lambda key: statistics.median(x for run in runs[name] for x in run[key][1:])
        losses = " ".join(f"{loss:.6f}" for loss in runs[name][0]["losses"])
        median[name] = time_of("seconds")
        cpu = time_of("cpu_seconds")
        print(f"{name:20} {median[name]:7.3f} s {cpu:7.3f} CPU s {max(memory[name]):7.0f} MiB  {losses}")
    for peer, name in [("peft f32", "highwater f32"), ("peft bf16", "highwater bf16"), ("peft f32", "highwater quantized")]:
        if peer in median and name in median:
            share = max(memory[name]) / max(memory[peer])
            print(f"{name}: {median[name] / median[peer]:.2f} of the time of {peer}, memory {share:.2f}")


if __name__ == "__main__":
    main()
