#!/usr/bin/env python3
"""Plans of two programs beside each other, without a GPU: whether they chose alike, how long the planned step is, and how
long planning took.

    bench/compare_plans.py --before OLD/superoffload --after build/bin/superoffload --out plans.jsonl
    bench/compare_plans.py ... --hardware h200 h100-sxm --settings fp32 bf16 fp32-micro4    # a part of the grid

Every model of configs/models is planned for every machine of configs/hardware. Results are appended to --out as they
come, a JSON object a line, by the name of the program's file and its checksum, so that a comparison can go on in
another call and the program from before need not plan twice. Ends with 1 if a step became longer by more than
--tolerance.
"""

import argparse
import hashlib
import json
import pathlib
import resource
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTINGS = {
    "fp32": [],
    "bf16": ["--optimizer_state_dtype", "bf16"],
    "fp32-micro4": ["--gradient_accumulation_steps", "4"],
    "bf16-micro4": ["--optimizer_state_dtype", "bf16", "--gradient_accumulation_steps", "4"],
    "short": ["--batch_size", "1", "--max_length", "2048"],
}


def names(folder):
    return sorted(path.stem for path in (ROOT / "configs" / folder).glob("*.json"))


def without_memory_of_the_process(plan):
    """What the program has taken before it plans differs from run to run."""
    if isinstance(plan, dict):
        return {key: without_memory_of_the_process(value) for key, value in plan.items() if key != "host_memory"}
    if isinstance(plan, list):
        return [without_memory_of_the_process(v) for v in plan
                if not (isinstance(v, dict) and v.get("name") == "program and data so far")]
    return plan


def plan(program, words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run([program, "plan", "--json", *words], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    record = {"cpu_seconds": round(after.ru_utime - before.ru_utime, 3)}
    if run.returncode == 0:
        record["plan"] = without_memory_of_the_process(json.loads(run.stdout))
    elif run.returncode == 2:
        record["refused"] = run.stderr.strip()
    else:
        sys.exit(f"{program} plan {' '.join(words)} ended with {run.returncode}:\n{run.stderr}")
    return record


class Plans:
    def __init__(self, out):
        self.out, self.records = pathlib.Path(out), {}
        if self.out.exists():
            for line in self.out.read_text().splitlines():
                record = json.loads(line)
                self.records[record["program"], record["setting"]] = record

    def of(self, program, words):
        key = (hashlib.sha256(pathlib.Path(program).read_bytes()).hexdigest()[:16], " ".join(words))
        if key not in self.records:
            self.records[key] = {"program": key[0], "setting": key[1], **plan(program, words)}
            with self.out.open("a") as out:
                out.write(json.dumps(self.records[key]) + "\n")
        return self.records[key]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="the program to compare with")
    parser.add_argument("--after", help="the program that is compared; none: only what is before is recorded")
    parser.add_argument("--out", default="plans.jsonl")
    parser.add_argument("--models", nargs="+", default=names("models"))
    parser.add_argument("--hardware", nargs="+", default=names("hardware"))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["fp32"])
    parser.add_argument("--tolerance", type=float, default=0.01, help="by which part a step may become longer")
    parser.add_argument("--changes", action="store_true", help="print every setting whose step changed")
    a = parser.parse_args()

    plans = Plans(a.out)
    count = equal = refused = 0
    seconds = [0.0, 0.0]
    changes = []
    for setting in a.settings:
        for model in a.models:
            for hardware in a.hardware:
                words = ["--model", model, "--hardware", hardware, *SETTINGS[setting]]
                before = plans.of(a.before, words)
                if not a.after:
                    continue
                after = plans.of(a.after, words)
                count += 1
                seconds[0] += before["cpu_seconds"]
                seconds[1] += after["cpu_seconds"]
                if "plan" not in before or "plan" not in after:
                    refused += 1
                    if ("plan" in before) != ("plan" in after):
                        fits = "after" if "plan" in after else "before"
                        changes.append((0 if fits == "after" else 9, " ".join(words), f"fits only {fits}"))
                    continue
                steps = [record["plan"]["expected"]["step_seconds"] for record in (before, after)]
                if before["plan"] == after["plan"]:
                    equal += 1
                else:
                    changes.append((steps[1] / steps[0] - 1, " ".join(words), f"{steps[0]:.4f} -> {steps[1]:.4f} s"))
    if not a.after:
        return 0
    changes.sort()
    for part, words, what in changes:
        if a.changes or part > a.tolerance:
            print(f"{100 * part:+7.2f}%  {what}  {words}")
    worse = [change for change in changes if change[0] > a.tolerance]
    print(f"{count} settings: {equal} equal plans, {refused} refused by both or one, {len(changes)} different; "
          f"{len(worse)} longer by more than {100 * a.tolerance:g}%")
    if changes:
        print(f"steps from {100 * changes[0][0]:+.2f}% to {100 * changes[-1][0]:+.2f}%")
    print(f"planning took {seconds[0]:.1f} s of CPU before, {seconds[1]:.1f} s after: "
          f"{seconds[0] / max(seconds[1], 1e-3):.2f} times as fast")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
