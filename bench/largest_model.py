#!/usr/bin/env python3
"""The largest dense model that a machine can train, by `superoffload plan`: layers are added to a known shape until no
plan fits, and taken away again by halves. Needs no GPU.

    bench/largest_model.py [--hardware h200] [--shape qwen3-14b] [--batch_size 1] [--max_length 4096]

Prints, for moments in fp32, bf16 and fp8: layers, parameters, where the state is, tokens/s, and the memory that is left.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile


def plan(a, folder, config, layers, moments):
    """The plan for so many layers; None if it does not fit."""
    config = dict(config, num_hidden_layers=layers)
    if "layer_types" in config:
        config["layer_types"] = [config["layer_types"][0]] * layers
    path = pathlib.Path(folder) / "config.json"
    path.write_text(json.dumps(config))
    done = subprocess.run([a.superoffload, "plan", "--model", str(path), "--hardware", a.hardware, "--batch_size",
                           str(a.batch_size), "--max_length", str(a.max_length), "--optimizer_state_dtype", moments,
                           "--json"], capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)
    if "not enough" not in done.stderr:
        sys.exit("error: " + done.stderr.strip())
    return None


def largest(a, folder, config, moments):
    low, best = 0, None  # layers that fit
    high = 1
    while (found := plan(a, folder, config, high, moments)) is not None:
        low, best, high = high, found, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        found = plan(a, folder, config, middle, moments)
        if found is None:
            high = middle
        else:
            low, best = middle, found
    return low, best


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--superoffload", default="build/bin/superoffload")
    p.add_argument("--hardware", default="h200")
    p.add_argument("--shape", default="qwen3-14b", help="a preset, whose layers are repeated")
    p.add_argument("--batch_size", type=int, default=1)
    p.add_argument("--max_length", type=int, default=4096)
    a = p.parse_args()
    presets = pathlib.Path(__file__).resolve().parent.parent / "configs" / "models"
    config = json.loads((presets / f"{a.shape}.json").read_text())
    print("| moments | layers | parameters | state on the host | step | GPU memory | host memory |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for moments in ("fp32", "bf16", "fp8"):
            layers, best = largest(a, folder, config, moments)
            if best is None:
                print(f"| {moments} | none fits | | | | | |")
                continue
            memory = [f"{best[k]['planned_bytes'] / 1e9:.1f} of {best[k]['available_bytes'] / 1e9:.1f} GB"
                      for k in ("device_memory", "host_memory")]
            e = best["expected"]
            print(f"| {moments} | {layers} | {best['parameters'] / 1e9:.1f} billion | {100 * best['host_share']:.0f}% | "
                  f"{e['step_seconds']:.2f} s, {e['tokens_per_s']:.0f} tokens/s | {memory[0]} | {memory[1]} |")


if __name__ == "__main__":
    main()
