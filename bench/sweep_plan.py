#!/usr/bin/env python3
"""What is planned beside what comes, over many settings, on the machine it runs on; and the plan that is chosen beside a
sweep by hand.

    bench/sweep_plan.py                              # models and shapes: predicted and measured step and peaks
    bench/sweep_plan.py --hand_sweep qwen3-14b       # ratio, recomputation, micro-batch: what was chosen against the best

Each setting is a run of `superoffload bench step` in a process of its own. Results are appended to --out as they come, a
JSON object a line, and what was measured or refused is not tried again, so that a sweep can go on in another
call; --budget seconds end one. A refusal is a result too. Tables are Markdown.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import time

BF16_MOMENTS = ["--optimizer_state_dtype", "bf16"]
# Model, rows, tokens a row, more options. The dearest to load come last.
SETTINGS = [
    ("qwen3-4b", 1, 2048, []),
    ("qwen3-4b", 4, 4096, []),
    ("qwen3-4b", 8, 4096, []),
    ("qwen3-4b", 1, 32768, []),
    ("llama-3.1-8b", 1, 2048, []),
    ("llama-3.1-8b", 4, 4096, []),
    ("llama-3.1-8b", 8, 4096, []),
    ("llama-3.1-8b", 1, 32768, []),
    ("gpt-oss-20b", 1, 2048, BF16_MOMENTS),
    ("gpt-oss-20b", 4, 4096, BF16_MOMENTS),
    ("phi-4", 1, 2048, []),
    ("phi-4", 4, 4096, []),
    ("qwen3-14b", 1, 2048, []),
    ("qwen3-14b", 4, 4096, []),
    ("qwen3-14b", 8, 4096, []),
    ("qwen3-14b", 1, 32768, []),
]
RATIOS = [0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]
FIGURES = ["step_seconds", "device_bytes", "pinned_bytes", "host_bytes"]


def words(config, rows, length, more):
    return ["--config", config, "--batch_size", str(rows), "--max_length", str(length), *more]


class Sweep:
    """Runs settings, given as the options of bench step, and keeps their records by those options."""

    def __init__(self, a):
        self.a, self.start, self.walls = a, time.monotonic(), []
        self.out = pathlib.Path(a.out)
        self.records = {}
        if self.out.exists():
            for line in self.out.read_text().splitlines():
                record = json.loads(line)
                if "failed" not in record:
                    self.records[" ".join(record["setting"])] = record

    def left(self):
        return self.a.budget - (time.monotonic() - self.start)

    def run(self, setting):
        """The setting's record, or None if there is no time for it."""
        key = " ".join(setting)
        if key in self.records:
            return self.records[key]
        usual = sorted(self.walls)[len(self.walls) // 2] if self.walls else self.a.usual
        if self.left() < usual:
            return None
        command = [self.a.superoffload, "bench", "step", *setting, "--steps", str(self.a.steps), "--warmup",
                   str(self.a.warmup), "--max_grad_norm", "1e6", "--breakdown", "false", "--json", *self.a.also]
        began = time.monotonic()
        record = {"setting": setting}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(1, self.left()))
            if done.returncode == 0:
                record["result"] = json.loads(done.stdout.splitlines()[-1])
            else:
                said = done.stderr.strip().splitlines() or ["nothing said"]
                reasons = [line for line in said if "not enough" in line]
                record["refused" if done.returncode == 2 else "failed"] = (reasons or said[-1:])[0]
        except subprocess.TimeoutExpired:
            return None
        except (json.JSONDecodeError, IndexError):
            record["failed"] = "no result in its output"
        record["wall_seconds"] = round(time.monotonic() - began, 1)
        if "result" in record:
            self.walls.append(record["wall_seconds"])
        print(f"{record['wall_seconds']:6.1f} s  {key}  {brief(record)}", file=sys.stderr, flush=True)
        with self.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.records[key] = record
        return record


def brief(record):
    if "result" not in record:
        return record.get("refused") or "FAILED: " + record["failed"]
    summary = record["result"]["summary"]
    return " ".join(f"{f} {100 * summary[f]['difference']:+.1f}%" for f in FIGURES if difference(record, f) is not None)


def difference(record, figure):
    entry = record["result"]["summary"].get(figure)
    return entry["difference"] if entry and entry["difference"] is not None else None


def cell(record, figure):
    entry = record["result"]["summary"].get(figure)
    if not entry:
        return ["", "", ""]
    scale, digits = (1, 3) if figure == "step_seconds" else (1e9, 1)
    change = difference(record, figure)
    return [f"{entry['planned'] / scale:.{digits}f}", f"{entry['measured'] / scale:.{digits}f}",
            "" if change is None else f"{100 * change:+.1f}%"]


