#!/usr/bin/env python3
"""Several ranks on the GPUs of this host (docs/performance/ranks.md): that every way to share a step gives the same
bytes, and how fast steps are beside one GPU's, beside what was planned and beside the limit.

    bench/ranks.py check                     # runs of a small model, compared byte by byte; --device cpu needs no GPU
    bench/ranks.py steps                     # bench step of each setting, on one GPU where it fits and on all of them
    bench/ranks.py steps --only llama-3.1-8b -- --collectives host

A setting is a process of its own, and a line says how each went when it ends, so that a run that is cut off leaves what
it has. --limit seconds end one that hangs. What is behind -- are options for every run on several ranks.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BF16_MOMENTS = ["--optimizer_state_dtype", "bf16"]
# Model, rows, tokens a row, more options; whether one GPU is measured beside. 4 x 4096 tokens a GPU and step.
SETTINGS = [
    ("llama-3.1-8b", 4, 4096, [], True),
    ("qwen3-14b", 4, 4096, [], False),
    ("qwen3-30b-a3b", 4, 4096, BF16_MOMENTS, False),
    ("seed-oss-36b", 2, 4096, [*BF16_MOMENTS, "--gradient_accumulation_steps", "2"], False),
]
# Runs whose bytes are the same: a name and the options that make it differ.
WAYS = [
    ("whole weights", ["--gathered_layers", "0"]),
    ("the same again", ["--gathered_layers", "0"]),
    ("synchronous", ["--gathered_layers", "0", "--mode", "zerooffload"]),
    ("state on the device", ["--gathered_layers", "0", "--offload_ratio", "0"]),
    ("state on the host", ["--gathered_layers", "0", "--offload_ratio", "1"]),
    ("gathered", ["--gathered_layers", "1000"]),
    ("gathered, state on the host", ["--gathered_layers", "1000", "--offload_ratio", "1"]),
    ("gathered, gradients move", ["--gathered_layers", "1000", "--offload_ratio", "1", "--move_gradients", "true"]),
    ("whole weights, gradients move", ["--gathered_layers", "0", "--offload_ratio", "0.5", "--move_gradients", "true"]),
    ("whole weights, through the host", ["--gathered_layers", "0", "--collectives", "host"]),
    ("gathered, through the host", ["--gathered_layers", "1000", "--collectives", "host"]),
    ("whole weights, by copies", ["--gathered_layers", "0", "--collectives", "p2p"]),
    ("gathered, by copies", ["--gathered_layers", "1000", "--collectives", "p2p"]),
    ("whole weights, over NCCL", ["--gathered_layers", "0", "--collectives", "nccl"]),
    ("gathered, over NCCL", ["--gathered_layers", "1000", "--collectives", "nccl"]),
    ("gathered, over NCCL, state on the host",
     ["--gathered_layers", "1000", "--offload_ratio", "1", "--collectives", "nccl"]),
]


def run(command, limit):
    """The process's exit status, None after the limit, its output, and its seconds. Its ranks end with it."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=limit)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        status = None
    return status, out, err, time.monotonic() - began


def reason(status, err, limit):
    if status is None:
        return f"no end after {limit:g} s"
    said = [line for line in err.strip().splitlines() if line.startswith("error")] or err.strip().splitlines()
    return f"exit status {status}: {said[-1] if said else 'nothing said'}"


def sum_of(folder):
    """Of the exported model's bytes."""
    total = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


# Of a model whose weights and gradients are large enough to be copied to where they belong, not in pieces.
LARGER = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "head_dim": 64}
LARGER_WAYS = [
    ("larger, whole weights", ["--gathered_layers", "0"]),
    ("larger, gathered", ["--gathered_layers", "1000"]),
    ("larger, gathered, gradients move", ["--gathered_layers", "1000", "--offload_ratio", "1", "--move_gradients", "true"]),
    ("larger, gathered, over NCCL", ["--gathered_layers", "1000", "--collectives", "nccl"]),
]


def make_larger(a, model, folder):
    """A random model of the fixture's family, with its tokenizer."""
    config = json.loads((model / "config.json").read_text())
    config.update(LARGER)
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([a.superoffload, "init", "--config", str(folder / "config.json"), "--tokenizer", str(model),
                    "--output_dir", str(folder / "larger"), "--quiet"], check=True)
    return folder / "larger"


