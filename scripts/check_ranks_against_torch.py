#!/usr/bin/env python3
"""Trains a model in bf16 on several ranks, and with PyTorch, and fails if the ranks' losses are further from those of
PyTorch in fp32 than PyTorch's own are in bf16.

    check_ranks_against_torch.py [--superoffload build/bin/superoffload] [--gpus 2] [--device cuda] [--steps 20]

All train the same random model of Qwen3's family on the same rows in file order with AdamW and clipping: the ranks one
micro-batch each a step, with whole weights and with gathered ones; one rank as many micro-batches a step; PyTorch in
fp32, and in bf16 in four ways that are the same mathematics: two implementations of attention, and the rows of a step
at once or in as many micro-batches. PyTorch's bf16 is that of mixed precision: the model in bf16, AdamW on fp32 weights
that it is rounded from. A run's distance is the root mean square of its losses' differences from those in fp32.

Prints each run's distance and its last loss. Exit code 1 if a distance is above the largest of PyTorch's in bf16, or if
a run fails. Needs torch and transformers, and a GPU for each rank with --device cuda.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM

FIXTURE = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "models" / "qwen3-tied"
SHAPE = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "head_dim": 64,
         "num_attention_heads": 8, "num_key_value_heads": 4, "dtype": "float32"}
ROWS = 2  # of a rank's micro-batch
LEARNING_RATE, DECAY, LARGEST_NORM = 1e-3, 0.1, 1.0


def make_model(a, folder):
    config = json.loads((FIXTURE / "model" / "config.json").read_text())
    config.update(SHAPE)
    del config["layer_types"]
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([a.superoffload, "init", "--config", folder / "config.json", "--output_dir", folder / "model", "--seed", "1",
                    "--quiet"], check=True)
    return folder / "model"


def train_ours(a, model, output, options):
    """The losses of each step."""
    command = [a.superoffload, "train", "--model", model, "--data", FIXTURE / "data.jsonl", "--output_dir", output,
               "--device", a.device, "--dtype", "bf16", "--lr", str(LEARNING_RATE), "--lr_scheduler", "constant",
               "--warmup", "0", "--weight_decay", str(DECAY), "--max_grad_norm", str(LARGEST_NORM), "--shuffle", "false",
               "--batch_size", str(ROWS), "--max_length", "128", "--max_steps", str(a.steps), "--num_train_epochs", "100",
               "--quiet", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def train_torch(a, model_folder, dtype, attention, micro_batches):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype, attn_implementation=attention,
                                                 local_files_only=True).to(a.device).train()
    named = list(model.named_parameters())
    # The fp32 weights are what the file has, not what is left of it in bf16.
    exact = dict(AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, local_files_only=True)
                 .named_parameters())
    masters = [exact[name].detach().clone().to(a.device).requires_grad_() for name, _ in named]
    decays = [parameter.dim() > 1 for _, parameter in named]
    optimizer = torch.optim.AdamW(
        [dict(params=[m for m, d in zip(masters, decays) if d], weight_decay=DECAY),
         dict(params=[m for m, d in zip(masters, decays) if not d], weight_decay=0.0)], lr=LEARNING_RATE)
    rows = [json.loads(line) for line in (FIXTURE / "data.jsonl").read_text().splitlines()]
    rows_a_step = a.gpus * ROWS
    losses = []
    for step in range(a.steps):
        batch = [rows[(step * rows_a_step + i) % len(rows)] for i in range(rows_a_step)]
        tokens = sum(label != -100 for row in batch for label in row["labels"][1:])
        for master in masters:
            master.grad = torch.zeros_like(master)
        total, size = 0.0, rows_a_step // micro_batches
        for first in range(0, rows_a_step, size):
            part = batch[first:first + size]
            width = max(len(row["input_ids"]) for row in part)
            ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in part], device=a.device)
            labels = torch.tensor([row["labels"] + [-100] * (width - len(row["labels"])) for row in part], device=a.device)
            logits = model(input_ids=ids, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum") / tokens
            loss.backward()
            total += loss.item()
            for master, (_, parameter) in zip(masters, named):
                master.grad += parameter.grad
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(masters, LARGEST_NORM)
        optimizer.step()
        with torch.no_grad():
            for master, (_, parameter) in zip(masters, named):
                parameter.copy_(master)
        losses.append(total)
    return losses


def distance(losses, exact):
    return (sum((x - y) ** 2 for x, y in zip(losses, exact, strict=True)) / len(exact)) ** 0.5


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--superoffload", default="build/bin/superoffload")
    p.add_argument("--gpus", type=int, default=2, help="ranks")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--steps", type=int, default=20)
    a = p.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = False
    with tempfile.TemporaryDirectory(prefix="ranks-torch-") as scratch:
        folder = pathlib.Path(scratch)
        model = make_model(a, folder)
        exact = train_torch(a, model, torch.float32, "eager", 1)
        print(f"PyTorch in fp32: loss {exact[0]:.4f} at first, {exact[-1]:.4f} at last")
        theirs = {f"PyTorch in bf16, {attention}, {parts} micro-batches": train_torch(a, model, torch.bfloat16, attention, parts)
                  for attention in ("eager", "sdpa") for parts in (1, a.gpus)}
        ranks = ["--gpus", str(a.gpus)]
        ours = {
            f"{a.gpus} ranks, whole weights": train_ours(a, model, folder / "whole", [*ranks, "--gathered_layers", "0"]),
            f"{a.gpus} ranks, gathered weights": train_ours(a, model, folder / "gathered", [*ranks, "--gathered_layers", "1000"]),
            f"one rank, {a.gpus} micro-batches": train_ours(a, model, folder / "one", ["--gradient_accumulation_steps", str(a.gpus)]),
        }
    limit = max(distance(losses, exact) for losses in theirs.values())
    far = [name for name, losses in ours.items() if not distance(losses, exact) <= limit]
    for name, losses in {**theirs, **ours}.items():
        print(f"{name}: distance {distance(losses, exact):.6f}, last loss {losses[-1]:.4f}")
    if far:
        sys.exit(f"error: further from fp32 than PyTorch in bf16 ({limit:.6f}): {', '.join(far)}")
    print(f"no run is further from fp32 than PyTorch's own in bf16 ({limit:.6f})")


if __name__ == "__main__":
    main()