def markdown(head, rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def name_of(setting):
    """`--config phi-4 --batch_size 4 --max_length 4096 ...` for a table."""
    rest = " ".join(setting[6:]).replace("--", "")
    return f"{setting[1]}, {setting[3]} x {setting[5]}" + (f", {rest}" if rest else "")


def compare(sweep, settings):
    rows, skipped, worst = [], [], {}
    for setting in settings:
        record = sweep.run(setting)
        if record is None:
            skipped.append(name_of(setting))
            continue
        if "result" not in record:
            rows.append([name_of(setting), brief(record)] + [""] * 11)
            continue
        rows.append([name_of(setting), *sum((cell(record, f) for f in FIGURES), [])])
        for f in FIGURES:
            change = difference(record, f)
            if change is not None and abs(change) > abs(worst.get(f, (0, ""))[0]):
                worst[f] = (change, name_of(setting))
    head = ["setting"] + [f"{what} {how}" for what in ("step (s)", "device (GB)", "pinned (GB)", "host (GB)")
                          for how in ("planned", "measured", "")]
    print(markdown([h.strip() for h in head], rows))
    print()
    for f, (change, name) in worst.items():
        print(f"worst {f}: {100 * change:+.1f}% ({name})")
    if skipped:
        print(f"no time for {len(skipped)}: " + "; ".join(skipped))


def planned_seconds(sweep, setting, more):
    """By `superoffload plan`, which needs no GPU; None: it does not fit, or is no plan."""
    command = [sweep.a.superoffload, "plan", "--model", *setting[1:], "--hardware", sweep.a.hardware, "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout)["expected"]["step_seconds"] if done.returncode == 0 else None


def hand_sweep(sweep, model):
    a = sweep.a
    base = next((s for s in SETTINGS if s[0] == model), (model, 4, 4096, []))[3]
    splits = [(a.rows // n, n) for n in (1, 2, 4, 8) if a.rows % n == 0]

    def setting(rows, micro_batches, more):
        accumulate = ["--gradient_accumulation_steps", str(micro_batches)] if micro_batches > 1 else []
        return words(model, rows, a.length, base + accumulate + more)

    chosen = setting(a.rows, 1, [])
    grid = [setting(rows, n, [*(["--offload_ratio", str(r)] if r is not None else []),
                              *(["--activation_checkpointing", c] if c != "auto" else [])])
            for rows, n in splits for c in ("auto", "true", "false") for r in [None, *RATIOS]]
    grid.remove(chosen)
    # Those that the plan expects to be far slower are left out; what it refuses too, since bench step would.
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        expected = list(pool.map(lambda s: planned_seconds(sweep, s, []), [chosen, *grid]))
    if expected[0] is None:
        sys.exit(f"error: {model} does not fit {a.hardware} at {a.rows} x {a.length}")
    near = sorted((e, s) for e, s in zip(expected[1:], grid) if e is not None and e <= a.prune * expected[0])
    refused = sum(e is None for e in expected)
    print(f"{len(grid)} settings, {refused} refused by the plan, {len(grid) - refused - len(near)} planned to take more "
          f"than {a.prune} times {expected[0]:.3f} s", file=sys.stderr)
    measured, skipped = [], 0
    for e, s in [(expected[0], chosen), *near]:
        record = sweep.run(s)
        if record is None:
            skipped += 1
        elif "result" in record:
            measured.append((record["result"]["step_seconds"]["median"], s, record))
    if not measured or measured[0][1] != chosen:
        sys.exit("error: the chosen plan was not measured")
    first, best = measured[0], min(measured, key=lambda m: m[0])
    rows = [[name_of(s) + (" **(chosen)**" if s == chosen else ""), f"{seconds:.3f}",
             f"{100 * (seconds / best[0] - 1):+.1f}%", f"{100 * record['result']['host_share']:.1f}%",
             record["result"]["keep"]] for seconds, s, record in sorted(measured, key=lambda m: m[0])]
    print(markdown(["setting", "step (s)", "beyond the best", "state on the host", "kept"], rows))
    print(f"\nchosen {first[0]:.3f} s, best {best[0]:.3f} s: {first[0] / best[0]:.4f} times")
    if skipped:
        print(f"no time for {skipped} more")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--superoffload", default="build/bin/superoffload")
    p.add_argument("--out", default="sweep.jsonl", help="records; those in it are not measured again")
    p.add_argument("--budget", type=float, default=1e6, help="seconds")
    p.add_argument("--usual", type=float, default=25, help="seconds a setting takes, until some were measured")
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--warmup", type=int, default=4)
    p.add_argument("--only", default="", help="settings whose name has this, e.g. 'qwen3-14b, 4'")
    p.add_argument("--hand_sweep", metavar="MODEL")
    p.add_argument("--rows", type=int, default=4, help="of the hand sweep, a step")
    p.add_argument("--length", type=int, default=4096)
    p.add_argument("--hardware", default="h200", help="of the hand sweep: what `plan` leaves settings out by")
    p.add_argument("--prune", type=float, default=1.25, help="settings planned to take so many times the chosen one's")
    p.add_argument("--jobs", type=int, default=8, help="plans made at once")
    p.add_argument("also", nargs="*", help="options for every bench step, after --")
    a = p.parse_args()
    sweep = Sweep(a)
    if a.hand_sweep:
        hand_sweep(sweep, a.hand_sweep)
    else:
        settings = [words(*s) for s in SETTINGS]
        compare(sweep, [s for s in settings if a.only in name_of(s)])


if __name__ == "__main__":
    main()