def compare(a, model, data, ways):
    """The sums of a model's bytes by way; whether any run has failed."""
    sums, failed = {}, False
    for name, options in ways:
        if a.device == "cpu" and "--collectives" in options:
            continue  # the ranks' memory is the host's
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ranks-"))
        command = [a.superoffload, "train", "--model", str(model), "--data", str(data),
                   "--output_dir", str(folder / "out"), "--device", a.device, "--gpus", str(a.gpus), "--dtype", "fp32",
                   "--max_steps", "6", "--batch_size", "2", "--quiet", *options, *a.also]
        status, _, err, seconds = run(command, a.limit)
        text = reason(status, err, a.limit)
        if status == 0:
            sums[name] = text = sum_of(folder / "out")
        failed |= status != 0 and status != 2  # a refusal is an answer
        print(f"{seconds:6.1f} s  {name}: {text}", flush=True)
        shutil.rmtree(folder)
    if len(set(sums.values())) > 1:
        sys.exit("error: the runs' bytes differ")
    if len(sums) < 2:
        sys.exit("error: fewer than two runs have ended, so nothing was compared")
    return sums, failed


def check(a):
    fixture = pathlib.Path(a.fixtures) / a.model
    data = fixture / "data.jsonl"
    sums, failed = compare(a, fixture / "model", data, WAYS)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        larger, more_failed = compare(a, make_larger(a, fixture / "model", pathlib.Path(folder)), data, LARGER_WAYS)
    print(f"{len(sums)} runs on {a.gpus} ranks, all with the same bytes, and {len(larger)} of a larger model")
    if failed or more_failed:
        sys.exit("error: not every run has ended")


def step(a, setting, gpus):
    config, rows, length, more, _ = setting
    command = [a.superoffload, "bench", "step", "--config", config, "--batch_size", str(rows), "--max_length", str(length),
               "--max_grad_norm", "1e6", "--breakdown", "false", "--steps", str(a.steps), "--warmup", str(a.warmup), "--json",
               *more, *(["--gpus", str(gpus), *a.also] if gpus > 1 else [])]
    status, out, err, seconds = run(command, a.limit)
    if status == 0:
        return json.loads(out.splitlines()[-1]), seconds
    print(f"{seconds:6.1f} s  {config} on {gpus}: {reason(status, err, a.limit)}", file=sys.stderr, flush=True)
    return None, seconds


def difference(result, figure):
    entry = result["summary"].get(figure)
    return "" if not entry or entry["difference"] is None else f"{100 * entry['difference']:+.1f}%"


def steps(a):
    print("| model | GPUs | tokens/s a GPU | of one GPU's | share of the limit | step, planned (s) | overlap | the GPU waits (s) "
          "| device, host memory against planned |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for setting in SETTINGS:
        if a.only not in setting[0]:
            continue
        one = None
        for gpus in ([1] if setting[4] and a.gpus > 1 and not a.several_only else []) + [a.gpus]:
            result, seconds = step(a, setting, gpus)
            if result is None:
                continue
            each = result["tokens_per_s"] / gpus
            waits = {k: v for k, v in result["overlap"]["device_seconds"].items() if v > 0.005 and k != "work"}
            cells = [setting[0], str(gpus), f"{each:,.0f}", f"{each / one:.3f}" if one and gpus > 1 else "",
                     f"{100 * result['share_of_gemm_limit']:.0f}%",
                     f"{result['step_seconds']['median']:.3f}, {result['expected']['step_seconds']:.3f}",
                     f"{result['overlap']['efficiency']:.3f}", ", ".join(f"{k} {v:.2f}" for k, v in waits.items()),
                     f"{difference(result, 'device_bytes')}, {difference(result, 'host_bytes')}"]
            print("| " + " | ".join(cells) + " |", flush=True)
            one = each if gpus == 1 else one


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["check", "steps"])
    p.add_argument("--superoffload", default="build/bin/superoffload")
    p.add_argument("--gpus", type=int, default=2)
    p.add_argument("--limit", type=float, default=300, help="seconds after which a run is ended")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="of check")
    p.add_argument("--fixtures", default="tests/fixtures/models", help="of check")
    p.add_argument("--model", default="qwen3-tied", help="of check: one of the fixtures")
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--only", default="", help="of steps: settings whose model has this in its name")
    p.add_argument("--several_only", action="store_true", help="of steps: no setting runs on one GPU")
    # argparse takes what is behind "--" only where no option is before it.
    dashes = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    a = p.parse_args(sys.argv[1:dashes])
    a.also = sys.argv[dashes + 1:]
    check(a) if a.what == "check" else steps(a)


if __name__ == "__main__":
    main()
