#!/usr/bin/env python3
"""Forward and backward of a model beside transformers + torch on the same GPU: same shape, random weights and tokens,
no optimizer.

    python compare_transformers_gpu.py --config qwen3-4b [--batch_size 4] [--max_length 4096] [--checkpointing auto]
                                       [--binary build/bin/superoffload] [--rounds 2]

The two take turns, `rounds` times each, every run in a process of its own, so that each has the whole GPU. The medians
and their ratio are printed, and every round's figure beside them.

What torch gets: bf16 weights made on the GPU, the best of the attention implementations that are installed (sdpa, and
flash_attention_2 and _3 if their packages are there; each is tried first), gradient checkpointing as asked for (auto:
only if it does not fit without), gradients set to None between steps, and torch.compile with --compile. What ours gets:
`superoffload bench step --no_optimizer`, with --activation_checkpointing as asked for.
"""
import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ATTENTION = [("sdpa", None), ("flash_attention_2", "flash_attn"), ("flash_attention_3", "flash_attn_interface")]


# ---------------------------------------------------------------- the torch side, in a process of its own

def torch_worker(spec):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    gpu = spec["device"] == "cuda"
    dtype = torch.bfloat16 if spec["dtype"] == "bf16" else torch.float32
    synchronize = torch.cuda.synchronize if gpu else lambda: None
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(pathlib.Path(spec["config"]).read_text())
        config = AutoConfig.from_pretrained(folder)
    torch.manual_seed(1)
    if gpu:
        torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device(spec["device"]):
        try:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=spec["attention"])
        except TypeError:  # transformers 4
            model = AutoModelForCausalLM.from_config(config, torch_dtype=dtype, attn_implementation=spec["attention"])
        ids = torch.randint(config.vocab_size, (spec["batch_size"], spec["max_length"]))
    model.train()
    model.config.use_cache = False
    if spec["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    forward = torch.compile(model) if spec["compile"] else model
    seconds, loss = [], None
    for step in range(spec["warmup"] + spec["steps"]):
        synchronize()
        start = time.perf_counter()
        result = forward(input_ids=ids, labels=ids, use_cache=False)
        result.loss.backward()
        loss = result.loss.item()
        model.zero_grad(set_to_none=True)
        synchronize()
        if step >= spec["warmup"]:
            seconds.append(time.perf_counter() - start)
    print("result:", json.dumps(dict(
        seconds=seconds, loss=loss, peak=torch.cuda.max_memory_allocated() if gpu else 0,
        versions=f"torch {torch.__version__}, transformers {__import__('transformers').__version__}")))


# ---------------------------------------------------------------- common

def run_torch(spec):
    """The worker's result, or None if it ran out of GPU memory. Anything else ends the comparison."""
    done = subprocess.run([sys.executable, __file__, "--worker", json.dumps(spec)], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("result: "):
            return json.loads(line[len("result: "):])
    if "OutOfMemoryError" in done.stderr or "CUDA out of memory" in done.stderr:
        return None
    raise RuntimeError(f"torch worker, {spec['attention']}: exit code {done.returncode}\n{done.stderr[-3000:]}")


def choose_torch(base):
    """The attention implementation and checkpointing that serve torch best, each tried for a few steps."""
    installed = [name for name, module in ATTENTION if module is None or importlib.util.find_spec(module)]
    if base["device"] != "cuda":
        installed = ["sdpa"]
    for checkpointing in {"on": [True], "off": [False], "auto": [False, True]}[base["checkpointing"]]:
        tried = {}
        for attention in installed:
            spec = dict(base, attention=attention, checkpointing=checkpointing, warmup=1, steps=2)
            try:
                result = run_torch(spec)
            except RuntimeError as error:
                if attention == "sdpa":
                    sys.exit(f"error: {error}")
                print(f"{attention} does not run here: {str(error).splitlines()[-1]}", file=sys.stderr)
                continue
            if result:
                tried[attention] = min(result["seconds"])
        if tried:
            print("torch tried: " + ", ".join(f"{a} {s:.3f} s" for a, s in tried.items()), file=sys.stderr)
            return dict(base, attention=min(tried, key=tried.get), checkpointing=checkpointing)
    sys.exit("error: torch has not enough GPU memory for this shape, with what --checkpointing allows")


def run_ours(base, binary):
    toggle = {"on": "true", "off": "false", "auto": "auto"}[base["checkpointing"]]
    command = [binary, "bench", "step", "--config", base["config"], "--batch_size", str(base["batch_size"]),
               "--max_length", str(base["max_length"]), "--steps", str(base["steps"]), "--warmup", str(base["warmup"]),
               "--device", base["device"], "--dtype", base["dtype"], "--activation_checkpointing", toggle,
               "--no_optimizer", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def find_config(name):
    path = pathlib.Path(name)
    if path.is_dir():
        path = path / "config.json"
    if not path.exists():
        path = pathlib.Path(__file__).resolve().parent.parent / "configs" / "models" / f"{name}.json"
    if not path.exists():
        sys.exit(f"error: {name}: no such file, directory or preset")
    return str(path)


def main():
    if sys.argv[1:2] == ["--worker"]:
        return torch_worker(json.loads(sys.argv[2]))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--config", required=True, help="config.json, a directory that has one, or a preset")
    p.add_argument("--binary", default="build/bin/superoffload")
    p.add_argument("--batch_size", type=int, default=4)
    p.add_argument("--max_length", type=int, default=4096)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--checkpointing", choices=["on", "off", "auto"], default="auto")
    p.add_argument("--compile", action="store_true", help="torch.compile the torch model")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    base = dict(config=find_config(a.config), batch_size=a.batch_size, max_length=a.max_length, steps=a.steps,
                warmup=a.warmup, checkpointing=a.checkpointing, compile=a.compile, device=a.device, dtype=a.dtype)
    tokens = a.batch_size * a.max_length
    peer = choose_torch(base)
    theirs, ours, last, mine = [], [], None, None
    for number in range(a.rounds):
        last = run_torch(peer)
        if last is None:
            sys.exit("error: torch ran out of GPU memory in a round, though not when tried")
        theirs.append(tokens / statistics.median(last["seconds"]))
        mine = run_ours(base, a.binary)
        ours.append(mine["tokens_per_s"])
        print(f"round {number + 1}: torch {theirs[-1]:.1f}, superoffload {ours[-1]:.1f} tokens/s", file=sys.stderr)
    ratio = statistics.median(ours) / statistics.median(theirs)
    result = dict(
        config=a.config, batch_size=a.batch_size, max_length=a.max_length, device=mine["device"],
        torch=dict(tokens_per_s=statistics.median(theirs), rounds=theirs, attention=peer["attention"],
                   checkpointing=peer["checkpointing"], compile=a.compile, loss=last["loss"], peak_bytes=last["peak"],
                   versions=last["versions"]),
        superoffload=dict(tokens_per_s=statistics.median(ours), rounds=ours,
                          keep=mine["keep"], loss=mine["last_loss"],
                          peak_bytes=mine["summary"]["device_bytes"]["measured"], model_tflops=mine["model_tflops"],
                          gemm_tflops=mine["gemm_tflops"]),
        ratio=ratio)
    if a.json:
        print(json.dumps(result))
        return
    kept = lambda r: f"kept for backward: {r['keep']}" if "keep" in r else f"checkpointing {r['checkpointing']}"
    show = lambda name, r: print(f"{name:<13}{r['tokens_per_s']:>10.1f} tokens/s  (rounds {', '.join(f'{x:.1f}' for x in r['rounds'])}; "
                                 f"{kept(r)}, peak {r['peak_bytes'] / 1e9:.1f} GB, loss {r['loss']:.3f})")
    print(f"{a.config}, {a.batch_size} x {a.max_length} tokens, forward and backward, {a.dtype}, {mine['device']}")
    show("torch", result["torch"])
    print(f"             {last['versions']}, {peer['attention']}{', compiled' if a.compile else ''}")
    show("superoffload", result["superoffload"])
    print(f"ratio        {ratio:.3f}")


if __name__ == "__main__":
    main()
