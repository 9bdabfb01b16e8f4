#!/usr/bin/env python3
"""Records what a built superoffload does, so that the programs of two commits can be compared.

A change that should change nothing (files move, a class is split) is checked with it before it lands:

  scripts/record_behaviour.py --binary OLD/build/bin/superoffload --output before
  scripts/record_behaviour.py --binary build/bin/superoffload --output after
  scripts/record_behaviour.py --compare before after

scripts/behaviour/cases.py has the table of what is run: short trainings of every fixture model under every schedule,
split, precision and way of keeping activations, checkpoints and resumed runs, DeepSpeed files and recipes, plans of all
presets on all known machines, the other commands, help texts and refusals. Of each case the recording has exit codes,
what was printed, losses and gradient norms to the last digit, and the size and SHA-256 of every file that was written.
Times, rates, paths, and the memory of this process and machine are left out (scripts/behaviour/recording.py has the
list); the rest must be the same every time. Plans are made for machines of the table, never for this one.

--compare names each difference (case, file, field, both values), at most three of a kind unless --all is given, and
exits with 1 if there is any. Where a change of behaviour is meant, its commit says which differences it brings. Both
sides should be recorded by the same version of this script on the same machine: other processors round otherwise.
When options change their names, cases.py changes with them; the names of the cases stay, so that old recordings can
still be compared. --only takes a pattern, as "train: qwen3-tied*".

--numbers compares what trainings computed and nothing else, of cases that both programs ran to their end: losses,
gradient norms and tensors. So a commit can be compared with one that is much older, which prints and records other
things beside, and refuses options that it does not know.

Which updates run ahead of the gradient norm is chosen from measured times, so no case can ask for it; the cases with
little host memory (group "squeezed") leave room for some or none.

Needs Python 3.9 and nothing else; a few minutes on two cores. With --device cuda it takes a build with CUDA and a GPU.
"""
import argparse
import json
import pathlib
import sys
import tempfile
import time

from behaviour import cases, comparing, recording, unrolled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, help="the program whose behaviour is recorded")
    parser.add_argument("--output", type=pathlib.Path, help="directory to write, one file a group of cases")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--compare", type=pathlib.Path, nargs=2, metavar="DIR")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="only the cases whose GROUP: NAME matches; "
                        "may be given several times")
    parser.add_argument("--all", action="store_true", help="show every difference, whole")
    parser.add_argument("--numbers", action="store_true", help="compare losses, gradient norms and tensors alone")
    arguments = parser.parse_args()
    if arguments.compare:
        sys.exit(compare(*arguments.compare, arguments))
    if not arguments.binary or not arguments.output:
        parser.error("give --binary and --output, or --compare")
    record(arguments)


def record(arguments):
    if arguments.output.exists() and any(arguments.output.iterdir()):
        sys.exit(f"{arguments.output} is not empty; name another --output")
    began = time.monotonic()
    shared_memory = pathlib.Path("/dev/shm")  # the program waits for disks; what they hold does not matter here
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as scratch:
        recorder = recording.Recorder(arguments.binary, arguments.device, pathlib.Path(scratch))
        models = recorder.lay_out(cases.TEXTS)
        wanted = [case for case in unrolled.all_cases(models, arguments.device)
                  if comparing.matches(f"{case[0]}: {case[1]}", arguments.only)]
        found = recorder.record(wanted, arguments.jobs)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for group, seen in found.items():
        lines = [f"{json.dumps(name)}: {json.dumps(case, sort_keys=True)}" for name, case in seen.items()]
        (arguments.output / f"{group}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    codes = [step["exit"] for seen in found.values() for case in seen.values() for step in case["steps"]]
    told = ", ".join(f"{codes.count(code)} x {code}" for code in sorted(set(codes), key=str))
    print(f"{len(wanted)} cases in {time.monotonic() - began:.0f} s; exit codes: {told}")


def compare(one, other, arguments):
    sides = []
    for place in (one, other):
        files = sorted(place.glob("*.json"))
        if not files:
            sys.exit(f"{place} holds no recording")
        sides.append({file.stem: json.loads(file.read_text()) for file in files})
    if arguments.numbers:
        *sides, alone = comparing.keep_numbers(*sides)
        print(f"{alone} cases ran to their end with one of the programs only")
    differing, total = comparing.compare(*sides, arguments.only, arguments.all)
    print(f"{differing} of {total} cases differ" if differing else f"equal: {total} cases")
    return 1 if differing else 0


if __name__ == "__main__":
    main()
