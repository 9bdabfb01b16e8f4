#!/usr/bin/env python3
"""Training speed of `superoffload train` beside transformers + torch: same model, data, steps and CPUs, in one run.

    python compare_transformers.py --model DIR --data FILE [--binary build/bin/superoffload] [--steps 12] [--rounds 3]

The two take turns, `rounds` times each; the medians and their ratio are printed, and every round's figure beside them.
Both are timed alike and from outside: each writes a line to metrics.jsonl when a step has ended, and a clock of this
script watches the lines arrive, so neither is asked how fast it thinks it was. The first `--skip` steps (warm-up) do not
count. Tokens are those of documents; padding is not counted for either.

What torch gets: sdpa attention on its causal path (rows are padded on the right to the longest of the batch, which a
causal model needs no mask for), fused AdamW (--adamw foreach for the other), no gradient checkpointing, the best of
--torch_threads (each is tried for a few steps before the rounds), and torch.compile with --compile. Both processes are
bound to the same CPUs (--cpus, default: all this process may use). The data must hold {"input_ids", "labels"} records;
it is taken in file order. The losses of both are compared, since a comparison of different work says nothing.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


# ---------------------------------------------------------------- the torch side, in a process of its own

def torch_worker(spec):
    import torch
    from transformers import AutoModelForCausalLM, get_scheduler

    torch.set_num_threads(spec["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        spec["model"], dtype=torch.float32, attn_implementation="sdpa", local_files_only=True).train()
    forward = torch.compile(model, dynamic=True) if spec["compile"] else model
    no_decay = lambda n: "norm" in n or n.endswith("bias")
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [dict(params=[p for n, p in named if not no_decay(n)], weight_decay=0.1),
         dict(params=[p for n, p in named if no_decay(n)], weight_decay=0.0)], lr=spec["lr"], **{spec["adamw"]: True})
    scheduler = get_scheduler("constant", optimizer)
    documents = read_documents(spec["data"], spec["max_length"])
    bf16 = spec["dtype"] == "bf16"
    with open(spec["metrics"], "w") as log:
        for step in range(spec["steps"]):
            batches = batches_of(documents, spec, step)
            count = sum(sum(l != -100 for l in d["labels"][1:]) for b in batches for d in b)
            total = 0.0
            for batch in batches:
                width = max(len(d["input_ids"]) for d in batch)
                ids = torch.tensor([d["input_ids"] + [0] * (width - len(d["input_ids"])) for d in batch])
                labels = torch.tensor([d["labels"] + [-100] * (width - len(d["labels"])) for d in batch])
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    logits = forward(input_ids=ids, use_cache=False).logits
                loss = torch.nn.functional.cross_entropy(
                    logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum") / count
                loss.backward()
                total += loss.item()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True).item()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            log.write(json.dumps(dict(step=step + 1, loss=total, grad_norm=norm)) + "\n")
            log.flush()


# ---------------------------------------------------------------- common

def read_documents(path, max_length):
    documents = []
    with open(path) as f:
        for number, line in enumerate(f, 1):
            record = json.loads(line)
            if "input_ids" not in record:
                sys.exit(f"error: {path}:{number}: no input_ids; this script compares on tokenised data only")
            if len(record["input_ids"]) > max_length:
                sys.exit(f"error: {path}:{number}: {len(record['input_ids'])} tokens; --max_length is {max_length}")
            documents.append(record)
    return documents


def batches_of(documents, spec, step):
    """The micro-batches of a step (from 0), in file order, starting over at the end."""
    per_batch, accumulation = spec["batch_size"], spec["gradient_accumulation_steps"]
    first = step * per_batch * accumulation
    row = lambda i: documents[(first + i) % len(documents)]
    return [[row(m * per_batch + j) for j in range(per_batch)] for m in range(accumulation)]


def watch(command, metrics, steps, cpus, log):
    """Runs the command; returns when each step's line arrived, and the losses."""
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    arrivals = []
    while True:
        ended = process.poll() is not None
        # Around them stand a line of the run's start and one of its end.
        lines = metrics.read_bytes().count(b'"loss":') if metrics.exists() else 0
        now = time.perf_counter()
        arrivals += [now] * (lines - len(arrivals))
        if ended:
            break
        time.sleep(0.001)
    if process.returncode != 0 or len(arrivals) != steps:
        sys.exit(f"error: {' '.join(command)}: exit code {process.returncode}, {len(arrivals)} of {steps} steps\n"
                 + pathlib.Path(log).read_text()[-2000:])
    return arrivals, [line["loss"] for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line]


def tokens_per_second(arrivals, documents, spec):
    tokens = [sum(len(d["input_ids"]) for b in batches_of(documents, spec, s) for d in b) for s in range(spec["steps"])]
    skip = spec["skip"]
    return sum(tokens[skip:]) / (arrivals[-1] - arrivals[skip - 1])


def run_torch(spec, cpus, folder):
    metrics = pathlib.Path(folder) / "torch.jsonl"
    metrics.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--worker", json.dumps(dict(spec, metrics=str(metrics)))]
    return watch(command, metrics, spec["steps"], cpus, pathlib.Path(folder) / "torch.log")


