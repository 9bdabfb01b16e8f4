#!/usr/bin/env python3
"""superoffload.AdamW under a transformers model on one GPU, against the same model's forward and backward alone.

    python torch_optimizer.py --config qwen3-4b [--batch_size 4] [--max_length 4096] [--runs 1 1e6 1e6:5 1:0:link]
                              [--state_dtype fp32] [--threads 0] [--steps 6] [--json]

Random weights and tokens, bf16, gradient checkpointing, the attention of PyTorch (sdpa). All is measured in one process
in turn: forward and backward alone, then whole steps for each of --runs, and, unless --once, forward and backward alone
again. A run is the norm that is clipped to and, behind colons, GiB of optimizer state on the GPU (0) and "link" for
updates over the link; or "torchao", for its CPUOffloadOptimizer. That keeps weights as the model has them and no
others, in bf16; "torchao:fp32", which must be the last run, gives it an fp32 model under autocast, and so the fp32
weights that superoffload.AdamW keeps of a bf16 one. A figure is the median of the steps after a few to warm up.
"""
import argparse
import json
import pathlib
import statistics
import tempfile
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import superoffload


def make_model(config, attention):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(config.read_text())
        config = AutoConfig.from_pretrained(folder)
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention)
    model.train()
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def measure(model, ids, steps, finish):
    """Seconds of each step, and the last loss. finish() ends a step. An fp32 model computes in bf16 by autocast."""
    wide = next(model.parameters()).dtype == torch.float32
    seconds, loss = [], None
    torch.cuda.synchronize()
    for _ in range(steps):
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=wide):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        finish()
        loss = loss.item()
        seconds.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return seconds, loss


def peer_step(model, lr):
    """A step of torchao's optimizer, which keeps weights and moments on the CPU in the model's format, unclipped."""
    try:
        from torchao.optim import CPUOffloadOptimizer
    except ImportError:
        from torchao.prototype.low_bit_optim import CPUOffloadOptimizer
    optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, fused=True, lr=lr)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return step


def difference(after, before):
    if isinstance(after, dict):
        return {key: difference(after[key], before[key]) for key in after}
    return round(after - before, 3)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--config", required=True, help="config.json or a preset of configs/models")
    p.add_argument("--batch_size", type=int, default=4)
    p.add_argument("--max_length", type=int, default=4096)
    p.add_argument("--runs", nargs="+", default=["1", "1e6"], metavar="NORM[:GIB[:link]]")
    p.add_argument("--state_dtype", choices=["fp32", "bf16", "fp8"], default="fp32")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--bucket_bits", type=int, help="largest bucket: 2 to this power of elements")
    p.add_argument("--lr", type=float, default=1e-5)
    p.add_argument("--warmup", type=int, default=4)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--attention", default="sdpa")
    p.add_argument("--once", action="store_true", help="no second measurement of forward and backward alone")
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    if a.bucket_bits:
        superoffload.AdamW  # imports the module
        superoffload.parameters._LARGEST_BUCKET = 1 << a.bucket_bits
    config = pathlib.Path(a.config)
    if not config.exists():
        config = pathlib.Path(__file__).resolve().parent.parent / "configs" / "models" / f"{a.config}.json"
    model = make_model(config, a.attention)
    ids = torch.randint(model.config.vocab_size, (a.batch_size, a.max_length), device="cuda")
    tokens = a.batch_size * a.max_length
    results = []

    def report(name, seconds, **more):
        result = dict(name=name, tokens_per_s=tokens / statistics.median(seconds), seconds=seconds, **more)
        results.append(result)
        if a.json:
            print(json.dumps(result), flush=True)
            return
        ratio = result["tokens_per_s"] / results[0]["tokens_per_s"]
        print(f"{name:<34}{result['tokens_per_s']:>10.1f} tokens/s  ratio {ratio:.3f}  "
              f"steps {' '.join(f'{x:.3f}' for x in seconds)}", flush=True)
        for key, value in more.items():
            print(f"    {key}: {value}", flush=True)

    def alone(name):
        seconds, loss = measure(model, ids, 2 + 5, lambda: model.zero_grad(set_to_none=True))
        report(name, seconds[2:], loss=loss, peak_gb=torch.cuda.max_memory_allocated() / 1e9)

    alone("forward and backward alone")
    optimizer, made_with = None, None
    for run in a.runs:
        if run in ("torchao", "torchao:fp32"):
            optimizer = made_with = None
            if run == "torchao:fp32":
                model.float()
                alone("fp32 under autocast alone")
            seconds, loss = measure(model, ids, 2 + a.steps, peer_step(model, a.lr))
            report(f"{run}'s CPUOffloadOptimizer", seconds[2:], loss=loss)
            continue
        norm, gib, link = (run.split(":") + ["", ""])[:3]
        norm, gib = float(norm), float(gib or 0)
        if (gib, link) != made_with:
            optimizer = None  # its memory is needed
            start, made_with = time.perf_counter(), (gib, link)
            optimizer = superoffload.AdamW(
                model.parameters(), lr=a.lr, betas=(0.9, 0.99), weight_decay=0.01, max_grad_norm=norm,
                state_dtype={"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.uint8}[a.state_dtype],
                threads=a.threads, device_memory=int(gib * 2**30), update_over_link=link == "link")
            print(f"optimizer made in {time.perf_counter() - start:.1f} s", flush=True)
        optimizer.max_grad_norm = norm
        warm, _ = measure(model, ids, a.warmup, optimizer.step)
        before = optimizer.counters()
        seconds, loss = measure(model, ids, a.steps, optimizer.step)
        report(f"AdamW, clip {norm:g}, {gib:g} GiB on GPU{', link' if link else ''}", seconds,
               warmup=" ".join(f"{x:.3f}" for x in warm), loss=loss, grad_norm=optimizer.grad_norm,
               counters=difference(optimizer.counters(), before),
               under_forward=optimizer._engine.pending(), peak_gb=torch.cuda.max_memory_allocated() / 1e9)
    del optimizer
    if not a.once:
        alone("forward and backward alone")


if __name__ == "__main__":
    main()