def run_ours(spec, binary, extra, cpus, folder):
    with tempfile.TemporaryDirectory(dir=folder) as output:
        command = [binary, "train", "--model", spec["model"], "--data", spec["data"], "--output_dir", output,
                   "--device", "cpu", "--dtype", spec["dtype"], "--lr", str(spec["lr"]), "--lr_scheduler", "constant",
                   "--warmup", "0", "--weight_decay", "0.1", "--max_grad_norm", "1", "--shuffle", "false",
                   "--batch_size", str(spec["batch_size"]),
                   "--gradient_accumulation_steps", str(spec["gradient_accumulation_steps"]),
                   "--max_length", str(spec["max_length"]), "--max_steps", str(spec["steps"]),
                   "--num_train_epochs", str(spec["epochs"]), *extra]
        return watch(command, pathlib.Path(output) / "metrics.jsonl", spec["steps"], cpus, pathlib.Path(folder) / "ours.log")


def main():
    if sys.argv[1:2] == ["--worker"]:
        return torch_worker(json.loads(sys.argv[2]))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--binary", default="build/bin/superoffload")
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16 is autocast over fp32 weights in torch")
    p.add_argument("--batch_size", type=int, default=4)
    p.add_argument("--gradient_accumulation_steps", type=int, default=1)
    p.add_argument("--max_length", type=int, default=512)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--skip", type=int, default=2, help="steps at the start that do not count")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--cpus", help="for both, e.g. 0,1,2,3; default: all that may be used")
    p.add_argument("--torch_threads", help="to try for torch, e.g. 8,16; default: as many as CPUs, and half of it")
    p.add_argument("--adamw", choices=["fused", "foreach"], default="fused")
    p.add_argument("--compile", action="store_true", help="torch.compile")
    p.add_argument("--json", metavar="FILE", help="write all figures there")
    p.add_argument("extra", nargs="*", help="after --: more options for superoffload train")
    a = p.parse_args()
    if not 1 <= a.skip < a.steps:
        p.error("--skip must be at least 1 and less than --steps")

    cpus = sorted(int(c) for c in a.cpus.split(",")) if a.cpus else sorted(os.sched_getaffinity(0))
    documents = read_documents(a.data, a.max_length)
    needed = a.steps * a.batch_size * a.gradient_accumulation_steps
    spec = dict(model=a.model, data=a.data, dtype=a.dtype, batch_size=a.batch_size, max_length=a.max_length,
                gradient_accumulation_steps=a.gradient_accumulation_steps, steps=a.steps, skip=a.skip, lr=a.lr,
                epochs=-(-needed // len(documents)), adamw=a.adamw, compile=a.compile)
    if spec["epochs"] > 1 and len(documents) % (a.batch_size * a.gradient_accumulation_steps):
        sys.exit(f"error: {a.data}: {len(documents)} documents, {needed} needed; more than one epoch must come out even, "
                 "or the two would fill their last steps differently")

    with tempfile.TemporaryDirectory() as folder:
        candidates = [int(t) for t in a.torch_threads.split(",")] if a.torch_threads else sorted({len(cpus), max(1, len(cpus) // 2)})
        spec["threads"] = candidates[0]
        if len(candidates) > 1:
            tried = {}
            short = dict(spec, steps=a.skip + min(3, a.steps - a.skip))
            for threads in candidates:
                arrivals, _ = run_torch(dict(short, threads=threads), cpus, folder)
                tried[threads] = tokens_per_second(arrivals, documents, short)
            spec["threads"] = max(tried, key=tried.get)
            print("torch threads tried: " + ", ".join(f"{t}: {v:.1f} tokens/s" for t, v in tried.items()))

        speeds, losses = {"superoffload": [], "torch": []}, {}
        for _ in range(a.rounds):
            for name, go in (("superoffload", lambda: run_ours(spec, a.binary, a.extra, cpus, folder)),
                             ("torch", lambda: run_torch(spec, cpus, folder))):
                arrivals, losses[name] = go()
                speeds[name].append(tokens_per_second(arrivals, documents, spec))

    worst = max(abs(x - y) / abs(y) for x, y in zip(losses["superoffload"], losses["torch"]))
    print(f"{a.dtype}, {len(cpus)} CPUs, batch {a.batch_size} x {a.gradient_accumulation_steps}, {a.steps} steps; torch: "
          f"{spec['threads']} threads, sdpa, AdamW {a.adamw}{', compile' if a.compile else ''}")
    for name, values in speeds.items():
        print(f"{name:13} {statistics.median(values):10.1f} non-padding tokens/s   (" + ", ".join(f"{v:.1f}" for v in values) + ")")
    ratio = statistics.median(speeds["superoffload"]) / statistics.median(speeds["torch"])
    print(f"ratio         {ratio:10.2f}   losses differ by at most {worst:.1e}")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(dict(spec=spec, cpus=cpus, tokens_per_second=speeds, ratio=ratio,
                                                        largest_loss_difference=worst), indent=1) + "\n")
    # fp32 runs that do the same work agree far closer; bf16 rounding alone moves a loss by about 2^-8.
    limit = 1e-3 if a.dtype == "fp32" else 2e-2
    if not worst < limit:
        print(f"error: losses differ by {worst:.1e}, more than {limit:.0e}: this is not the same work", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
